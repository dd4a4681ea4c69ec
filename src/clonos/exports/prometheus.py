"""Jobs in Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from clonos.exports.metrics import METRICS, Metric, values_of
from clonos.exports.newest import NewestListener, whole
from clonos.extras import imported
from clonos.nodes.views import JobProgress, Recovery

BUCKETS_S: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)


class PrometheusListener(NewestListener):
    """Shows jobs to a Prometheus server that scrapes this driver.

    Give one listener to all jobs of a driver. Values are those of the newest progress; nothing is
    computed until a server scrapes. Needs ``pip install ".[prometheus]"``.

    Parameters
    ----------
    registry
        A registry of ``prometheus_client``; by default its global one.

    Examples
    --------
    >>> import prometheus_client  # doctest: +SKIP
    >>> prometheus_client.start_http_server(9108)  # doctest: +SKIP
    >>> job.start(spark, listeners=[PrometheusListener()])  # doctest: +SKIP
    """

    def __init__(self, registry: Any = None) -> None:
        super().__init__()
        client = imported("prometheus_client", extra="prometheus", where="PrometheusListener")
        self._core = imported("prometheus_client.core", extra="prometheus", where="")
        self._registry = client.REGISTRY if registry is None else registry
        self._recoveries = client.Histogram(
            "clonos_recovery_seconds",
            "Duration of a task's recovery, and of its parts.",
            ["part"],
            buckets=BUCKETS_S,
            registry=self._registry,
        )
        self._registry.register(self)

    def close(self) -> None:
        """Take the metrics out of the registry."""
        self._registry.unregister(self)
        self._registry.unregister(self._recoveries)

    def on_recovery(self, recovery: Recovery) -> None:
        for part, (begin, end) in {**recovery.parts(), "all": whole(recovery)}.items():
            self._recoveries.labels(part).observe(end - begin)

    # --- as a collector ---------------------------------------------------------------------------

    def describe(self) -> list[Any]:
        """Empty, as the metrics depend on the jobs."""
        return []

    def collect(self) -> Iterator[Any]:
        """All metrics, as ``prometheus_client`` asks for them."""
        newest = self.newest()
        job_up = self._core.GaugeMetricFamily(
            "clonos_job_up", "1 while a job runs, 0 when it has ended.", labels=["job"]
        )
        for name, is_up in self.up().items():
            job_up.add_metric([name], is_up)
        yield job_up
        for metric in METRICS:
            family = self._family(metric, newest)
            if family is not None:
                yield family

    def _family(self, metric: Metric, newest: list[JobProgress]) -> Any:
        values = values_of(metric, newest)
        if not values:
            return None
        name = f"clonos_{metric.name.replace('.', '_')}"
        if metric.unit in {"bytes", "seconds"}:
            name = f"{name}_{metric.unit}"
        kinds = {"counter": self._core.CounterMetricFamily, "gauge": self._core.GaugeMetricFamily}
        family = kinds[metric.kind](name, metric.help, labels=list(values[0][0]))
        for labels, value in values:
            family.add_metric(list(labels.values()), value)
        return family
