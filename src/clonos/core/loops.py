"""The end of a loop: when nothing goes round in it any more, and nothing will.

The END of what comes into a loop from outside cannot go round: each task would wait for its own.
So the tasks of a loop send *probes*, in rounds, on all channels within it. A task sends its next
probe when the one before has come on each of its channels within the loop, all that comes from
outside has ended, and it holds nothing: no open call, no timer. A probe says for how many rounds in
a row its sender, and those it has heard of, were *quiet*: took no rows and no timer between two
probes. Each task adds one to the least of what it has heard and was itself.

If a task says that it was quiet for more rounds than the loop has tasks, then all of them were in
one and the same round. Channels are FIFO. So what was sent before the probe that ends this round
had come, and nobody has made anything of it: nothing goes round. That stays so.

Who hears feedback decides: its feedback is over, and END follows from there, forward, as it does
where there are no loops. Who is told by an END on a feedback channel that others have found out
need not wait for its own rounds. Probes are items like any other: that they were taken is in the
log, and so a replay, an orphan or a digest needs no other rule.
"""

from __future__ import annotations

from collections import deque

from clonos.core.inbounds import Inbounds
from clonos.core.messages import Item, Kind, Layer, RoundsState
from clonos.core.outbounds import Outbounds
from clonos.core.plan import Plan, TaskSpec
from clonos.core.step import RunningStep
from clonos.errors import LoopIsOver


class Rounds:
    """The probes of one task in a loop.

    Attributes
    ----------
    inputs, outputs
        The channels within the loop.
    feedback
        Those of the inputs that lead back.
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
        """For a layer."""
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
        """A step is done: what the probes say that are to be sent now.

        ``may_probe``: the task is idle, and has not ended.
        """
        self._was_busy |= not step.is_quiet
        if any(self._has_ended(c) for c in self.inputs) and step.emitted.keys() & self.outputs:
            raise LoopIsOver(
                "rows were given out within a loop when it was over: nobody would take them",
                where=self._name,
                remedy="what gives out rows at the end of its input belongs behind the loop",
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
        """Whether the last probe of each has come; who has ended is quiet for good."""
        each = all(values or self._has_ended(c) for c, values in self._came.items())
        return each and self._sent > 0

    def _next(self) -> int:
        if self._was_busy:
            return 0
        return 1 + min([self._quiet, *(values[0] for values in self._came.values() if values)])
