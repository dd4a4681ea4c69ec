"""What a task at rest hands over, as bytes and back."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from clonos.core import handover
from clonos.core.codec import decode, encode
from clonos.core.events import StoreLayer
from clonos.core.handover import at_rest, taken_over, to_store
from clonos.core.log import LogBook
from clonos.core.messages import Activate, Dependency, Item, Kind, Run
from clonos.core.plan import ChannelSpec, Incarnation
from clonos.core.program import Batch
from clonos.core.sealed import Layer
from clonos.errors import ProtocolError

MUCH = 1 << 20
OLD, NEW = Incarnation(1, 4), Incarnation(1, 5)
TASK, OTHER, FORWARD, BACK = 3, 7, 11, 12
ITEM = Item(9, Kind.BATCH, 0, 0, Batch(b"rows", 2, 4, 5), {TASK: Dependency(OLD, 40)}, 77)
LAYER = Layer(
    task=TASK,
    incarnation=OLD,
    epoch=17,
    position=40,
    ins={5: (9, 1)},
    outs={FORWARD: (9, 77), BACK: (9, 77)},
    ended=(),
    dep={TASK: Dependency(OLD, 40)},
    clock_ms=0,
    wake_ms=None,
    source_rows=0,
    source_ended=False,
    delta=b"",
    carried={FORWARD: (66, (ITEM,)), BACK: (66, (ITEM,))},
)


def book() -> LogBook:
    """Two logs, of which one begins in the middle."""
    held = LogBook()
    held.truncate(TASK, 30)
    held.append(Run(TASK, OLD, 31, (b"a", b"b")))
    held.append(Run(OTHER, OLD, 1, (b"c",)))
    return held


def activated(layer: StoreLayer) -> Activate:
    """The order to go on from there, as it comes from the coordinator."""
    given = at_rest(layer, book(), MUCH).handed
    command = Activate(TASK, NEW, (), (), (), (), handed=given)
    came = decode(encode(command))
    assert isinstance(came, Activate)
    assert came == command
    return came


def floor(epoch: int) -> Layer:
    """The layer below."""
    return replace(LAYER, epoch=epoch, position=30, carried={})


def test_the_next_life_gets_all_of_it() -> None:
    command = activated(StoreLayer(LAYER, b"state"))
    assert taken_over(command, floor(16)) == replace(LAYER, incarnation=NEW, delta=b"state")
    again = LogBook()
    again.truncate(TASK, 30)
    for run in handover.logs_of(command):
        again.append(run)
    assert (again.lengths(), again.base(TASK)) == ({TASK: 32, OTHER: 1}, 30)


def test_nothing_is_taken_over_after_a_failure() -> None:
    command = Activate(TASK, NEW, (), (Run(TASK, OLD, 31, (b"a",)),), (), ())
    assert taken_over(command, floor(16)) is None
    assert handover.logs_of(command) == command.log


@pytest.mark.parametrize("epoch", [15, 17])
def test_what_does_not_follow_on_the_floor_is_refused(epoch: int) -> None:
    """The state would lack what is between, or have it twice."""
    with pytest.raises(ProtocolError, match=f"at layer {epoch}, takes over layer 17"):
        taken_over(activated(StoreLayer(LAYER, b"state")), floor(epoch))
    with pytest.raises(ProtocolError, match="at layer 0, takes over layer 17"):
        taken_over(activated(StoreLayer(LAYER, b"state")), None)


def test_too_much_is_not_handed_over() -> None:
    """Neither state nor logs."""
    sealed = StoreLayer(LAYER, b"state")
    whole = at_rest(sealed, book(), MUCH).handed
    assert whole is not None
    assert whole.position == LAYER.position
    nbytes = len(whole.layer) + book().nbytes
    assert at_rest(sealed, book(), nbytes).handed == whole
    rest = at_rest(sealed, book(), nbytes - 1)
    assert (rest.handed, rest.layer) == (None, sealed)


def test_a_layer_is_stored_with_the_items_of_feedback_only() -> None:
    channels = {
        FORWARD: ChannelSpec(FORWARD, TASK, OTHER),
        BACK: ChannelSpec(BACK, TASK, TASK, is_feedback=True),
    }
    plan: Any = SimpleNamespace(channels=channels)
    stored = to_store(plan, LAYER, b"state")
    assert (stored.layer, stored.delta) == (replace(LAYER, carried={BACK: (66, (ITEM,))}), b"state")
