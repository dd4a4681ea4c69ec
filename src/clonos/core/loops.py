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
from collections.abc import Collection

from clonos.core.messages import Item, Kind, Layer, RoundsState
from clonos.core.plan import Plan, TaskSpec


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

    def __init__(self, plan: Plan, spec: TaskSpec, floor: Layer | None) -> None:
        self.inputs = tuple(filter(plan.is_within_loop, spec.inputs))
        self.outputs = tuple(filter(plan.is_within_loop, spec.outputs))
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

    def is_over(self, channel: int, item: Item, ended: Collection[int], *, may_send: bool) -> bool:
        """Take a probe or an END: whether it shows that the feedback is over.

        ``may_send``: see :meth:`probes`.
        """
        if item.kind is Kind.END:
            return channel in self.feedback
        self._came[channel].append(item.value)
        is_enough = self._is_complete(ended) and self._next() >= self._enough
        return may_send and is_enough and not set(self.feedback) <= set(ended)

    def stepped(self, *, is_quiet: bool) -> None:
        """A step is done; only probes and markers leave a task quiet."""
        self._was_busy |= not is_quiet

    def probes(self, ended: Collection[int]) -> list[int]:
        """What the probes say that are to be sent now. They may be if the task has not ended, all
        that comes from outside has, and it holds nothing.

        ``ended``: inputs that have; who has ended is quiet for good.
        """
        found = []
        while self._sent == 0 or self._is_complete(ended):
            if self._sent:
                self._quiet = self._next()
                for values in filter(None, self._came.values()):
                    values.popleft()
            self._sent += 1
            self._was_busy = False
            found.append(self._quiet)
        return found

    def _is_complete(self, ended: Collection[int]) -> bool:
        """Whether the last probe of each has come."""
        return self._sent > 0 and all(values or c in ended for c, values in self._came.items())

    def _next(self) -> int:
        if self._was_busy:
            return 0
        return 1 + min([self._quiet, *(values[0] for values in self._came.values() if values)])
