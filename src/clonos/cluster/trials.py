"""Branches and canaries of a job that runs, as they are shown on its page."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from clonos.watch.snapshot import Trial

TRIALS_MAX: Final = 6
"""Of these, the newest."""
LINES_MAX: Final = 4


class Trials:
    """What was tried of late.

    Examples
    --------
    >>> trials = Trials()
    >>> said = ["8 steps followed"]
    >>> trials.add("canary", {"judge": len}, lambda: (True, said))
    >>> trials.shown()[0]["what"], trials.shown()[0]["said"]
    ('canary of judge', ['8 steps followed'])
    """

    def __init__(self) -> None:
        self._newest = deque[tuple[str, Callable[[], tuple[bool, Sequence[str]]]]](
            maxlen=TRIALS_MAX
        )

    def add(self, what: str, replaces: Any, look: Callable[[], tuple[bool, Sequence[str]]]) -> None:
        """Show it from now on; ``look`` says whether it runs, and what there is to say of it."""
        of = ", ".join(replaces) if isinstance(replaces, Mapping) else "the whole job"
        self._newest.append((f"{what} of {of}" if of else what, look))

    def shown(self) -> list[Trial]:
        """The newest first."""
        found = []
        for what, look in reversed(tuple(self._newest)):
            is_running, said = look()
            found.append(Trial(what=what, is_running=is_running, said=list(said[:LINES_MAX])))
        return found
