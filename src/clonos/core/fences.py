"""Which dependencies can still be trusted (orphan detection by transitive dependencies).

A task's log survives a failure up to some length. Whatever depends on entries that a fenced life
wrote after that length is an *orphan*. Between the fence and its resolution the length is not
known, so items that may be orphans wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

from clonos.core.messages import Dependencies, Dependency
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


class Fences:
    """The fences that a process has heard of, pending and resolved.

    Examples
    --------
    >>> fences, old, new = Fences(), Incarnation(1, 0), Incarnation(1, 1)
    >>> fences.announce(4, new, known=10)
    >>> fences.judge({4: Dependency(old, 12)})
    <Trust.UNKNOWN: 'unknown'>
    >>> fences.resolve(4, new, length=11)
    >>> fences.judge({4: Dependency(old, 12)}), fences.judge({4: Dependency(new, 12)})
    (<Trust.ORPHAN: 'orphan'>, <Trust.VALID: 'valid'>)
    """

    def __init__(self) -> None:
        self.current: dict[int, Incarnation] = {}
        self._pending: dict[int, tuple[Incarnation, int]] = {}
        self._resolved: dict[int, list[Cut]] = {}
        self._forgiven: dict[int, list[Cut]] = {}

    def refuses(self, task: int, incarnation: Incarnation) -> bool:
        """Whether this life of the task is over."""
        return incarnation < self.current.get(task, incarnation)

    def pending(self, task: int) -> bool:
        return task in self._pending

    def announce(self, task: int, incarnation: Incarnation, known: int) -> None:
        """`task` is fenced below `incarnation`; we ourselves depend on or hold up to `known`."""
        if incarnation > self.current.get(task, Incarnation(0, 0)):
            self.current[task] = incarnation
            self._pending[task] = (incarnation, known)

    def resolve(
        self, task: int, incarnation: Incarnation, length: int, *, forgive: bool = False
    ) -> None:
        """Now it is known how much survived (or, `forgive`: the loss is accepted)."""
        self.current[task] = max(incarnation, self.current.get(task, incarnation))
        pending = self._pending.get(task)
        if pending is not None and pending[0] <= incarnation:
            del self._pending[task]
        if forgive:
            older = [cut for cut in self._forgiven.get(task, ()) if cut[1] < length]
            self._forgiven[task] = [*older, (incarnation, length)]  # the newest covers these
            self._resolved.pop(task, None)
            return
        known = self._resolved.setdefault(task, [])
        if (incarnation, length) not in known:
            known.append((incarnation, length))

    def truncate(self, positions: Mapping[int, int]) -> None:
        """These are floors now."""
        for known in (self._resolved, self._forgiven):
            for task, cuts in known.items():
                known[task] = still_needed(cuts, positions.get(task, 0))

    def judge(self, dep: Dependencies) -> Trust:
        if not self._pending and not self._resolved:
            return Trust.VALID
        result = Trust.VALID
        dep = self.clamp(dep)
        for task, (incarnation, position) in dep.items():
            for fence, length in self._resolved.get(task, ()):
                if incarnation < fence and position > length:
                    return Trust.ORPHAN
            pending = self._pending.get(task)
            if pending is not None and incarnation < pending[0] and position > pending[1]:
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

    def check(self, pending: Mapping[int, Incarnation]) -> None:
        """Assertions over the whole state; `pending`: the fences that the logs know of."""
        assert pending == {task: incarnation for task, (incarnation, _) in self._pending.items()}
        assert all(self.current.get(task) == number for task, number in pending.items())
        for task, cuts in self._resolved.items():
            assert all(incarnation <= self.current[task] for incarnation, _ in cuts)


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
