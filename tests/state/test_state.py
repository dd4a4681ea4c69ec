from __future__ import annotations

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clonos.core.canonical import encode
from clonos.errors import StateMismatch
from clonos.state.deltas import Changes, decode_delta, encode_delta, merge_deltas
from clonos.state.stores import Facts, KeyedStore, Undo

NAMES = ["a", "b"]
changes = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.builds(
            lambda n, v: Changes([n % 128], [b"%d" % n], [v]),
            st.integers(0, 5),
            st.none() | st.binary(max_size=3),
        ),
    )
)


def applied(deltas):
    state: dict[tuple[int, bytes], bytes] = {}
    for delta in deltas:
        for operator, is_fact, keys, values in decode_delta(NAMES, delta):
            assert not is_fact
            for key, value in zip(keys.to_pylist(), values.to_pylist(), strict=True):
                if value is None:
                    state.pop((operator, key), None)
                else:
                    state[operator, key] = value
    return state


@given(st.lists(changes), st.integers(0, 5), st.booleans())
def test_merged_layers_have_the_same_effect(layers, cut, is_base):
    deltas = [encode_delta(NAMES, layer) for layer in layers]
    cut = min(cut, len(deltas))
    base = merge_deltas(deltas[:cut], is_base=is_base)
    assert applied([base, *deltas[cut:]]) == applied(deltas)
    assert applied([base, merge_deltas(deltas[cut:])]) == applied(deltas)
    assert base == merge_deltas(deltas[:cut], is_base=is_base)


def test_base_forgets_what_is_gone():
    deltas = [encode_delta(NAMES, [(0, Changes([1], [b"k"], [value]))]) for value in (b"v", None)]
    assert merge_deltas(deltas) != b""
    assert merge_deltas(deltas, is_base=True) == b""


def test_other_operators_are_refused():
    delta = encode_delta(["x"], [(0, Changes([0], [b"k"], [b"v"]))])
    with pytest.raises(StateMismatch, match="state of x cannot be read by a, b"):
        applied([delta])
    with pytest.raises(StateMismatch):
        merge_deltas([delta, encode_delta(NAMES, [(0, Changes([0], [b"k"], [b"v"]))])])
    with pytest.raises(StateMismatch, match="cannot be read"):
        merge_deltas([b"garbage"])


def changed(store):
    (changes,) = store.changes()()
    return changes


def test_facts_and_stores_report_what_changed_only():
    facts = Facts()
    facts.set("a", 1)
    assert facts.changes().keys == [b"a"]
    facts.set("a", 1)
    assert not facts.changes().keys
    undo = Undo()
    store = KeyedStore(undo)
    store.put(b"k", 3, b"1")
    undo.begin()
    store.put(b"k", 3, b"2")
    store.put(b"l", 3, b"2")
    undo.roll_back()
    assert (store.get(b"k"), store.get(b"l")) == (b"1", None)
    assert b"l" not in store
    assert dict(zip(*changed(store)[1:], strict=True)) == {b"k": encode(b"1"), b"l": None}
    assert not changed(store).keys


@pytest.mark.parametrize("value", [True, 2**70, -0.5, "text\ud800", b"bytes", [1, {"a": (2,)}]])
def test_a_store_gives_back_what_was_put_now_and_after_a_restore(value):
    store, other = KeyedStore(), KeyedStore()
    store.put(b"k", 3, value)
    assert store.get(b"k") == value
    assert type(store.get(b"k")) is type(value)
    other.restore(*changed(store)[1:])
    assert other.get(b"k") == value
    assert type(other.get(b"k")) is type(value)
    other.put(b"k", 3, other.get(b"k"))
    assert changed(other).values == [encode(value)]


def test_what_is_put_is_a_copy():
    store, given = KeyedStore(), [1]
    store.put(b"k", 3, given)
    given.append(2)
    store.get(b"k").append(3)
    assert store.get(b"k") == [1]


def test_large_state_is_quick():
    store = KeyedStore()
    noise = random.Random(1).randbytes(100)
    for i in range(200_000):
        store.put(b"%d" % i, i % 128, noise)
    start = time.process_time()
    delta = encode_delta(NAMES, [(0, store.changes())])
    other = KeyedStore()
    for _, _, keys, values in decode_delta(NAMES, delta):
        other.restore(keys.to_pylist(), values.to_pylist())
    assert all(other.get(b"%d" % i) == noise for i in range(200_000))
    assert time.process_time() - start < 5
