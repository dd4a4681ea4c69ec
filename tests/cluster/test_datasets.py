"""What a job reads and writes, as listeners hear it: names and places, and no secrets."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

import clonos
from clonos.cluster.datasets import datasets_of
from clonos.nodes.views import JobStarted


def found(source: Any, sink: Any) -> tuple[Any, Any]:
    job = clonos.Job("copy", parallelism=1)
    job.source(source, name="in").sink(sink, name="out")
    datasets = datasets_of(job.compile())
    return (*datasets.inputs, *datasets.outputs)  # type: ignore[return-value]


SOURCES: dict[str, tuple[Any, str | None]] = {
    "batches": (lambda _: clonos.sources.from_batches([], "n long"), None),
    "kafka": (
        lambda _: clonos.sources.kafka("broker:9092", "orders", schema="n long"),
        "orders of <Kafka at broker:9092>",
    ),
    "socket": (lambda _: clonos.sources.socket_lines("host", 99), "host:99"),
    "redis": (
        lambda _: clonos.sources.redis("redis://me:secret@host:6379", "orders", schema="n long"),
        "Redis at host:6379",
    ),
    "websocket": (
        lambda _: clonos.sources.websocket(
            "wss://me:secret@host/feed?token=secret", schema="n long"
        ),
        "websocket wss://host:443/feed",
    ),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_where_sources_read(kind, tmp_path):
    source, place = SOURCES[kind]
    one, _ = found(source(tmp_path), clonos.sinks.collect())
    assert (one.operator, one.kind, one.place) == ("in", kind, place)
    assert "secret" not in repr(one)


def test_where_files_are_read(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n')
    one, _ = found(clonos.sources.files(f"{tmp_path}/*.jsonl", "json"), clonos.sinks.collect())
    assert (one.kind, one.place, one.columns) == (
        "files", f"{tmp_path}/*.jsonl", (("n", "bigint"),),
    )  # fmt: skip


SINKS: dict[str, tuple[Any, str, str | None]] = {
    "collect": (clonos.sinks.collect(), "collect", None),
    "parquet": (clonos.sinks.parquet("/data/out"), "parquet", "/data/out"),
    "a bucket": (clonos.sinks.parquet("s3://me:secret@data/out"), "parquet", "s3://***@data/out"),
    "table": (clonos.sinks.table("/data/table"), "table", "/data/table"),
    "delta": (clonos.sinks.spark("delta", "/data/delta"), "delta", "/data/delta"),
    "delta in a bucket": (
        clonos.sinks.spark("delta", "s3a://me:secret@data/out"), "delta", "s3a://***@data/out",
    ),
    "kafka": (
        clonos.sinks.kafka("broker:9092", "judged"),
        "kafka",
        "topic judged of <Kafka at broker:9092>",
    ),
    "http": (
        clonos.sinks.http("https://host/in?token=secret"), "http", "https://host:443/in",
    ),
    "postgres": (
        clonos.sinks.postgres("postgresql://me:secret@host/db", "public.totals"),
        "postgres",
        "table public.totals of host:5432/db",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", SINKS)
def test_where_sinks_write(case):
    sink, kind, place = SINKS[case]
    _, one = found(clonos.sources.from_batches([], "n long, at timestamp"), sink)
    assert (one.operator, one.kind) == ("out", kind)
    assert one.place == place
    assert one.columns == (("n", "bigint"), ("at", "timestamp"))
    assert "secret" not in repr(one)


def test_what_is_told_is_json_and_says_each_once():
    job = clonos.Job("two", parallelism=2)
    rows = job.source(clonos.sources.from_batches([pa.table({"n": [1]})]), name="in")
    rows.sink(clonos.sinks.collect(), name="one")
    rows.key_by("n").sink(clonos.sinks.collect(), name="other")
    told = datasets_of(job.compile())
    started = JobStarted("two", "two-1", 1, (), 1, "app", told.inputs, told.outputs)
    read = json.loads(started.json)
    assert [one["operator"] for one in read["inputs"]] == ["in"]
    assert [one["operator"] for one in read["outputs"]] == ["one", "other"]
    assert read["outputs"][0]["columns"] == [["n", "bigint"]]
