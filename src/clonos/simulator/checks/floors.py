"""Invariants of floors, and of the layers that make them up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from clonos.core import events as ev
from clonos.core.levels import LayerRef
from clonos.core.messages import Restored
from clonos.core.plan import HOUSE_KEEPER, ChannelSpec, Incarnation, Plan
from clonos.core.sealed import Layer
from clonos.core.task import TaskMachine
from clonos.simulator.checks.closed import ClosedKeeper
from clonos.simulator.checks.violations import require

SealedAt = tuple[int, Incarnation, int]
"""Task, life and epoch of a sealed layer."""


def knows_where_it_is(machine: TaskMachine) -> None:
    """A task seals only when it knows its position on each channel: not while one starts over.

    At a marker it must seal all the same, but layers sealed around a reset never make a floor.
    """
    for channel, end in machine.inputs.items():
        require(
            machine.plan.has_markers or end.reset_at is None,
            "fitting floors",
            f"{machine.spec.name} seals while channel {channel} starts over",
        )


def consistent_floor(plan: Plan, layers: Mapping[int, Layer]) -> None:
    """The layers of a floor fit together: the receiver has taken all that the sender has sent."""
    carried_feedback(plan, layers, may_be_ahead=False)
    for channel in plan.channels:
        if channel.receiver != HOUSE_KEEPER and not _is_carried(channel, layers):
            sender, receiver = layers.get(channel.sender), layers.get(channel.receiver)
            sent = sender.outs[channel.id] if sender else (0, 0)
            taken = receiver.ins[channel.id] if receiver else (0, 0)
            require(
                sent == taken,
                "consistent floor",
                f"channel {channel.id} was at {sent} for its sender, at {taken} for its receiver",
            )


def fitting_floors(plan: Plan, layers: Mapping[int, Layer]) -> None:
    """Floors fit together, whenever they were sealed: the receiver's has taken all that the
    sender's has sent, so no sender is asked for items that it cannot make again. Both count the
    items of one generation."""
    carried_feedback(plan, layers, may_be_ahead=True)
    for channel in plan.channels:
        if channel.receiver == HOUSE_KEEPER or channel.sender not in layers:
            continue
        if _is_carried(channel, layers):
            continue
        sent = layers[channel.sender].outs[channel.id]
        receiver = layers.get(channel.receiver)
        taken = receiver.ins[channel.id] if receiver else (0, 0)
        generations = [floor.generation for floor in (layers[channel.sender], receiver) if floor]
        require(
            len(set(generations)) == 1,
            "fitting floors",
            f"channel {channel.id}: the floors at its ends are of generations {generations}",
        )
        require(
            sent[0] < taken[0] or sent == taken,
            "fitting floors",
            f"channel {channel.id}: its sender's floor is at {sent}, its receiver's at {taken}",
        )


def carried_feedback(plan: Plan, layers: Mapping[int, Layer], *, may_be_ahead: bool) -> None:
    """Items on feedback channels are in the floor: the sender's layer carries all that the
    receiver's has not taken. So are items that are sent again to a section that was rewound.

    With markers, the receiver's layer has taken no item that the sender made behind its marker.
    """
    for channel in plan.channels:
        sender, receiver = layers.get(channel.sender), layers.get(channel.receiver)
        if sender is None or not _is_carried(channel, layers):
            continue
        taken, taken_chain = receiver.ins[channel.id] if receiver else (0, 0)
        last, last_chain = sender.outs[channel.id]
        before, items = sender.carried[channel.id]
        chains = {last - len(items): before, **{item.seq: item.chain for item in items}}
        has_all = list(chains) == list(range(last - len(items), last + 1))
        is_known = taken in chains or (may_be_ahead and taken > last)
        require(
            has_all and chains[last] == last_chain and is_known,
            "carried feedback",
            f"the receiver of channel {channel.id} is at {taken}, its sender carries {list(chains)}"
            f" of {last}",
        )
        require(
            taken > last or chains[taken] == taken_chain,
            "carried feedback",
            f"item {taken} of channel {channel.id} has two digests",
        )


def _is_carried(channel: ChannelSpec, layers: Mapping[int, Layer]) -> bool:
    sender = layers.get(channel.sender)
    return channel.is_feedback or (sender is not None and channel.id in sender.carried)


def no_orphaned_floor(layers: Mapping[int, Layer], keeper: ClosedKeeper) -> None:
    """Log entries that a floor depends on can never be lost: they are stable, or below a floor."""
    for task, layer in layers.items():
        for other, (_, position) in layer.dep.items():
            safe = max(keeper.stable[other], keeper.positions[other])
            require(
                position <= safe,
                "no orphans",
                f"the floor of task {task} depends on entry {position} of task {other}, of which "
                f"{safe} entries can never be lost",
            )


def restored_as_told(
    actions: Iterable[ev.Action], chain: Iterable[LayerRef], fetched: Iterable[Layer]
) -> None:
    """A restored task reports how many bytes of its state came from the store: those fetched."""
    from_store = {(layer.epoch, layer.incarnation) for layer in fetched}
    sizes = [(ref.nbytes, (ref.epoch, ref.incarnation) in from_store) for ref in chain]
    due = sum(n for n, _ in sizes), sum(n for n, is_fetched in sizes if is_fetched)
    for action in actions:
        if isinstance(action, ev.Tell) and isinstance(report := action.report, Restored):
            told = report.state_bytes, report.store_bytes
            require(
                told == due,
                "restored as told",
                f"task {report.task} reports {told} bytes of state and from the store, not {due}",
            )


def restored_as_sealed(
    program: Any, newest: SealedAt | None, sealed: Mapping[SealedAt, Any]
) -> None:
    """State is what it was when the newest of its layers was sealed: nothing is missing, and
    nothing is there twice. Toys count their steps."""
    if newest is None or (known := sealed.get(newest)) is None:
        return
    task, life, epoch = newest
    require(
        program.count == known,
        "as sealed",
        f"task {task} has state of {program.count} steps; its newest layer, {epoch} of life "
        f"{life.term}.{life.n}, has that of {known}",
    )


def floor_of_the_living(layers: Mapping[int, Layer], over: Mapping[int, Incarnation]) -> None:
    """Invariant 4 in a floor: it has no layer of a life that had ended when it was completed."""
    for task, layer in layers.items():
        require(
            task not in over or layer.incarnation > over[task],
            "fencing",
            f"the floor has a layer of task {task} by {tuple(layer.incarnation)}, which is over",
        )


def floor_has_effect(plan: Plan, layers: Mapping[int, Layer], effects: Mapping[int, int]) -> None:
    """Invariant 5 at the edge: no floor passes an output whose effect is still to come."""
    for task in plan.tasks:
        if task.is_sink and task.id in layers:
            due = layers[task.id].outs[task.outputs[-1]][0]
            require(
                due <= effects[task.id],
                "no early truncation",
                f"the floor has {due} outputs of {task.name}, {effects[task.id]} have their effect",
            )


def floors_of_channels(plan: Plan, layers: Mapping[int, Layer]) -> dict[int, int]:
    """For each channel: the last item that its receiver's floor has consumed."""
    result: dict[int, int] = {}
    for channel in plan.channels:
        if channel.receiver == HOUSE_KEEPER:
            layer = layers.get(channel.sender)
            result[channel.id] = layer.outs[channel.id][0] if layer else 0
        else:
            layer = layers.get(channel.receiver)
            result[channel.id] = layer.ins[channel.id][0] if layer else 0
    return result
