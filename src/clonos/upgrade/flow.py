"""What tasks know of the tasks upstream: event time, and the end of input.

Neither is sent again over new channels: a watermark is sent when event time advances, and END only
once. So both are derived from what the former tasks knew. As the job has settled, all receivers of
a task know the same about it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from clonos.core.sealed import Layer
from clonos.errors import CannotUpgrade
from clonos.operators.watermark import IDLE
from clonos.state.deltas import CHAIN
from clonos.state.kept import Kept
from clonos.upgrade.shape import Shape

_MAKES_WATERMARKS = "WithWatermark"

Facts = Mapping[str, Any]


class Flow:
    """Event time and ends of input of a job that is upgraded.

    Parameters
    ----------
    before, now
        The job before and after the upgrade.
    layers, kept
        By former task: its layer, and its state by the number of the operator.
    """

    def __init__(
        self,
        before: Shape,
        layers: Mapping[int, Layer],
        kept: Mapping[int, Mapping[int, Kept]],
        now: Shape,
    ) -> None:
        self._before, self._layers, self._kept, self._now = before, layers, kept, now

    def facts(self, task: int, number: int) -> Facts:
        """The facts of an operator (or the chain) of a former task."""
        kept = self._kept[task].get(number)
        return {} if kept is None else kept.facts

    def predecessor(self, operator: str, index: int) -> int | None:
        """The former task that a new task of an operator equals: the number of tasks is the same,
        and its rows come from the same sources. None: there is no such task."""
        former = self._before.homes.get(operator, [])
        if len(former) != len(self._now.homes[operator]):
            return None
        was, now = (shape.origins(operator, index) for shape in (self._before, self._now))
        return former[index] if was == now else None

    def former(self, operator: str, index: int) -> list[int]:
        """The former tasks that a new one continues: its predecessor, or all of them."""
        predecessor = self.predecessor(operator, index)
        return self._before.homes.get(operator, []) if predecessor is None else [predecessor]

    def all_former(self, operator: str) -> list[int]:
        """All former tasks of an operator."""
        return self._before.homes.get(operator, [])

    # --- event time -----------------------------------------------------------------------------

    def came(self, task: int) -> list[int | None]:
        """The newest watermark on each input of a new task; `IDLE` if the input is idle."""
        plan = self._now.plan
        head = self._now.chains[task][0]
        return [self._sent(*one) for one in self._now.before(head, plan.tasks[task].index)]

    def _sent(self, operator: str, index: int) -> int | None:
        """The newest watermark behind an operator, in a new task of it."""
        if operator not in self._before.homes:
            return self._passed_on(operator, index)
        former = self.former(operator, index)
        return slowest([self._was_sent(operator, task) for task in former])

    def _passed_on(self, operator: str, index: int) -> int | None:
        """The same for an operator that is new."""
        if self._now.operators[operator][0] == _MAKES_WATERMARKS:
            return None
        marks = [self._sent(*one) for one in self._now.before(operator, index)]
        return slowest(marks) if marks else None

    def _was_sent(self, operator: str, task: int) -> int | None:
        """The newest watermark behind an operator, in a former task."""
        chain = self._before.chains[task]
        place = chain.index(operator)
        if self._was_idle(task, place):
            return IDLE
        if place + 1 < len(chain):
            mark: int | None = self.facts(task, place + 1).get("watermark")
            return mark
        plan = self._before.plan
        heard = [
            self.facts(plan.channels[c].receiver, CHAIN).get(f"watermark {c}")
            for c in plan.tasks[task].outputs
            if plan.channels[c].receiver in self._kept
        ]
        return next((mark for mark in heard if mark is not None), None)

    def _was_idle(self, task: int, place: int) -> bool:
        """Whether a former task was idle behind this place of its chain."""
        chain = self._before.chains[task]
        for number in range(place, -1, -1):
            facts = self.facts(task, number)
            if self._before.operators[chain[number]][0] == _MAKES_WATERMARKS:
                return bool(facts.get("idle"))
            if "is idle" in facts:
                return bool(facts["is idle"])
        return bool(self.facts(task, CHAIN).get("idle"))

    # --- the end ----------------------------------------------------------------------------------

    def has_ended(self, operator: str, index: int) -> bool:
        """Whether no more rows come to a new task of an operator.

        Raises
        ------
        CannotUpgrade
            The input had ended, and would now have rows again.
        """
        former = self.former(operator, index)
        had_ended = bool(former) and all(map(self._task_had_ended, former))
        before = self._now.before(operator, index)
        has_ended = all(self.has_ended(*one) for one in before) if before else had_ended
        if had_ended and not has_ended:
            raise CannotUpgrade(
                "its input had ended, and what is before it now has not",
                where=operator,
                remedy="give what comes now an operator, and a sink, of its own",
            )
        return has_ended

    def heard_the_end(self, operator: str, index: int) -> bool:
        """Whether an operator knows that its input has ended; its calls may still be open."""
        former = self.former(operator, index)
        return bool(former) and all(self._had_heard(operator, task) for task in former)

    def _had_heard(self, operator: str, task: int) -> bool:
        over: int = self.facts(task, CHAIN).get("over", 0)
        place = self._before.chains[task].index(operator)
        return self._task_had_ended(task) or place < over

    def _task_had_ended(self, task: int) -> bool:
        """Whether its END was sent, which does not happen while calls are open."""
        return self._layers[task].end_is_out


def slowest(marks: Sequence[int | None]) -> int | None:
    """The lowest watermark of inputs that are not idle.

    Examples
    --------
    >>> slowest([7, 5, IDLE]), slowest([7, None]), slowest([IDLE]) == IDLE
    (5, None, True)
    """
    active = [mark for mark in marks if mark != IDLE]
    if not active:
        return IDLE if marks else None
    known = [mark for mark in active if mark is not None]
    return min(known) if len(known) == len(active) else None
