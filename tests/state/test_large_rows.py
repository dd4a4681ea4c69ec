"""Rows by key, in memory and elsewhere: nobody can tell where a row was."""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clonos.errors import UnreadableLayer
from clonos.simulator.processes.shelf import SlowShelf
from clonos.state import placed, row_store, runs, tiers
from clonos.state.deltas import Delta, encode_delta, merge_deltas, open_delta
from clonos.state.kept import kept_of
from clonos.state.large_rows import LargeRowStore
from clonos.state.row_store import DUE
from clonos.state.runs import Run

SCHEMA = pa.schema(
    [("key", pa.int64()), ("text", pa.string()), ("at", pa.int64()), (DUE, pa.int64())]
)
KEYS = {"integer": ["key"], "both": ["key", "text"], "text": ["text"]}
TEXTS = ["", "a", "bb", None]
LONG_AGO, FOR_EVER = -(2**61), 2**61
SIDES = (range(1 << 62), range(1 << 62, 1 << 63))

some_times = st.integers(0, 30) | st.sampled_from([LONG_AGO, FOR_EVER])
some_rows = st.lists(
    st.tuples(
        st.none() | st.integers(0, 5),
        st.sampled_from(["", "a", "bb", None]),
        some_times,
        some_times,
    ),
    min_size=1,
    max_size=12,
)


class Seal(NamedTuple):
    """... and go on from layers, the first so many of them merged; perhaps put together anew."""

    is_restored: bool
    merged: int
    is_anew: bool


actions = st.lists(
    st.tuples(st.sampled_from(["append", "find", "discard"]), st.integers(0, 1), some_rows)
    | st.tuples(st.sampled_from(["append", "find", "discard"]), st.integers(0, 1), some_rows)
    | st.tuples(st.sampled_from(["drop", "take"]), st.integers(0, 1), some_times)
    | st.tuples(st.just("lowest"), st.integers(0, 1), st.sampled_from(["at", DUE]))
    | st.tuples(
        st.just("seal"),
        st.just(0),
        st.builds(Seal, st.booleans(), st.integers(0, 5), st.booleans()),
    ),
    max_size=40,
)


@pytest.fixture(autouse=True)
def _eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """What happens to thousands of rows happens to a few."""
    monkeypatch.setattr(row_store, "_MERGED", 2)
    monkeypatch.setattr(row_store, "_INDEX_SLACK", 0)
    monkeypatch.setattr(runs, "BLOCK_BYTES", 150)
    monkeypatch.setattr(runs, "MERGED_BYTES", 400)
    monkeypatch.setattr(runs, "WRITTEN_ROWS", 5)
    monkeypatch.setattr(tiers, "TIERS_MAX", 3)


