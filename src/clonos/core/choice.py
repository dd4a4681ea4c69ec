"""What a live task does next. Nothing else determines this choice, so it is logged."""

from __future__ import annotations

from typing import Any, Protocol

from clonos.core.calls import OUTCOMES_MAX, OpenCalls
from clonos.core.determinants import Determinant, Marker, Outcomes, Timer
from clonos.core.inbounds import Inbounds
from clonos.core.intake import Intake
from clonos.core.loops import Rounds
from clonos.core.messages import Item
from clonos.core.outbounds import Outbounds
from clonos.core.plan import TaskSpec
from clonos.core.step import TaskTime


class Task(Protocol):
    """What the choice needs to know of the task."""

    spec: TaskSpec
    inbounds: Inbounds
    outbounds: Outbounds
    intake: Intake
    calls: OpenCalls
    rounds: Rounds | None
    time: TaskTime
    injected: int
    epoch: int
    wake_ms: int | None
    ended: bool

    @property
    def watch(self) -> Any: ...


def choose(task: Task, *, is_full: bool) -> tuple[Determinant | None, list[Item]]:
    """The determinant that the step's record begins with, and the items to take.

    ``is_full``: calls must be answered before it takes more input. Timers come before input, but
    not twice in a row: one that is due again at once would let no row in.
    """
    spec, inbounds = task.spec, task.inbounds
    if task.injected > task.epoch and (spec.is_source or inbounds.forward_have_ended):
        return Marker(task.epoch + 1), []  # one at a time, even if several are missing
    if task.calls.came:  # even if a receiver is slow: rows already wait for them here
        return Outcomes(task.calls.choose(1 if task.watch else OUTCOMES_MAX)), []
    if task.outbounds.blocked():
        return None, []
    timer = None
    if task.wake_ms is not None and not task.ended:
        now_ms = task.time.now_ms()
        timer = Timer(now_ms) if task.wake_ms <= now_ms else None
    if timer is not None and not task.time.has_fired:
        task.time.has_fired = True
        return timer, []
    task.time.has_fired = False
    if is_full:
        return timer, []
    chosen: tuple[Determinant | None, list[Item]]
    rounds = task.rounds
    if spec.is_source:
        chosen = task.intake.choose(), []
    elif rounds is not None and task.injected <= task.epoch and rounds.is_full:
        chosen = inbounds.choose(rounds.outside)
    else:
        chosen = inbounds.choose()
    return (timer, []) if chosen[0] is None else chosen
