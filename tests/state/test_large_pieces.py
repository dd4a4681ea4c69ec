"""Pieces of windows, in memory and elsewhere: nobody can tell where a piece was."""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import clonos
from clonos.core.content import InMemory
from clonos.operators.windows.content import Folded, Ranking, Top
from clonos.operators.windows.kinds import FOR_EVER, Fixed, Given, Window
from clonos.simulator.processes.shelf import SlowShelf
from clonos.state.deltas import Delta, decode_delta, merge_deltas, open_delta
from clonos.state.kept import kept_of
from clonos.state.large_pieces import LargePieceStore
from clonos.state.piece_runs import Unreported
from clonos.state.pieces import END, START, PieceStore, numbers
from clonos.state.runs import Run, write_values
from clonos.state.stores import Facts
from tests.state.small import few_pieces_are_many

SCHEMA = pa.schema([("key", pa.int64()), ("x", pa.float64()), ("n", pa.int64())])
TUMBLING, SLIDING, GIVEN = Fixed(10, 10, "t"), Fixed(20, 8, "t"), Given("from", "to")
SUMS = {"n": clonos.count(), "s": clonos.sum("n"), "hi": clonos.max("x")}
FLOATS = {**SUMS, "f": clonos.sum("x")}
HUGE = 1e16
"""Added to 1 it swallows it: sums tell in which order they were made."""
CONTENTS: dict[str, tuple[Window, Any]] = {
    "tumbling": (TUMBLING, Folded(SCHEMA, ["key"], TUMBLING, SUMS)),
    "sums of floats": (TUMBLING, Folded(SCHEMA, ["key"], TUMBLING, FLOATS)),
    "sliding": (SLIDING, Folded(SCHEMA, ["key"], SLIDING, SUMS)),
    "sliding sums of floats": (SLIDING, Folded(SCHEMA, ["key"], SLIDING, FLOATS)),
    "given": (GIVEN, Folded(SCHEMA, ["key"], GIVEN, SUMS)),
    "of all": (TUMBLING, Folded(SCHEMA, [], TUMBLING, SUMS)),
    "top": (TUMBLING, Top(SCHEMA, ["key"], TUMBLING, 2, [Ranking("x", True)], ties=False)),
    "ties": (TUMBLING, Top(SCHEMA, ["key"], TUMBLING, 1, [Ranking("x", False)], ties=True)),
}


class Seal(NamedTuple):
    """... and perhaps go on from layers, the first so many of them merged."""

    is_restored: bool
    merged: int


FAR_AWAY = 1 << 50
some_rows = st.lists(
    st.tuples(
        st.integers(0, 4),
        st.sampled_from([HUGE, -HUGE, 1.0, 0.1]),
        st.integers(0, 9),
        st.integers(0, 60) | st.just(FAR_AWAY),
    ),
    min_size=1,
    max_size=10,
)
actions = st.lists(
    st.tuples(st.just("append"), some_rows)
    | st.tuples(st.just("append"), some_rows)
    | st.tuples(st.just("fire"), st.integers(0, 20))
    | st.tuples(st.just("seal"), st.builds(Seal, st.booleans(), st.integers(0, 5)))
    | st.tuples(st.just("seal"), st.builds(Seal, st.just(False), st.just(0))),
    max_size=40,
)


@pytest.fixture(autouse=True)
def _eager(monkeypatch: pytest.MonkeyPatch) -> None:
    few_pieces_are_many(monkeypatch)


