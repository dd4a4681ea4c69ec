"""What becomes of the values of messages."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import clonos
from clonos.errors import OperatorError
from clonos.sources import kafka as kafka_source
from clonos.testing.harness import Source, StepHarness


def program(**options: Any) -> Any:
    job = clonos.Job(on_bad_record="drop" if options.pop("drop", False) else "fail")
    rows = job.source(kafka_source("a:1", "t", **options))
    rows.sink(clonos.sinks.collect(), name="out")
    return StepHarness(job.compile().codes[0].program())


def messages(*values: bytes | None, metadata: bool = True) -> pa.RecordBatch:
    beside = [(None, "t", 0, n, None) for n in range(len(values))]
    schema = kafka_source("a:1", "t", value="bytes", metadata=metadata).schema
    rows = [(v, *rest)[: len(schema)] for v, rest in zip(values, beside, strict=True)]
    columns = [pa.array(c, f.type) for c, f in zip(zip(*rows, strict=True), schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def given(harness: Any, batch: pa.RecordBatch) -> list[dict[str, Any]]:
    (out,) = harness.feed(Source(batch)).batches.values()
    return out.payload.to_pylist()  # type: ignore[no-any-return]


JSON = {"schema": "a long, b string", "metadata": True}


def test_json_becomes_columns_beside_the_metadata():
    pretty = b'{\n "a": 2,\n "unknown": 5}'
    rows = given(program(**JSON), messages(b'{"a": 1, "b": "x"}', None, pretty))
    assert [(row["a"], row["b"], row["offset"]) for row in rows] == [
        (1, "x", 0),
        (None, None, 1),
        (2, None, 2),
    ]


BROKEN = [b"", b"no", b'{"a": 1}{"a": 2}', b'{"a": ', b'{"a": "x"}']


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_message_fails_the_job(broken):
    with pytest.raises(OperatorError, match="not json"):
        program(**JSON).feed(Source(messages(b'{"a": 1}', broken)))


def test_broken_messages_are_dropped_and_counted():
    harness = program(**JSON, drop=True)
    rows = given(harness, messages(b'{"a": 1}', *BROKEN, b'{"a": 3}'))
    assert [(row["a"], row["offset"]) for row in rows] == [(1, 0), (3, 6)]
    assert sum(harness.program.statistics.values()) == len(BROKEN)


def test_texts_and_bytes():
    rows = given(program(value="text"), messages("é".encode(), None, b"", metadata=False))
    assert [row["value"] for row in rows] == ["é", None, ""]
    rows = given(program(value="bytes"), messages(b"\xff", None, metadata=False))
    assert [row["value"] for row in rows] == [b"\xff", None]
    with pytest.raises(OperatorError, match="not text"):
        program(value="text").feed(Source(messages(b"\xff", metadata=False)))
