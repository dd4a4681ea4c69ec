"""Deliberate mistakes in loops."""

from __future__ import annotations

from typing import Any, Final

from clonos.core.channels import Inbound
from clonos.core.inbounds import Inbounds
from clonos.core.inflight import InFlightLog
from clonos.core.loops import Rounds
from clonos.core.outbounds import Outbounds
from clonos.core.recovery import Recoveries
from clonos.core.roster import TaskState
from clonos.core.step import RunningStep
from clonos.simulator.mistakes.mutation import LOOPS, Mutation, mutation


def nothing_carried(_: Any) -> Any:
    """Layers carry no items: items on feedback channels are lost with their sender."""
    return property(lambda self: (self.chain, ()))


def one_quiet_round(_: Any) -> Any:
    """A task that was quiet once believes that all are."""

    def next_quiet(self: Rounds) -> int:
        return 0 if self._was_busy else self._enough

    return next_quiet


def rows_are_quiet(original: Any) -> Any:
    """A task that took rows between two probes counts as quiet."""

    def stepped(self: Rounds, step: RunningStep, *rest: Any) -> Any:
        step.is_quiet = True
        return original(self, step, *rest)

    return stepped


def markers_wait_for_feedback(_: Any) -> Any:
    """A layer is sealed only when the marker has come back round the loop."""

    def aligned_epoch(self: Inbounds, epoch: int) -> int:
        ends = self.ends.values()
        some = any(end.aligned for end in ends)
        return epoch if some and all(end.aligned or end.ended for end in ends) else 0

    return aligned_epoch


def feedback_blocks(_: Any) -> Any:
    """Feedback channels block: a task waits for its own feedback."""

    def blocked(self: Outbounds) -> bool:
        ends = [end for end in self._item_ends if not end.relaxed]
        return any(end.log.last - end.log.processed > 0 for end in ends if end.spec.is_feedback)

    return blocked


def wait_for_each_other(_: Any) -> Any:
    """Failed tasks of a loop wait for each other's cuts."""

    def awaits(self: Any, task: TaskState) -> bool:
        return bool(self._unresolved_above(task))

    return awaits


def never_full(_: Any) -> Any:
    """Rows enter a loop, however many circulate."""
    return property(lambda _: False)


def never_behind(original: Any) -> Any:
    """Items made after a marker are taken before that marker has arrived."""

    def init(self: Inbound, *args: Any, **rest: Any) -> None:
        original(self, *args, **rest)
        self.waits_behind = False

    return init


WRONG_LOOPS: Final[dict[str, Mutation]] = {
    "feedback is in no layer": mutation(
        "carried feedback", (InFlightLog, "carried", nothing_carried), kind=LOOPS
    ),
    "feedback from behind a marker is taken before it": mutation(
        "carried feedback", (Inbound, "__init__", never_behind), kind=LOOPS
    ),
    "a loop is over when one task is quiet": mutation(
        "conservation", (Rounds, "_next", one_quiet_round), kind=LOOPS
    ),
    "who takes rows is quiet": mutation(
        "conservation", (Rounds, "stepped", rows_are_quiet), kind=LOOPS
    ),
    "markers wait until they have come round": mutation(
        "liveness", (Inbounds, "aligned_epoch", markers_wait_for_feedback), kind=LOOPS
    ),
    "a task waits for its own feedback": mutation(
        "liveness", (Outbounds, "blocked", feedback_blocks), kind=LOOPS
    ),
    "failed tasks of a loop wait for each other": mutation(
        "liveness", (Recoveries, "_awaits_cuts", wait_for_each_other), kind=LOOPS
    ),
    "rows come in however many go round": mutation(
        "bounded memory", (Rounds, "is_full", never_full), kind=LOOPS
    ),
}
