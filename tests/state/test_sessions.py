"""Pieces of sessions, in memory and elsewhere: nobody can tell where a piece was."""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import clonos
from clonos.operators.windows.content import WINDOW_END, WINDOW_START, Folded
from clonos.operators.windows.kinds import FOR_EVER, Session
from clonos.simulator.processes.shelf import SlowShelf
from clonos.state import pieces, sessions
from clonos.state.deltas import Delta, decode_delta, merge_deltas, open_delta
from clonos.state.kept import kept_of
from clonos.state.pieces import END, START, PieceStore, numbers
from clonos.state.sessions import AWAY, SessionStore
from clonos.state.stores import Facts
from tests.state.small import few_pieces_are_many

SCHEMA = pa.schema([("key", pa.int64()), ("x", pa.float64()), ("n", pa.int64())])
GAP = 5
WINDOW = Session(GAP, "t")
SUMS = {"n": clonos.count(), "s": clonos.sum("n"), "hi": clonos.max("n")}
CONTENTS: dict[str, Folded] = {
    "bounds": Folded(SCHEMA, ["key"], WINDOW, {}),
    "sums": Folded(SCHEMA, ["key"], WINDOW, SUMS),
    "sums of floats": Folded(SCHEMA, ["key"], WINDOW, {**SUMS, "f": clonos.sum("x")}),
    "of all": Folded(SCHEMA, [], WINDOW, {**SUMS, "f": clonos.sum("x")}),
}
HUGE = 1e16
"""Added to 1 it swallows it: sums tell in which order they were made."""

Row = tuple[int, float, int, int]


class Seal(NamedTuple):
    """... and perhaps go on from layers, the first so many of them merged."""

    is_restored: bool
    merged: int


some_rows = st.lists(
    st.tuples(
        st.integers(0, 4),
        st.sampled_from([HUGE, -HUGE, 1.0, 0.1]),
        st.integers(0, 9),
        st.integers(0, 60) | st.just(1 << 50),
    ),
    min_size=1,
    max_size=10,
)
appends = st.tuples(st.just("append"), some_rows)
seals = st.tuples(st.just("seal"), st.builds(Seal, st.booleans(), st.integers(0, 5)))
scripts = st.lists(
    appends | appends | seals | seals | st.tuples(st.just("fire"), st.integers(0, 9)), max_size=60
)


@pytest.fixture(params=[(4, 1000), (4, 6), (1000, 1000)], autouse=True)
def _eager(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    few_pieces_are_many(monkeypatch)
    monkeypatch.setattr(pieces, "_APPENDED_MIN", request.param[0])
    monkeypatch.setattr(sessions, "_HERE_MAX", request.param[1])
    monkeypatch.setattr(sessions, "_APPENDED_MAX", 8)


class Sealed:
    """A store with its layers; ``nbytes``: of memory (None: all that it wants)."""

    def __init__(self, name: str, nbytes: int | None, random: Random) -> None:
        self._how = name, nbytes, random
        self.content = CONTENTS[name]
        self.facts = Facts()
        self.store = SessionStore(self.content, self.facts)
        if nbytes is not None:
            self.store.use(SlowShelf(random), nbytes)
        self.deltas: list[Delta] = []
        self.layers: list[bytes] = []

    def append(self, rows: list[Row]) -> None:
        *columns, times = zip(*rows, strict=True)
        arrays = [pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)]
        batch = pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
        self.store.append(self.content.start(batch, *WINDOW.intervals(np.array(times))))

    def fire(self, mark: int) -> list[tuple[Any, ...]]:
        """Like the operator."""
        earliest = self.store.earliest()
        if earliest is None or earliest > mark:
            return []
        fired = self.store.take_due(*WINDOW.reach(mark))
        due = WINDOW.due(numbers(fired, START), numbers(fired, END), mark, 0)
        fired = fired.select(self.content.schema.names).take(pa.array(due.pieces))
        made = self.content.result(fired).drop_columns([WINDOW_START, WINDOW_END])
        columns = [*fired.select([START, END]).columns, *made.columns]
        return list(zip(*(column.to_pylist() for column in columns), strict=True))

    def seal(self) -> None:
        changed = self.store.changes()
        self.deltas.append(Delta(["x"], [(0, self.facts.changes()), (0, changed)]))
        self.layers.append(bytes(self.deltas[-1]))

    def restored(self, merged: int) -> Sealed:
        other = Sealed(*self._how)
        for layer in [merge_deltas(self.layers[:merged], is_base=True), *self.layers[merged:]]:
            apply(layer, other.facts, other.store)
            for _, run in open_delta(layer).runs:
                other.store.restore_run(run)
        other.layers = list(self.layers)
        assert other.store.changes()() == []
        assert not other.facts.changes().keys
        return other


def apply(layer: bytes, facts: Facts, store: PieceStore) -> None:
    for _, is_fact, keys, values in decode_delta(["x"], layer):
        if is_fact:
            facts.restore(keys.to_pylist(), values.to_pylist())
        else:
            store.restore(keys, values)


