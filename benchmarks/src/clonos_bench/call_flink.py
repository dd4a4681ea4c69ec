"""The same calls in Flink, with its asynchronous I/O, beside ours.

The output is compared with the input, row by row; if it is wrong there is no report.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from clonos.errors import ClonosError
from clonos_bench import call_jobs, call_latency
from clonos_bench.flink import async_calls
from clonos_bench.flink.async_calls import CHECKPOINT_MS
from clonos_bench.flink.process import Installation
from clonos_bench.report import Report
from clonos_bench.statistics import percentile

LATE: Final = ("", "p50", "p90", "p99", "max", "CPU, us a call")
MORE_S: Final = 3.0
"""Rows go on for so long after those that are measured, and after the last kill."""
BACK_S: Final = 5.0
"""Time of normal work before and after each kill."""


def measure(arguments: argparse.Namespace) -> Report:
    """Latency, in turn with ours, then what a kill repeats."""
    title = (
        f"calls of {arguments.call_ms:g} ms at {arguments.rate:,.0f} rows/s, ms beyond the call; "
        f"checkpoints every {CHECKPOINT_MS} ms"
    )
    report = Report("flink", title, LATE)
    try:
        Installation.find(arguments.flink_python)
    except ClonosError as error:
        report.notes.append(str(error))
        return report
    for ordered in (False, True):
        kind = "in order" if ordered else "as they come"
        ours = call_latency.run_ours(arguments, lambda fn: fn, ordered=ordered)
        _add(
            report, f"ours, {kind}: delivered, durable", ours.beyond(arguments.call_ms), ours.cpu_us
        )
        seen, final, cpu_us = _flink_latency(arguments, ordered=ordered)
        _add(report, f"Flink, {kind}: in the sink (at least once)", seen, cpu_us)
        _add(report, "... its checkpoint is complete (exactly once)", final, cpu_us)
    report.parts.append(_flink_kills(arguments))
    report.notes.append(
        "CPU: of all processes, Spark's and Flink's virtual machines included; the service is a "
        "timer in the asking process"
    )
    return report


def _add(report: Report, what: str, ms: Any, cpu_us: float) -> None:
    cells = (f"{percentile(ms, q):,.1f}" for q in (50, 90, 99, 100))
    report.add(what, *cells, f"{cpu_us:,.0f}")
    report.data[what] = {"ms": np.percentile(ms, range(101)).tolist(), "cpu_us": cpu_us}


def _flink_latency(arguments: argparse.Namespace, *, ordered: bool) -> tuple[Any, Any, float]:
    """Latency beyond the call, until the sink and until the checkpoint; CPU per call."""
    warm_up_s = call_latency.WARM_UP_S
    rows = round(arguments.rate * (warm_up_s + arguments.seconds + MORE_S))
    rows -= rows % arguments.parallelism
    with async_calls.running(
        arguments,
        rows,
        arguments.rate,
        arguments.call_ms,
        in_flight=call_latency.IN_FLIGHT,
        ordered=ordered,
    ) as calls:
        began_s = calls.begin()
        time.sleep(max(0.0, began_s + warm_up_s - time.time()))
        calls.look()
        time.sleep(arguments.seconds)
        cpu_s = calls.look()
        calls.wait()
        outs = async_calls.Outs.read(calls.folder)
    require_each_once(outs.ids[~np.isnan(outs.final_s)], rows)
    due_s = began_s + outs.ids / arguments.rate
    measured = (due_s >= began_s + warm_up_s) & (due_s < began_s + warm_up_s + arguments.seconds)
    seen, final = (
        1000 * (at_s - due_s)[measured] - arguments.call_ms for at_s in (outs.came_s, outs.final_s)
    )
    return seen, final, 1e6 * cpu_s / (arguments.rate * arguments.seconds)


def require_each_once(ids: call_jobs.Keys, rows: int) -> None:
    """Raise a `ClonosError` unless these are all rows."""
    if not np.array_equal(np.sort(ids), np.arange(rows)):
        distinct = len(np.unique(ids))
        raise ClonosError(f"wrong output: {len(ids)} rows, {distinct} different ones, of {rows}")


@dataclass
class Repeated:
    """What was repeated because of kills."""

    open: int = 0
    open_again: int = 0
    answered_again: int = 0


def repeated(events: Any, kills_s: list[float]) -> Repeated:
    """What the calls of all processes show; `events` are in the order of time.

    Examples
    --------
    >>> kind = [("key", "<i8"), ("at", "<f8"), ("answered", "?")]
    >>> asked = [(1, 0.0, False), (2, 0.1, False), (1, 0.2, True)]
    >>> again = [(1, 1.0, False), (2, 1.0, False), (3, 1.0, False)]
    >>> repeated(np.array([*asked, *again], kind), [0.5])
    Repeated(open=1, open_again=1, answered_again=1)
    """
    found = Repeated()
    for number, at_s in enumerate(kills_s):
        until_s = kills_s[number + 1] if number + 1 < len(kills_s) else np.inf
        before = events[events["at"] < at_s]
        after = events[(events["at"] >= at_s) & (events["at"] < until_s)]
        answered = before["key"][before["answered"]]
        is_open = np.setdiff1d(before["key"][~before["answered"]], answered)
        asked = np.unique(after["key"][~after["answered"]])
        found.open += len(is_open)
        found.open_again += len(np.intersect1d(asked, is_open))
        found.answered_again += len(np.intersect1d(asked, answered))
    return found


def _flink_kills(arguments: argparse.Namespace) -> Report:
    """Kill task managers while many calls are open, but no more calls than the rate needs.

    With more, checkpoints would wait behind waiting rows, and more calls would be repeated.
    """
    report = Report(
        "flink-kills", f"Flink: kill -9 while {arguments.open} calls are open", ("", "")
    )
    rate = arguments.open / (arguments.call_ms / 1000)
    rows = round(rate * (2 * BACK_S * arguments.kills + MORE_S))
    rows -= rows % arguments.parallelism
    kills_s: list[float] = []
    with async_calls.running(
        arguments,
        rows,
        rate,
        arguments.call_ms,
        in_flight=call_latency.IN_FLIGHT,
        spare=arguments.kills,
    ) as calls:
        calls.begin()
        for _ in range(arguments.kills):
            time.sleep(BACK_S)
            kills_s.append(async_calls.kill_one(calls))
            time.sleep(BACK_S)
            calls.cluster.until(calls.cluster.is_running, async_calls.WAIT_S, "it runs again")
        calls.wait()
        events = np.sort(np.concatenate(list(call_jobs.events(calls.folder).values())), order="at")
        outs = async_calls.Outs.read(calls.folder)
    require_each_once(outs.ids[~np.isnan(outs.final_s)], rows)
    found = repeated(events, kills_s)
    gaps = [_gap_s(outs, at_s, arguments.parallelism) for at_s in kills_s]
    report.add("kills of one of two task managers", f"{len(kills_s)}")
    report.add("calls that were open then, in both", f"{found.open:,}")
    report.add("... asked again", f"{found.open_again:,}")
    report.add("answered, and asked again", f"{found.answered_again:,}")
    report.add("rows in the sink twice (at least once)", f"{len(outs.ids) - rows:,}")
    report.add("longest time without a row of the killed (s)", ", ".join(f"{g:.2f}" for g in gaps))
    report.data = vars(found)
    return report


def _gap_s(outs: async_calls.Outs, at_s: float, parallelism: int) -> float:
    """The longest time around a kill without a new row of a task."""
    found = []
    for index in range(parallelism):
        times = np.sort(outs.came_s[outs.ids % parallelism == index])
        near = times[(times > at_s - 1) & (times < at_s + BACK_S)]
        found.append(float(np.diff(near).max()))
    return max(found)
