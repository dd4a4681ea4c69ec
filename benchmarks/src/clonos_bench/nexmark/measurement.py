"""Nexmark: what the engine does with it, beside others and beside itself without protection.

Parts, each of which can run alone (``--parts``):

generator, plain
    What is to be had at most: the generator, and the operators of one core in a loop, without
    Spark, network and log.
engine
    Each query on Spark, exactly once, as fast as it can, from when its sources are let go until its
    last output is delivered.
spark
    The same queries in Structured Streaming, from the same files (:mod:`.parts.spark`).
functions
    Functions in Python, row by row, in batches and with state, beside PySpark's
    (:mod:`.parts.functions`).
overhead
    Every query with and without protection (:mod:`.parts.overhead`).
recovery
    The join of queries 3 and 8 killed again and again (:mod:`.parts.recovery`).
growth
    How costs grow with the job (:mod:`.parts.growth`).
flink, pyflink
    The queries in Flink SQL, the functions in PyFlink (:mod:`.parts.flink`).

Every query is run on the same events; what it gives is counted where it comes out, not carried to
the driver. "Events" are those of all kinds, also of those that a query does not read.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

import clonos
from clonos.sources.spec import SourceSpec
from clonos_bench import jobs, plots, run
from clonos_bench.gates import Timed, gated, timed, tried_out
from clonos_bench.nexmark import KINDS, Generator, events
from clonos_bench.nexmark.parts import files, flink, functions, growth, overhead, recovery
from clonos_bench.nexmark.parts.overhead import VARIANTS, Query, count_results
from clonos_bench.nexmark.queries import QUERIES, ROW_QUERIES, Auctions
from clonos_bench.plain import SOURCE, PlainLoop
from clonos_bench.report import Aim, Report
from clonos_bench.statistics import percentile, spread

GENERATOR_AIM: Final = Aim(5e6, at_least=True)
ENGINE_AIM: Final = Aim(1e6, at_least=True)
"""Events per second and core, for the queries that carry whole events."""

_AIMED: Final = ("0", "1", "2", "3", "8", "12")
_RATES: Final = ("generator", "plain", "engine", "spark")
_PARTS: Final = (*_RATES, "functions", "overhead", "recovery", "growth", "flink", "pyflink")
SOURCE_ALONE: Final = "source alone"
_BATCH_ROWS: Final = 32_768
_GENERATE_S: Final = 2.0
_SHOWN: Final = 4
"""So many of a query's operators are named that take most of its time."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``clonos-bench nexmark``."""
    run.common_arguments(parser)
    add = parser.add_argument
    known = ",".join([*map(str, QUERIES), *(f"{number}rows" for number in ROW_QUERIES)])
    add("--parts", default=",".join(_RATES[:3]), help=f"out of {','.join(_PARTS)}")
    add("--queries", default=",".join(map(str, QUERIES)), help=f"out of {known}")
    add("--events", type=int, default=10_000_000, help="per run (rates, functions)")
    add("--runs", type=int, default=3, help="of each query; the median counts (rates, functions)")
    add("--variant", default="full", help=f"out of {','.join(VARIANTS)} (engine)")
    add("--files", action="store_true", help="the engine reads the files that Spark reads, too")
    overhead.add_arguments(parser)
    recovery.add_arguments(parser)
    growth.add_arguments(parser)
    flink.add_arguments(parser)