class Sealed:
    """A store with its layers; ``nbytes``: of memory (None: all that it wants)."""

    def __init__(self, name: str, nbytes: int | None, random: Random) -> None:
        self._how = name, nbytes, random
        self.window, self.content = CONTENTS[name]
        self.facts = Facts()
        self.store: PieceStore
        if nbytes is None:
            self.store = PieceStore(self.content, self.facts)
        else:
            self.store = LargePieceStore(self.content, self.facts)
            self.store.use(SlowShelf(random), nbytes)
        self.deltas: list[Delta] = []
        self.layers: list[bytes] = []

    def append(self, rows: list[tuple[int, float, int, int]], mark: int) -> None:
        rows = [row for row in rows if row[3] > mark]  # none is late
        if not rows:
            return
        *columns, times = zip(*rows, strict=True)
        arrays = [pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)]
        batch = pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
        at = np.array(times)
        starts, ends = at, at + 7
        if not isinstance(self.window, Given):
            starts, ends = self.window.intervals(at)
        self.store.append(self.content.start(batch, starts, ends))

    def fire(self, mark: int, done: int) -> tuple[pa.RecordBatch, int | None]:
        """Like the operator."""
        fired = self.store.take_due(*self.window.reach(mark))
        due = self.window.due(numbers(fired, START), numbers(fired, END), mark, done)
        fired = fired.select(self.content.schema.names).take(pa.array(due.pieces))
        columns = fired.columns
        at = fired.schema.get_field_index(START)
        columns[at : at + 2] = [pa.array(due.starts), pa.array(due.ends)]
        fired = pa.RecordBatch.from_arrays(columns, schema=fired.schema)
        return self.content.combine(fired).pieces, self.store.earliest()

    def seal(self) -> None:
        changed = self.store.changes()
        self.deltas.append(Delta(["x"], [(0, self.facts.changes()), (0, changed)]))
        self.layers.append(bytes(self.deltas[-1]))

    def restored(self, merged: int) -> Sealed:
        other = Sealed(*self._how)
        for layer in [merge_deltas(self.layers[:merged], is_base=True), *self.layers[merged:]]:
            opened = open_delta(layer)
            for _, _, keys, values in decode_delta(["x"], opened):
                other.facts.restore(keys.to_pylist(), values.to_pylist())
            for _, run in opened.runs:
                assert isinstance(other.store, LargePieceStore)
                other.store.restore_run(run)
        other.layers = list(self.layers)
        assert other.store.changes()() == []
        return other


@pytest.mark.parametrize("nbytes", [0, 2000])
@pytest.mark.parametrize("name", CONTENTS)
@settings(max_examples=20)
@given(script=actions, seed=st.integers(0, 999))
def test_nobody_can_tell_where_a_piece_is(name, nbytes, script, seed):
    plain, small = Sealed(name, None, Random(seed)), Sealed(name, nbytes, Random(seed))
    mark = done = -FOR_EVER
    for action, argument in [*script, ("fire", FOR_EVER), ("seal", Seal(False, 0))]:
        if action == "append":
            for each in (plain, small):
                each.append(argument, mark)
        elif action == "fire":
            mark = argument if mark == -FOR_EVER else mark + argument
            one, other = (each.fire(mark, done) for each in (plain, small))
            assert one[0].equals(other[0])
            assert one[1] == other[1]
            done = mark
        else:
            small.seal()
            if argument.is_restored:
                small = small.restored(argument.merged)
            assert plain.store.earliest() == small.store.earliest()
    for _ in range(60):  # all that was combined is told in the end
        left = kept_of(merge_deltas(small.layers, is_base=True))[0].keys
        if not len(left):
            break
        small.seal()
    assert not len(left), "a piece stays in layers for ever"
    again = [bytes(delta) for delta in small.deltas]
    assert again == small.layers[-len(again) :], "a layer changes after its seal"


def test_what_was_combined_before_an_earlier_window_fired_is_in_the_next_layer():
    plain, large = (Sealed("tumbling", nbytes, Random(0)) for nbytes in (None, 1 << 20))
    for each in (plain, large):
        each.append([(key, 1.0, 1, 50) for key in range(8)], -1)
        each.append([(1, 1.0, 1, 5)], -1)
        assert each.fire(20, -1)[0].num_rows == 1
    large.seal()
    large = large.restored(0)
    assert plain.fire(60, 20)[0].equals(large.fire(60, 20)[0])


def test_times_before_all_places_fire_in_order():
    plain, small = (Sealed("tumbling", nbytes, Random(0)) for nbytes in (None, 0))
    for each in (plain, small):
        each.append([(1, 1.0, 1, time) for time in (-FAR_AWAY, 30 - FAR_AWAY, 5)], -FOR_EVER)
    for _ in range(9):
        small.seal()
    done = -FOR_EVER
    for mark in (20 - FAR_AWAY, 50 - FAR_AWAY, 50):
        one, other = (each.fire(mark, done) for each in (plain, small))
        assert one[0].equals(other[0])
        assert one[1] == other[1]
        done = mark


def test_a_large_run_is_reported_by_a_few_layers():
    blocks: list[bytes] = []
    values: dict[bytes, bytes | None] = {b"%d" % n: b"x" * 50 for n in range(2_000)}
    run = Run(write_values(values, [n % 128 for n in range(2_000)], blocks.append), InMemory(b""))
    told, layers = Unreported(run, 0), 0
    while not told.is_over:
        told.next(1)
        layers += 1
    assert len(run.index.firsts) > 100
    assert layers <= 10
