"""Jobs in OpenTelemetry: metrics, and each recovery as a trace."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from clonos.exports.metrics import METRICS, Metric, values_of
from clonos.exports.newest import NewestListener, whole
from clonos.extras import imported
from clonos.nodes.views import Recovery
from clonos.version import VERSION

UNITS: Final = {"rows": "{row}", "bytes": "By", "seconds": "s", "": "1"}


class OpenTelemetryListener(NewestListener):
    """Reports jobs to OpenTelemetry.

    Give one listener to all jobs of a driver. Values are those of the newest progress; nothing is
    computed until a reader asks. A recovery is a span ``clonos.recovery``, whose children are its
    parts. Needs ``pip install ".[otel]"``; your OpenTelemetry SDK determines the destination.

    Parameters
    ----------
    meter_provider, tracer_provider
        By default, those set for the process.

    Examples
    --------
    >>> job.start(spark, listeners=[OpenTelemetryListener()])  # doctest: +SKIP
    """

    def __init__(self, meter_provider: Any = None, tracer_provider: Any = None) -> None:
        super().__init__()
        api = {
            name: imported(f"opentelemetry.{name}", extra="otel", where="OpenTelemetryListener")
            for name in ("metrics", "trace")
        }
        self._observation = api["metrics"].Observation
        self._in_context = api["trace"].set_span_in_context
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

    def on_recovery(self, recovery: Recovery) -> None:
        begin, end = whole(recovery)
        named = self._named(recovery)
        self._duration.record(end - begin, {k: named[k] for k in ("job", "task") if k in named})
        to_wall_ns = _to_wall_ns()
        recovered = self._tracer.start_span(
            "clonos.recovery", start_time=to_wall_ns(begin), attributes=named
        )
        context = self._in_context(recovered)
        for part, (since, until) in recovery.parts().items():
            span = self._tracer.start_span(
                f"clonos.recovery.{part}", context, start_time=to_wall_ns(since)
            )
            span.end(to_wall_ns(until))
        recovered.end(to_wall_ns(end))

    def _named(self, recovery: Recovery) -> dict[str, Any]:
        """The job of a recovery, which does not name it: known only if there is just one."""
        life = f"{recovery.incarnation.term}.{recovery.incarnation.n}"
        said = {"task": recovery.name, "incarnation": life, "log_entries": recovery.log_length}
        if recovery.level is not None:
            said["level"] = recovery.level
        jobs = self.up()
        return {"job": next(iter(jobs)), **said} if len(jobs) == 1 else said

    def _jobs(self, _: Any) -> Iterable[Any]:
        return [self._observation(up, {"job": name}) for name, up in self.up().items()]

    def _callback(self, metric: Metric) -> Callable[[Any], Iterable[Any]]:
        def observe(_: Any) -> Iterable[Any]:
            found = values_of(metric, self.newest())
            return [self._observation(value, labels) for labels, value in found]

        return observe


def _to_wall_ns() -> Callable[[float], int]:
    """Converts the driver's monotonic clock to time since the epoch."""
    ahead_s = time.time() - time.monotonic()
    return lambda moment_s: int((moment_s + ahead_s) * 1e9)
