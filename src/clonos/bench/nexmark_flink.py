"""Nexmark in Flink, beside ours: SQL, and functions in Python with PyFlink.

Both are given the same events, made by their sources as they are read, and drop their results where
they come out. Runs alternate, query by query, round after round, and are measured from when the
sources begin until the sinks have ended; a virtual machine of Flink's runs all queries, each once
before it counts. CPU time is that of all processes with all their threads: compiler, garbage
collector and Python workers there, slots and driver here.

Flink's settings are in :mod:`clonos.bench.flink.process`, its SQL in :mod:`clonos.bench.flink.sql`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import clonos
from clonos.bench import run
from clonos.bench.flink import functions, sql
from clonos.bench.flink.process import (
    DEFAULT_PYTHON,
    SETTINGS,
    Installation,
    Peer,
    Ran,
    options,
)
from clonos.bench.gates import gated, timed
from clonos.bench.nexmark_functions import CASES
from clonos.bench.nexmark_overhead import VARIANTS, Query, count_results
from clonos.bench.report import Report
from clonos.bench.statistics import percentile
from clonos.errors import ClonosError
from clonos.nexmark import events
from clonos.nexmark.queries import Auctions

SHARES: Final[Mapping[str, float]] = {"4": 0.2, "6": 0.2, "9": 0.2, "11": 0.5, "14": 0.2}
"""Of the events, for queries that take long."""

_FUNCTION_SHARE: Final = 0.1
_WARM_SHARE: Final = 0.1
_COLUMNS: Final = ("", "ours, events/s", "CPU", "Flink, events/s", "CPU", "times as fast")
_COUNTED: Final = "bidder BIGINT, auction BIGINT, nth BIGINT"


@dataclass(frozen=True)
class Way:
    """A function in PyFlink: which, how, and where Python runs. ``ours``: of CASES."""

    ours: str
    case: str
    way: str
    mode: str

    def job(self, count: int) -> str:
        """For :mod:`clonos.bench.flink.functions`."""
        columns = _COUNTED if self.case == "state" else sql.QUERIES["0"][0]
        return json.dumps(
            {
                "case": self.case,
                "way": self.way,
                "mode": self.mode,
                "tables": sql.tables(columns, count),
            }
        )


WAYS: Final[Mapping[str, Way]] = {
    "q1 by value; udf": Way("q1 by value", "q1", "row", "process"),
    "q1 by batch; pandas udf": Way("q1 by batch", "q1", "pandas", "process"),
    "q1 by value; udf, thread mode": Way("q1 by value", "q1", "row", "thread"),
    "q13 by value; udf": Way("q13 by value", "q13", "row", "process"),
    "q13 by value; udf, thread mode": Way("q13 by value", "q13", "row", "thread"),
    "q13 by batch; pandas udf": Way("q13 by batch", "q13", "pandas", "process"),
    "state by row; KeyedProcessFunction": Way("state by row", "state", "row", "process"),
    "state by row; KeyedProcessFunction, thread mode": Way(
        "state by row", "state", "row", "thread"
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the parts with Flink."""
    add = parser.add_argument
    add("--flink-python", default=DEFAULT_PYTHON, help="of scripts/setup_flink.sh")
    add("--flink-runs", type=int, default=2, help="of each query (flink)")
    add("--flink-kills", type=int, default=5, help="task managers of Flink (recovery)")
    add("--flink-pause", type=float, default=8.0, help="seconds from one to the next")


Runs = dict[str, list[Ran]]


def measure(chosen: Mapping[str, Query], arguments: argparse.Namespace, out: Path) -> Report:
    """All queries, then all functions, here and there in turn."""
    report = Report("flink", f"Beside Flink, {arguments.events:,} events", _COLUMNS)
    try:
        flink = Installation.find(arguments.flink_python)
    except ClonosError as error:
        report.notes.append(f"Flink: skipped: {error}")
        return report
    known = {name: query for name, query in chosen.items() if name in sql.QUERIES}
    sizes = {name: round(arguments.events * SHARES.get(name, 1.0)) for name in known}
    jobs = {name: sql.job(name, sizes[name]) for name in known}
    warm = {name: sql.job(name, round(sizes[name] * _WARM_SHARE)) for name in known}
    with peer(flink, arguments, out) as there:
        ours, theirs = alternate(known, sizes, there, (warm, jobs), arguments)
    for name, size in sizes.items():
        _line(report, f"q{name}", size, ours[name], theirs[name])
    size = round(arguments.events * _FUNCTION_SHARE)
    cases = {name: CASES[way.ours].ours for name, way in WAYS.items()}
    python = {name: way.job(size) for name, way in WAYS.items()}
    few = {name: way.job(round(size * _WARM_SHARE)) for name, way in WAYS.items()}
    with python_peer(flink, arguments, out) as there:
        ours_too, theirs_too = alternate(
            cases, dict.fromkeys(cases, size), there, (few, python), arguments
        )
    for name in WAYS:
        _line(report, name, size, ours_too[name], theirs_too[name])
    report.data = {
        "ours": ours | ours_too,
        "flink": theirs | theirs_too,
        "events": sizes | dict.fromkeys(WAYS, size),
        "flink_version": flink.version(),
        "flink_settings": settings(arguments),
    }
    report.notes.append(
        f"Flink {flink.version()}, {arguments.parallelism} tasks per operator on both sides, "
        f"checkpoints every {arguments.checkpoint_ms} ms on both sides, median of "
        f"{arguments.flink_runs} runs; CPU: seconds per million events, of all processes"
    )
    missing = [f"q{name}" for name in chosen if name not in sql.QUERIES]
    if missing:
        report.notes.append(f"not in Flink SQL: {', '.join(missing)}")
    return report


