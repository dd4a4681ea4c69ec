"""What the calls of a service may cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeGuard

from clonos.errors import WrongType

Cost = Callable[[Any], float] | float
"""What a call costs: a number, or a function of its answer."""


@dataclass(frozen=True)
class Budget:
    """How much the calls of a service, or of a branch, may cost.

    Parameters
    ----------
    calls
        How many, at most.
    cost
        How much they may cost, in the unit of ``cost=``. If that is a function of the answer, a
        call's cost is known only afterwards, so calls that are open when the budget is used up
        may exceed it.

    Examples
    --------
    >>> Budget(calls=200, cost=5.0)
    Budget(calls=200, cost=5.0)
    """

    calls: int | None = None
    cost: float | None = None

    def of_task(self, index: int, parallelism: int) -> Budget:
        """An equal share for each task; the first ones have the calls that are left over.

        Examples
        --------
        >>> [Budget(calls=5).of_task(index, 3).calls for index in range(3)]
        [2, 2, 1]
        """
        calls = (
            None if self.calls is None else (self.calls + parallelism - 1 - index) // parallelism
        )
        return Budget(calls, None if self.cost is None else self.cost / parallelism)


def require_budget(budget: object, cost: object, where: str) -> None:
    """Raise `WrongType` if a budget or a cost cannot be meant so."""
    if cost is not None and not callable(cost) and not (_is_number(cost) and cost >= 0):
        raise WrongType(
            f"cost={cost!r}",
            where=where,
            remedy="give what a call costs, or a function of its answer",
        )
    if budget is None:
        return
    if not isinstance(budget, Budget) or not all(
        limit is None or (_is_number(limit) and limit >= 0) for limit in (budget.calls, budget.cost)
    ):
        raise WrongType(
            f"budget={budget!r}", where=where, remedy="give clonos.Budget(calls=200, cost=5.0)"
        )
    if budget.cost is not None and cost is None:
        raise WrongType(
            "a budget for costs, and nothing says what a call costs",
            where=where,
            remedy="give cost=, a number or a function of the answer",
        )


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
