"""What can be replaced by another plan, and what not."""

from __future__ import annotations

import tempfile

import pytest

import clonos
from clonos.core.housekeeper import HouseKeeper
from clonos.errors import CannotUpgrade
from clonos.graph.compile import CompiledJob
from clonos.storage.layers import LayerStore
from clonos.upgrade.shape import Shape
from clonos.upgrade.switch import Switch


def compiled(*, is_loop: bool) -> CompiledJob:
    job = clonos.Job("counting")
    rows = job.source(clonos.sources.from_batches([], "n long"), name="rows")
    if is_loop:
        again = job.feedback("n long", name="again")
        rows = rows.union(again)
        again.feed(rows.filter(lambda row: row.n > 0, name="positive"))
    rows.sink(clonos.sinks.collect(), name="out")
    return job.compile()


class Nothing:
    """A journal that must not be touched."""

    def rotate(self, head: object) -> bool:
        raise AssertionError


@pytest.mark.parametrize(("was_loop", "is_loop"), [(True, True), (True, False), (False, True)])
def test_a_job_with_a_loop_keeps_its_graph(was_loop: bool, is_loop: bool) -> None:
    before, now = compiled(is_loop=was_loop), compiled(is_loop=is_loop)
    assert Shape.of(before).plan.loops.keys() == before.plan.loops.keys()
    keepers = [HouseKeeper(c.plan, lambda b: b.payload, lambda c: c) for c in (before, now)]
    switch = Switch(Shape.of(before), keepers[0], [], now, keepers[1])
    with tempfile.TemporaryDirectory() as folder, pytest.raises(CannotUpgrade, match="go round"):
        switch.make(LayerStore(folder), 2, lambda _: None, Nothing())
