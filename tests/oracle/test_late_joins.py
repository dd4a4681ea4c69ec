"""Joins of rows that come late, or on the edge of the watermark: nothing is lost but what is late.

Which rows are late depends on the order in which tasks get on, and so on the seed. So joins of
several kinds are asked with the same seed: a left row that a left join neither pairs nor lets out
alone is late, and so is a right row of a right join. These must be as many rows as the operators
have counted. Of the rows that are left, a loop over all pairs says what comes out of each kind:
without those of which one had gone, by the watermark, before the other came, which was behind it.
(A full join is a graph of another shape, in which other rows are late: it is asked alone.)
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple
from unittest import mock

import pyarrow as pa
import pytest

import clonos
from clonos.operators.by_key.join import JoinOperator
from clonos.operators.by_key.outer_join import HOWS
from clonos.state.row_store import DUE
from clonos.testing import InMemoryRun
from tests.oracle.programs import EPOCH, SCHEMA, batches_of, build, rows_of

Row = dict[str, Any]
MS = dt.timedelta(milliseconds=1)


def ms(time: dt.datetime) -> int:
    return (time - EPOCH) // MS


BOUNDS: dict[str, Callable[[Row, Row], bool]] = {
    'keep=("2 seconds", "500 ms"), on=("t", "t")': lambda l, r: (  # noqa: E741 - left and right
        ms(r["t"]) <= ms(l["t"]) + 2000 and ms(l["t"]) <= ms(r["t"]) + 500
    ),
    'keep=("0 ms", "1 second"), on=("t", "t")': lambda l, r: (  # noqa: E741 - as above
        ms(r["t"]) <= ms(l["t"]) and ms(l["t"]) <= ms(r["t"]) + 1000
    ),
    'keep="0 ms", on=("t", "t")': lambda l, r: ms(l["t"]) == ms(r["t"]),  # noqa: E741 - as above
    'window=clonos.tumbling("5 seconds"), on=("t", "t")': lambda l, r: (  # noqa: E741 - as above
        ms(l["t"]) // 5000 == ms(r["t"]) // 5000
    ),
}
"""Without ``between``: its rows are kept until their interval ends, so one that comes after its
begin is not late, and yet has missed partners."""
DELAYS = ("0 ms", "1 ms", "500 ms", "2 seconds", "20 seconds")
KEYS = ("k", "g", "f", "d")


class Came(NamedTuple):
    """When a row came to the join: after how many others, and at which watermark. Until which one
    it stays."""

    place: int
    mark_ms: int | None
    last_ms: int

    def stays_for(self, other: Came) -> bool:
        """Whether this row, which came before the other, was still there."""
        return other.mark_ms is None or other.mark_ms < self.last_ms


class Found(NamedTuple):
    """The numbers of the rows that came out together, how many rows were late, and when those that
    were not had come: by side and number."""

    rows: Counter[tuple[Any, Any]]
    late: int
    came: dict[tuple[int, int], Came]

    def met(self, left: int, right: int) -> bool:
        """Whether two rows were there at the same time."""
        first, second = sorted((self.came[0, left], self.came[1, right]))
        return first.stays_for(second)


class Case:
    """A join, its rows, and the order in which they come."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        draw = self._random = Random(f"late {seed}")
        self.key = draw.choice(KEYS)
        bound = draw.choice(list(BOUNDS))
        self.are_partners = BOUNDS[bound]
        self.bound = bound.replace('("t", "t")', '("t", "t2")')
        self.delays = [draw.choice(DELAYS) for _ in range(2)]
        nulls = draw.random() < 0.5
        rows = [rows_of(draw, nulls_in_time=nulls, since_ms=1) for _ in range(2)]
        self.rows = [[dict(zip(SCHEMA.names, r, strict=True)) for r in side] for side in rows]
        self.inputs = [batches_of(draw, side) for side in rows]

    def text(self, how: str) -> str:
        renames = {name: f"{name}2" for name in SCHEMA.names}
        left, right = (f'source({n}).with_watermark("t", "{d}")' for n, d in enumerate(self.delays))
        return (
            f'out = {left}.key_by("{self.key}").join({right}.withColumnsRenamed({renames!r})'
            f'.key_by("{self.key}2"), {self.bound}, how="{how}")'
        )

    def run(self, how: str) -> Found:
        sources = [clonos.sources.from_batches(batches) for batches in self.inputs]
        stream = build(self.text(how), sources)
        stream.sink(clonos.sinks.collect(), name="out")
        run = InMemoryRun(stream._job.compile(), seed=self.seed, batch_rows=5, restore=0.1)
        came: dict[tuple[int, int], Came] = {}

        def recorded(join: JoinOperator, batch: pa.RecordBatch, port: int) -> pa.RecordBatch:
            rows = in_time(join, batch, port)
            ids, lasts = rows.column(("id", "id2")[port]), rows.column(DUE)
            for number, last in zip(ids.to_pylist(), lasts.to_pylist(), strict=True):
                came[port, number] = Came(len(came), join.watermark_ms, last)
            return rows

        in_time = JoinOperator._in_time
        with mock.patch.object(JoinOperator, "_in_time", recorded):
            table = run.run()["out"]
        right = table["id2"].to_pylist() if "id2" in table.column_names else [None] * len(table)
        told = (item for found in run.statistics().values() for item in found.items())
        late = sum(count for name, count in told if name.endswith(": late_rows"))
        return Found(Counter(zip(table["id"].to_pylist(), right, strict=True)), late, came)

    def pair(self, left: Row, right: Row) -> bool:
        a, b = left[self.key], right[self.key]
        if a is None or b is None or left["t"] is None or right["t"] is None:
            return False
        return (a == b or (a != a and b != b)) and self.are_partners(left, right)  # noqa: PLR0124 - NaN