class Model:
    """All rows that were not released, by key."""

    def __init__(self) -> None:
        self.rows: dict[int, list[Row]] = {}

    def append(self, rows: list[Row]) -> None:
        for row in rows:
            self.rows.setdefault(row[0], []).append(row)

    def fire(self, mark: int) -> set[tuple[int, ...]]:
        """Bounds, key, count, sum and maximum of sessions that are over."""
        over: set[tuple[int, ...]] = set()
        for key, rows in self.rows.items():
            sessions: list[list[Row]] = []
            for row in sorted(rows, key=lambda row: row[3]):
                if sessions and row[3] <= sessions[-1][-1][3] + GAP:
                    sessions[-1].append(row)
                else:
                    sessions.append([row])
            self.rows[key] = []
            for some in sessions:
                start, end = some[0][3], some[-1][3] + GAP
                n = [row[2] for row in some]
                if end <= mark:
                    over.add((start, end, key, len(n), sum(n), max(n)))
                else:
                    self.rows[key] += some
        return over


@pytest.mark.parametrize("nbytes", [0, 500, 3000, 1 << 20])
@pytest.mark.parametrize("name", CONTENTS)
@settings(max_examples=40)
@given(script=scripts, seed=st.integers(0, 999))
def test_nobody_can_tell_where_a_piece_is(name, nbytes, script, seed):
    plain, small = Sealed(name, None, Random(seed)), Sealed(name, nbytes, Random(seed))
    model, mark = Model(), -GAP
    for action, argument in [*script, ("fire", FOR_EVER), ("seal", Seal(False, 0))]:
        if action == "append":
            rows = [row for row in argument if row[3] + GAP > mark]  # none is late
            for each in (plain, small, model) if rows else ():
                each.append(rows)
        elif action == "fire":
            mark = mark + argument
            fired = plain.fire(mark)
            assert small.fire(mark) == fired
            if name.startswith("sums"):
                assert {row[:6] for row in fired} == model.fire(mark)
        else:
            small.seal()
            if argument.is_restored:
                small = small.restored(argument.merged)
        if not plain.content.is_exact:  # else they may be combined, and end later
            assert plain.store.earliest() == small.store.earliest()
    small.seal()
    kept = kept_of(merge_deltas(small.layers, is_base=True)).get(0)
    assert kept is None or not (len(kept.keys) or kept.runs), "a piece stays in layers for ever"
    again = [bytes(delta) for delta in small.deltas]
    assert again == small.layers[-len(again) :], "a layer changes after its seal"


def rows_at(times: list[int], keys: int = 50) -> list[Row]:
    return [(key, 1.0, key, time) for time in times for key in range(keys)]


def test_sessions_go_away_come_back_and_are_over():
    large, small = (Sealed("sums of floats", nbytes, Random(1)) for nbytes in (None, 1000))
    for each in (large, small):
        each.append(rows_at([0, 20, 40]))
        each.store.combine()
        each.seal()
    gone = small.facts.get(AWAY)
    assert gone > 100
    assert small.store.all().num_rows == 150 - gone
    for _ in range(5):
        small.seal()  # they are written meanwhile
    assert small.store.away.has_tiers
    small = small.restored(0)
    for each in (large, small):
        each.append(rows_at([3]))
    fired = [each.fire(30) for each in (large, small)]
    assert fired[0] == fired[1]
    assert [(*row[:2], row[3]) for row in fired[0]] == [(0, 8, 2)] * 50 + [(20, 25, 1)] * 50


def test_sessions_that_are_joined_add_up_in_order_of_their_start(monkeypatch):
    monkeypatch.setattr(sessions, "_HERE_MAX", 1000)
    large, small = (Sealed("sums of floats", nbytes, Random(1)) for nbytes in (None, 18_000))
    for each in (large, small):
        for value, time in ((HUGE, 20), (-HUGE, 10), (1.0, 0)):
            each.append([(key, value, 1, time) for key in range(50)])
        each.store.combine()
    small.seal()
    assert 0 < small.facts.get(AWAY) < 150, "some of them have gone away"
    for each in (large, small):
        each.append([(key, 0.0, 1, time) for key in range(50) for time in (5, 15)])
    fired = [each.fire(FOR_EVER) for each in (large, small)]
    assert fired[0] == fired[1]
    assert {row[-1] for row in fired[0]} == {1.0 - HUGE + HUGE}


def test_layers_of_earlier_versions_are_read():
    """These had all pieces in tables, and no facts of where they are."""
    facts = Facts()
    before = PieceStore(CONTENTS["sums of floats"], facts)
    reference = Sealed("sums of floats", None, Random(1))
    for rows in (rows_at([0, 20]), rows_at([40, 3])):
        reference.append(rows)
        *columns, times = zip(*rows, strict=True)
        arrays = [pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)]
        batch = pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
        made = reference.content.start(batch, *WINDOW.intervals(np.array(times)))
        before.append(made)
        before.combine()
        reference.store.combine()
    layer = bytes(Delta(["x"], [(0, facts.changes()), (0, before.changes())]))
    small = Sealed("sums of floats", 1000, Random(1))
    apply(layer, small.facts, small.store)
    for _ in range(5):
        small.seal()
        small.append(rows_at([60], 1))
        reference.append(rows_at([60], 1))
    assert small.facts.get(AWAY)
    assert small.fire(FOR_EVER) == reference.fire(FOR_EVER)
