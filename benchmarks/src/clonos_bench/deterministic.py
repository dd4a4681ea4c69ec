"""What it saves, and costs, to leave out the logs of tasks whose steps follow from their input.

Source -> two deterministic functions -> count -> sink, each a chain of its own, with one task: all
but the source's can do without a log. The same job runs with ``Job(log="everything")`` and
``Job(log="needed")`` in turn; which one begins changes. Measured are rows per second, CPU of the
slots, and the bytes of logs that tasks have sent to others, per item. (The source's log travels
through all tasks, in either case.)

A task that shares no log takes one batch in a step. With large batches this is what a busy task
does anyway; with small ones, others handle many of them at once. So the sizes of batches are
compared, too. The same run checks that every row was counted once.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any, Final, Literal

import clonos
from clonos.cluster.driver import RunningJob
from clonos.sources.spec import SourceSpec
from clonos_bench import jobs, plots, run
from clonos_bench.report import Report
from clonos_bench.statistics import Interval, mean, paired_ratio

Log = Literal["everything", "needed"]
LOGS: Final[tuple[Log, Log]] = ("everything", "needed")
RUN_S: Final = 600.0
_COLUMNS: Final = ("rows per batch", "what", "everything", "needed", "needed, of everything")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``clonos-bench deterministic``."""
    run.common_arguments(parser)
    add = parser.add_argument
    add("--batches", type=int, default=20_000, help="of the source, per run")
    add("--batch-rows", type=int, nargs="+", default=[32, 512, 8192], help="rows per batch")
    add("--pairs", type=int, default=8, help="runs of each kind, per size")


def measure(arguments: argparse.Namespace) -> Report:
    """Pairs of runs for each size of batches."""
    out = run.folder(arguments, "deterministic")
    report = Report("deterministic", "with all logs, and with those that are needed", _COLUMNS)
    rates: dict[str, float] = {}
    with run.session(f"local[{_job(arguments, LOGS[0], 1).cores()}]") as spark:
        for size in arguments.batch_rows:
            _once(arguments, spark, "needed", size)  # warm
            found: dict[Log, list[_Measured]] = {log: [] for log in LOGS}
            for pair in range(arguments.pairs):
                for log in LOGS if pair % 2 else reversed(LOGS):
                    found[log].append(_once(arguments, spark, log, size))
            _add(report, size, found)
            rates |= {f"{log}, {size:,}": mean([m.rate for m in found[log]]).value for log in LOGS}
    plots.bars(out / "rates.png", rates, "rows per second", report.title)
    report.notes.append(
        f"{arguments.pairs} runs of each kind and size, in turn, {arguments.batches:,} batches "
        "each; mean and 95 % interval, ratios of pairs"
    )
    return report


class _Measured:
    """Of one run. ``shared``: bytes of log entries that travelled with an item, or by themselves,
    as often as they did; of all tasks, per item that they have sent."""

    def __init__(self, used: run.Used, rows: int, job: RunningJob) -> None:
        self.rate, self.cpu = rows / used.wall_s, used.cpu_s / rows * 1e6
        newest = [sample.counters for sample in job.observer.newest()]
        items = sum(counters.get("items_out", 0) for counters in newest)
        self.shared = sum(counters.get("shared_bytes", 0) for counters in newest) / items


def _once(arguments: argparse.Namespace, spark: Any, log: Log, size: int) -> _Measured:
    rows = arguments.batches * size
    job = _job(arguments, log, size)
    implied = {task.operator for task in job.compile().plan.tasks if task.is_implied}
    assert implied == ({"first", "second", "count", "sink"} if log == "needed" else set())
    with run.running(job, spark, batch_rows_max=size, linger_ms=0) as (started, watch):
        used = run.time_all(started, watch, lambda: watch.counted, rows, RUN_S)
    return _Measured(used, rows, started)


def _job(arguments: argparse.Namespace, log: Log, size: int) -> clonos.Job:
    rows = arguments.batches * size
    factory = partial(jobs.RepeatReader, rows, size, 1_000)
    schema = jobs.RepeatReader.schema
    job = clonos.Job("deterministic", log=log, standbys=0)
    stream = job.source(SourceSpec("repeat", schema, factory, True, schema), name="source")
    for name in ("first", "second"):
        apart = stream.start_new_chain()
        stream = apart.map_batches(jobs.rekey, schema=schema, deterministic=True, name=name)
    counts = stream.start_new_chain().map_batches(
        jobs.count_rows, schema="key long, rows long", deterministic=True, name="count"
    )
    counts.start_new_chain().sink(clonos.sinks.callback(jobs.nothing), name="sink")
    return job


def _add(report: Report, size: int, found: dict[Log, list[_Measured]]) -> None:
    measures = {
        "rows/s": "rate",
        "CPU s per million rows": "cpu",
        "bytes of logs per item": "shared",
    }
    for what, name in measures.items():
        values = {log: [getattr(m, name) for m in found[log]] for log in LOGS}
        of = {log: mean(values[log]) for log in LOGS}
        ratio = ""
        if all(map(all, values.values())):
            pairs = list(zip(values["needed"], values["everything"], strict=True))
            ratio = _text(paired_ratio(pairs), ".3f")
        report.add(f"{size:,}", what, *(_text(of[log], ",.1f") for log in LOGS), ratio)
        report.data.setdefault(str(size), {})[name] = values


def _text(interval: Interval, spec: str) -> str:
    return f"{interval.value:{spec}} [{interval.low:{spec}}, {interval.high:{spec}}]"
