"""Calls at a steady rate: how late rows are beyond their call, and what a call costs then."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np

import clonos
from clonos_bench import call_jobs, jobs, run
from clonos_bench.processes import CpuMeter, descendants
from clonos_bench.report import PERCENTILES, Aim, Report
from clonos_bench.run import FILL_S
from clonos_bench.statistics import summarize

LATE: Final = {"p50": Aim(8.0), "p99": Aim(25.0)}
"""Milliseconds beyond the call."""
IN_FLIGHT: Final = 400
"""The most calls that a task may have open; fewer are open at this rate."""
WARM_UP_S: Final = 5.0
END_S: Final = 60.0


@dataclass(frozen=True)
class Late:
    """Times of the oldest row of each output, in ms: before, during and after its call.

    ``cpu_us`` is the CPU of all processes per call.
    """

    before: call_jobs.Times
    within: call_jobs.Times
    behind: call_jobs.Times
    cpu_us: float

    def beyond(self, call_ms: float) -> call_jobs.Times:
        """All of these times without the call itself."""
        return np.asarray(self.before + self.within + self.behind - call_ms)


def measure(arguments: argparse.Namespace) -> Report:
    """Rows in order of their answers, in order of the input, and with effects."""
    title = f"calls of {arguments.call_ms:g} ms at {arguments.rate:,.0f} rows/s"
    report = Report("latency", title, PERCENTILES)
    kinds: dict[str, tuple[Callable[[Any], Any], bool]] = {
        "as they come": (lambda fn: fn, False),
        "in order": (lambda fn: fn, True),
        "effects": (clonos.effect, False),
    }
    for kind, (made, ordered) in kinds.items():
        late = run_ours(arguments, made, ordered=ordered)
        beyond = late.beyond(arguments.call_ms)
        report.summary(f"beyond the call, {kind} (ms)", summarize(beyond), **LATE)
        report.summary("... until it is asked", summarize(late.before))
        within = summarize(late.within - arguments.call_ms)
        report.summary("... the service's clock is late", within)
        report.summary("... from its answer on", summarize(late.behind))
    report.notes.append(
        "from when the oldest row of an output was due to its durable delivery; it may wait "
        f"{arguments.linger_ms:g} ms before it is read"
    )
    return report


def run_ours(arguments: argparse.Namespace, made: Callable[[Any], Any], *, ordered: bool) -> Late:
    """One run of our job."""
    with run.paced(arguments.rate) as schedule:
        fn = made(partial(call_jobs.slow, schedule.folder, arguments.call_ms / 1000))
        source = jobs.paced(schedule)
        job = call_jobs.define(arguments, source, fn, in_flight=IN_FLIGHT, ordered=ordered)
        with (
            run.session(f"local[{job.cores()}]") as spark,
            run.running(job, spark, schedule, linger_ms=arguments.linger_ms) as (started, watch),
        ):
            outs, cpu = call_jobs.Outs(), CpuMeter()
            started.consumers.watch(outs.delivered)
            begun = lambda: watch.ledger.rows >= WARM_UP_S * arguments.rate  # noqa: E731
            run.until(started, watch, begun, FILL_S, "five seconds of rows are through")
            cpu.look(_ours())
            began = time.time()
            over = lambda: time.time() >= began + arguments.seconds  # noqa: E731
            run.until(started, watch, over, arguments.seconds + 10, "measuring")
            cpu.look(_ours())
            ended = time.time()
            schedule.stop.touch()
            started.wait(END_S)
            watch.drain()
        watch.require_right(arguments.parallelism)
        keys, came_s = outs.oldest(began, ended)
        asked_s, answered_s = call_jobs.asked_and_answered(schedule.folder, keys)
        due_s = (schedule.began_s() or 0.0) + keys / arguments.rate
        return Late(
            1000 * (asked_s - due_s),
            1000 * (answered_s - asked_s),
            1000 * (came_s - answered_s),
            1e6 * cpu.seconds / (arguments.rate * (ended - began)),
        )


def _ours() -> list[int]:
    """Driver, virtual machine, slots, and whatever else they have started."""
    return [os.getpid(), *descendants(os.getpid())]
