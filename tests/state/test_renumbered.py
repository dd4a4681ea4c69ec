"""Rows that several tasks have numbered get new numbers."""

from __future__ import annotations

from random import Random

import pyarrow as pa
import pytest

from clonos.columns.row_codec import RowCodec
from clonos.state.deltas import Delta, open_delta
from clonos.state.large_rows import LargeRowStore
from clonos.state.pieces import ORDER
from clonos.state.placed import found_in
from clonos.state.renumbered import Ranks, Renumbered
from clonos.state.row_store import DUE
from clonos.state.runs import Run, in_memory

KINDS = [
    pa.schema([("key", pa.string()), ("n", pa.int64()), (DUE, pa.int64())]),
    pa.schema([("key", pa.string()), (DUE, pa.int64())]),
]
RANGES = range(1 << 62), range(1 << 62, 1 << 63)


def store_of(kind: int) -> LargeRowStore:
    return LargeRowStore(KINDS[kind], ["key"], [DUE], RANGES[kind])


@pytest.mark.parametrize("seed", range(20))
def test_new_numbers_have_the_order_of_the_old_ones_and_of_tasks(seed: int) -> None:
    random, known, runs = Random(seed), [], []
    for task in range(random.randint(1, 4)):
        run, of_task = filled(random, task)
        known += of_task
        runs.append([run])
    stores = [store_of(kind).numbered for kind in (0, 1)]
    ranks = Ranks(runs, stores)
    found, times = [], set()
    for task, (run,) in enumerate(runs):
        for rows in Renumbered(run, ranks, task, stores).parts():
            entries = found_in(rows)
            times |= set(entries.orders[entries.columns == 1].tolist())
            for order, column, value in zip(
                entries.orders.tolist(), entries.columns, rows.values, strict=True
            ):
                if column == 0:
                    kind = int(order >= RANGES[1].start)
                    schema = KINDS[kind].append(pa.field(ORDER, pa.int64()))
                    columns = RowCodec(schema).decode(pa.array([value.as_py()], pa.large_binary()))
                    assert columns[-1].to_pylist() == [order], "the row knows its number, too"
                    found.append((order, columns[0][0].as_py()))
    assert len(found) == len(known)
    assert {order for order, _ in found} == times, "its time belongs to it"
    for kind in (0, 1):
        expected = [key for of, _, _, key in sorted(known) if of == kind]
        start = RANGES[kind].start
        mine = sorted(pair for pair in found if pair[0] in RANGES[kind])
        assert mine == [(start + n, key) for n, key in enumerate(expected)]
        assert ranks.ends()[kind] == start + len(expected)


def filled(random: Random, task: int) -> tuple[Run, list[tuple[int, int, int, str]]]:
    """A run of a task; and of its rows: kind, number, task, key."""
    known, stores = [], [store_of(0), store_of(1)]
    for kind, store in enumerate(stores):
        order = RANGES[kind].start
        for _ in range(random.randrange(5)):
            order += random.randrange(3)
            keys = [f"{task} {order + n}" for n in range(random.randint(1, 30))]
            due = [random.randrange(1000) for _ in keys]
            columns = [keys, due] if kind else [keys, due, due]
            arrays = [pa.array(c) for c in columns]
            store.append(pa.RecordBatch.from_arrays(arrays, schema=KINDS[kind]), order)
            known += [(kind, order + n, task, key) for n, key in enumerate(keys)]
            order += len(keys)
    delta = Delta(["op"], [(0, store.changes()) for store in stores])
    opened = open_delta(bytes(delta))
    return (opened.runs[0].run if opened.runs else nothing()), known


def nothing() -> Run:
    return in_memory(0, lambda _: None)
