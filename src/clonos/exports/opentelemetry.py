"""Jobs in OpenTelemetry: metrics, and each recovery as a trace."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from clonos.cluster.listener import Listener
from clonos.exports.metrics import METRICS, Metric
from clonos.extras import imported
from clonos.nodes.views import JobProgress, JobStarted, JobTerminated, Recovery
from clonos.version import VERSION

UNITS: Final = {"rows": "{row}", "bytes": "By", "seconds": "s", "": "1"}


class OpenTelemetryListener(Listener):
    """Reports jobs to OpenTelemetry.

    Give one listener to all jobs of a driver. Numbers are those of the newest progress; nothing is
    computed until a reader asks. A recovery is a span ``clonos.recovery``, whose children are its
    parts. Needs ``pip install "clonos[otel]"``; where it goes is what your SDK is set up for.

    Parameters
    ----------
    meter_provider, tracer_provider
        By default those that are set for the process.

    Examples
    --------
    >>> job.start(spark, listeners=[OpenTelemetryListener()])  # doctest: +SKIP
    """

    def __init__(self, meter_provider: Any = None, tracer_provider: Any = None) -> None:
        api = {
            name: imported(f"opentelemetry.{name}", extra="otel", where="OpenTelemetryListener")
            for name in ("metrics", "trace")
        }
        self._observation = api["metrics"].Observation
        self._in_context = api["trace"].set_span_in_context
        self._lock = threading.Lock()
        self._newest: dict[str, JobProgress] = {}
        self._up: dict[str, float] = {}
        meters = meter_provider or api["metrics"].get_meter_provider()
        tracers = tracer_provider or api["trace"].get_tracer_provider()
        meter = meters.get_meter("clonos", VERSION)
        self._tracer = tracers.get_tracer("clonos", VERSION)
        self._duration = meter.create_histogram(
            "clonos.recovery.duration", unit="s", description="Duration of a task's recovery."
        )
        meter.create_observable_gauge(
            "clonos.job.up", [self._jobs], unit="1", description="1 while a job runs, 0 afterwards."
        )
        kinds = {
            "counter": meter.create_observable_counter,
            "gauge": meter.create_observable_gauge,
        }
        for metric in METRICS:
            kinds[metric.kind](
                f"clonos.{metric.name}",
                [self._callback(metric)],
                unit=UNITS[metric.unit],
                description=metric.help,
            )

    def on_started(self, started: JobStarted) -> None:
        with self._lock:
            self._up[started.name] = 1.0

    def on_progress(self, progress: JobProgress) -> None:
        with self._lock:
            self._up[progress.name] = 1.0
            self._newest[progress.name] = progress

    def on_terminated(self, terminated: JobTerminated) -> None:
        with self._lock:
            self._up[terminated.name] = 0.0

    def on_recovery(self, recovery: Recovery) -> None:
        parts = recovery.parts()
        begin, end = recovery.stages["detected"], max(end for _, end in parts.values())
        named = self._named(recovery)
        self._duration.record(end - begin, {k: named[k] for k in ("job", "task") if k in named})
        to_wall_ns = _to_wall_ns()
        whole = self._tracer.start_span(
            "clonos.recovery", start_time=to_wall_ns(begin), attributes=named
        )
        context = self._in_context(whole)
        for part, (since, until) in parts.items():
            span = self._tracer.start_span(
                f"clonos.recovery.{part}", context, start_time=to_wall_ns(since)
            )
            span.end(to_wall_ns(until))
        whole.end(to_wall_ns(end))

    def _named(self, recovery: Recovery) -> dict[str, Any]:
        """A recovery does not name its job, which is known only if there is just one."""
        life = f"{recovery.incarnation.term}.{recovery.incarnation.n}"
        said = {"task": recovery.name, "incarnation": life, "log_entries": recovery.log_length}
        with self._lock:
            return {"job": next(iter(self._up)), **said} if len(self._up) == 1 else said

    def _jobs(self, _: Any) -> Iterable[Any]:
        with self._lock:
            return [self._observation(up, {"job": name}) for name, up in self._up.items()]

    def _callback(self, metric: Metric) -> Callable[[Any], Iterable[Any]]:
        def observe(_: Any) -> Iterable[Any]:
            with self._lock:
                newest = list(self._newest.values())
            return [
                self._observation(value, {"job": progress.name, **labels})
                for progress in newest
                for labels, value in metric.values(progress)
            ]

        return observe


def _to_wall_ns() -> Callable[[float], int]:
    """Converts the driver's monotonic clock to time since the epoch."""
    ahead_s = time.time() - time.monotonic()
    return lambda moment_s: int((moment_s + ahead_s) * 1e9)
