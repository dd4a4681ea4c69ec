"""Nexmark in Flink, beside ours: SQL, and functions in Python with PyFlink.

Both are given the same events, made by their sources as they are read, and drop their results where
they come out. Query by query, each with a virtual machine of Flink's own, runs alternate. A run is
measured from when its sources are let go, which is when all of its tasks are there, until its last
row is out. How many events it has is tried out first, here and there: as many as take
``--run-seconds``; rates are compared. CPU time is that of the whole machine during a run.

Flink's settings are in :mod:`clonos_bench.flink.process`, its SQL in :mod:`clonos_bench.flink.sql`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import clonos
from clonos.errors import ClonosError
from clonos_bench import run
from clonos_bench.flink import functions, sql
from clonos_bench.flink.process import (
    DEFAULT_PYTHON,
    HEAP,
    SETTINGS,
    Installation,
    Peer,
    options,
)
from clonos_bench.gates import TRIAL_EVENTS, Ran, gated, timed, tried_out
from clonos_bench.nexmark import events
from clonos_bench.nexmark.parts.functions import CASES
from clonos_bench.nexmark.parts.overhead import VARIANTS, Query, count_results
from clonos_bench.nexmark.queries import Auctions
from clonos_bench.report import Report
from clonos_bench.statistics import percentile, spread

_WARM_UP_S: Final = 5.0
"""Of work in a virtual machine before a run counts: its compiler has seen the query by then."""
_AHEAD_ROWS: Final = 100
_JOINS: Final = ("3", "4", "8", "9")
"""These read two kinds of events, one of which can run ahead of the other."""
_BY_THE_CLOCK: Final = ("q12",)
"""How many rows this gives depends on when it runs."""
_COLUMNS: Final = ("", "ours, 1000 events/s", "CPU", "Flink, 1000 events/s", "CPU", "times as fast")
_COUNTED: Final = "bidder BIGINT, auction BIGINT, nth BIGINT"


@dataclass(frozen=True)
class Way:
    """A function in PyFlink: which, how, and where Python runs. ``ours``: of CASES."""

    ours: str
    case: str
    way: str
    mode: str

    def job(self, count: int) -> str:
        """For :mod:`clonos_bench.flink.functions`."""
        columns = _COUNTED if self.case == "state" else sql.QUERIES["0"][0]
        ahead: dict[str, Any] = {"ahead-rows": _AHEAD_ROWS}
        return json.dumps(
            {
                "case": self.case,
                "way": self.way,
                "mode": self.mode,
                "tables": sql.tables(columns, count, **ahead),
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


@dataclass(frozen=True)
class Contest:
    """The same work here and there. ``theirs``: the job for so many events."""

    name: str
    ours: Query
    theirs: Callable[[int], str]
    is_python: bool = False


@dataclass(frozen=True)
class Side:
    """One system's runs, and how many events each had; ``trial``: the first of all."""

    events: int
    trial: Ran
    runs: list[Ran] = field(default_factory=list)

    def rates(self) -> list[float]:
        """Thousands of events per second."""
        return [self.events / each.wall_s / 1e3 for each in self.runs]

    def cells(self) -> tuple[str, str]:
        """Of the table: thousands of events per second, and CPU seconds per million events."""
        cpu = percentile([each.cpu_s / self.events * 1e6 for each in self.runs], 50)
        return spread(self.rates()), f"{cpu:.2f}"


Once = Callable[[int], Ran]
"""Runs so many events."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the parts with Flink."""
    add = parser.add_argument
    add("--flink-python", default=DEFAULT_PYTHON, help="of scripts/setup_flink.sh")
    add("--flink-runs", type=int, default=3, help="of each query that count (flink)")
    add("--flink-checkpoint-ms", type=int, default=1000, help="between Flink's checkpoints (flink)")
    add("--flink-drift-ms", type=int, default=0, help="Flink aligns the sources of joins (flink)")
    add("--flink-kills", type=int, default=5, help="task managers of Flink (recovery)")
    add("--flink-pause", type=float, default=8.0, help="seconds from one to the next")


def measure(chosen: Mapping[str, Query], arguments: argparse.Namespace, out: Path) -> Report:
    """All queries that there are on both sides."""
    report = _measured(
        "flink", "Beside Flink SQL", queries(chosen, arguments.flink_drift_ms), arguments, out
    )
    missing = [f"q{name}" for name in chosen if name not in sql.QUERIES]
    if missing:
        report.notes.append(f"not in Flink SQL: {', '.join(missing)}")
    return report


def measure_functions(chosen: object, arguments: argparse.Namespace, out: Path) -> Report:
    """All functions in Python."""
    del chosen
    title = "Functions in Python, beside PyFlink"
    return _measured("pyflink", title, functions_in_python(), arguments, out)


