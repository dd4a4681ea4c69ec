"""What a layer costs that holds a few changes of much state: its seal, its bytes, its standby.

A seal happens in the task's loop, between two steps; the bytes are made by the thread that stores
the layer. There is no Spark here: programs of one task, in a plain loop.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

import clonos
from clonos.core.program import Program
from clonos.testing import Batches, StepHarness
from clonos_bench import run
from clonos_bench.report import Report
from clonos_bench.statistics import percentile

FILL_ROWS: Final = 65_536
_INSTANT: Final = pa.timestamp("us", "UTC")
_SCHEMAS: Final = [
    pa.schema({f"key{side}": pa.int64(), f"x{side}": pa.float64(), f"at{side}": _INSTANT})
    for side in ("", 2)
]
_COLUMNS: Final = (
    "",
    "state",
    "changed",
    "step, ms",
    "seal, ms",
    "worst",
    "bytes, ms",
    "apply, ms",
    "worst ",
    "first step, ms",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``clonos-bench seals``."""
    run.report_arguments(parser)
    add = parser.add_argument
    add("--kinds", nargs="+", choices=(*KINDS, PROCESS), default=(*KINDS, PROCESS))
    add("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000], help="of the state")
    add("--changed", type=int, default=100, help="rows between two seals")
    add("--seals", type=int, default=40, help="of each case")


class Count(clonos.Process):
    """A state per key."""

    def on_row(self, row: Any, ctx: Any) -> None:
        state = ctx.state("n", "double")
        state.set((state.get() or 0.0) + row.x)


def _window(rows: Any, others: Any) -> Any:
    del others
    # Sums of floats are not folded before the shuffle.
    return rows.window(clonos.tumbling("1 hour", on="at")).agg(n=clonos.count(), s=clonos.sum("x"))


def _join(rows: Any, others: Any) -> Any:
    return rows.join(others)


def _last(rows: Any, others: Any) -> Any:
    del others
    return rows.last(2, s=clonos.sum("x"))


class Remind(clonos.Process):
    """A timer per key, an hour after its row."""

    def on_row(self, row: Any, ctx: Any) -> None:
        ctx.timers.event_time(row.at + timedelta(hours=1, milliseconds=row.key % 1000))

    def on_timer(self, key: Any, due: int, ctx: Any) -> None:
        pass


def _timers(rows: Any, others: Any) -> Any:
    del others
    return rows.process(Remind(), "x double")


def _sessions(rows: Any, others: Any) -> Any:
    del others
    return rows.window(clonos.session("1 hour", on="at")).agg(n=clonos.count(), s=clonos.sum("x"))


def _in_order(rows: Any, others: Any) -> Any:
    del others
    return rows.in_order("at", "x")


def _top(rows: Any, others: Any) -> Any:
    del others
    filtered = rows.filter(lambda _: True)  # else rows are ranked before the shuffle, too
    return filtered.window(clonos.tumbling("1 hour", on="at")).top(1, "x")


def _deduplicate(rows: Any, others: Any) -> Any:
    del others
    return rows.deduplicate("1 hour", on="at")


def _process(rows: Any, others: Any) -> Any:
    del others
    return rows.process(Count(), "x double")


KINDS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "open pieces of a window": _window,
    "rows of a join": _join,
    "last rows of keys": _last,
    "open sessions": _sessions,
    "rows that wait for their turn": _in_order,
    "rows with a rank": _top,
    "rows that were seen": _deduplicate,
    "timers": _timers,
}
PROCESS: Final = "keys of a process"


class Case(NamedTuple):
    """State to be measured: what makes it of rows, and how many rows it has and changes."""

    build: Callable[[Any, Any], Any]
    size: int
    changed: int
    seals: int


class Times(NamedTuple):
    """Of one layer, in seconds."""

    step: float
    seal: float
    encode: float
    apply: float


def measure(arguments: argparse.Namespace) -> Report:
    """A line per kind of state and size."""
    report = Report("seals", "layers that hold a few changes of much state", _COLUMNS)
    changed, seals = arguments.changed, arguments.seals
    cases = [
        (name, Case(build, size, changed, seals))
        for name, build in KINDS.items()
        for size in arguments.sizes
        if name in arguments.kinds
    ]
    if PROCESS in arguments.kinds:
        cases.append((PROCESS, Case(_process, 100_000, 100_000, 3)))
    for name, case in cases:
        times, first = _measured(case)
        cells = [f"{1e3 * percentile(values, 50):,.2f}" for values in zip(*times, strict=True)]
        worst = [f"{1e3 * max(getattr(t, what) for t in times):,.1f}" for what in ("seal", "apply")]
        cells[2:2] = worst[:1]
        cells += [*worst[1:], f"{1e3 * first:,.0f}"]
        report.add(name, f"{case.size:,}", f"{case.changed:,}", *cells)
        report.data.setdefault("times", []).append([name, case.size, times, first])
    report.notes.append("medians; a standby's first step takes 100 rows")
    return report


def _measured(case: Case) -> tuple[Sequence[Times], float]:
    """Of each seal; and the first step of a program that was restored."""
    program, standby = _program(case.build), _program(case.build)
    task, rng = StepHarness(program), np.random.default_rng(1)
    for start in range(0, case.size, FILL_ROWS):
        task.feed(_rows(np.arange(start, min(start + FILL_ROWS, case.size))))
        standby.apply(bytes(program.delta()))
    gc.collect()
    times = list(_seals(case, task, standby, rng))
    restored = StepHarness(standby)
    # A join looks for rows that its other side has.
    last = _rows(rng.integers(0, case.size, 100), channel=int(case.build is _join))
    began = time.perf_counter()
    restored.feed(last)
    return times, time.perf_counter() - began


def _seals(
    case: Case, task: StepHarness, standby: Program, rng: np.random.Generator
) -> Iterator[Times]:
    for _ in range(case.seals):
        rows = _rows(rng.choice(case.size, case.changed, replace=False))
        at = [time.perf_counter()]
        task.feed(rows)
        at.append(time.perf_counter())
        delta = task.program.delta()
        at.append(time.perf_counter())
        layer = bytes(delta)
        at.append(time.perf_counter())
        standby.apply(layer)
        at.append(time.perf_counter())
        del delta  # what it holds is freed where layers are stored, too
        yield Times(*np.diff(at).tolist())


def _rows(keys: Any, channel: int = 0) -> Batches:
    schema = _SCHEMAS[channel]
    at = pa.array(np.zeros(len(keys), np.int64)).cast(schema.field(2).type)
    columns = [pa.array(keys), pa.array(np.ones(len(keys))), at]
    return Batches(channel, (pa.RecordBatch.from_arrays(columns, schema=schema),))


def _program(build: Callable[[Any, Any], Any]) -> Any:
    job = clonos.Job(parallelism=1)
    sides = [
        job.source(clonos.sources.from_batches([], schema)).with_watermark(schema.names[2], "1 s")
        for schema in _SCHEMAS
    ]
    keyed = [side.key_by(schema.names[0]) for side, schema in zip(sides, _SCHEMAS, strict=True)]
    build(*keyed).sink(clonos.sinks.collect())
    return job.compile().codes[-1].program()
