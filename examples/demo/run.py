"""The main job, end to end: start it, kill it, watch it recover, judge what it delivered."""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

import clonos
from clonos import RunningJob
from clonos.spark.session import get_or_create
from examples.demo import show
from examples.demo.job import build
from examples.demo.kills import DEFAULT, KINDS, Kill, Killer
from examples.demo.plot import Kill as KillMark
from examples.demo.plot import plot
from examples.demo.process import LOOPBACK, ServerProcess
from examples.demo.text import load_text
from examples.demo.timeline import ProgressView
from examples.demo.verdict import OUTPUT_SCHEMA, Verdict, verdict


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the demo."""
    add = parser.add_argument
    add("--master", default=None, help="Spark master (default: local[as many slots as needed])")
    add("--source", choices=("dataframe", "socket", "files"), default="dataframe")
    add("--input", default=None, help="a text file (default: two novels, 1.6 MB)")
    add("--repeat", type=int, default=2, help="how often the text is read")
    add("--rate", type=float, default=2000.0, help="lines per second; 0: as fast as it goes")
    add("--kill", nargs="*", choices=KINDS, default=list(DEFAULT), help="what is killed, in turn")
    add("--pause", type=float, default=3.0, help="seconds of quiet before each kill")
    add("--parallelism", type=int, default=2)
    add("--standbys", type=int, default=1)
    add("--sharing-depth", default="1", help='0, 1, ... or "full"')
    add("--window", default="5 seconds")
    add("--checkpoint-dir", default=None, help="keep checkpoints here; the same command resumes")
    add("--out", default="out/demo", help="where the output, the picture and the report go")
    add(
        "--without-causal-log",
        action="store_true",
        help="the same with the log off: see the verdict fail",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the demo; 0 if the verdict is as it should be."""
    console = Console()
    out = Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)
    lines = load_text(arguments.input)
    text = _write_text(out / "input.txt", lines, arguments.repeat)
    journal = out / "service-journal.jsonl"
    journal.unlink(missing_ok=True)
    with ServerProcess("examples.demo.service", ["--journal", str(journal)]) as service:
        console.print(f"service at {service.url}, its journal in {journal}")
        servers: list[ServerProcess] = []
        try:
            source, servers = _source(arguments, text)
            spark, job, samples, kills = _run_job(arguments, console, source, service.url, out)
        finally:
            for server in servers:
                server.stop()
    output = spark.read.schema(OUTPUT_SCHEMA).parquet(str(out / "output.parquet"))
    console.print("\ncomputing the verdict from output, input and the service's journal ...")
    judged = verdict(spark, output, lines, arguments.repeat, journal)
    console.print(judged.table())
    _report(out, job, samples, kills, judged)
    return _conclude(console, arguments, judged)


def _conclude(console: Console, arguments: argparse.Namespace, judged: Verdict) -> int:
    if arguments.without_causal_log:
        said = "as expected without a log: " if not judged.ok else "lucky this time: "
        console.print(said + ("faults were found" if not judged.ok else "no fault was found"))
        return 0
    if judged.ok:
        console.print("[bold green]nothing lost, nothing repeated, nothing changed")
        return 0
    console.print("[bold red]exactly-once is broken")
    return 1


def _write_text(path: Path, lines: Sequence[str], repeat: int) -> Path:
    """The input of the job: numbered lines, so that each occurrence of a word has a name."""
    with path.open("w", encoding="utf-8") as file:
        for number, line in enumerate(
            itertools.chain.from_iterable(itertools.repeat(lines, repeat))
        ):
            file.write(f"{number}\t{line}\n")
    return path


def _source(arguments: argparse.Namespace, text: Path) -> tuple[Any, list[ServerProcess]]:
    """The source, and the servers that it needs; None stands for a DataFrame of the text."""
    if arguments.source == "files":
        return clonos.sources.files(str(text), format="text"), []
    if arguments.source == "socket":
        server = ServerProcess("examples.demo.lines", [str(text)])
        return clonos.sources.socket_lines(LOOPBACK, server.port, resume=True), [server]
    return None, []


