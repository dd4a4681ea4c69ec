"""The logs that a process holds, what it trusts, and what is stable.

Tasks and the house-keeper hold logs in the same way. A task gets its holder from outside.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from clonos.core.fences import Fences
from clonos.core.log import LogBook
from clonos.core.messages import Resolve, Run
from clonos.core.plan import Incarnation


class Holder:
    """Logs, fences and what is stable.

    Examples
    --------
    >>> holder, old, new = Holder(), Incarnation(1, 0), Incarnation(1, 1)
    >>> holder.append(Run(7, old, 1, (b"a", b"b", b"c")))
    >>> holder.fence(7, new, known=0)
    >>> holder.append(Run(7, old, 4, (b"zombie",)))
    >>> holder.resolve(Resolve(7, new, 2, generation=0, reset=False))
    >>> holder.append(Run(7, old, 2, (b"b", b"zombie")))
    >>> holder.book.length(7)
    2

    Attributes
    ----------
    book
        The log entries.
    fences
        Which lives are over, and which dependencies can be trusted.
    stable
        By task: how much of its log the house-keeper holds for good.
    """

    def __init__(self) -> None:
        self.book = LogBook()
        self.fences = Fences()
        self.stable: dict[int, int] = {}

    def fence(self, task: int, incarnation: Incarnation, known: int) -> None:
        """Take nothing of lower incarnations from now on; `known`: how far we hold the log or
        depend on it."""
        self.fences.announce(task, incarnation, self.book.length(task), known)

    def resolve(self, cut: Resolve, *, logs: bool = True) -> None:
        """A fenced log survives up to `cut.length`. Without `logs`, the log that we hold is cut
        already."""
        self.fences.resolve(
            cut.task, cut.incarnation, cut.length, forgive=cut.reset, is_log_cut=not logs
        )
        if logs:
            self.book.cut(cut.task, cut.length)

    def append(self, run: Run) -> None:
        """Hold what is new in `run`, except what a fenced life wrote beyond the fence."""
        keep = self.fences.end_of(run) - run.start + 1
        if keep < len(run.records):
            run = replace(run, records=run.records[: max(keep, 0)])
        self.book.append(run)

    def truncate(self, floors: Mapping[int, int], kept: Collection[int]) -> None:
        """These are floors now. `kept`: the tasks whose logs are still held above their floors."""
        for task, position in floors.items():
            if task in kept:
                self.book.truncate(task, position)
        self.fences.truncate(floors)

    def is_being_cut(self, logs: Iterable[int]) -> bool:
        """Whether a fence of one of these tasks is not yet resolved."""
        return any(self.fences.pending(task) for task in logs)

    def learn(self, stable: dict[int, int]) -> None:
        """The house-keeper says what it holds for good."""
        for task, length in stable.items():
            self.stable[task] = max(self.stable.get(task, 0), length)

    def check(self) -> None:
        """Assertions over the whole state."""
        self.book.check()
        self.fences.check()
