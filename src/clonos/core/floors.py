"""Floors without coordination: the newest layers that fit together, read off their positions.

A task's state at a position is a function of any of its earlier layers and of the log in between.
So each task seals by its own timer, nobody waits for a marker, and which layers fit together is
found out afterwards. A layer may become its task's floor if

* the floors of its receivers have taken all items that the task had sent by then: a task restored
  there recomputes everything that a receiver may ask for (a layer carries no items except those of
  feedback);
* all log entries on which it depends are stable, or below the floor of the task that wrote them:
  a floor is never an orphan;
* it is of the newest generation, and so are all others: channels may have started over in between.

If two vectors of layers fit, so does their maximum. So there is a greatest one, and it never goes
back.
The field calls checkpoints of this kind uncoordinated, and fears a domino effect: a failure that
rolls back one task after another. Here there is none: nobody rolls back, and a floor only says from
where a lost task is replayed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from clonos.core.messages import LayerAck
from clonos.core.plan import HOUSE_KEEPER, Plan


def in_the_way(
    plan: Plan,
    sealed: Mapping[int, Sequence[LayerAck]],
    needs: Mapping[int, int],
    senders: Collection[int] | None = None,
) -> set[int]:
    """The tasks whose next layers would let layers of their senders become floors.

    Parameters
    ----------
    sealed, needs
        As for :func:`newest_fitting`, which has found no more floors.
    senders
        Only layers of these are looked at.
    """

    def is_covered(receiver: int, channel: int, sent: int) -> bool:
        return any(layer.ins[channel] >= sent for layer in sealed[receiver][-1:])

    return {
        plan.channels[channel].receiver
        for sender, layers in sealed.items()
        if senders is None or sender in senders
        for layer in layers[:1]
        for channel, sent in layer.outs.items()
        if sent > needs.get(channel, 0)
        and plan.channels[channel].receiver != HOUSE_KEEPER
        and not plan.channels[channel].is_feedback
        and not is_covered(plan.channels[channel].receiver, channel, sent)
    }


def newest_fitting(
    plan: Plan,
    sealed: Mapping[int, Sequence[LayerAck]],
    positions: Mapping[int, int],
    needs: Mapping[int, int],
    stable: Mapping[int, int],
) -> dict[int, LayerAck]:
    """For each task whose floor can move: the layer to which it moves.

    Parameters
    ----------
    sealed
        By task: its layers beyond the floor, in order.
    positions, needs
        Today's floors: by task, its position; by channel, what the receiver's floor has taken.
    stable
        By task: how much of its log can never be cut any more.

    Notes
    -----
    Each task begins with its newest layer and goes back by one if that does not fit, until all fit.
    Today's floors fit, so this ends. Receivers come before their senders, so that without loops one
    round settles what channels demand.
    """
    chosen = {task: len(layers) for task, layers in sealed.items()}  # 0: today's floor

    def position(task: int) -> int:
        index = chosen.get(task, 0)
        return sealed[task][index - 1].ref.position if index else positions[task]

    def need(channel: int) -> int:
        receiver = plan.channels[channel].receiver
        index = chosen.get(receiver, 0)
        return sealed[receiver][index - 1].ins[channel] if index else needs.get(channel, 0)

    def fits(layer: LayerAck) -> bool:
        return all(
            plan.channels[channel].receiver == HOUSE_KEEPER
            or plan.channels[channel].is_feedback
            or sent <= need(channel)
            for channel, sent in layer.outs.items()
        ) and all(
            task == layer.task or entry.position <= max(stable[task], position(task))
            for task, entry in layer.dep.items()
        )

    changed = True
    while changed:
        changed = False
        for task in sorted(sealed, reverse=True):  # tasks are numbered from sources to sinks
            while chosen[task] and not fits(sealed[task][chosen[task] - 1]):
                chosen[task] -= 1
                changed = True
    return {task: sealed[task][index - 1] for task, index in chosen.items() if index}