def check(seed: int) -> Counter[str]:
    """What was seen of a seed: pairs, rows that stay alone, late rows."""
    case = Case(seed)
    found = {how: case.run(how) for how in HOWS}
    full = {"full": found.pop("full")}
    seen = _checked(case, full["full"], full["full"], full)
    return seen + _checked(case, found["left"], found["right"], found)


def _checked(case: Case, left: Found, right: Found, results: dict[str, Found]) -> Counter[str]:
    """The result of one kind has all left rows that were not late, that of another all right ones;
    what these and others should be."""
    told = f"seed {case.seed}\n{case.text(min(results))}\n# {case.rows}"
    lefts, rights = {a for a, _ in left.rows} - {None}, {b for _, b in right.rows} - {None}
    late = left.late
    assert sum(map(len, case.rows)) - len(lefts) - len(rights) == late, told
    there = [[row for row in side if row["id"] in ids]
             for side, ids in zip(case.rows, (lefts, rights), strict=True)]  # fmt: skip
    partners = [(a["id"], b["id"]) for a in there[0] for b in there[1] if case.pair(a, b)]
    pairs = {pair for pair in partners if left.met(*pair)}
    lonely = {(n, None) for n in lefts - {a for a, _ in pairs}}
    others = {(None, n) for n in rights - {b for _, b in pairs}}
    expected: dict[str, set[tuple[Any, Any]]] = {
        "inner": pairs,
        "left": pairs | lonely,
        "right": pairs | others,
        "full": pairs | lonely | others,
        "semi": {(n, None) for n, _ in pairs},
        "anti": lonely,
    }
    for how, found in sorted(results.items()):
        assert (found.rows, found.late) == (Counter(expected[how]), late), f"{how}: {found}\n{told}"
    missed = len(partners) - len(pairs)
    return Counter(pairs=len(pairs), alone=len(lonely) + len(others), late=late, missed=missed)


def check_all(seeds: range) -> None:
    seen: Counter[str] = Counter()
    for seed in seeds:
        seen += check(seed)
    assert all(seen[kind] > len(seeds) for kind in ("pairs", "alone", "late")), seen


def test_what_is_not_late_is_there() -> None:
    check_all(range(4))


def test_a_row_behind_the_watermark_misses_who_has_gone() -> None:
    assert check(1028)["missed"] == 1


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_many_of_them() -> None:
    check_all(range(1000, 2500))