def settings(arguments: Any) -> dict[str, str]:
    """Flink's, for a run in one process."""
    return {
        **SETTINGS,
        "execution.target": "local",
        "execution.checkpointing.interval": f"{arguments.checkpoint_ms} ms",
        "parallelism.default": str(arguments.parallelism),
        "rest.port": "0",
        "taskmanager.numberOfTaskSlots": str(arguments.parallelism),
    }


@contextlib.contextmanager
def peer(flink: Installation, arguments: Any, out: Path) -> Iterator[Peer]:
    """Flink in one virtual machine, without Python."""
    with checkpoints() as folder:
        command = flink.java("nexmark.Driver", *options({**settings(arguments), **folder}))
        with Peer(command, out / "flink.log") as started:
            yield started


@contextlib.contextmanager
def python_peer(flink: Installation, arguments: Any, out: Path) -> Iterator[Peer]:
    """PyFlink."""
    more = {
        "pipeline.jars": flink.jar.as_uri(),
        "python.executable": flink.python,
        "python.client.executable": flink.python,
        "python.fn-execution.bundle.size": 100_000,
        "python.fn-execution.arrow.batch.size": 10_000,
    }
    script = str(Path(functions.__file__).absolute())
    # Python within the virtual machine knows nothing of virtual environments.
    environment = {
        "JVM_ARGS": "-Xmx3g -XX:+UseParallelGC",
        "PYTHONPATH": str(flink.home.parent),
    }
    with checkpoints() as folder:
        more |= folder
        command = [str(flink.python), script, *options({**settings(arguments), **more})]
        with Peer(command, out / "pyflink.log", environment=environment) as started:
            yield started


@contextlib.contextmanager
def checkpoints() -> Iterator[dict[str, str]]:
    """They go into files, as ours do (what is the default has room for 5 MB)."""
    with tempfile.TemporaryDirectory(prefix="clonos-bench-") as folder:
        yield {"execution.checkpointing.dir": Path(folder).as_uri()}


def alternate(
    queries: Mapping[str, Query],
    sizes: Mapping[str, int],
    there: Peer,
    jobs: tuple[Mapping[str, str], Mapping[str, str]],
    arguments: Any,
) -> tuple[Runs, Runs]:
    """Runs of ours and theirs in turn; `jobs`: theirs to warm up with, and those that count."""
    warm, real = jobs
    ours: Runs = {name: [] for name in queries}
    theirs: Runs = {name: [] for name in queries}
    with tempfile.TemporaryDirectory(prefix="clonos-bench-") as scratch:
        gate = Path(scratch) / "go"
        made: dict[str, Callable[[], clonos.Job]] = {
            name: _maker(query, sizes[name], gate, arguments) for name, query in queries.items()
        }
        for job in warm.values():
            there.run(job)
        slots = max((run.slots_of(make()) for make in made.values()), default=1)
        with run.session(f"local[{slots}]") as spark:
            for _ in range(arguments.flink_runs):
                for name, make in made.items():
                    used = timed(make(), spark, gate)
                    ours[name].append(Ran(used.wall_s, used.cpu_s, used.rows_out))
                    theirs[name].append(there.run(real[name]))
    return ours, theirs


def _maker(query: Query, size: int, gate: Path, arguments: Any) -> Callable[[], clonos.Job]:
    def make() -> clonos.Job:
        job = VARIANTS["full"].job("flink", arguments.parallelism, arguments.checkpoint_ms)
        house = Auctions(job, size, source=lambda kind: gated(events(kind, size), gate))
        count_results(query(house))
        return job

    return make


def _line(report: Report, what: str, size: int, ours: list[Ran], theirs: list[Ran]) -> None:
    cells = [what]
    walls = []
    for runs in (ours, theirs):
        walls.append(percentile([each.wall_s for each in runs], 50))
        cpu = percentile([each.cpu_s for each in runs], 50)
        cells += [f"{size / walls[-1]:,.0f}", f"{cpu / size * 1e6:.2f}"]
    report.add(*cells, f"{walls[1] / walls[0]:.2f}")
