from __future__ import annotations

import math
import struct
from random import Random

import pytest

from clonos.errors import UnencodableValue, UnreadableLayer
from clonos.simulator.processes.shelf import SlowShelf
from clonos.state.deltas import encode_delta, merge_deltas, open_delta
from clonos.state.runs import Run
from clonos.state.stores import Undo
from clonos.state.values import ValueStore

KEYS = [b"key %d" % n for n in range(60)]
ODD = [-0.0, 0.0, math.nan, True, 1, 1.0, "", b"", [1, (2,)], {1: "a"}, 2**63, 2**80, "x" * 300]


def same(one, other):
    if type(one) is float and type(other) is float:
        return struct.pack("<d", one) == struct.pack("<d", other)
    return type(one) is type(other) and one == other


def run_by(seed, nbytes):
    """Random work on a store with so little memory, and on one with enough."""
    random = Random(seed)
    undo = Undo()
    plain, store = ValueStore(undo), ValueStore(undo)
    store.use(SlowShelf(random), nbytes)
    deltas: list[bytes] = []
    for _ in range(random.randrange(5, 60)):
        wanted = random.sample(KEYS, random.randrange(1, 20))
        store.relieve()
        if random.random() < 0.8:
            store.expect(wanted)
        for key in wanted:
            assert same(store.get(key), plain.get(key)), (seed, key)
            assert (key in store) is (key in plain)
            undo.begin()
            for _ in range(random.randrange(3)):
                value = None if random.random() < 0.2 else random.choice(ODD)
                for one in (plain, store):
                    one.put(key, 3, value)
            if random.random() < 0.2:
                undo.roll_back()
            else:
                undo.commit()
        if random.random() < 0.5:
            seals = [encode_delta(["a"], [(0, s.changes())]) for s in (plain, store)]
            assert seals[0] == seals[1]
            deltas.append(seals[0])
        if random.random() < 0.2:  # it is restored
            if random.random() < 0.5:
                cut = random.randrange(len(deltas) + 1)
                deltas = [merge_deltas(deltas[:cut], is_base=True), *deltas[cut:]]
            deltas.append(encode_delta(["a"], [(0, plain.changes())]))
            store.changes()
            store = ValueStore(undo)
            store.use(SlowShelf(random), nbytes)
            for delta in deltas:
                for _, run in open_delta(delta).runs:
                    store.restore(run)
    assert sorted(store) == sorted(plain)
    return store


@pytest.mark.parametrize("nbytes", [0, 1000, 5000, 50_000])
def test_nobody_can_tell_where_a_value_is(nbytes):
    for seed in range(40):
        run_by(seed, nbytes)


def test_what_has_no_room_is_not_in_memory():
    store = ValueStore()
    store.use(SlowShelf(Random(1)), 300_000)
    for start in range(0, 20_000, 100):
        keys = [b"%d" % n for n in range(start, start + 100)]
        store.relieve()
        store.expect(keys)
        for key in keys:
            store.put(key, 0, [key, "x" * 50])
        store.changes()
    for _ in range(50):
        store.relieve()
    in_memory = [tier for tier in store._below.all if not isinstance(tier, Run)]
    assert len(store._kept) + len(store._cache) + len(store._older) < 2000
    assert sum(len(tier.values) for tier in in_memory) < 2000
    assert len(store._below.all) < 20
    store.expect([b"%d" % n for n in range(0, 20_000, 77)])
    assert all(store.get(b"%d" % n) == [b"%d" % n, "x" * 50] for n in range(0, 20_000, 77))


def test_a_large_run_is_used_where_it_lies():
    made = ValueStore()
    for n in range(2000):
        made.put(b"%d" % n, 0, b"x" * 100)
    ((_, run),) = open_delta(encode_delta(["a"], [(0, made.changes())])).runs
    read, expected = [], []

    class Watched:
        def __len__(self):
            return len(run.blocks)

        def read(self, start, end):
            read.append(end - start)
            return run.blocks.read(start, end)

        def expect(self, start, end):
            expected.append((start, end))

    store = ValueStore()
    store.use(SlowShelf(Random(1)), 100_000)
    store.restore(Run(run.index, Watched()))
    assert not read
    assert store.get(b"5") == b"x" * 100
    assert len(read) == 1
    assert not expected


def test_damage_ends_the_step_even_if_somebody_catches_it():
    made = ValueStore()
    for n in range(2000):
        made.put(b"%d" % n, 0, b"x" * 100)
    ((_, run),) = open_delta(encode_delta(["a"], [(0, made.changes())])).runs

    class Rotten:
        def __len__(self):
            return len(run.blocks)

        def read(self, start, end):
            return bytes(end - start)

        def expect(self, start, end):
            pass

    store = ValueStore()
    store.use(SlowShelf(Random(1)), 1000)
    store.restore(Run(run.index, Rotten()))
    with pytest.raises(UnreadableLayer, match="checksum"):
        store.get(b"5")
    with pytest.raises(UnreadableLayer, match="checksum"):
        store.require_sound()


def test_what_cannot_be_encoded_is_refused_at_once():
    with pytest.raises(UnencodableValue):
        ValueStore().put(b"k", 0, object())
