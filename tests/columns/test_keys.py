from __future__ import annotations

from datetime import date, datetime, timezone
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clonos.columns.keys import KEY_GROUPS, distinct_keys, hash_columns, key_groups


def test_hash_is_fixed_for_ever():
    # These numbers decide which task owns a key: they may not change between versions.
    columns = [
        pa.array([0, 1, -1, None], pa.int64()),
        pa.array(["", "spark", "ä", None]),
        pa.array([0.0, 1.5, float("inf"), None]),
    ]
    assert [hash_columns([column]).tolist() for column in columns] == EXPECTED


EXPECTED = [
    [16294208416658607535, 10451216379200822465, 16490336266968443936, 11400714819323198485],
    [3244421341483603138, 6392437417379853514, 6066459093398238388, 11400714819323198485],
    [16294208416658607535, 15481881892811333770, 2638638862653029785, 11400714819323198485],
]


def test_types_and_layout_do_not_matter():
    text = pa.array(["a", "b", "a", None])
    assert hash_columns([text]).tolist() == hash_columns([text.cast(pa.large_string())]).tolist()
    assert hash_columns([text.slice(1)]).tolist() == hash_columns([text]).tolist()[1:]
    numbers = pa.array([1, None, 3], pa.int32())
    wide = numbers.cast(pa.int64())
    assert hash_columns([numbers]).tolist() == hash_columns([wide]).tolist()


def test_every_type_has_a_hash():
    batch = pa.record_batch(
        {
            "b": [True, None],
            "d": [date(2020, 1, 1), None],
            "t": [datetime(2020, 1, 1, tzinfo=timezone.utc), None],
            "m": [Decimal("1.5"), None],
            "l": [[1, 2], None],
            "s": [{"x": 1}, None],
            "y": [b"x", None],
        }
    )
    for name in batch.schema.names:
        distinct = distinct_keys(batch, [name])
        assert len(distinct.keys) == 2
        assert distinct.groups == key_groups([batch.column(name)]).tolist()
    assert len(distinct_keys(batch, batch.schema.names).keys) == 2


def test_one_zero_and_one_nan():
    batch = pa.record_batch({"x": [0.0, -0.0, float("nan"), -float("nan")]})
    assert len(distinct_keys(batch, ["x"]).keys) == 2


@pytest.mark.parametrize("size", [32, 64])
def test_one_zero_and_one_nan_inside_others(size):
    inner = pa.float32() if size == 32 else pa.float64()
    structs = [{"x": 0.0}, {"x": -0.0}, {"x": float("nan")}, {"x": -float("nan")}, None]
    lists = [[row and row["x"], None] for row in structs]
    batch = pa.RecordBatch.from_arrays(
        [pa.array(structs, pa.struct([("x", inner)])), pa.array(lists, pa.list_(inner))],
        names=["struct", "list"],
    )
    for name in batch.schema.names:
        distinct = distinct_keys(batch, [name])
        assert distinct.codes.tolist() == [0, 0, 1, 1, 2]
        assert "-0.0" not in repr(distinct.keys)


keys = st.lists(st.tuples(st.integers(0, 5) | st.none(), st.sampled_from("abc")), min_size=1)


@given(keys)
def test_distinct_keys(given_keys):
    batch = pa.record_batch(
        {"x": pa.array([k[0] for k in given_keys], pa.int64()), "y": [k[1] for k in given_keys]}
    )
    distinct = distinct_keys(batch, ["x", "y"])
    assert distinct.keys == list(dict.fromkeys(given_keys))
    assert [distinct.keys[code] for code in distinct.codes] == given_keys
    groups = key_groups([batch.column("x"), batch.column("y")])
    assert [distinct.groups[code] for code in distinct.codes] == groups.tolist()


def test_groups_are_even():
    groups = key_groups([pa.array(np.arange(100_000))])
    counts = np.bincount(groups, minlength=KEY_GROUPS)
    assert counts.min() > 600
    assert counts.max() < 1000


def test_integers_without_a_sign():
    values = [2**63 - 1, 2**63, 2**64 - 1, 0, 2**63, None]
    batch = pa.record_batch({"x": pa.array(values, pa.uint64())})
    distinct = distinct_keys(batch, ["x"])
    assert distinct.codes.tolist() == [0, 1, 2, 3, 1, 4]
    assert [key for (key,) in distinct.keys] == [2**63 - 1, 2**63, 2**64 - 1, 0, None]
    signed = pa.array([2**63 - 1, 0, None], pa.int64())
    assert hash_columns([signed]).tolist() == [
        hash_columns([batch.column("x")])[row] for row in (0, 3, 5)
    ]