def measure(arguments: argparse.Namespace) -> Report:
    """All parts that were asked for."""
    asked = arguments.parts.split(",")
    unknown = [part for part in asked if part not in _PARTS]
    if unknown:
        raise clonos.ClonosError(
            f"there is no part {', '.join(unknown)}", remedy=f"use {', '.join(_PARTS)}"
        )
    out = run.folder(arguments, "nexmark")
    columns = ("", "events/s", "ns/event", "CPU", "rows out", "target")
    report = Report("nexmark", f"Nexmark, {arguments.events:,} events", columns)
    chosen = {name: _query(name) for name in arguments.queries.split(",")}
    rates, details = _rates(report, asked, chosen, arguments)
    report.data |= {"events_per_s": rates, "operators": details}
    for part, of_part in rates.items():
        millions = {
            f"q{name}" if name[0].isdigit() else name: r / 1e6 for name, r in of_part.items()
        }
        plots.bars(out / f"{part}.png", millions, "million events per second", part)
    for part in asked:
        if part in _COMPARISONS:
            folder = run.folder(arguments, f"nexmark/{part}")
            with run.profiled(arguments, folder):
                report.parts.append(_COMPARISONS[part](chosen, arguments, folder))
    return report


_COMPARISONS: Final[
    Mapping[str, Callable[[Mapping[str, Query], argparse.Namespace, Path], Report]]
] = {
    "functions": functions.measure,
    "overhead": overhead.measure,
    "recovery": recovery.measure,
    "growth": growth.measure,
    "flink": flink.measure,
    "pyflink": flink.measure_functions,
}


def _rates(
    report: Report, asked: list[str], chosen: Mapping[str, Query], arguments: argparse.Namespace
) -> tuple[dict[str, dict[str, float]], dict[str, Any]]:
    """Events per second by part and query, and what the operators took."""
    rates: dict[str, dict[str, float]] = {}
    details: dict[str, Any] = {}
    if "generator" in asked:
        rates["generator"] = _generator(report)
    if "plain" in asked:
        rates["plain"] = {}
        for name, query in chosen.items():
            rates["plain"][name], details[name] = _plain(report, name, query, arguments)
    with tempfile.TemporaryDirectory(prefix="clonos-bench-") as scratch:
        folder = Path(scratch)
        if "spark" in asked or ("engine" in asked and arguments.files):
            files.write(folder, Generator(arguments.events))
        if "engine" in asked:
            with run.profiled(arguments, run.folder(arguments, "nexmark")):
                rates["engine"] = _engine(report, chosen, arguments, folder)
        if "spark" in asked:
            from clonos_bench.nexmark.parts import spark as nexmark_spark

            rates["spark"] = nexmark_spark.measure(report, list(chosen), arguments, folder)
    return rates, details


def _query(name: str) -> Callable[[Auctions], clonos.Stream]:
    found = ROW_QUERIES if name.endswith("rows") else QUERIES
    number = int(name.removesuffix("rows"))
    if number not in found:
        raise clonos.ClonosError(
            f"there is no query {name}", remedy="see --help for those there are"
        )
    return found[number]


def _line(
    report: Report, what: str, rates: list[float], cpu: float | None, rows: int, aim: str
) -> None:
    shown_cpu = "" if cpu is None else f"{cpu:.2f}"
    per_event = f"{1e9 / percentile(rates, 50):,.0f}"
    report.add(what, spread(rates), per_event, shown_cpu, f"{rows:,}", aim)


def _generator(report: Report) -> dict[str, float]:
    """One core; "all kinds" makes each kind on its own, as sources do."""
    generator = Generator(1_000_000_000)
    seconds: dict[str, float] = {}
    for kind in KINDS:
        generator.batch(kind, 0, _BATCH_ROWS)
        rows, began = 0, time.process_time()
        while time.process_time() - began < _GENERATE_S:
            generator.batch(kind, rows, _BATCH_ROWS)
            rows += _BATCH_ROWS
        share = Generator(10_000).rows(kind) / 10_000
        seconds[kind] = (time.process_time() - began) / rows * share
    rates = {kind: 1 / each for kind, each in seconds.items()}
    rates["all kinds"] = 1 / sum(each for kind, each in seconds.items() if kind != "event")
    for kind, rate in rates.items():
        aim = (
            f"{GENERATOR_AIM}: {GENERATOR_AIM.judge(rate)}"
            if kind in ("all kinds", "event")
            else ""
        )
        _line(report, f"generator, {kind}", [rate], None, 0, aim)
    return rates


