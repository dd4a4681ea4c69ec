"""Metrics and traces of jobs, as the libraries' own readers read them."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from clonos.cluster.listener import Listener
from clonos.errors import DefinitionError
from clonos.exports.metrics import METRICS
from clonos.nodes.views import JobStarted, JobTerminated, OperatorProgress
from tests.watch import jobs

STARTED = JobStarted("fraud", "fraud-1", 1, ("payments[0]",), 5, "app")
ENDED = JobTerminated("fraud", "fraud-1", is_complete=True, error=None)


def progress(job="fraud", away=None):
    newest = jobs.view(jobs.compiled(name=job), away=away).recent[-1]
    operators = tuple(operator(name) for name in ("score", 'quoted "\n'))
    first, *others = newest.tasks
    tasks = (replace(first, lag=12), *others)
    at = "2026-01-01T00:00:10.000+00:00"
    return replace(newest, timestamp=at, operators=operators, tasks=tasks)


def operator(name):
    return OperatorProgress(name, 300, 200, 10.0, {"bad_records": 3}, 90, 1.25)


def recovery():
    now_s = time.monotonic()
    stages = {stage: now_s + at for stage, at in jobs.STAGES.items()}
    return replace(jobs.recovery(2, "last of user[0]", 0.0), stages=stages)


class TestPrometheus:
    @pytest.fixture
    def registry(self) -> Any:
        return pytest.importorskip("prometheus_client").CollectorRegistry()

    @pytest.fixture
    def listener(self, registry) -> Any:
        from clonos.exports.prometheus import PrometheusListener

        return PrometheusListener(registry)

    def test_a_scrape_has_the_newest_progress(self, registry, listener):
        listener.on_started(STARTED)
        listener.on_progress(progress())
        listener.on_progress(progress(away={1: "replaying"}))

        def value(name, **labels):
            return registry.get_sample_value(f"clonos_{name}", {"job": "fraud", **labels})

        assert value("job_up") == 1
        assert value("task_up", task="payments[0]") == 1
        assert value("task_up", task="payments[1]") == 0
        assert value("operator_rows_in_total", operator="score") == 300
        assert value("operator_dropped_total", operator="score", reason="bad_records") == 3
        assert value("operator_calls_total", operator="score") == 90
        assert value("operator_cost_total", operator="score") == 1.25
        assert value("sink_delivered_total", sink="audit") == 88_310
        assert value("task_latency_seconds", task="payments[0]") == 0.006
        assert value("task_log_bytes", task="payments[0]") == 96_000
        assert value("checkpoint_number") == 100
        assert value("checkpoint_completed_timestamp_seconds") == 1_767_225_609.6
        assert value("checkpoint_duration_seconds") == 0.031
        listener.on_terminated(ENDED)
        assert value("job_up") == 0

    def test_the_text_can_be_parsed_whatever_names_say(self, registry, listener):
        client = pytest.importorskip("prometheus_client")
        parser = pytest.importorskip("prometheus_client.parser")
        for job in ("fraud", "other"):
            listener.on_progress(progress(job))
        listener.on_recovery(recovery())
        text = client.generate_latest(registry).decode()
        families = {family.name: family for family in parser.text_string_to_metric_families(text)}
        assert len(families) >= len(METRICS) + 2
        tasks = families["clonos_task_up"].samples
        assert {(s.labels["job"], s.labels["task"]) for s in tasks} >= {("other", "payments[1]")}
        named = families["clonos_operator_rows_in"].samples
        assert 'quoted "\n' in {s.labels["operator"] for s in named}

    def test_recoveries_are_a_histogram(self, registry, listener):
        for _ in range(2):
            listener.on_recovery(recovery())

        def total(part):
            return registry.get_sample_value("clonos_recovery_seconds_sum", {"part": part})

        assert total("all") == pytest.approx(2 * 0.048)
        parts = sum(map(total, ("fence", "logs", "slot", "restore", "replay")))
        assert parts == pytest.approx(total("all"))

    def test_it_can_be_taken_out_again(self, registry, listener):
        from clonos.exports.prometheus import PrometheusListener

        listener.close()
        assert not list(registry.collect())
        PrometheusListener(registry)


class TestOpenTelemetry:
    @pytest.fixture
    def sdk(self) -> Any:
        metrics = pytest.importorskip("opentelemetry.sdk.metrics")
        export = pytest.importorskip("opentelemetry.sdk.trace.export")
        memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
        spans = memory.InMemorySpanExporter()
        tracers = pytest.importorskip("opentelemetry.sdk.trace").TracerProvider()
        tracers.add_span_processor(export.SimpleSpanProcessor(spans))
        reader = pytest.importorskip("opentelemetry.sdk.metrics.export").InMemoryMetricReader()
        yield reader, spans, metrics.MeterProvider([reader]), tracers
        tracers.shutdown()

    @pytest.fixture
    def listener(self, sdk) -> Any:
        from clonos.exports.opentelemetry import OpenTelemetryListener

        return OpenTelemetryListener(*sdk[2:])

    @staticmethod
    def metrics(reader):
        data = reader.get_metrics_data()
        (scope,) = data.resource_metrics[0].scope_metrics
        return {metric.name: metric for metric in scope.metrics}

    def test_a_reader_has_the_newest_progress(self, sdk, listener):
        listener.on_started(STARTED)
        listener.on_progress(progress(away={1: "replaying"}))
        found = self.metrics(sdk[0])
        assert found.keys() >= {f"clonos.{metric.name}" for metric in METRICS}
        up = {p.attributes["task"]: p.value for p in found["clonos.task.up"].data.data_points}
        assert (up["payments[0]"], up["payments[1]"]) == (1, 0)
        rows = found["clonos.operator.rows_in"]
        assert (rows.unit, rows.data.is_monotonic) == ("{row}", True)
        assert rows.data.data_points[0].attributes == {"job": "fraud", "operator": "score"}
        assert found["clonos.task.latency"].unit == "s"
        assert [point.value for point in found["clonos.task.lag"].data.data_points] == [12]
        assert found["clonos.task.log"].unit == "By"
        listener.on_terminated(ENDED)
        assert self.metrics(sdk[0])["clonos.job.up"].data.data_points[0].value == 0

    def test_a_recovery_is_a_span_with_its_parts(self, sdk, listener):
        listener.on_started(STARTED)
        before_ns = time.time_ns()
        listener.on_recovery(recovery())
        *parts, whole = sdk[1].get_finished_spans()
        assert whole.name == "clonos.recovery"
        assert dict(whole.attributes) == {
            "job": "fraud", "task": "last of user[0]", "incarnation": "1.2", "log_entries": 57,
            "level": "start",
        }  # fmt: skip
        assert [span.name.rpartition(".")[2] for span in parts] == [
            "fence", "logs", "slot", "restore", "replay",
        ]  # fmt: skip
        assert {span.parent.span_id for span in parts} == {whole.context.span_id}
        assert whole.end_time - whole.start_time == pytest.approx(48e6, abs=1e4)
        assert parts[0].start_time == whole.start_time
        assert parts[-1].end_time == whole.end_time
        assert abs(whole.start_time - before_ns) < 60e9, "in time since the epoch"
        (point,) = self.metrics(sdk[0])["clonos.recovery.duration"].data.data_points
        assert point.sum == pytest.approx(0.048)


@pytest.mark.parametrize(
    ("package", "extra"), [("prometheus", "prometheus"), ("opentelemetry", "otel")]
)
def test_what_is_missing_is_named(package, extra, monkeypatch):
    import sys
    from importlib import import_module

    for name in ("prometheus_client", "opentelemetry.metrics"):
        monkeypatch.setitem(sys.modules, name, None)
    module = import_module(f"clonos.exports.{package}")
    (listener,) = [
        kind
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, Listener)
        if kind.__module__ == module.__name__
    ]
    with pytest.raises(DefinitionError, match=rf"\.\[{extra}\]"):
        listener()
