"""Budgets for the calls of a service."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeGuard

from clonos.errors import WrongType

MICROS: Final = 1_000_000
"""Costs are added as whole numbers of millionths, so that a sum does not depend on its order."""

Cost = Callable[[Any], float] | float
"""The cost of a call, or its tokens: a number, or a function of the answer."""


class Usage(NamedTuple):
    """Number of answered calls, their cost in millionths, number of questions answered from memory
    or a cache, number of tokens, and number of effects whose outcome is unknown."""

    calls: int = 0
    micros: int = 0
    hits: int = 0
    tokens: int = 0
    unknown: int = 0


@dataclass(frozen=True)
class Budget:
    """How much the calls of a service, or of a branch, may cost.

    Parameters
    ----------
    calls
        The largest number of calls.
    cost
        How much the calls may cost, in the unit of ``cost=``. If ``cost=`` is a function of the
        answer, a call's cost is known only afterwards, so calls that are open when the budget is
        used up may exceed it.
    tokens
        How many tokens the calls may take, as counted by ``tokens=``. Calls may exceed it in the
        same way.

    Examples
    --------
    >>> Budget(calls=200, cost=5.0)
    Budget(calls=200, cost=5.0, tokens=None)
    """

    calls: int | None = None
    cost: float | None = None
    tokens: int | None = None

    def of_task(self, index: int, parallelism: int) -> Budget:
        """An equal share for each task; the remainder goes to the first tasks. The shares add up.

        Examples
        --------
        >>> [Budget(calls=5).of_task(index, 3).calls for index in range(3)]
        [2, 2, 1]
        """

        def share(whole: int) -> int:
            return (whole + parallelism - 1 - index) // parallelism

        calls = None if self.calls is None else share(self.calls)
        cost = None if self.cost is None else share(round(self.cost * MICROS)) / MICROS
        tokens = None if self.tokens is None else share(self.tokens)
        return Budget(calls, cost, tokens)


def require_budget(budget: object, cost: object, tokens: object, where: str) -> None:
    """Raise `WrongType` if a budget, a cost or a number of tokens is invalid."""
    if tokens is not None and not callable(tokens) and not (type(tokens) is int and tokens >= 0):
        raise WrongType(
            f"tokens={tokens!r}",
            where=where,
            remedy="give the number of tokens of a call, or a function of its answer",
        )
    if cost is not None and not callable(cost) and not (is_number(cost) and cost >= 0):
        raise WrongType(
            f"cost={cost!r}",
            where=where,
            remedy="give the cost of a call, or a function of its answer",
        )
    if is_number(cost) and 0 < cost < 1 / MICROS:
        raise WrongType(
            f"cost={cost!r}, and costs are counted in millionths",
            where=where,
            remedy="give costs and budgets in a smaller unit, such as cents",
        )
    if budget is None:
        return
    if not isinstance(budget, Budget) or not all(
        limit is None or (is_number(limit) and limit >= 0)
        for limit in (budget.calls, budget.cost, budget.tokens)
    ):
        raise WrongType(
            f"budget={budget!r}", where=where, remedy="give clonos.Budget(calls=200, cost=5.0)"
        )
    if budget.cost is not None and cost is None:
        raise WrongType(
            "a budget for costs, but nothing says what a call costs",
            where=where,
            remedy="give cost=, a number or a function of the answer",
        )
    if budget.tokens is not None and tokens is None:
        raise WrongType(
            "a budget for tokens, but nothing says how many a call takes",
            where=where,
            remedy="give tokens=, a number or a function of the answer",
        )


def is_number(value: object) -> TypeGuard[float]:
    """Whether it is a finite number, and no bool."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    return math.isfinite(value)
