"""At most once: a task that dies leaves a gap, and its next life begins empty.

Nothing is logged, kept for a replay or sealed. The next life asks its senders only for what they
have not sent to anybody yet (:data:`MISSED`), and its own channels start over in a new generation.
A source must never take a row again from which anything may have been made. So it tells the
house-keeper what it has taken, and sends nothing made from it until that is in the journal.
"""

from __future__ import annotations

from typing import Final

from clonos.core import messages as msg
from clonos.core.intake import Intake
from clonos.core.life import Life

MISSED: Final = 1 << 62
"""In place of the sender's step after which a receiver starts over: the receiver has missed
whatever was sent."""


class Claims:
    """What one life of a source has taken, and how much of that is in the journal.

    One claim is under way at a time; the next one covers all rows taken meanwhile.

    Examples
    --------
    >>> from clonos.core.plan import Incarnation, Plan, TaskSpec
    >>> source = TaskSpec(0, "rows[0]", "rows", 0, (), (), is_source=True)
    >>> plan = Plan((source,), (), causal_log=False, leaves_gaps=True)
    >>> life = Life(plan, msg.Activate(0, Incarnation(1, 0), (), (), (), ()))
    >>> claims, intake = Claims(life), Intake(None)
    >>> intake.taken = 7
    >>> claims.due(3, intake).rows, claims.due(4, intake)
    (7, None)
    >>> claims.granted(msg.Granted(3))
    >>> claims.allow(3), claims.allow(4)
    (True, False)
    """

    def __init__(self, life: Life) -> None:
        self._life = life
        self._told = self._granted = 0

    def due(self, position: int, intake: Intake) -> msg.Claim | None:
        """The claim to send to the house-keeper now, if any."""
        if position <= self._told or self._told > self._granted:
            return None
        self._told = position
        life = self._life
        return msg.Claim(life.id, life.incarnation, position, intake.taken, intake.cut)

    def granted(self, command: msg.Granted) -> None:
        """The journal has it."""
        self._granted = max(self._granted, command.position)

    def allow(self, position: int) -> bool:
        """Whether the output of this step may leave the task."""
        return position <= self._granted
