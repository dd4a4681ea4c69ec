"""How late rows are when nothing fails, and where the time goes."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Final

import numpy as np

from clonos.cluster.driver import RunningJob
from clonos.nodes.views import Sample
from clonos_bench import jobs, plots, run
from clonos_bench.report import PERCENTILES, Aim, Report
from clonos_bench.statistics import percentile, summarize
from clonos_bench.watch import Watch

P50: Final = Aim(10.0)
P99: Final = Aim(50.0)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``clonos-bench latency``."""
    run.common_arguments(parser)
    run.state_arguments(parser, state_mb=10.0)
    add = parser.add_argument
    add("--rate", type=float, default=20_000.0, help="rows per second")
    add("--seconds", type=float, default=60.0, help="how long is measured")
    add("--warm-up", type=float, default=5.0, help="seconds before that")
    add("--standbys", type=int, default=1)


def measure(arguments: argparse.Namespace) -> Report:
    """Latency of each delivered output, and of what each task handled.

    Per hop: each task tells four times a second how old the oldest row was that it has handled
    since; the medians of these maxima, one hop's less the one's before, share out the time.
    """
    out = run.folder(arguments, "latency")
    report = Report("latency", f"latency at {arguments.rate:,.0f} rows/s", PERCENTILES)
    keys = run.keys_of(arguments)
    with run.paced(arguments.rate, keys) as schedule, run.profiled(arguments, out):
        job = jobs.stateful(
            jobs.paced(schedule),
            keys=keys,
            value_bytes=arguments.value_bytes,
            parallelism=arguments.parallelism,
            standbys=arguments.standbys,
            checkpoint_ms=arguments.checkpoint_ms,
        )
        with (
            run.session(f"local[{job.cores()}]") as spark,
            run.running(job, spark, schedule, linger_ms=arguments.linger_ms) as (started, watch),
        ):
            filled = lambda: watch.ledger.rows >= keys + arguments.rate  # noqa: E731
            run.until(started, watch, filled, run.FILL_S, "the state is filled")
            begin = _wait(started, watch, arguments.warm_up)
            samples: list[Sample] = []
            started.observer.samplers += (samples.append,)
            rows = watch.ledger.rows
            end = _wait(started, watch, arguments.seconds)
            rows = watch.ledger.rows - rows
            started.observer.samplers = ()
            schedule.stop.touch()
            started.wait(60)
            watch.drain()
    series = {started.plan.tasks[t].name: watch.series(t) for t in watch.tasks()}
    measured = {
        name: (times[(times >= begin) & (times < end)], late[(times >= begin) & (times < end)])
        for name, (times, late) in series.items()
    }
    everything = np.concatenate([late for _, late in measured.values()])
    report.summary("delivered (ms)", summarize(everything), p50=P50, p99=P99)
    hops = _hops(started, samples)
    for operator, values in hops.items():
        report.summary(f"handled by {operator} (ms, worst of each 0.25 s)", summarize(values))
    faults = watch.ledger.faults(arguments.parallelism)
    report.ok = not faults
    report.notes.append("; ".join(faults) or "every row delivered once")
    report.notes.append(
        f"{rows / (end - begin):,.0f} rows/s delivered; latency is from when the oldest row of an "
        f"output was due; it may wait {arguments.linger_ms:g} ms before it is read"
    )
    report.data = {"hops_ms": {name: percentile(v, 50) for name, v in hops.items()}, "rows": rows}
    plots.timeline(out / "timeline.png", measured, [], report.title)
    limits = [P50.limit, P99.limit]
    plots.histograms(out / "histogram.png", {"latency (ms)": (list(everything), limits)}, "")
    return report


def _wait(job: RunningJob, watch: Watch, seconds: float) -> float:
    """Wait, and return the clock (monotonic)."""
    over = time.monotonic() + seconds
    run.until(job, watch, lambda: time.monotonic() >= over, seconds + 10, "measuring")
    return time.monotonic()


def _hops(job: RunningJob, samples: Sequence[Sample]) -> dict[str, list[float]]:
    """Per operator, in their order: the worst latency of each sample."""
    result: dict[str, list[float]] = {task.operator: [] for task in job.plan.tasks}
    for sample in samples:
        late = float(sample.counters.get("latency_ms", 0))
        if late:
            result[job.plan.tasks[sample.task].operator].append(late)
    return {operator: values for operator, values in result.items() if values}