def _plain(
    report: Report, name: str, query: Callable[[Auctions], clonos.Stream], arguments: Any
) -> tuple[float, Any]:
    job = clonos.Job("plain", parallelism=1)
    query(Auctions(job, arguments.events)).sink(clonos.sinks.callback(jobs.nothing), name="out")
    loop = PlainLoop(job.compile(), layer_every=25)
    loop.run()
    source = loop.costs[SOURCE].seconds
    seconds = loop.seconds + source
    rate = arguments.events / seconds
    cpu = seconds / arguments.events * 1e6
    _line(report, f"q{name}, plain loop", [rate], cpu, loop.rows_out, "")
    dearest = sorted(loop.costs.items(), key=lambda found: -found[1].seconds)[:_SHOWN]
    shares = (f"{what} {cost.seconds / arguments.events * 1e6:.3f}" for what, cost in dearest)
    report.notes.append(f"q{name}, CPU s per million events: {', '.join(shares)}")
    operators = {
        operator: {"seconds": cost.seconds, "rows": cost.rows}
        for operator, cost in loop.costs.items()
    }
    found = {
        "operators": operators,
        "layer_bytes": loop.layer_bytes,
        "source_s_per_million": source / arguments.events * 1e6,
    }
    return rate, found


def _engine(
    report: Report, chosen: Mapping[str, Query], arguments: Any, folder: Path
) -> dict[str, float]:
    """The queries in turn, all of them once, then again: a slow minute hits all of them."""
    gate = folder / "go"
    variant = VARIANTS[arguments.variant]

    def job_of(query: Query, size: int) -> clonos.Job:
        def source(kind: str) -> SourceSpec:
            rows = files.source(folder, kind) if arguments.files else events(kind, size)
            return gated(rows, gate)

        job = variant.job("nexmark", arguments.parallelism, arguments.checkpoint_ms)
        count_results(query(Auctions(job, size, source=source)))
        return job

    chosen = {SOURCE_ALONE: _source_alone, **chosen}
    slots = max(job_of(query, 1).cores() for query in chosen.values())
    done: dict[str, list[Timed]] = {name: [] for name in chosen}
    with run.session(f"local[{slots}]") as spark:

        def once(query: Query, size: int) -> Timed:
            return timed(job_of(query, size), spark, gate, events=size, **variant.options)

        sizes = {}
        for name, query in chosen.items():
            if arguments.files:
                sizes[name] = arguments.events
                once(query, arguments.events)  # does not count: what is first is slower
            else:
                sizes[name], _ = tried_out(partial(once, query), arguments.run_seconds)
        for _ in range(arguments.runs):
            for name, query in chosen.items():
                done[name].append(once(query, sizes[name]))
    rates = {}
    for name, runs in done.items():
        each = [t.events / t.wall_s for t in runs]
        rates[name] = percentile(each, 50)
        cpu = percentile([t.cpu_s / t.events * 1e6 for t in runs], 50)
        aim = f"{ENGINE_AIM} per core: {ENGINE_AIM.judge(1e6 / cpu)}" if name in _AIMED else ""
        what = name if name == SOURCE_ALONE else f"q{name}"
        _line(report, f"{what}, engine", each, cpu, runs[-1].rows_out, aim)
    report.notes.append(
        f"engine: {arguments.parallelism} tasks per operator, {arguments.variant}, events from "
        f"{'files' if arguments.files else 'the generator'}, "
        + (
            "all of them"
            if arguments.files
            else f"as many as take about {arguments.run_seconds:g} s"
        )
        + f"; median [lowest, highest] of {arguments.runs} runs behind one that does not count; "
        "CPU: seconds of the whole machine per million events"
    )
    return rates


def _source_alone(house: Auctions) -> clonos.Stream:
    """Reads all columns of the bids; of each batch only the first row goes on."""
    return house.bids.map_batches(_first, name="first")


def _first(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.slice(0, 1)
