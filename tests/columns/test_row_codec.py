from __future__ import annotations

from datetime import date, datetime, timezone
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clonos.columns.keys import densify, factorise
from clonos.columns.row_codec import RowCodec

COLUMNS = {
    "n": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "small": (pa.int16(), st.integers(-5, 5)),
    "f": (pa.float64(), st.floats(allow_nan=False)),
    "b": (pa.bool_(), st.booleans()),
    "s": (pa.string(), st.text(max_size=5)),
    "y": (pa.binary(), st.binary(max_size=5)),
    "d": (pa.decimal128(38, 2), st.integers(-999, 999).map(lambda n: Decimal(n).scaleb(-2))),
    "day": (pa.date32(), st.dates(date(1970, 1, 1), date(2100, 1, 1))),
    "t": (
        pa.timestamp("us", "UTC"),
        st.datetimes(datetime(1970, 1, 1), datetime(2100, 1, 1)).map(  # noqa: DTZ001 - made aware
            lambda t: t.replace(tzinfo=timezone.utc)
        ),
    ),
    "l": (pa.list_(pa.int64()), st.lists(st.integers(0, 3), max_size=2)),
}


@given(st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, unique=True), st.data())
def test_rows_come_back(names, data):
    rows = data.draw(st.integers(0, 6))
    columns = []
    for name in names:
        data_type, values = COLUMNS[name]
        given_values = st.lists(st.none() | values, min_size=rows, max_size=rows)
        columns.append(pa.array(data.draw(given_values), data_type))
    codec = RowCodec(pa.schema([pa.field(name, COLUMNS[name][0]) for name in names]))
    encoded = codec.encode(columns)
    start = data.draw(st.integers(0, rows))
    for column, decoded in zip(columns, codec.decode(encoded.slice(start)), strict=True):
        decoded.validate(full=True)
        assert decoded.type == column.type
        assert decoded.to_pylist() == column.slice(start).to_pylist()


def test_equal_rows_give_equal_bytes():
    """Whatever lies under a null, or before a slice."""
    schema = pa.schema([("n", pa.int64()), ("s", pa.string())])
    numbers = pa.Array.from_buffers(
        pa.int64(), 2, [pa.py_buffer(b"\x02"), pa.py_buffer(bytes(range(16)))]
    )
    other = pa.array([7, None, numbers[1].as_py()])
    texts = pa.array(["x", None, "yz"])
    first = RowCodec(schema).encode([numbers, texts.slice(1)])
    second = RowCodec(schema).encode([other.slice(1), texts.slice(1)])
    assert first.to_pylist() == second.to_pylist()


def model(values):
    numbers: dict[object, int] = {}
    codes = [numbers.setdefault(value, len(numbers)) for value in values]
    return codes, [codes.index(number) for number in range(len(numbers))]


@given(st.lists(st.integers(-4, 4) | st.integers(-(2**62), 2**62), max_size=40))
def test_distinct_integers_in_order_of_appearance(values):
    codes, firsts = densify(pa.array(values, pa.int64()).to_numpy())
    assert (codes.tolist(), firsts.tolist()) == model(values)


@given(
    st.lists(
        st.tuples(
            st.none() | st.integers(0, 3), st.sampled_from(["a", "b", None]), st.just(1.5),
            st.lists(st.integers(0, 1), max_size=1),
        ),
        max_size=30,
    )
)  # fmt: skip
def test_distinct_rows_in_order_of_appearance(rows):
    types = (pa.int64(), pa.string(), pa.float64(), pa.list_(pa.int64()))
    columns = [pa.array([row[i] for row in rows], t) for i, t in enumerate(types)]
    codes, firsts = factorise(columns, len(rows))
    assert (codes.tolist(), firsts.tolist()) == model([repr(row) for row in rows])


@pytest.mark.parametrize("rows", [0, 3])
def test_without_columns_all_rows_are_the_same(rows):
    codes, firsts = factorise([], rows)
    assert codes.tolist() == [0] * rows
    assert firsts.tolist() == [0] * min(rows, 1)
