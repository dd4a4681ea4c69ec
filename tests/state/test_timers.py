from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from clonos.errors import UnreadableLayer
from clonos.simulator.processes.shelf import SlowShelf
from clonos.state import runs, timers
from clonos.state.deltas import encode_delta, merge_deltas, open_delta
from clonos.state.runs import Run
from clonos.state.stores import Facts, Undo
from clonos.state.timers import EVENT_TIME, PROCESSING_TIME, Timer, TimerTable, place_of
from clonos.state.values import ValueStore

FAR = [-(1 << 63), -(1 << 45) - 1, (1 << 45) - 1, 1 << 45, 1 << 46, (1 << 63) - 1]
KINDS = st.sampled_from([EVENT_TIME, PROCESSING_TIME])
DUES = st.integers(0, 30) | st.sampled_from(FAR)
KEYS = st.sampled_from([b"a", b"b", b"c"])
OPS = st.one_of(
    st.tuples(st.sampled_from(["set", "set", "set", "delete"]), KINDS, DUES, KEYS),
    st.tuples(st.just("value"), KEYS, st.integers(0, 9)),
    st.tuples(st.just("fire"), KINDS, DUES | st.none()),
    st.tuples(st.just("fail"), st.lists(st.tuples(KINDS, DUES, KEYS, st.booleans()), max_size=3)),
    st.tuples(st.just("relieve")),
    st.tuples(st.just("seal")),
    st.tuples(st.just("restore"), st.integers(0, 5)),
)


class Timed:
    """Timers beside values, with so little memory."""

    def __init__(self, shelf: SlowShelf | None = None, nbytes: int = 0) -> None:
        self.undo, self.facts = Undo(), Facts()
        self.store = ValueStore(self.undo, place_of)
        self.table = TimerTable(self.store, self.facts)
        if shelf is not None:
            self.store.use(shelf, nbytes)

    def do(self, what: str, *how: Any) -> Any:
        """Return what can be seen of it."""
        match what:
            case "set" | "delete":
                getattr(self.table, what)(*how, 5)
            case "value":
                self.store.put(b"s" + how[0], 5, how[1])
            case "relieve":
                self.store.relieve()
            case "fire":
                return self.fire(*how)
            case "fail":
                self.undo.begin()
                for kind, due, key, is_set in how[0]:
                    (self.table.set if is_set else self.table.delete)(kind, due, key, 5)
                self.undo.roll_back()
        return [self.table.next_due(kind) for kind in (EVENT_TIME, PROCESSING_TIME)]

    def fire(self, kind: bytes, until: int | None) -> list[Timer]:
        """Those that are due; the first deletes another and sets it anew."""
        fired: list[Timer] = []
        for some in self.table.due(kind, until):
            self.store.relieve()
            for timer in filter(self.table.remove, some):
                if len(fired) % 3 == 0:
                    self.table.delete(kind, 7, b"a", 5)
                    self.table.set(kind, 7, b"a", 5)
                    self.table.set(kind, timer.due, b"c", 5)
                fired.append(timer)
        return fired

    def seal(self):
        return encode_delta(["p"], [(0, self.facts.changes()), (0, self.store.changes())])

    def restore(self, deltas, facts):
        for name, value in facts.as_dict().items():
            self.facts.set(name, value)
        self.facts.changes()
        for delta in deltas:
            for _, run in open_delta(delta).runs:
                self.table.restore(self.store.restore(run))
                self.store.relieve()


@pytest.fixture
def _few_at_once(monkeypatch):
    monkeypatch.setattr(timers, "_FIRED_AT_ONCE", 2)
    monkeypatch.setattr(runs, "BLOCK_BYTES", 100)
    monkeypatch.setattr(timers, "_READ_BLOCKS", 1)


@pytest.mark.usefixtures("_few_at_once")
@example(
    [("set", b"e", 0, b"a"), ("set", b"e", 0, b"b"), ("set", b"p", 0, b"a"), ("relieve",),
     ("restore", 0), ("fail", [(b"e", 0, b"a", False), (b"p", 0, b"b", True)])], 0, 0,
)  # fmt: skip
@settings(max_examples=150)
@given(st.lists(OPS, max_size=40), st.sampled_from([0, 500, 3000]), st.integers(0, 99))
def test_nobody_can_tell_where_a_timer_is(ops, nbytes, seed):
    random, deltas = Random(seed), list[bytes]()
    plain, small = Timed(), Timed(SlowShelf(random), nbytes)
    for op in ops:
        if op[0] in ("seal", "restore"):
            seals = plain.seal(), small.seal()
            assert seals[0] == seals[1]
            deltas.append(seals[0])
        if op[0] == "restore":
            deltas = [merge_deltas(deltas[: op[1]], is_base=True), *deltas[op[1] :]]
            small = Timed(SlowShelf(random), nbytes)
            small.restore(deltas, plain.facts)
        assert small.do(*op) == plain.do(*op)
    for kind in (EVENT_TIME, PROCESSING_TIME):
        assert small.do("fire", kind, None) == plain.do("fire", kind, None)


