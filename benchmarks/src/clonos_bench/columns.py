"""Column expressions beside Python functions that do the same: time per batch, and to compile.

A condition and three columns, as expressions and as one function each, on batches of several sizes.
Operators are called directly: there is no slot, no log and no network. Both give the same rows.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

import clonos
from clonos.operators.base import Operator
from clonos_bench import run
from clonos_bench.report import Aim, Report
from clonos_bench.statistics import percentile

SCHEMA: Final = "auction long, bidder long, price long, date_time timestamp, extra string"
SMALL_US: Final = Aim(100)
TIMES_AS_FAST: Final = Aim(5, at_least=True)
COMPILE_S: Final = Aim(2)
_SMALL: Final = 200
_LARGE: Final = 4096


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``clonos-bench columns``."""
    run.report_arguments(parser)
    add = parser.add_argument
    add("--rows", type=int, nargs="+", default=[_SMALL, _LARGE], help="of a batch")
    add("--rounds", type=int, default=300, help="batches of each size")
    add("--expressions", type=int, default=50, help="to compile")


def as_columns(bids: Any) -> Any:
    """As PySpark users write it."""
    return bids.where("price > 100 and auction % 5 <> 0").withColumns(
        {
            "euros": F.expr("price * 89 div 100"),
            "hour": F.hour("date_time"),
            "dear": F.when(F.col("price") > 5000, "yes").otherwise("no"),
        }
    )


def as_functions(bids: Any) -> Any:
    """The same with a Python function for each."""
    some = bids.filter(lambda row: row.price > 100 and row.auction % 5 != 0)
    euros = some.with_column("euros long", lambda price: price * 89 // 100, "price")
    hours = euros.with_column("hour int", lambda at: at.hour, "date_time")
    return hours.with_column("dear string", lambda price: "yes" if price > 5000 else "no", "price")


def measure(arguments: argparse.Namespace) -> Report:
    """A line per size of a batch."""
    columns = ["rows", "columns, µs", "functions, µs", "times as fast", "target"]
    report = Report("columns", "a condition and three columns, per batch", columns)
    with run.session("local[1]", config={"spark.sql.session.timeZone": "UTC"}):
        lines = {kind: _operators(build) for kind, build in _KINDS.items()}
        compiled = _compile_seconds(arguments.expressions)
    for rows in arguments.rows:
        batch = _batch(rows)
        made = [_through(operators, batch) for operators in lines.values()]
        report.ok &= made[0] == made[1]
        times = [_times_us(operators, batch, arguments.rounds) for operators in lines.values()]
        ours, theirs = (percentile(of_kind, 50) for of_kind in times)
        judged = []
        if rows == _SMALL:
            judged.append(f"{SMALL_US} µs: {SMALL_US.judge(ours)}")
        if rows == _LARGE:
            judged.append(f"{TIMES_AS_FAST} times: {TIMES_AS_FAST.judge(theirs / ours)}")
        cells = [f"{percentile(of_kind, 50):,.0f} ({min(of_kind):,.0f})" for of_kind in times]
        report.add(f"{rows:,}", *cells, f"{theirs / ours:.1f}", ", ".join(judged))
    report.notes.append("medians, and in brackets the fastest batch")
    count = arguments.expressions
    report.notes.append(
        f"{count} expressions are compiled in {compiled:.2f} s ({COMPILE_S} s: "
        f"{COMPILE_S.judge(compiled)})"
    )
    report.data["compile_s"] = compiled
    return report


_KINDS: Final[dict[str, Callable[[Any], Any]]] = {"columns": as_columns, "functions": as_functions}


def _operators(build: Callable[[Any], Any]) -> Sequence[Operator]:
    job = clonos.Job(parallelism=1)
    build(job.source(clonos.sources.from_batches([], SCHEMA))).sink(clonos.sinks.collect())
    (code,) = job.compile().codes
    return list(code.program().operators.values())[1:-1]


def _batch(rows: int) -> pa.RecordBatch:
    draw = np.random.default_rng(1)
    made = clonos.Job().source(clonos.sources.from_batches([], SCHEMA)).schema
    day_us = 86_400_000_000
    values: list[Any] = [
        draw.integers(0, 1000, rows),
        draw.integers(0, 1000, rows),
        draw.integers(0, 10_000, rows),
        pa.array(draw.integers(0, 20_000, rows) * day_us // 7).view(made.field("date_time").type),
        pa.array([f"note {i}" for i in range(rows)]),
    ]
    return pa.RecordBatch.from_arrays([pa.array(v) for v in values], schema=made)


def _through(operators: Sequence[Operator], batch: pa.RecordBatch) -> pa.RecordBatch | None:
    made: pa.RecordBatch | None = batch
    for operator in operators:
        if made is not None:
            made = operator.on_batch(made)
    return made


def _times_us(operators: Sequence[Operator], batch: pa.RecordBatch, rounds: int) -> list[float]:
    times = []
    gc.collect()
    for _ in range(rounds):
        began = time.perf_counter()
        _through(operators, batch)
        times.append(1e6 * (time.perf_counter() - began))
    return times


def _compile_seconds(count: int) -> float:
    """How long it takes Spark to read so many expressions, and to make formulas of them."""
    one = "case when price > {0} then price * {0} + auction else nvl(bidder, {0}) end as c{0}"
    expressions = [one.format(i) for i in range(count)]
    bids = clonos.Job().source(clonos.sources.from_batches([], SCHEMA))
    bids.selectExpr("upper(extra)")  # a session's first is slower
    began = time.perf_counter()
    bids.selectExpr(*expressions)
    return time.perf_counter() - began
