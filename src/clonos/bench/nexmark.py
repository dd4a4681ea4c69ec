"""Nexmark: events per second of each query, on Spark and in a plain loop, beside others.

*Plain*: the operators of one core in a loop, without Spark, network and log: what can be had at
most. *Engine*: the job in Spark, as fast as it can, from when all its tasks are live until its
last output is delivered. *Spark*: the same query in Structured Streaming
(:mod:`clonos.bench.nexmark_spark`). Every query is run on the same events; what it gives is
counted where it comes out, not carried to the driver. "Events" are those of all kinds, also of
those that a query does not read.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

import clonos
from clonos.bench import jobs, plots, run
from clonos.bench.plain import SOURCE, PlainLoop
from clonos.bench.processes import CpuMeter
from clonos.bench.report import Aim, Report
from clonos.bench.statistics import percentile
from clonos.nexmark import KINDS, Generator
from clonos.nexmark.queries import QUERIES, ROW_QUERIES, Auctions

GENERATOR_AIM: Final = Aim(5e6, at_least=True)
ENGINE_AIM: Final = Aim(1e6, at_least=True)
"""Events per second and core, for the queries that carry whole events."""

_AIMED: Final = ("0", "1", "2", "3", "8", "12")
_PARTS: Final = ("generator", "plain", "engine", "spark")
_BATCH_ROWS: Final = 32_768
_GENERATE_S: Final = 2.0
_SHOWN: Final = 4
"""So many of a query's operators are named that take most of its time."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``clonos bench nexmark``."""
    run.common_arguments(parser)
    add = parser.add_argument
    known = ",".join([*map(str, QUERIES), *(f"{number}rows" for number in ROW_QUERIES)])
    add("--queries", default=",".join(map(str, QUERIES)), help=f"out of {known}")
    add("--events", type=int, default=10_000_000, help="per run")
    add("--runs", type=int, default=3, help="of each query; the median counts")
    add("--standbys", type=int, default=0)
    add("--parts", default=",".join(_PARTS[:3]), help=f"out of {','.join(_PARTS)}")
    add("--generator", action="store_true", help="measure only the generator")
    add("--unprotected", action="store_true", help="without causal log")


@dataclass(frozen=True)
class Timed:
    """One run of a query in the engine."""

    events_per_s: float
    cpu_s_per_million: float
    rows_out: int


def measure(arguments: argparse.Namespace) -> Report:
    """All parts that were asked for."""
    out = run.folder(arguments, "nexmark")
    parts = ["generator"] if arguments.generator else arguments.parts.split(",")
    columns = ("", "events/s", "ns/event", "CPU", "rows out", "aim")
    report = Report("nexmark", f"Nexmark, {arguments.events:,} events", columns)
    rates: dict[str, dict[str, float]] = {}
    if "generator" in parts:
        rates["generator"] = _generator(report)
    chosen = {name: _query(name) for name in arguments.queries.split(",")}
    details: dict[str, Any] = {}
    if "plain" in parts:
        rates["plain"] = {}
        for name, query in chosen.items():
            rates["plain"][name], details[name] = _plain(report, name, query, arguments)
    if "engine" in parts:
        with run.profiled(arguments, out):
            rates["engine"] = _engine(report, chosen, arguments)
    if "spark" in parts:
        from clonos.bench import nexmark_spark

        rates["spark"] = nexmark_spark.measure(report, list(chosen), arguments)
    report.data = {"events_per_s": rates, "operators": details}
    for part, of_part in rates.items():
        millions = {
            f"q{name}" if part != "generator" else name: r / 1e6 for name, r in of_part.items()
        }
        plots.bars(Path(out) / f"{part}.png", millions, "million events per second", part)
    return report


def _query(name: str) -> Callable[[Auctions], clonos.Stream]:
    found = ROW_QUERIES if name.endswith("rows") else QUERIES
    number = int(name.removesuffix("rows"))
    if number not in found:
        raise clonos.ClonosError(
            f"there is no query {name}", remedy="see --help for those there are"
        )
    return found[number]


