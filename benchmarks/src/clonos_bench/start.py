"""How long it takes from ``python hello.py`` to the result, and from a session to a job that lives.

The first program is the README's; beside it a program counts the same words with Spark alone. Each
run is a process of its own, and the two take turns. Then a job of twelve tasks with standbys starts
on a cluster of three executors.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from typing import Any, Final

from clonos.errors import ClonosError
from clonos_bench import jobs, run
from clonos_bench.processes import cpu_seconds
from clonos_bench.report import Aim, Report
from clonos_bench.statistics import summarize

HELLO: Final = Aim(5.0)
"""Seconds more than Spark alone takes for the same result."""
LIVE: Final = Aim(6.0)
"""Seconds."""
SLOT: Final = Aim(0.5)
"""CPU seconds."""
CLUSTER: Final = "local-cluster[3,10,1024]"
WORDS: Final = {"to": 2, "be": 2, "or": 1, "not": 1}
WAIT_S: Final = 300.0

_OURS, _SPARK, _DEEP = "clonos", "Spark alone", "deep"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``clonos-bench start``."""
    run.report_arguments(parser)
    add = parser.add_argument
    add("--rounds", type=int, default=5, help="runs of each program")


def measure(arguments: argparse.Namespace) -> Report:
    """All programs in turn."""
    columns = ["seconds", "runs", "min", "median", "max", "target"]
    report = Report("start", "From nothing to a job that lives", columns)
    found: dict[str, list[list[float]]] = {}
    for _ in range(arguments.rounds):
        for program in (_OURS, _SPARK, _DEEP):
            found.setdefault(program, []).append(_timed(program))
    ours, spark = ([total for total, _ in found[program]] for program in (_OURS, _SPARK))
    more = [a - b for a, b in zip(ours, spark, strict=True)]
    _add(report, f"`python hello.py`, to its result: {_OURS}", ours)
    _add(report, f"the same words: {_SPARK}", spark)
    _add(report, "the difference", more, HELLO)
    for program in (_OURS, _SPARK):
        times = [after for _, after in found[program]]
        _add(report, f"of that, after the session is there: {program}", times)
    live, cpu = zip(*found[_DEEP], strict=True)
    _add(report, f"12 tasks with standbys live, on {CLUSTER}, from the session", live, LIVE)
    _add(report, "CPU of a slot until then, its tasks included", cpu, SLOT)
    report.data = {"seconds": found}
    return report


def _add(report: Report, what: str, values: Any, aim: Aim | None = None) -> None:
    three = min(values), summarize(values).p50, max(values)
    judged = f"{aim}: {aim.judge(three[1])}" if aim else ""
    report.add(what, str(len(values)), *(f"{x:.2f}" for x in three), judged)


def _timed(program: str) -> list[float]:
    """What a program says, its own time since it was started put first (but for the deep job)."""
    began = time.time()
    done = subprocess.run(
        [sys.executable, "-m", "clonos_bench.start", program],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    said = [line for line in done.stdout.splitlines() if line.startswith("said ")]
    if done.returncode or not said:
        raise ClonosError(f"{program} has not come to its end: {done.stderr[-2000:]}")
    first, second = map(float, said[-1].split()[1:])
    return [first, second] if program == _DEEP else [second - began, second - first]


# --- the programs, each in a process of its own ---------------------------------------------------


def _hello() -> tuple[float, float]:
    import clonos
    from clonos.spark.session import get_or_create

    spark = get_or_create("local[8]")
    ready = time.time()
    job = clonos.Job("hello", parallelism=1, standbys=1)
    lines = job.source(spark.createDataFrame([("to be or not to be",)], "value string"))
    words = lines.flat_map(lambda row: [(w,) for w in row.value.split()], schema="word string")
    counts = words.key_by("word").window(clonos.tumbling("5 seconds")).agg(n=clonos.count())
    counts.sink(clonos.sinks.collect())
    _require(job.run(spark).table().select(["word", "n"]).to_pandas())
    return ready, time.time()


def _spark_alone() -> tuple[float, float]:
    from clonos.spark.session import get_or_create

    spark = get_or_create("local[8]")
    ready = time.time()
    from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

    split = F.udf(str.split, "array<string>")
    lines = spark.createDataFrame([("to be or not to be",)], "value string")
    words = lines.select(F.explode(split("value")).alias("word"))
    _require(words.groupBy("word").agg(F.count("*").alias("n")).toPandas())
    return ready, time.time()


def _require(found: Any) -> None:
    if dict(zip(found["word"], found["n"], strict=True)) != WORDS:
        raise ClonosError(f"other words were counted: {found}")


def _deep() -> tuple[float, float]:
    """Seconds until all live, and the CPU of a slot by then."""
    with run.session(CLUSTER) as spark, run.paced(1000.0) as schedule:
        job = jobs.stateful(jobs.paced(schedule), keys=100, value_bytes=100, parallelism=3)
        began = time.monotonic()
        with run.running(job, spark, schedule) as (running, watch):
            run.until(running, watch, lambda: run.all_live(running), WAIT_S, "all tasks live")
            live_s = time.monotonic() - began
            used = [cpu_seconds(slot.pid) or 0.0 for slot in running.slots()]
            if len(running.tasks()) != 12:
                raise ClonosError(f"the job has {len(running.tasks())} tasks")
    return live_s, sum(used) / len(used)


if __name__ == "__main__":
    programs = {_OURS: _hello, _SPARK: _spark_alone, _DEEP: _deep}
    print("said", *programs[sys.argv[1]](), flush=True)
