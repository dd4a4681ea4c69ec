"""The end of a loop: when nothing goes round in it any more, and nothing will.

END cannot go round a loop: each task would wait for its own END. So the tasks of a loop send
*probes*, in rounds, on all channels within it. A task sends its next probe when the previous probes
of its neighbours have come on all its channels within the loop, all its inputs from outside have
ended, and it has no open call and no timer. A probe says for how many rounds in a row its sender,
and all tasks that the sender has heard of, were *quiet*: took no rows and no timer between two
probes. This number is the least of those heard and the task's own before, plus one.

If a task says that it was quiet for more rounds than the loop has tasks, then all tasks were quiet
in one and the same round. Channels are FIFO, so all items sent before the probe that ends this
round had come, and no task made items from them. So no item goes round, and none ever will.

A task that reads feedback decides: it takes its feedback as ended, and from there END flows forward
as it does without loops. An END on a feedback channel says that another task has decided, so its
receiver need not wait for its own rounds. Probes are items like any other: the log says that they
were taken, so replays, orphans and digests need no other rule.
"""

from __future__ import annotations

from collections import deque

from clonos.core.inbounds import Inbounds
from clonos.core.messages import Item, Kind
from clonos.core.outbounds import Outbounds
from clonos.core.plan import Plan, TaskSpec
from clonos.core.sealed import Layer, RoundsState
from clonos.core.step import RunningStep
from clonos.errors import LoopIsOver


class Rounds:
    """The probes of one task in a loop.

    Attributes
    ----------
    inputs, outputs
        The channels within the loop.
    feedback
        The inputs that are feedback.
    outside
        The other inputs.
    """

    def __init__(
        self,
        plan: Plan,
        spec: TaskSpec,
        floor: Layer | None,
        inbounds: Inbounds,
        outbounds: Outbounds,
    ) -> None:
        self._name, self._inbounds, self._outbounds = spec.name, inbounds, outbounds
        self.inputs = tuple(filter(plan.is_within_loop, spec.inputs))
        self.outputs = frozenset(filter(plan.is_within_loop, spec.outputs))
        self.feedback = tuple(c for c in self.inputs if plan.channels[c].is_feedback)
        self.outside = tuple(c for c in spec.inputs if c not in self.inputs)
        self._enough = len(plan.loops[spec.id]) + 1
        state = floor.rounds if floor is not None and floor.rounds is not None else None
        self._sent, self._quiet, self._was_busy, came = state or (0, 0, True, {})
        self._came = {c: deque(came.get(c, ())) for c in self.inputs}

    @property
    def state(self) -> RoundsState:
        """What a layer keeps of it."""
        came = {channel: tuple(values) for channel, values in self._came.items() if values}
        return RoundsState(self._sent, self._quiet, self._was_busy, came)

    @property
    def is_full(self) -> bool:
        """Whether so much goes round that nothing more should come in."""
        return self._outbounds.feedback_is_full(self._inbounds.ends[c].queue for c in self.inputs)

    def take(self, step: RunningStep, channel: int, item: Item, *, is_idle: bool) -> None:
        """A step takes `item`. If that shows that the loop is over, all its feedback ends.

        ``is_idle``: the task has no timer and no open call.
        """
        step.is_quiet = item.kind in (Kind.PROBE, Kind.MARKER)
        if item.kind is Kind.PROBE:
            self._came[channel].append(item.value)
            is_over = is_idle and self._hears_all and self._next() >= self._enough
        else:
            is_over = item.kind is Kind.END and channel in self.feedback
        if is_over:
            step.ended = (*step.ended, *self._inbounds.end_feedback())

    def stepped(self, step: RunningStep, may_probe: bool) -> list[int]:
        """A step is done. Return the values of the probes to send now.

        ``may_probe``: the task is idle, and has not ended.
        """
        self._was_busy |= not step.is_quiet
        if any(self._has_ended(c) for c in self.inputs) and step.emitted.keys() & self.outputs:
            raise LoopIsOver(
                "an operator in a loop emitted rows after the loop was over: no task takes them",
                where=self._name,
                remedy="put operators that emit rows at the end of their input after the loop",
            )
        found: list[int] = []
        while may_probe and (self._sent == 0 or self._hears_all) and self._is_closed:
            if self._sent:
                self._quiet = self._next()
                for values in filter(None, self._came.values()):
                    values.popleft()
            self._sent += 1
            self._was_busy = False
            found.append(self._quiet)
        return found

    def _has_ended(self, channel: int) -> bool:
        return self._inbounds.ends[channel].ended

    @property
    def _is_closed(self) -> bool:
        """Whether nothing more comes from outside."""
        return all(map(self._has_ended, self.outside))

    @property
    def _hears_all(self) -> bool:
        """Whether the last probe has come on each channel; a channel that has ended is quiet for
        good."""
        each = all(values or self._has_ended(c) for c, values in self._came.items())
        return each and self._sent > 0

    def _next(self) -> int:
        if self._was_busy:
            return 0
        return 1 + min([self._quiet, *(values[0] for values in self._came.values() if values)])
