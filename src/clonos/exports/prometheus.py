"""Jobs in Prometheus."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, Final

from clonos.cluster.listener import Listener
from clonos.exports.metrics import METRICS, Metric
from clonos.extras import imported
from clonos.nodes.views import JobProgress, JobStarted, JobTerminated, Recovery

BUCKETS_S: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)


class PrometheusListener(Listener):
    """Shows jobs to a Prometheus server that scrapes this driver.

    Give one listener to all jobs of a driver. Numbers are those of the newest progress; nothing is
    computed until somebody scrapes. Needs ``pip install "clonos[prometheus]"``.

    Parameters
    ----------
    registry
        Of ``prometheus_client``; by default its own.

    Examples
    --------
    >>> import prometheus_client  # doctest: +SKIP
    >>> prometheus_client.start_http_server(9108)  # doctest: +SKIP
    >>> job.start(spark, listeners=[PrometheusListener()])  # doctest: +SKIP
    """

    def __init__(self, registry: Any = None) -> None:
        client = imported("prometheus_client", extra="prometheus", where="PrometheusListener")
        self._core = imported("prometheus_client.core", extra="prometheus", where="")
        self._lock = threading.Lock()
        self._newest: dict[str, JobProgress] = {}
        self._up: dict[str, float] = {}
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

    # --- as a listener ----------------------------------------------------------------------------

    def on_started(self, started: JobStarted) -> None:
        with self._lock:
            self._up[started.name] = 1.0

    def on_progress(self, progress: JobProgress) -> None:
        with self._lock:
            self._up[progress.name] = 1.0
            self._newest[progress.name] = progress

    def on_recovery(self, recovery: Recovery) -> None:
        parts = recovery.parts()
        for part, (begin, end) in parts.items():
            self._recoveries.labels(part).observe(end - begin)
        whole = [moment for part in parts.values() for moment in part]
        self._recoveries.labels("all").observe(max(whole) - min(whole))

    def on_terminated(self, terminated: JobTerminated) -> None:
        """The job's counters stay until another job of this name begins."""
        with self._lock:
            self._up[terminated.name] = 0.0

    # --- as a collector ---------------------------------------------------------------------------

    def describe(self) -> list[Any]:
        """Nothing: which metrics there are depends on the jobs."""
        return []

    def collect(self) -> Iterator[Any]:
        """All metrics, as ``prometheus_client`` asks for them."""
        with self._lock:
            newest, up = list(self._newest.values()), dict(self._up)
        job_up = self._core.GaugeMetricFamily(
            "clonos_job_up", "1 while a job runs, 0 when it has ended.", labels=["job"]
        )
        for name, is_up in up.items():
            job_up.add_metric([name], is_up)
        yield job_up
        for metric in METRICS:
            family = self._family(metric, newest)
            if family is not None:
                yield family

    def _family(self, metric: Metric, newest: list[JobProgress]) -> Any:
        values = [
            ({"job": progress.name, **labels}, value)
            for progress in newest
            for labels, value in metric.values(progress)
        ]
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
