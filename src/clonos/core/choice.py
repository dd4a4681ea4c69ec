"""What a live task does next: the one choice that is nobody else's, and so is written down."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clonos.core.calls import OUTCOMES_MAX
from clonos.core.determinants import Determinant, Marker, Outcomes, Timer
from clonos.core.messages import Item

if TYPE_CHECKING:
    from clonos.core.task import TaskMachine


def choose(task: TaskMachine, *, is_full: bool) -> tuple[Determinant | None, list[Item]]:
    """What becomes the first entry of the step's record, and the items to take.

    ``is_full``: calls must be answered before it takes more input.
    """
    spec, inbounds = task.spec, task.inbounds
    if task.injected > task.epoch and (spec.is_source or inbounds.forward_have_ended):
        return Marker(task.epoch + 1), []  # one after the other, should some be missing
    if task.calls.came:  # what goes on is no more than what waits for it here
        return Outcomes(task.calls.choose(1 if task.watch else OUTCOMES_MAX)), []
    if task.outbounds.blocked():
        return None, []
    due = task.wake_ms if not task.ended else None
    if due is not None and due <= (now_ms := task.time.now_ms()):
        return Timer(now_ms), []
    if is_full:
        return None, []
    if spec.is_source:
        return task.intake.choose(), []
    rounds = task.rounds
    if rounds is not None and task.injected <= task.epoch and rounds.is_full:
        return inbounds.choose(rounds.outside)
    return inbounds.choose()