def filled(count: int, due_of) -> Run:
    made = Timed()
    for n in range(count):
        made.table.set(EVENT_TIME, due_of(n), b"%d" % n, n % 128)
    ((_, run),) = open_delta(made.seal()).runs
    return run


class Watched:
    """Notes how much is read."""

    def __init__(self, run: Run, *, is_rotten: bool = False) -> None:
        self.read_bytes, self._run, self._is_rotten = 0, run, is_rotten

    def __len__(self):
        return len(self._run.blocks)

    def read(self, start, end):
        self.read_bytes += end - start
        return bytes(end - start) if self._is_rotten else self._run.blocks.read(start, end)

    def expect(self, start, end):
        pass


def with_run(run: Run, **how) -> tuple[Timed, Watched]:
    timed, watched = Timed(SlowShelf(Random(1)), 100_000), Watched(run, **how)
    timed.facts.set("timers", len(run))
    timed.table.restore(timed.store.restore(Run(run.index, watched)))
    return timed, watched


def test_what_is_due_next_is_read_and_nothing_else():
    run = filled(20_000, lambda n: 1_700_000_000_000 + n * 7919 % 20_000)
    timed, watched = with_run(run)
    assert watched.read_bytes == 0
    assert timed.table.next_due(EVENT_TIME) == 1_700_000_000_000
    assert watched.read_bytes < 100_000
    due = timed.table.due(EVENT_TIME, 1_700_000_000_000 + 9_999)
    assert [timer.due for some in due for timer in some] == [
        1_700_000_000_000 + n for n in range(10_000)
    ]
    assert 0.4 * run.nbytes < watched.read_bytes < 0.8 * run.nbytes


def test_when_many_are_due_next_takes_a_few_blocks_to_know():
    timed, watched = with_run(filled(20_000, lambda _: 1_700_000_000_000))
    assert timed.table.next_due(EVENT_TIME) == 1_700_000_000_000
    assert watched.read_bytes < 100_000
    due = timed.table.due(EVENT_TIME, 1_700_000_000_000)
    assert [timer.id for some in due for timer in some] == list(range(1, 20_001))


def test_a_timer_among_many_of_the_same_time_takes_a_block_to_find_and_a_new_one_none():
    run = filled(20_000, lambda _: 1_700_000_000_000)
    timed, watched = with_run(run)
    for n in range(0, 20_000, 200):
        timed.table.set(EVENT_TIME, 1_700_000_000_000, b"%d" % n, n % 128)
    assert timed.facts.get("timers") == 20_000  # all were there
    assert watched.read_bytes <= 100 * 20_000
    watched.read_bytes = 0
    for n in range(20_000, 20_100):
        timed.table.set(EVENT_TIME, 1_700_000_000_000, b"%d" % n, n % 128)
    assert timed.facts.get("timers") == 20_100
    assert watched.read_bytes < 20 * 20_000  # the filter is wrong now and then


@pytest.mark.parametrize("timed_keys", [0, 1000])
def test_other_values_are_not_read_to_find_what_is_due_next(timed_keys):
    made = Timed()
    for n in range(50_000):
        made.store.put(b"s%d" % n, n % 128, "x" * 50)
    for n in range(timed_keys):
        for kind in (EVENT_TIME, PROCESSING_TIME):
            made.table.set(kind, 1_700_000_000_000 + n, b"%d" % n, n % 128)
    ((_, run),) = open_delta(made.seal()).runs
    timed, watched = with_run(run)
    for kind in (EVENT_TIME, PROCESSING_TIME):
        due = timed.table.next_due(kind)
        assert due == (1_700_000_000_000 if timed_keys else None)
    assert watched.read_bytes < 0.05 * run.nbytes
    assert timed.store.get(b"s777") == "x" * 50


def test_what_has_no_room_is_not_in_memory():
    timed = Timed(SlowShelf(Random(1)), 300_000)
    for n in range(30_000):
        if n % 100 == 0:
            timed.store.relieve()
            timed.seal()
            timed.table.next_due(PROCESSING_TIME)
        timed.table.set(PROCESSING_TIME, n * 7919 % 30_000, b"%d" % n, 0)
    for _ in range(50):
        timed.store.relieve()
    assert len(timed.store.runs) < 20
    assert len(timed.store._kept) < 2000
    assert sum(len(queue._heap) for queue in timed.table._queues.values()) < 4000
    fired = [t.due for t in timed.fire(PROCESSING_TIME, 20_000)]
    assert fired == list(range(20_001))


def test_damage_is_noticed_when_timers_are_read():
    timed, _ = with_run(filled(20_000, lambda n: n), is_rotten=True)
    with pytest.raises(UnreadableLayer, match="checksum"):
        timed.table.next_due(EVENT_TIME)


def test_places_are_in_the_order_of_times():
    addresses = [timers._address(kind, due, b"k") for kind in (EVENT_TIME, PROCESSING_TIME)
                 for due in range(-3, 4)]  # fmt: skip
    places = [place_of(address) for address in addresses]
    assert places == sorted(places)
