"""Rows by key against a list of rows, whatever is merged, cleaned up, sealed and restored."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clonos.state import row_store
from clonos.state.deltas import Delta, decode_delta, merge_deltas
from clonos.state.row_store import DUE, RowStore

SCHEMA = pa.schema([("key", pa.int64()), ("text", pa.string()), (DUE, pa.int64())])
KEYS = {"integer": ["key"], "both": ["key", "text"], "text": ["text"]}
TEXTS = ["", "a", "bb", None]

Row = tuple[int | None, str | None, int]

rows = st.lists(
    st.tuples(st.none() | st.integers(0, 3), st.sampled_from(TEXTS), st.integers(0, 20)),
    min_size=1,
    max_size=5,
)
actions = st.lists(
    st.tuples(st.just("append"), rows)
    | st.tuples(st.just("find"), rows)
    | st.tuples(st.just("remove"), rows)
    | st.tuples(st.just("drop"), st.integers(0, 20))
    | st.tuples(st.just("seal"), st.booleans()),
    max_size=30,
)


def batch_of(given_rows: list[Row]) -> pa.RecordBatch:
    columns = zip(*given_rows, strict=True)
    arrays = [pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


@pytest.fixture(autouse=True)
def _eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """What happens to thousands of rows happens to a few."""
    monkeypatch.setattr(row_store, "_MERGED", 2)
    monkeypatch.setattr(row_store, "_INDEX_SLACK", 0)


@pytest.mark.parametrize("keys", KEYS.values(), ids=KEYS)
@settings(max_examples=150)
@given(actions)
def test_agrees_with_a_list(keys, script):
    store, model, count = RowStore(SCHEMA, keys), {}, 0
    at = [SCHEMA.get_field_index(key) for key in keys]
    deltas: list[bytes] = []
    for action, argument in script:
        if action == "append":
            store.append(batch_of(argument), count)
            for row in argument:
                model[count] = row
                count += 1
        elif action == "drop":
            store.drop_due(argument)
            model = {n: row for n, row in model.items() if row[2] > argument}
        elif action == "seal":
            deltas.append(bytes(Delta(["x"], [(0, store.changes())])))
            if argument:
                merged = [merge_deltas(deltas, is_base=True)]
                store = restored(keys, merged if count % 2 else deltas)
        else:
            found = store.find(batch_of(argument), keys)
            pairs = expected(model, argument, at)
            assert list(zip(found.probes.tolist(), found.orders.tolist(), strict=True)) == pairs
            content = pa.RecordBatch.from_arrays(found.columns(SCHEMA.names), schema=SCHEMA)
            assert [tuple(r.values()) for r in content.to_pylist()] == [model[n] for _, n in pairs]
            if action == "remove":
                store.remove(found.orders)
                model = {n: row for n, row in model.items() if n not in found.orders}
        assert len(store) == len(model)


def expected(model: dict[int, Row], probes: list[Row], at: list[int]) -> list[tuple[int, int]]:
    def key(row: Row) -> list[Any]:
        return [row[i] for i in at]

    return [
        (number, order)
        for number, probe in enumerate(probes)
        for order, row in model.items()
        if key(row) == key(probe)
    ]


def restored(keys: list[str], deltas: list[bytes]) -> RowStore:
    store = RowStore(SCHEMA, keys)
    for delta in deltas:
        for _, _, addresses, values in decode_delta(["x"], delta):
            store.restore(addresses, values)
    return store


def test_what_is_dropped_at_once_is_never_indexed():
    store = RowStore(SCHEMA, ["key"])
    for number in range(50):
        store.append(batch_of([(number, None, number)]), number)
        store.drop_due(number)
    store.append(batch_of([(7, None, 99)]), 50)
    assert store.find(batch_of([(7, None, 0)]), ["key"]).orders.tolist() == [50]
    assert sum(len(orders) for _, orders in store._index) == 1


def test_dead_rows_leave_the_index():
    store = RowStore(SCHEMA, ["key"])
    for number in range(100):
        store.append(batch_of([(number % 5, None, number + 2)]), number)
        store.find(batch_of([(number % 5, None, 0)]), ["key"])
        store.drop_due(number)
    indexed = np.concatenate([orders for _, orders in store._index])
    assert len(indexed) <= 2 * len(store) + 1


def test_all_that_came_since_the_last_look_is_dead():
    """... in a chunk that is mostly alive, and so stays as it is."""
    store = RowStore(SCHEMA, ["key"])
    probe = batch_of([(1, None, 0)])
    store.append(batch_of([(1, None, 20)] * 3), 0)
    assert store.find(probe, ["key"]).orders.tolist() == [0, 1, 2]
    store.append(batch_of([(1, None, 5)] * 2), 3)
    store.drop_due(10)
    assert store.find(probe, ["key"]).orders.tolist() == [0, 1, 2]


@pytest.mark.parametrize("data_type", [pa.struct([("f", pa.float64())]), pa.list_(pa.float32())])
def test_zeros_and_nans_inside_of_keys_are_equal(data_type):
    def batch_with(*floats: float) -> pa.RecordBatch:
        is_struct = pa.types.is_struct(data_type)
        values: list[Any] = [{"f": f} if is_struct else [f] for f in floats]
        return pa.record_batch({"k": pa.array(values, data_type)})

    store = RowStore(batch_with().schema, ["k"])
    store.append(batch_with(-0.0, 0.0, float("nan"), 1.0), 0)
    found = store.find(batch_with(0.0, -0.0, -float("nan"), 2.0), ["k"])
    pairs = list(zip(found.probes.tolist(), found.orders.tolist(), strict=True))
    assert pairs == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 2)]
    assert str(found.rows.column("k")[0].as_py()).count("-0.0") == 1  # rows stay as they are


@pytest.mark.parametrize("data_type", [pa.null(), pa.float16(), pa.duration("us"), pa.uint64()])
def test_keys_of_rare_types(data_type):
    def batch_with(*values: int | None) -> pa.RecordBatch:
        given = np.array(values, np.float16) if data_type == pa.float16() else values
        return pa.record_batch({"k": pa.array(given, data_type)})

    some = (None, None) if data_type == pa.null() else (1, 2)
    store = RowStore(batch_with(*some).schema, ["k"])
    store.append(batch_with(*some), 0)
    found = store.find(batch_with(some[1]), ["k"])
    assert found.orders.tolist() == ([0, 1] if data_type == pa.null() else [1])