def _line(report: Report, what: str, rate: float, cpu: float | None, rows: int, aim: str) -> None:
    shown_cpu = "" if cpu is None else f"{cpu:.2f}"
    report.add(what, f"{rate:,.0f}", f"{1e9 / rate:,.0f}", shown_cpu, f"{rows:,}", aim)


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
        _line(report, f"generator, {kind}", rate, None, 0, aim)
    return rates


def _plain(
    report: Report, name: str, query: Callable[[Auctions], clonos.Stream], arguments: Any
) -> tuple[float, Any]:
    job = clonos.Job("plain", parallelism=1)
    query(Auctions(job, arguments.events)).sink(clonos.sinks.callback(jobs.nothing), name="out")
    loop = PlainLoop(job.compile(), layer_every=25)
    loop.run()
    rate = arguments.events / loop.seconds
    source = loop.costs[SOURCE].seconds / arguments.events * 1e6
    _line(
        report,
        f"q{name}, plain loop",
        rate,
        loop.seconds / arguments.events * 1e6,
        loop.rows_out,
        "",
    )
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
        "source_s_per_million": source,
    }
    return rate, found


def _engine(
    report: Report, chosen: dict[str, Callable[[Auctions], clonos.Stream]], arguments: Any
) -> dict[str, float]:
    """The queries in turn, all of them once, then again: a slow minute hits all of them."""
    slots = max(run.slots_of(_job(query, arguments)) for query in chosen.values())
    done: dict[str, list[Timed]] = {name: [] for name in chosen}
    with run.session(f"local[{slots}]") as spark:
        for _ in range(arguments.runs):
            for name, query in chosen.items():
                done[name].append(_run(query, arguments, spark))
    rates = {}
    for name, timed in done.items():
        rates[name] = percentile([t.events_per_s for t in timed], 50)
        cpu = percentile([t.cpu_s_per_million for t in timed], 50)
        aim = f"{ENGINE_AIM} per core: {ENGINE_AIM.judge(1e6 / cpu)}" if name in _AIMED else ""
        _line(report, f"q{name}, engine", rates[name], cpu, timed[-1].rows_out, aim)
    log = "no causal log" if arguments.unprotected else "sharing depth 1"
    report.notes.append(
        f"engine: {arguments.parallelism} tasks per operator, {arguments.standbys} standbys, "
        f"{log}; CPU: seconds of all slots per million events"
    )
    return rates


def _job(query: Callable[[Auctions], clonos.Stream], arguments: Any) -> clonos.Job:
    job = clonos.Job(
        "nexmark",
        parallelism=arguments.parallelism,
        standbys=arguments.standbys,
        guarantee="at_least_once" if arguments.unprotected else "exactly_once",
        on_orphan="availability" if arguments.unprotected else "consistency",
    )
    rows = query(Auctions(job, arguments.events)).union(name="result")
    counts = rows.map_batches(_count, "key long, rows long", name="counted")
    counts.sink(clonos.sinks.callback(jobs.nothing), name="sink")
    return job


def _run(query: Callable[[Auctions], clonos.Stream], arguments: Any, spark: Any) -> Timed:
    slots = CpuMeter()
    with run.running(_job(query, arguments), spark) as (started, watch):
        live = lambda: all(t.phase in {"live", "finished"} for t in started.tasks())  # noqa: E731
        run.until(started, watch, live, 120.0, "all tasks are live")
        began = time.monotonic()
        while started.is_running:
            slots.look(slot.pid for slot in started.slots())
            watch.drain()
            time.sleep(run.LOOK_S)
        started.wait(60)
        watch.drain()
        last = max(float(watch.series(task)[0][-1]) for task in watch.tasks())
    return Timed(
        arguments.events / (last - began),
        slots.seconds / arguments.events * 1e6,
        watch.counted,
    )


def _count(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([0]), pa.array([batch.num_rows])], ["key", "rows"])
