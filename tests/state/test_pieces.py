"""Pieces against a store that was never sealed, whatever is combined, sealed and restored."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import clonos
from clonos.operators.windows.content import Content, Folded, Ranking, Top
from clonos.operators.windows.kinds import Fixed, Session
from clonos.state import pieces
from clonos.state.deltas import Delta, decode_delta, merge_deltas
from clonos.state.pieces import START, PieceStore, numbers
from clonos.state.stores import Facts

SCHEMA = pa.schema([("key", pa.int64()), ("x", pa.float64())])
FIXED, SESSION = Fixed(10, 10, "t"), Session(3, "t")
SUMS = {"n": clonos.count(), "s": clonos.sum("x"), "hi": clonos.max("x")}
HUGE = 1e16
"""Added to 1 it swallows it: sums tell in which order they were made."""

CONTENTS: dict[str, Content] = {
    "windows": Folded(SCHEMA, ["key"], FIXED, SUMS),
    "sessions": Folded(SCHEMA, ["key"], SESSION, SUMS),
    "windows of all": Folded(SCHEMA, [], FIXED, SUMS),
    "foremost rows": Top(SCHEMA, ["key"], FIXED, 2, [Ranking("x", True)], ties=False),
}

Row = tuple[int, float, int]

row = st.tuples(st.integers(0, 6), st.sampled_from([HUGE, -HUGE, 1.0, 0.1]), st.integers(0, 49))
seal = st.tuples(st.just("seal"), st.booleans())
append = st.tuples(st.just("append"), st.lists(row, min_size=1, max_size=4))
look = st.tuples(st.just("look"), st.just(None))
remove = st.tuples(st.just("remove"), st.integers(-1, 50))
actions = st.lists(seal | append | look | remove | seal | append, max_size=30)


class Sealed:
    """A store with its layers."""

    def __init__(self, content: Content) -> None:
        self._content = content
        self.layers: list[bytes] = []
        self._deltas: list[Delta] = []
        self.facts = Facts()
        self.store = PieceStore(content, self.facts)

    def append(self, rows: list[Row]) -> None:
        keys, values, times = zip(*rows, strict=True)
        batch = pa.RecordBatch.from_arrays([pa.array(keys), pa.array(values)], schema=SCHEMA)
        window = SESSION if self._content is CONTENTS["sessions"] else FIXED
        self.store.append(self._content.start(batch, *window.intervals(np.array(times))))

    def remove(self, until: int) -> None:
        """All pieces that begin by then."""
        self.store.remove(numbers(self.store.all(), START) <= until)

    def seal(self) -> None:
        changed = self.store.changes()
        self._deltas.append(Delta(["x"], [(0, self.facts.changes()), (0, changed)]))
        self.layers.append(bytes(self._deltas[-1]))

    def restored(self, *, is_merged: bool) -> Sealed:
        other = Sealed(self._content)
        layers = [merge_deltas(self.layers, is_base=True)] if is_merged else self.layers
        for layer in layers:
            for _, is_fact, keys, values in decode_delta(["x"], layer):
                if is_fact:
                    other.facts.restore(keys.to_pylist(), values.to_pylist())
                else:
                    other.store.restore(keys, values)
        assert other.store.changes()() == []
        assert not other.facts.changes().keys
        other.layers = list(self.layers)
        return other

    def check(self) -> None:
        assert [bytes(delta) for delta in self._deltas] == self.layers[-len(self._deltas) :]


@pytest.mark.parametrize("least", [0, 6, 10_000])
@pytest.mark.parametrize("name", CONTENTS)
@settings(max_examples=50)
@given(st.lists(row, min_size=20, max_size=40), actions)
def test_agrees_with_a_store_that_was_never_sealed(name, least, first, script):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "_APPENDED_MIN", least)
        content = CONTENTS[name]
        never, whole, torn = Sealed(content), Sealed(content), Sealed(content)
        for action, argument in [("append", first), ("seal", False), *script, ("look", None)]:
            if action == "seal":
                whole.seal()
                torn.seal()
                assert torn.layers == whole.layers
                if argument:
                    torn.check()
                    torn = torn.restored(is_merged=len(torn.layers) % 2 == 0)
            elif action == "append":
                for each in (never, whole, torn):
                    each.append(argument)
            else:
                # What was not combined lies as it happens to.
                seen = [each.store.combine() for each in (never, whole, torn)]
                assert seen[0].equals(seen[1])
                assert seen[0].equals(seen[2])
                if action == "remove":
                    for each in (never, whole, torn):
                        each.remove(argument)


def test_pieces_that_are_gone_do_not_count_as_not_combined():
    whole = Sealed(CONTENTS["foremost rows"])
    whole.append([(key, 1.0, 10) for key in range(20)])
    whole.seal()
    whole.append([(0, 1.0, 0)] * 6)
    whole.seal()
    whole.remove(0)
    whole.seal()
    torn = whole.restored(is_merged=False)
    for each in (whole, torn):
        each.append([(0, 2.0, 10)] * 9)
        each.seal()
    assert torn.layers == whole.layers
    assert torn.store.all().num_rows == 29