def _run_job(
    arguments: argparse.Namespace, console: Console, source: Any, url: str, out: Path
) -> tuple[Any, RunningJob, list[Any], list[Kill]]:
    written = out / "output.parquet"
    depth = arguments.sharing_depth
    # How many slots are needed depends on the graph, but a DataFrame needs a session first.
    session = None if arguments.master is None else get_or_create(arguments.master, "demo")
    if session is None:
        session = get_or_create(f"local[{_slots(arguments)}]", "demo")
    session.range(1).count()  # Spark's own start belongs to no measurement
    frame = dataframe(session, out / "input.txt")
    if source is None:
        _explain(console, "rows come out of this plan of Spark's, one slot per partition", frame)

    def write(df: Any) -> None:
        _explain(console, "delivered rows go back into this plan of Spark's", df)
        df.write.mode("overwrite").parquet(str(written))

    job = build(
        frame if source is None else source,
        url,
        causal_log=not arguments.without_causal_log,
        parallelism=arguments.parallelism,
        standbys=arguments.standbys,
        sharing_depth=depth if depth == "full" else int(depth),
        window=arguments.window,
        rows_per_second=arguments.rate or None,
        checkpoint_dir=arguments.checkpoint_dir,
        sink=clonos.sinks.spark_write(write),
    )
    running = job.start(session)
    samples: list[Any] = []
    running.observer.samplers += (samples.append,)
    if session.sparkContext.uiWebUrl:
        console.print(f"Spark's UI: {session.sparkContext.uiWebUrl}")
    kills = _watch(arguments, console, running)
    running.wait(60)
    return session, running, samples, kills


def dataframe(session: Any, text: Path) -> Any:
    """The lines as a Spark plan; its rows come into the job out of Spark's own tasks."""
    from pyspark.sql import functions as sf

    # A column, not SQL's text: that would take the pattern's backslashes for its own.
    return session.read.text(str(text)).where(sf.col("value").rlike(r"\t.*\S"))


def _explain(console: Console, title: str, frame: Any) -> None:
    """What ``explain()`` says of a DataFrame at one end of the job."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        frame.explain()
    console.print(f"{title}:")
    console.print(said.getvalue().strip(), markup=False, highlight=False, style="dim")


def _slots(arguments: argparse.Namespace) -> int:
    """Slots of the demo's graph: a DataFrame's tasks have slots of their own."""
    stand_in = clonos.sources.from_batches([[("",)]], schema="value string")
    job = build(stand_in, "", parallelism=arguments.parallelism, standbys=arguments.standbys)
    bound: int = arguments.parallelism * (1 + arguments.standbys)
    return job.cores() + bound


def _watch(arguments: argparse.Namespace, console: Console, job: RunningJob) -> list[Kill]:
    """Show progress and kill, until the job has ended."""

    def told(kill: Kill) -> None:
        pids = ", ".join(str(pid) for pid in kill.pids)
        console.print(f"[bold red]kill -9 {pids}[/] ({kill.kind}: {', '.join(kill.tasks)})")

    killer = Killer(job, arguments.kill, arguments.pause, told)
    with ProgressView(console) as view:
        while job.is_running:
            killer.look()
            view.update(show.progress(job, killer.done, "wordcount"))
            time.sleep(0.05)
        view.update(show.progress(job, killer.done, "wordcount"))
    return killer.done


def _report(
    out: Path, job: RunningJob, samples: Sequence[Any], kills: Sequence[Kill], judged: Verdict
) -> None:
    """Write picture and figures."""
    if not samples:
        return
    start_s = samples[0].at_s
    offset = time.time() - time.monotonic() - start_s
    recoveries = job.observer.recoveries
    marks = []
    for kill in kills:
        ends = [
            r.stages["live"]
            for r in recoveries
            if r.finished and r.name in kill.tasks and r.stages["live"] > kill.at_s
        ]
        # A standby's death interrupts nothing.
        live = kill.at_s if kill.kind == "standby" else min(ends, default=None)
        marks.append(
            KillMark(kill.at_s + offset, kill.kind, None if live is None else live + offset)
        )
    steps = show.steps(job, "count", samples, start_s)
    png, svg = plot(steps, marks, out / "recovery", "wordcount")
    report = {
        "verdict": asdict(judged),
        "recoveries": [
            {"task": r.name, "log_length": r.log_length, "ms": r.milliseconds()} for r in recoveries
        ],
        "kills": [{"kind": k.kind, "tasks": k.tasks} for k in kills],
        "pictures": [str(png), str(svg)],
    }
    (out / "report.json").write_text(json.dumps(report, indent=2, default=str))
    Console().print(f"picture: {png}\nreport: {out / 'report.json'}")
