"""Which log entries may be held, and which dependencies can still be trusted (orphan detection by
transitive dependencies).

A task's log survives a failure up to some length. Whatever depends on entries that a fenced life
wrote after that length is an *orphan*. Between the fence and its resolution the length is not
known, so items that may be orphans wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from clonos.core.messages import Dependencies, Dependency, Run
from clonos.core.plan import Incarnation

Cut = tuple[Incarnation, int]
"""(incarnation, length): what incarnations below this one wrote after `length` is lost."""


def still_needed(cuts: list[Cut], floor: int) -> list[Cut]:
    """The cuts of one task that still matter: those above its floor, and the newest below it.

    Examples
    --------
    >>> first, second, third = ((Incarnation(1, n), 10 * n) for n in (1, 2, 3))
    >>> still_needed([first, second, third], floor=25) == [second, third]
    True
    """
    passed = [cut for cut in cuts if cut[1] < floor]
    return [cut for cut in cuts if cut[1] >= floor or cut is passed[-1]]


class Trust(Enum):
    """Whether something can be relied on, by its dependencies."""

    VALID = "valid"
    UNKNOWN = "unknown"
    ORPHAN = "orphan"


class _Pending(NamedTuple):
    """A fence of which we do not know yet how much survives: until then we take no more of the log
    than we held, and trust no dependency beyond what we knew."""

    incarnation: Incarnation
    held: int
    known: int


class Fences:
    """The fences that a process has heard of, pending and resolved.

    They say which log entries may be held (:meth:`is_open` to :meth:`end_of`), and which
    dependencies can be trusted (:meth:`judge`, :meth:`clamp`).

    Examples
    --------
    >>> fences, old, new = Fences(), Incarnation(1, 0), Incarnation(1, 1)
    >>> fences.announce(4, new, held=9, known=10)
    >>> zombie = Run(4, old, 8, (b"a", b"b", b"c", b"d"))
    >>> fences.end_of(zombie), fences.judge({4: Dependency(old, 12)})
    (9, <Trust.UNKNOWN: 'unknown'>)
    >>> fences.resolve(4, new, length=10)
    >>> fences.end_of(zombie), fences.judge({4: Dependency(old, 12)})
    (10, <Trust.ORPHAN: 'orphan'>)
    >>> fences.judge({4: Dependency(new, 12)})
    <Trust.VALID: 'valid'>
    """

    def __init__(self) -> None:
        self.current: dict[int, Incarnation] = {}
        self._pending: dict[int, _Pending] = {}
        self._cuts: dict[int, list[Cut]] = {}  # of logs of which entries may still come
        self._lost: dict[int, list[Cut]] = {}  # what depends on these losses is an orphan ...
        self._forgiven: dict[int, list[Cut]] = {}  # ... and what depends on these is not

    def refuses(self, task: int, incarnation: Incarnation) -> bool:
        """Whether this life of the task is over."""
        return incarnation < self.current.get(task, incarnation)

    def pending(self, task: int) -> bool:
        return task in self._pending

    def announce(self, task: int, incarnation: Incarnation, held: int, known: int) -> None:
        """`task` is fenced below `incarnation`; we hold `held` entries of its log, and depend on it
        (or hold it) up to `known`."""
        if incarnation > self.current.get(task, Incarnation(0, 0)):
            self.current[task] = incarnation
            self._pending[task] = _Pending(incarnation, held, known)

    def resolve(
        self,
        task: int,
        incarnation: Incarnation,
        length: int,
        *,
        forgive: bool = False,
        is_log_cut: bool = False,
    ) -> None:
        """Now it is known how much survived (or, `forgive`: the loss is accepted). ``is_log_cut``:
        the log that we hold is cut already, and nobody sends void entries of it."""
        self.current[task] = max(incarnation, self.current.get(task, incarnation))
        pending = self._pending.get(task)
        if pending is not None and pending.incarnation <= incarnation:
            del self._pending[task]
        if not is_log_cut:
            self._cuts.setdefault(task, []).append((incarnation, length))
        if forgive:
            older = [cut for cut in self._forgiven.get(task, ()) if cut[1] < length]
            self._forgiven[task] = [*older, (incarnation, length)]  # the newest covers these
            self._lost.pop(task, None)
            return
        known = self._lost.setdefault(task, [])
        if (incarnation, length) not in known:
            known.append((incarnation, length))

    def truncate(self, positions: Mapping[int, int]) -> None:
        """These are floors now."""
        for known in (self._cuts, self._lost, self._forgiven):
            for task, cuts in known.items():
                known[task] = still_needed(cuts, positions.get(task, 0))

    # --- log entries ------------------------------------------------------------------------------

    def is_open(self, task: int) -> bool:
        """Whether no fence says anything of this log: the usual case, on the path of every item."""
        return task not in self._pending and task not in self._cuts

    def must_wait(self, run: Run) -> bool:
        """Whether it is not known yet which entries of `run` to hold, because the fence of its task
        is pending."""
        pending = self._pending.get(run.task)
        return pending is not None and (run.incarnation >= pending.incarnation or self.forbids(run))

    def forbids(self, run: Run) -> bool:
        """Whether a fenced life wrote some of `run` after its log was read."""
        return self.end_of(run) < run.end

    def end_of(self, run: Run) -> int:
        """The last position of `run` that no fence forbids."""
        last = run.end
        for fence, length in self._cuts.get(run.task, ()):
            if run.incarnation < fence:
                last = min(last, length)
        pending = self._pending.get(run.task)
        if pending is not None and run.incarnation < pending.incarnation:
            last = min(last, pending.held)
        return last

    # --- dependencies -----------------------------------------------------------------------------

    def judge(self, dep: Dependencies) -> Trust:
        if not self._pending and not self._lost:
            return Trust.VALID
        result = Trust.VALID
        dep = self.clamp(dep)
        for task, (incarnation, position) in dep.items():
            for fence, length in self._lost.get(task, ()):
                if incarnation < fence and position > length:
                    return Trust.ORPHAN
            pending = self._pending.get(task)
            if (
                pending is not None
                and incarnation < pending.incarnation
                and position > pending.known
            ):
                result = Trust.UNKNOWN
        return result

    def clamp(self, dep: Dependencies) -> Dependencies:
        """`dep` without what was forgiven."""
        if not self._forgiven:
            return dep
        result = dict(dep)
        for task, forgiven in self._forgiven.items():
            for fence, length in forgiven:
                if depends_on_lost(task, fence, length, result):
                    result[task] = Dependency(fence, length)
        return result

    def check(self) -> None:
        """Assertions over the whole state."""
        for task, pending in self._pending.items():
            assert self.current[task] == pending.incarnation
        for known in (self._cuts, self._lost, self._forgiven):
            for task, cuts in known.items():
                assert all(incarnation <= self.current[task] for incarnation, _ in cuts)
                resolved = (incarnation == self.current[task] for incarnation, _ in cuts)
                assert task not in self._pending or not any(resolved)


def merge(into: Dependencies, dep: Dependencies) -> None:
    """`into` depends on `dep` as well, from now on."""
    for task, dependency in dep.items():
        known = into.get(task)
        if known is None or (known.position, known) < (dependency.position, dependency):
            into[task] = dependency


def merged(known: Dependencies, dep: Dependencies) -> Dependencies:
    """The dependencies of something that depends on both."""
    result = dict(known)
    merge(result, dep)
    return result


def fields_of(dep: Dependencies) -> dict[int, tuple[int, int, int]]:
    """Dependencies as plain data."""
    return {t: (*d.incarnation, d.position) for t, d in dep.items()}


def from_fields(fields: Mapping[int, Sequence[int]]) -> Dependencies:
    """Inverse of :func:`fields_of`."""
    return {t: Dependency(Incarnation(f[0], f[1]), f[2]) for t, f in fields.items()}


def depends_on_lost(task: int, incarnation: Incarnation, length: int, dep: Dependencies) -> bool:
    """Whether `dep` needs what lives of `task` before `incarnation` wrote after `length`."""
    known = dep.get(task)
    return known is not None and known.incarnation < incarnation and known.position > length