def queries(chosen: Mapping[str, Query], drift_ms: int = 0) -> list[Contest]:
    """Those that there are on both sides.

    `drift_ms`: how far, in event time, a source of a join in Flink may be ahead of the others; 0:
    as far as it comes.
    """
    known = {name: query for name, query in chosen.items() if name in sql.QUERIES}
    aligned: dict[str, Any] = {"drift-ms": drift_ms}
    return [
        Contest(f"q{name}", query, partial(sql.job, name, **(aligned if name in _JOINS else {})))
        for name, query in known.items()
    ]


def functions_in_python() -> list[Contest]:
    """All of :data:`WAYS`."""
    return [Contest(name, CASES[way.ours].ours, way.job, True) for name, way in WAYS.items()]


def _measured(part: str, title: str, all_: Sequence[Contest], arguments: Any, out: Path) -> Report:
    """Each in turn; what fails is said, and the rest goes on."""
    report = Report(part, title, _COLUMNS)
    try:
        flink = Installation.find(arguments.flink_python)
    except ClonosError as error:
        report.notes.append(f"Flink: skipped: {error}")
        return report
    found: dict[str, tuple[Side, Side]] = {}
    for name, result in compete(all_, flink, arguments, out):
        if isinstance(result, ClonosError):
            report.ok = False
            report.notes.append(f"{name}: failed: {result}")
        else:
            found[name] = result
            _line(report, name, *result)
    report.data = {
        "ours": {name: ours for name, (ours, _) in found.items()},
        "flink": {name: theirs for name, (_, theirs) in found.items()},
        "flink_version": flink.version(),
        "flink_settings": settings(arguments),
    }
    report.notes.append(
        f"Flink {flink.version()}, {arguments.parallelism} tasks per operator on both sides, "
        f"checkpoints every {arguments.checkpoint_ms} ms here and every "
        f"{arguments.flink_checkpoint_ms} ms there, median of {arguments.flink_runs} runs "
        f"[lowest, highest] of about {arguments.run_seconds:g} s; CPU: "
        "seconds per million events, of the whole machine"
    )
    return report


def compete(
    all_: Sequence[Contest], flink: Installation, arguments: Any, out: Path
) -> Iterator[tuple[str, tuple[Side, Side] | ClonosError]]:
    """One after the other, in one session of Spark; each with what came of it."""
    with tempfile.TemporaryDirectory(prefix="clonos-bench-") as scratch:
        gate = Path(scratch) / "go"

        def made(contest: Contest, size: int) -> clonos.Job:
            job = VARIANTS["full"].job("flink", arguments.parallelism, arguments.checkpoint_ms)
            source = lambda kind: gated(events(kind, size), gate)  # noqa: E731
            count_results(contest.ours(Auctions(job, size, source=source)))
            return job

        slots = max(made(contest, TRIAL_EVENTS).cores() for contest in all_)
        with run.session(f"local[{slots}]") as spark:
            for contest in all_:

                def once(size: int, contest: Contest = contest) -> Ran:
                    return timed(made(contest, size), spark, gate)

                try:
                    yield contest.name, _compared(contest, once, flink, arguments, out)
                except ClonosError as error:
                    gate.unlink(missing_ok=True)
                    yield contest.name, error


def _compared(
    contest: Contest, here: Once, flink: Installation, arguments: Any, out: Path
) -> tuple[Side, Side]:
    with (python_peer if contest.is_python else peer)(flink, arguments, out) as process:

        def there(size: int) -> Ran:
            return process.run(contest.theirs(size))

        run_s = arguments.run_seconds
        sides = Side(*tried_out(here, run_s)), Side(*tried_out(there, run_s, _WARM_UP_S))
        for _ in range(arguments.flink_runs):
            for once, side in zip((here, there), sides, strict=True):
                side.runs.append(once(side.events))
    return sides


def settings(arguments: Any) -> dict[str, str]:
    """Flink's, for a run in one process."""
    return {
        **SETTINGS,
        "execution.target": "local",
        "execution.checkpointing.interval": f"{arguments.flink_checkpoint_ms} ms",
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
        "python.executable": flink.python,
        "python.client.executable": flink.python,
        "python.fn-execution.bundle.size": 100_000,
        "python.fn-execution.arrow.batch.size": 10_000,
    }
    script = str(Path(functions.__file__).absolute())
    environment = {
        "JVM_ARGS": " ".join(HEAP),
        # PyFlink lets nothing else than this add to its virtual machine's class path.
        "HADOOP_CLASSPATH": str(flink.jar),
        # Python within the virtual machine knows nothing of virtual environments.
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


def _line(report: Report, name: str, ours: Side, theirs: Side) -> None:
    times = percentile(ours.rates(), 50) / percentile(theirs.rates(), 50)
    report.add(name, *ours.cells(), *theirs.cells(), f"{times:.2f}")
    here, there = ours.trial.rows_out, theirs.trial.rows_out
    if here != there and name not in _BY_THE_CLOCK:
        report.ok = False
        report.notes.append(
            f"{name}: of {TRIAL_EVENTS:,} events ours gives {here:,} rows, Flink {there:,}"
        )
