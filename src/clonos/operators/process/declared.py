"""Which states a :class:`~clonos.operators.process.process.Process` has, as far as its task knows.

The graph does not show them: they are known when `open` has declared them. If other code continues
a task, and does not declare a state that has values, these would be lost without a word.
"""

from __future__ import annotations

from typing import Final

from clonos.errors import CannotUpgrade
from clonos.state.stores import Facts

IN_USE: Final = "states"
"""The fact that names, in order, the states that `open` had declared when they were first set."""


class DeclaredStates:
    """The states that `open` has declared.

    Parameters
    ----------
    facts
        Those of the operator.
    """

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._names = set[str]()

    def add(self, name: str) -> None:
        """`open` declares a state."""
        self._names.add(name)

    def use(self, name: str) -> None:
        """A state is set, for some key. Those that are declared later, for single rows, may never
        be declared again, and still not be missed."""
        if name in self._names:
            self._facts.set(IN_USE, sorted({*self._facts.get(IN_USE, ()), name}))

    def require(self, operator: str) -> None:
        """Raise `CannotUpgrade` if the task had a state that is not declared any more."""
        in_use = self._facts.get(IN_USE, ())
        lost = [name for name in in_use if name not in self._names]
        if not lost:
            return
        new = [repr(name) for name in sorted(self._names.difference(in_use))]
        now = new[0] if len(lost) == len(new) == 1 else "..."
        names = ", ".join(f"{(operator, name)}: {now}" for name in lost)
        raise CannotUpgrade(
            f"keys have had values of the state {', '.join(map(repr, lost))}, and open() declares "
            "none of that name",
            where=operator,
            remedy="if it has another name now, start with upgrade=True, "
            f"renamed={{{names}}}; if its values may go, declare it in open() all the same",
        )
