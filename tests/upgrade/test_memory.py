"""State larger than memory goes on with another plan, and never is in memory as a whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

import clonos
from clonos.columns.keys import DistinctKeys, distinct_keys, owner_of_group
from clonos.core.levels import LayerRef
from clonos.core.messages import Dependency
from clonos.core.plan import Incarnation
from clonos.graph.compile import CompiledJob
from clonos.state import runs
from clonos.storage.layers import LayerStore, put_whole
from clonos.storage.opened import ScratchFile
from clonos.testing import StepHarness
from clonos.testing.harness import _batch
from clonos.upgrade.layers import Redistribution
from clonos.upgrade.sealed import Sealed, beginning
from clonos.upgrade.shape import Shape
from clonos.upgrade.switch import as_one
from tests.state.held import counted

ROWS = "key string, t timestamp"
KEYS, KEY_BYTES, AT_ONCE = 12_000, 2_000, 6_000
HELD_BYTES = 9_000_000
"""What is held may be a small part of the 25 MB; buffers take 1 MiB each."""
LIFE = Incarnation(1, 0)


class Keeping(clonos.Process):
    def on_row(self, row: Any, ctx: Any) -> Any:
        ctx.state("t").set(row.t)
        ctx.timers.event_time(int(row.t.timestamp() * 1000))

    def on_timer(self, key: Any, due: int, ctx: Any) -> Any:
        yield (key,)


KINDS: dict[str, Callable[[Any], Any]] = {
    "process": lambda k: k.process(Keeping(), "key string", name="op"),
    "window": lambda k: k.window(clonos.tumbling("10 s", on="t")).agg(
        n=clonos.count(), pre_aggregate=False, name="op"
    ),
    "once": lambda k: k.deduplicate(within="1 hour", on="t", name="op"),
    "in order": lambda k: k.in_order("t", name="op"),
}


def job(kind: str, parallelism: int) -> CompiledJob:
    made = clonos.Job("job", parallelism=parallelism)
    given = made.source(clonos.sources.from_batches([], ROWS), name="rows", parallelism=1)
    keyed = given.with_watermark("t", "0 ms", name="marks").key_by("key")
    KINDS[kind](keyed).sink(clonos.sinks.collect(), name="out")
    return made.compile()


def filled(compiled: CompiledJob, store: LayerStore) -> dict[int, list[LayerRef]]:
    """The layers of a job that has taken many keys."""
    chains: dict[int, list[LayerRef]] = {task.id: [] for task in compiled.plan.tasks}
    codes = {code.task.id: code for code in compiled.codes if code.operators[0][0] == "op"}
    harnesses = {task: StepHarness(code.program()) for task, code in codes.items()}
    for epoch, first in enumerate(range(0, KEYS, AT_ONCE), 1):
        given = [
            (f"{n} ".ljust(KEY_BYTES, "."), datetime.fromtimestamp(1 + n % 9, timezone.utc))
            for n in range(first, first + AT_ONCE)
        ]
        distinct: DistinctKeys = distinct_keys(_batch(given, ROWS), ["key"])
        owners = [owner_of_group(distinct.groups[c], len(codes)) for c in distinct.codes]
        for task in compiled.plan.tasks:
            where: Any = {"incarnation": LIFE, "epoch": epoch, "position": epoch}
            layer = replace(beginning(task), **where, dep={task.id: Dependency(LIFE, epoch)})
            if task.id in codes:
                mine = [
                    row for row, owner in zip(given, owners, strict=True) if owner == task.index
                ]
                harnesses[task.id].input(task.inputs[0], mine, ROWS)
                program: Any = harnesses[task.id].program
                layer = replace(layer, delta=program.delta().encoded())
            chains[task.id].append(put_whole(store, layer))
    return chains


@pytest.mark.parametrize("becomes", [2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_an_upgrade_holds_a_part_of_the_state_at_a_time(
    kind: str, becomes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "MERGED_BYTES", 200_000)
    store = LayerStore(tmp_path, "process")
    before, after = job(kind, 2), job(kind, becomes)
    chains = filled(before, store)
    nbytes = sum(ref.nbytes for chain in chains.values() for ref in chain)
    assert nbytes > KEYS * KEY_BYTES
    with counted() as held:
        scratch = ScratchFile()
        tasks = before.plan.tasks
        last = {task.id: as_one(task, chains[task.id], store, scratch) for task in tasks}
        sealed = Sealed(Incarnation(2, 0), 9, 1)
        made = Redistribution(Shape.of(before), last, after, sealed).layers()
        refs = [put_whole(store, layer) for layer in made.values()]
    assert sum(ref.nbytes for ref in refs) > KEYS * KEY_BYTES
    assert held() < HELD_BYTES