def batch_of(given_rows: list[Any]) -> pa.RecordBatch:
    columns = zip(*given_rows, strict=True)
    arrays = [pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


class Stores:
    """Both sides of a join, say: they have one delta."""

    def __init__(self, keys: list[str], nbytes: int | None, random: Random) -> None:
        self._how = keys, nbytes, random
        self.sides = [LargeRowStore(SCHEMA, keys, [DUE, "at"], orders) for orders in SIDES]
        if nbytes is not None:
            for side in self.sides:
                side.use(SlowShelf(random), nbytes)

    def delta(self) -> Delta:
        return Delta(["x"], [(0, side.changes()) for side in self.sides])

    def restored(self, deltas: list[bytes]) -> Stores:
        """Others, of layers."""
        stores = Stores(*self._how)
        for delta in deltas:
            for _, run in open_delta(delta).runs:
                for side in stores.sides:
                    side.restore_run(run)
        return stores

    def do(self, action: str, number: int, argument: Any, order: int) -> Any:
        """What comes of it."""
        side, keys = self.sides[number], self._how[0]
        if action == "append":
            side.append(batch_of(argument), SIDES[number].start + order)
        elif action == "drop":
            side.drop_due(argument)
        elif action == "take":
            return side.take_due(argument)
        elif action == "lowest":
            return side.lowest(argument)
        else:
            found = side.find(batch_of(argument), keys)
            if action == "discard":
                _, firsts = np.unique(found.which, return_index=True)
                side.discard(found.rows.take(pa.array(found.which[firsts])))
            return found.probes.tolist(), found.orders.tolist(), found.columns(SCHEMA.names)
        return None


@pytest.mark.parametrize("nbytes", [0, 600, 3000, 1 << 20])
@pytest.mark.parametrize("keys", KEYS.values(), ids=KEYS)
@settings(max_examples=60)
@given(script=actions, seed=st.integers(0, 999))
def test_nobody_can_tell_where_a_row_is(keys, nbytes, script, seed):
    plain = Stores(keys, None, Random(seed))
    small = Stores(keys, nbytes, Random(seed))
    deltas: list[bytes] = []
    order = 0
    for action, number, argument in script:
        if action == "seal":
            seals = [stores.delta() for stores in (plain, small)]
            one, other = map(bytes, seals)
            assert one == other
            deltas.append(one)
            if argument.is_restored:
                head = merge_deltas(deltas[: argument.merged], is_base=True)
                if argument.is_anew and head:
                    (kept,) = kept_of(head).values()
                    again = encode_delta(["x"], [(0, change) for change in kept.changes()])
                    assert kept_of(again)[0].hashes.tolist() == kept.hashes.tolist()
                    head = again
                small = small.restored([head, *deltas[argument.merged :]])
        else:
            assert small.do(action, number, argument, order) == plain.do(
                action, number, argument, order
            )
            order += 20


def filled(rows: int, nbytes: int, random: Random) -> tuple[LargeRowStore, list[bytes]]:
    """A store that has got many rows, and its layers."""
    store, deltas = LargeRowStore(SCHEMA, ["key"], [DUE]), []
    store.use(SlowShelf(random), nbytes)
    for start in range(0, rows, 500):
        given_rows = [(n, "x" * 90, n, n) for n in range(start, start + 500)]
        store.append(batch_of(given_rows), start)
        deltas.append(encode_delta(["x"], [(0, store.changes())]))
    return store, deltas


@pytest.fixture
def _usual(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()


@pytest.mark.usefixtures("_usual")
def test_what_has_no_room_is_not_in_memory():
    store, _ = filled(30_000, 300_000, Random(1))
    for _ in range(20):
        store.changes()
    assert sum(chunk.rows.nbytes for chunk in store._chunks) < 400_000
    assert sum(len(orders) for _, orders in store._index) < 10_000
    assert len(store._below.all) < 20
    wanted = batch_of([(n, None, 0, 0) for n in range(0, 40_000, 77)])
    assert store.find(wanted, ["key"]).orders.tolist() == list(range(0, 30_000, 77))


class Watched:
    """Blocks that say what was read of them."""

    def __init__(self, run: Run, read: list[int], *, is_rotten: bool = False) -> None:
        self._blocks, self._read, self._is_rotten = run.blocks, read, is_rotten

    def __len__(self) -> int:
        return len(self._blocks)

    def read(self, start: int, end: int) -> bytes:
        self._read.append(end - start)
        return bytes(end - start) if self._is_rotten else self._blocks.read(start, end)

    def expect(self, start: int, end: int) -> None:
        pass


def restored(deltas: list[bytes], *, is_rotten: bool = False) -> tuple[LargeRowStore, list[int]]:
    """A store that has little memory, of a merged layer; and what it reads."""
    ((_, run),) = open_delta(merge_deltas(deltas, is_base=True)).runs
    store, read = LargeRowStore(SCHEMA, ["key"], [DUE]), list[int]()
    store.use(SlowShelf(Random(1)), 100_000)
    store.restore_run(Run(run.index, Watched(run, read, is_rotten=is_rotten)))
    return store, read


@pytest.mark.usefixtures("_usual")
def test_a_large_run_is_used_where_it_lies():
    _, deltas = filled(20_000, 300_000, Random(1))
    store, read = restored(deltas)
    assert not read
    assert store.find(batch_of([(5, None, 0, 0)]), ["key"]).orders.tolist() == [5]
    assert len(read) == 1, "what has one key is in one block"
    store.drop_due(3)
    assert len(read) == 2, "of what is due, the head is read"
    store.drop_due(4)
    assert len(read) == 2, "... once"
    assert not len(store.find(batch_of([(4, None, 0, 0)]), ["key"]).probes)
    assert store.find(batch_of([(5, None, 0, 0)]), ["key"]).orders.tolist() == [5]


@pytest.mark.usefixtures("_usual")
def test_damage_is_told():
    _, deltas = filled(20_000, 300_000, Random(1))
    store, _ = restored(deltas, is_rotten=True)
    with pytest.raises(UnreadableLayer, match="checksum"):
        store.find(batch_of([(5, None, 0, 0)]), ["key"])
    with pytest.raises(UnreadableLayer, match="checksum"):
        store.drop_due(3)


def delta_of(*rows: Any, gone: list[int] | None = None) -> bytes:
    """A layer that brings rows of number 0, 1, ..., or says that some are gone."""
    store = LargeRowStore(SCHEMA, ["key"], [DUE, "at"])
    store.append(batch_of(list(rows)), 0)
    if gone is not None:
        store.changes()
        found = store.find(batch_of([(n, None, 0, 0) for n in gone]), ["key"])
        store.discard(found.rows)
    return encode_delta(["x"], [(0, store.changes())])


def take_in(store: LargeRowStore, delta: bytes) -> None:
    for _, run in open_delta(delta).runs:
        store.restore_run(run)


@pytest.mark.usefixtures("_usual")
@pytest.mark.parametrize("seed", range(10))  # what is on its way to the disk, and what is there
def test_a_large_layer_may_say_that_what_is_in_memory_is_gone(seed):
    few = [(n, "a", n, n) for n in range(5)]
    many = [*few, *((n, "a" * 200, n, n) for n in range(5, 60))]
    store = LargeRowStore(SCHEMA, ["key"], [DUE, "at"])
    store.use(SlowShelf(Random(seed)), 8_000)
    take_in(store, delta_of(*few))
    take_in(store, delta_of(*many, gone=[1, *range(5, 60)]))
    assert store.find(batch_of(few), ["key"]).orders.tolist() == [0, 2, 3, 4]
    assert store.lowest("at") == 0
    assert store.take_due(3)["key"].to_pylist() == [0, 2, 3]


class Stuck:
    """A disk that takes orders, and has carried out none yet."""

    content, failed = None, False

    def write(self, fill: Any, *, is_long: bool) -> Stuck:
        del fill, is_long
        return self


@pytest.mark.usefixtures("_usual")
def test_what_is_gone_stays_gone_if_a_large_layer_comes_while_that_is_being_written():
    """Nobody waits for the disk any more, but large layers below have these rows."""
    rows = [(n, "a" * 200, n, n) for n in range(120)]
    before, deltas = LargeRowStore(SCHEMA, ["key"], [DUE, "at"]), list[bytes]()

    def seal():
        deltas.append(encode_delta(["x"], [(0, before.changes())]))

    before.append(batch_of(rows[:60]), 0)
    seal()
    for start in range(0, 45, 15):
        before.discard(before.find(batch_of(rows[start : start + 15]), ["key"]).rows)
        seal()
    before.append(batch_of(rows[60:]), 60)
    seal()

    store = LargeRowStore(SCHEMA, ["key"], [DUE, "at"])
    store.use(Stuck(), 6_000)
    for delta in deltas[:-1]:
        take_in(store, delta)
    assert store._below.is_writing
    take_in(store, deltas[-1])
    assert store.find(batch_of(rows), ["key"]).orders.tolist() == list(range(45, 120))
    assert store.lowest("at") == 45
    assert store.take_due(50)["key"].to_pylist() == list(range(45, 51))


@pytest.mark.usefixtures("_usual")
def test_what_is_late_and_leaves_memory_is_dropped_all_the_same():
    store, random = LargeRowStore(SCHEMA, ["key"], [DUE, "at"]), Random(1)
    store.use(SlowShelf(random), 0)

    def settled():
        for _ in range(50):
            store.changes()

    store.append(batch_of([(n, "a", n, n + 50) for n in range(5)]), 0)
    settled()
    store.drop_due(20)
    store.append(batch_of([(7, "a", 7, 10)]), 5)
    settled()
    assert not store._chunks
    assert store.lowest("at") == 0
    assert store.take_due(20)["key"].to_pylist() == [7]
    assert store.take_due(20).num_rows == 0


@pytest.mark.parametrize(
    ("times", "nbytes"), [([], 27), ([DUE], 27 + 44), ([DUE, "at"], 27 + 2 * 52)]
)
def test_what_a_row_takes_beside_its_content(times, nbytes, monkeypatch):
    """As docs/state.md has it, in blocks of the usual size."""
    monkeypatch.setattr(runs, "BLOCK_BYTES", 16 * 1024)
    monkeypatch.setattr(runs, "WRITTEN_ROWS", 1024)
    store, count = LargeRowStore(SCHEMA, ["key"], times), 5_000
    store.append(batch_of([(n, "a", n, n) for n in range(count)]), 0)
    (run,) = (run for _, run in open_delta(encode_delta(["rows"], [(0, store.changes())])).runs)
    assert len(run) == count * (1 + len(times))
    has_row = [placed.have_rows(rows.keys) for rows in run.parts()]
    parts = zip(run.parts(), has_row, strict=True)
    content = sum(sum(map(len, rows.values.filter(mine).to_pylist())) for rows, mine in parts)
    assert (run.nbytes - content) / count == pytest.approx(nbytes, abs=0.5)
