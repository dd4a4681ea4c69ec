"""Rows of a join are in a copy once, though layers were merged while it followed them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import clonos
from clonos.columns.schema import parse_schema
from clonos.core import messages as msg
from clonos.core.levels import LayerRef
from clonos.core.plan import Incarnation
from clonos.graph.code import TaskCode
from clonos.nodes.standby import Copies
from clonos.runtime.shelf import LocalShelf
from clonos.state.deltas import merge_deltas
from clonos.testing import Batches, StepHarness, rows

SCHEMAS = "k long, x long", "m long, y long"
LAYERS = 19


def joining() -> TaskCode:
    job = clonos.Job()
    left, right = (
        job.source(clonos.sources.from_batches([], schema=schema), name=f"source {n}")
        for n, schema in enumerate(SCHEMAS)
    )
    left.key_by("k").join(right.key_by("m"), name="op").sink(clonos.sinks.collect())
    return next(code for code in job.compile().codes if code.task.name == "op[0]")


def batch(given: Sequence[tuple[int, int]], schema: str) -> pa.RecordBatch:
    fields = parse_schema(schema)
    columns = [pa.array([row[n] for row in given], f.type) for n, f in enumerate(fields)]
    return pa.RecordBatch.from_arrays(columns, schema=fields)


@pytest.mark.parametrize("memory", [None, 0, 4000])
@pytest.mark.parametrize("until", [1, 6, 17, 18])
def test_a_join_finds_each_row_once(memory, until):
    code, deltas = joining(), dict[int, bytes]()
    first = StepHarness(code.program())
    for epoch in range(1, LAYERS + 1):
        new = [(1000 + i, i) for i in range(3000)] if epoch == 1 else [(epoch, epoch)]
        first.feed(Batches(0, (batch(new, SCHEMAS[0]),)))
        deltas[epoch] = bytes(first.program.delta())

    def ref(epoch: int, path: str = "") -> LayerRef:
        return LayerRef(0, epoch, Incarnation(1, 0), epoch, path or f"{epoch}", 10, 0)

    merged = ref(LAYERS - 1, "merged")
    content = {f"{epoch}": delta for epoch, delta in deltas.items()}
    content["merged"] = merge_deltas([deltas[epoch] for epoch in range(2, LAYERS)])
    shelf = LocalShelf()

    def program(_: int) -> Any:
        made = code.program()
        if memory is not None:
            made.use(shelf, memory)
        return made

    asked: list[tuple[int, Sequence[LayerRef]]] = []
    ports: Any = SimpleNamespace(programs=program, store=SimpleNamespace(reads_in_place=True))
    plan: Any = SimpleNamespace(tasks=[SimpleNamespace(is_source=False)])
    copies = Copies(plan, ports, count(1), lambda _: None, lambda n, _, w: asked.append((n, w)))

    def come() -> None:
        ticket, wanted = asked[-1]
        came: Any = [SimpleNamespace(epoch=r.epoch, delta=content[r.path]) for r in wanted]
        copies.fetched(ticket, came)

    copies.follow(msg.Follow(0, tuple(map(ref, range(1, until + 1)))))
    come()
    copies.follow(msg.Follow(0, (ref(1), merged, ref(LAYERS))))
    come()
    standby, _ = copies.take(0)
    assert standby.epoch == LAYERS
    after = StepHarness(standby.program, position=first.position, now_ms=first.now_ms)
    out = after.feed(Batches(1, (batch([(n, n) for n in range(2, LAYERS + 1)], SCHEMAS[1]),)))
    found = sorted(row[0] for made in out.batches.values() for row in rows(made))
    assert found == list(range(2, LAYERS + 1))
    shelf.close()
