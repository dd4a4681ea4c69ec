from __future__ import annotations

from array import array
from collections import defaultdict, namedtuple
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from enum import IntEnum
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import clonos.columns.rows  # noqa: F401 - registers rows and batches
from clonos.columns.batches import seal
from clonos.columns.rows import row_type
from clonos.core.canonical import decode, decode_error, encode, encode_error
from clonos.errors import CallError, ProtocolError, UnencodableValue

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.decimals(allow_nan=False)
    | st.datetimes()
    | st.datetimes(timezones=st.just(timezone.utc))
    | st.dates()
    | st.timedeltas()
    | st.uuids()
)
hashable = scalars | st.tuples(scalars, scalars) | st.frozensets(scalars, max_size=3)
values = st.recursive(
    hashable | st.sets(scalars, max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(scalars, inner, max_size=3),
    max_leaves=6,
)


@given(values)
def test_round_trip(value):
    encoded = encode(value)
    assert decode(encoded) == value
    assert encode(decode(encoded)) == encoded


@given(st.sets(st.integers() | st.text()))
def test_sets_are_sorted_by_content(value):
    assert encode(value) == encode(set(list(value)[::-1]))  # noqa: C415 - another order


class Level(IntEnum):
    LOW = 1


Point = namedtuple("Point", "x y")  # noqa: PYI024 - that is the point


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (np.float64(2.5), 2.5),
        (np.int32(3), 3),
        (np.bool_(1), True),
        (np.str_("a"), "a"),
        (np.datetime64("2020-01-02"), date(2020, 1, 2)),
        (Level.LOW, 1),
        (defaultdict(int, a=1), {"a": 1}),
        (Point(1, 2), (1, 2)),
        (bytearray(b"x"), b"x"),
        ("\udc80", "\udc80"),
        (datetime(2020, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))),
         datetime(2020, 1, 1, tzinfo=timezone.utc)),
        (Decimal("1.10"), Decimal("1.10")),
        (UUID(int=5), UUID(int=5)),
    ],
)  # fmt: skip
def test_becomes_plain(value, plain):
    decoded = decode(encode(value))
    assert decoded == plain
    assert type(decoded) is type(plain)


def test_decoded_rows_and_batches():
    row = row_type(("word", "n"))(("a", 1))
    assert decode(encode([row]))[0].word == "a"
    batch = pa.record_batch({"x": [1, 2]})
    assert decode(encode(batch)).equals(batch)


@dataclass
class Verdict:
    text: str = "cheap"


class Model:
    """As pydantic's."""

    def model_dump(self):
        return {}


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (Verdict(), "Verdict cannot be kept .* what dataclasses.asdict makes of it"),
        ([Model()], r"Model cannot be kept .* what its model_dump\(\) returns"),
        ({"a": array("i", [1])}, r"array.array cannot be kept .* what its tolist\(\) returns"),
        (object(), "plain values instead"),
    ],
)
def test_how_to_keep_what_cannot_be_kept_is_said(value, told):
    with pytest.raises(UnencodableValue, match=told):
        encode(value)


def test_unencodable_names_the_type():
    with pytest.raises(UnencodableValue, match="object"):
        encode({"a": [object()]})
    deep: list[object] = []
    for _ in range(2000):
        deep = [deep]
    with pytest.raises(UnencodableValue):
        encode(deep)


@given(st.binary())
def test_garbage_is_refused_with_one_error(data):
    with suppress(ProtocolError):
        decode(data)


@pytest.mark.parametrize(
    "error",
    [ValueError("no", 1), KeyError(("a", 1)), OSError(2, "gone"), TimeoutError(), StopIteration()],
)
def test_builtin_exceptions_come_back(error):
    rebuilt = decode_error(encode_error(error))
    assert type(rebuilt) is type(error)
    assert rebuilt.args == error.args


class OwnError(Exception):
    pass


def test_other_exceptions_become_call_errors():
    rebuilt = decode_error(encode_error(OwnError("why")))
    assert isinstance(rebuilt, CallError)
    assert rebuilt.type_name.endswith("OwnError")
    assert rebuilt.message == "why"
    again = decode_error(encode_error(rebuilt))
    assert str(again) == str(rebuilt)
    assert isinstance(decode_error(encode_error(ValueError(object()))), CallError)


def test_digest_does_not_depend_on_what_lies_under_nulls_or_on_slicing():
    garbage = pa.array(np.array([1, 77, 3]), mask=np.array([False, True, False]))
    clean = pa.array([1, None, 3], pa.int64())
    one, two = (seal(pa.record_batch({"x": column})) for column in (garbage, clean))
    assert one.digest == two.digest
    big = pa.record_batch({"x": list(range(100_000)), "b": [i % 3 == 0 for i in range(100_000)]})
    part = seal(big.slice(5, 13))
    copy = seal(pa.RecordBatch.from_pylist(big.slice(5, 13).to_pylist()))
    assert part.digest == copy.digest
    assert part.payload.nbytes < 1000
    assert part.payload.column(0).offset == 0
    assert part.payload.equals(copy.payload)


cells = st.none() | st.fixed_dictionaries(
    {
        "i": st.none() | st.integers(-3, 3),
        "b": st.none() | st.booleans(),
        "s": st.none() | st.text(max_size=3),
        "l": st.none() | st.lists(st.none() | st.text(max_size=2), max_size=3),
        "m": st.none() | st.dictionaries(st.text(max_size=2), st.integers(0, 3), max_size=2),
        "d": st.none() | st.decimals(-5, 5, places=2),
    }
)
NESTED = pa.schema(
    [
        ("x", pa.struct([("i", pa.int32()), ("b", pa.bool_()), ("s", pa.string()),
                         ("l", pa.list_(pa.string())), ("m", pa.map_(pa.string(), pa.int8())),
                         ("d", pa.decimal128(5, 2))])),
    ]
)  # fmt: skip


@given(st.lists(cells, max_size=6), st.lists(cells, max_size=6), st.integers(0, 3))
def test_digest_is_one_of_content(some, others, cut):
    def made(values):
        return pa.RecordBatch.from_arrays([pa.array(values, NESTED.types[0])], schema=NESTED)

    alone = seal(made(some))
    part = seal(made(others[:cut] + some + others).slice(len(others[:cut]), len(some)))
    assert part.digest == alone.digest
    assert part.payload.to_pylist() == alone.payload.to_pylist()
    sent = pa.ipc.read_record_batch(part.payload.serialize(), NESTED)
    assert seal(sent).digest == alone.digest
    if alone.payload.to_pylist() != made(others).to_pylist():
        assert seal(made(others)).digest != alone.digest


def test_a_column_does_not_pin_the_message_it_came_in():
    wide = pa.record_batch({"x": list(range(10)), "y": ["z" * 100_000] * 10})
    received = pa.ipc.read_record_batch(wide.serialize(), wide.schema)
    payload = seal(received.select(["x"])).payload
    root = payload.column(0).buffers()[1]
    while root.parent is not None:
        root = root.parent
    assert root.size < 1000
