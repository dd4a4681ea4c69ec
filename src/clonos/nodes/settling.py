"""A job that settles before it ends: sources take no more rows, and those taken are processed.

If it does not settle in time, it ends all the same, or goes on as if it had not been asked to.
Calls have the same time: the next run makes those again that are still open at the end.
"""

from __future__ import annotations

from collections.abc import Callable

from clonos.core.checkpoints import Checkpoints
from clonos.nodes.events import StopAsked


class Settling:
    """Whether the job should settle, and until when.

    Attributes
    ----------
    until_s
        Until when it has time; None: it was not asked to.
    """

    def __init__(self, checkpoints: Checkpoints) -> None:
        self._checkpoints = checkpoints
        self.until_s: float | None = None
        self._otherwise: Callable[[], object] | None = None

    def ask(self, event: StopAsked, now_s: float) -> bool:
        """Have the job settle. Return whether it was not asked to before."""
        if event.settle_s is None or self.until_s is not None:
            return False
        self.until_s, self._otherwise = now_s + event.settle_s, event.otherwise
        self._checkpoints.settle()
        return True

    @property
    def is_for_another(self) -> bool:
        """Whether another driver waits for the end, to go on with the job."""
        return self._otherwise is not None

    def is_over(self, now_s: float) -> bool:
        """Whether the job should end now. If it goes on instead, `otherwise` of the event is
        called."""
        if self.until_s is None:
            return False
        have_settled = self._checkpoints.have_settled
        if have_settled and self._checkpoints.no_call_is_open:
            return True
        if now_s < self.until_s:
            return False
        if self._otherwise is None or have_settled:
            return True
        self.until_s, otherwise, self._otherwise = None, self._otherwise, None
        self._checkpoints.go_on()
        otherwise()
        return False
