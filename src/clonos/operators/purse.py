"""What a task has spent of its share of a budget, and who answers when nothing is left.

What was spent is counted from outcomes that are in the log, and is part of the state: no failure
changes it. Whether one more call is affordable decides only who answers it, the service or a
refusal. Either is an outcome, and logged. So a restart may come with another budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from clonos.core.calls import Outcome
from clonos.core.canonical import decode, decode_error
from clonos.errors import BudgetSpent, OperatorError
from clonos.operators.budget import MICROS
from clonos.operators.service import Policy
from clonos.state.stores import Facts


class Purse:
    """What one task has spent on one service.

    Parameters
    ----------
    policy
        Of the task: its budget is the task's share.
    facts
        Where it is written down.
    where
        For error messages.
    prefix
        Of the facts, if an operator has several services.
    """

    def __init__(self, policy: Policy, facts: Facts, where: str, prefix: str = "") -> None:
        self._policy, self._facts, self._where = policy, facts, where
        self._calls, self._micros = f"{prefix}calls", f"{prefix}micros"
        self._hits = f"{prefix}hits"
        self._refusing: Policy | None = None

    @property
    def calls(self) -> int:
        """Calls that were answered."""
        calls: int = self._facts.get(self._calls, 0)
        return calls

    @property
    def micros(self) -> int:
        """What they have cost, in millionths."""
        micros: int = self._facts.get(self._micros, 0)
        return micros

    @property
    def hits(self) -> int:
        """Questions that a remembered answer has answered; they are no calls."""
        hits: int = self._facts.get(self._hits, 0)
        return hits

    def policy(self, open_calls: int) -> Policy:
        """Who answers one more call, beside so many that are open: the service, or a refusal."""
        budget = self._policy.budget
        if budget is None:
            return self._policy
        has_calls = budget.calls is None or self.calls + open_calls < budget.calls
        if has_calls and (budget.cost is None or self._can_pay(open_calls, budget.cost)):
            return self._policy
        if self._refusing is None:
            spent = f"{budget.calls} calls" if not has_calls else f"a cost of {budget.cost:g}"
            refuse = _Refusal(f"this task's share of the budget, {spent}, is used up")
            self._refusing = replace(
                self._policy,
                fn=refuse,
                hedge_s=None,
                per_second=None,
                instead_of=self._policy,
            )
        return self._refusing

    def _can_pay(self, open_calls: int, limit: float) -> bool:
        cost = self._policy.cost
        if callable(cost):  # nobody knows what the open ones will cost
            return self.micros < round(limit * MICROS)
        assert cost is not None
        return self.micros + (open_calls + 1) * round(cost * MICROS) <= round(limit * MICROS)

    def pay(self, outcomes: Sequence[Outcome]) -> None:
        """These are in the log."""
        hits = sum(not outcome.attempts for outcome in outcomes)
        if hits:  # they were remembered
            self._facts.set(self._hits, self.hits + hits)
        answered = [o for o in outcomes if o.attempts and (o.ok or not _is_refused(o))]
        if not answered:
            return
        self._facts.set(self._calls, self.calls + len(answered))
        if self._policy.cost is not None:
            micros = sum(self._cost_of(o.answer) for o in answered if o.ok)
            self._facts.set(self._micros, self.micros + micros)

    def _cost_of(self, answer: bytes) -> int:
        cost = self._policy.cost
        assert cost is not None
        if not callable(cost):
            return round(cost * MICROS)
        try:
            micros = round(float(cost(decode(answer))) * MICROS)
            if micros < 0:
                raise ValueError(f"{micros / MICROS:g} is below 0")
        except Exception as error:
            raise OperatorError(
                f"cost= has no price for an answer: {type(error).__name__}: {error}",
                where=self._where,
                remedy="let it return a number, 0 or more, for every answer",
            ) from error
        return micros


class _Refusal:
    """Stands in for a service whose budget is used up."""

    def __init__(self, what: str) -> None:
        self._what = what

    async def __call__(self, *arguments: Any, **named: Any) -> Any:
        del arguments, named
        raise BudgetSpent(self._what)


def _is_refused(outcome: Outcome) -> bool:
    return isinstance(decode_error(outcome.answer), BudgetSpent)
