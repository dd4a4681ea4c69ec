"""A task in a loop: what it takes of its feedback, and what its layers carry."""

from __future__ import annotations

import pytest

from clonos.core.holder import Holder
from clonos.core.inbounds import Inbounds
from clonos.core.layer import decode_layer, encode_layer
from clonos.core.messages import Dependency, Item, Kind
from clonos.core.plan import ChannelSpec, Incarnation, Plan, TaskSpec
from clonos.core.program import Batch
from clonos.core.sealed import Layer, RoundsState

LIFE = Incarnation(1, 0)
TASKS = (
    TaskSpec(0, "in[0]", "in", 0, (), (0,), is_source=True),
    TaskSpec(1, "round[0]", "round", 0, (0, 1), (1,)),
)
CHANNELS = (ChannelSpec(0, 0, 1), ChannelSpec(1, 1, 1, is_feedback=True))


def item(seq: int, epoch: int) -> Item:
    batch = Batch(((seq, 7),), 1, 16, seq)
    return Item(seq, Kind.BATCH, epoch, 0, batch, {1: Dependency(LIFE, seq)}, 100 + seq)


@pytest.mark.parametrize("has_markers", [True, False])
def test_what_was_made_behind_a_marker_waits_until_it_was_taken_here(has_markers):
    plan = Plan(TASKS, CHANNELS, has_markers=has_markers)
    inbounds = Inbounds.restored(plan, TASKS[1], None, Holder(), lambda _: None)
    feedback = inbounds.ends[1]
    feedback.queue.extend([item(1, epoch=0), item(2, epoch=1)])
    assert inbounds.available(feedback) == (1 if has_markers else 2)
    inbounds.epoch = 1
    assert inbounds.available(feedback) == 2


def test_a_layer_carries_what_goes_round():
    layer = Layer(
        task=1, incarnation=LIFE, epoch=3, position=9, ins={}, outs={1: (2, 102)}, ended=(),
        dep={}, clock_ms=0, wake_ms=None, source_rows=0, source_ended=False, delta=b"state",
        carried={1: (100, (item(1, 0), item(2, 1)))}, rounds=RoundsState(2, 1, True, {1: (0, 1)}),
    )  # fmt: skip
    assert decode_layer(encode_layer(layer)) == layer
