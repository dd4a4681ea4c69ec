"""How much of its share of a budget a task has spent, and the refusal when nothing is left.

Spending is computed from logged outcomes and is part of the state, so no failure changes it. The
budget only decides whether the service or a refusal answers a call. Either answer is a logged
outcome, so a restart may change the budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from clonos.core.calls import Outcome
from clonos.core.canonical import decode, decode_error
from clonos.errors import BudgetSpent, EffectUnknown, OperatorError, OtherArguments
from clonos.operators.calls.budget import MICROS, Budget, Cost, Usage
from clonos.operators.calls.service import Policy
from clonos.state.stores import Facts

_NOT_MADE: Final = BudgetSpent, OtherArguments
"""Errors of calls that were refused."""


class Purse:
    """The spending of one task on one service.

    Parameters
    ----------
    policy
        The task's policy, whose budget is the task's share.
    facts
        Where spending is kept.
    where
        For error messages.
    prefix
        The prefix of the facts' names, if an operator has several services.
    """

    def __init__(self, policy: Policy, facts: Facts, where: str, prefix: str = "") -> None:
        self._policy, self._facts, self._where = policy, facts, where
        self._calls, self._micros = f"{prefix}calls", f"{prefix}micros"
        self._hits, self._tokens = f"{prefix}hits", f"{prefix}tokens"
        self._unknown = f"{prefix}unknown"
        self._refusing: Policy | None = None

    @property
    def calls(self) -> int:
        """The number of answered calls."""
        calls: int = self._facts.get(self._calls, 0)
        return calls

    @property
    def micros(self) -> int:
        """Their cost in millionths."""
        micros: int = self._facts.get(self._micros, 0)
        return micros

    @property
    def hits(self) -> int:
        """Questions answered by remembered answers; they do not count as calls."""
        hits: int = self._facts.get(self._hits, 0)
        return hits

    @property
    def tokens(self) -> int:
        """How many tokens the answers have taken."""
        tokens: int = self._facts.get(self._tokens, 0)
        return tokens

    @property
    def unknown(self) -> int:
        """Number of effects whose outcome is unknown."""
        unknown: int = self._facts.get(self._unknown, 0)
        return unknown

    @property
    def usage(self) -> Usage:
        """All of these numbers."""
        return Usage(self.calls, self.micros, self.hits, self.tokens, self.unknown)

    def policy(self, open_calls: int) -> Policy:
        """The policy for one more call beside `open_calls`: the service's, or a refusal."""
        budget = self._policy.budget
        if budget is None:
            return self._policy
        spent = self._used_up(budget, open_calls)
        if spent is None:
            return self._policy
        if self._refusing is None:
            spent = f"this task's share of the budget, {spent}, is used up"
            self._refusing = self._policy.refusing(BudgetSpent(spent), when_quiet=True)
        return self._refusing

    def _used_up(self, budget: Budget, open_calls: int) -> str | None:
        """The part of the budget that is too small for one more call; None: it suffices."""
        policy = self._policy
        if budget.calls is not None and self.calls + open_calls >= budget.calls:
            return f"{budget.calls} calls"
        micros = None if budget.cost is None else round(budget.cost * MICROS)
        if not _suffices(self.micros, micros, policy.cost, MICROS, open_calls):
            return f"a cost of {budget.cost:g}"
        if not _suffices(self.tokens, budget.tokens, policy.tokens, 1, open_calls):
            return f"{budget.tokens} tokens"
        return None

    def pay(self, outcomes: Sequence[Outcome]) -> None:
        """Count these logged outcomes."""
        hits = sum(not outcome.attempts for outcome in outcomes)
        if hits:  # remembered answers
            self._facts.set(self._hits, self.hits + hits)
        failed = {o.id: decode_error(o.answer) for o in outcomes if not o.ok}
        unknown = sum(isinstance(error, EffectUnknown) for error in failed.values())
        if unknown:
            self._facts.set(self._unknown, self.unknown + unknown)
        answered = [
            o for o in outcomes if o.attempts and not isinstance(failed.get(o.id), _NOT_MADE)
        ]
        if not answered:
            return
        self._facts.set(self._calls, self.calls + len(answered))
        policy = self._policy
        good = [outcome.answer for outcome in answered if outcome.ok]
        if policy.cost is not None:
            micros = self._total("cost", policy.cost, MICROS, good)
            self._facts.set(self._micros, self.micros + micros)
        if policy.tokens is not None:
            self._facts.set(
                self._tokens, self.tokens + self._total("tokens", policy.tokens, 1, good)
            )

    def _total(self, name: str, price: Cost, unit: int, answers: Sequence[bytes]) -> int:
        """The total of these answers, in whole units."""
        if not callable(price):
            return len(answers) * round(price * unit)
        return sum(amount_of(answer, name, price, unit, self._where) for answer in answers)


def amount_of(answer: bytes, name: str, price: Cost, unit: int, where: str) -> int:
    """What a good answer has cost, in whole units.

    Raises
    ------
    OperatorError
        The user's function has no number, 0 or more, for it.
    """
    if not callable(price):
        return round(price * unit)
    try:
        amount = round(float(price(decode(answer))) * unit)
        if amount < 0:
            raise ValueError(f"{amount / unit:g} is below 0")
    except Exception as error:
        raise OperatorError(
            f"{name}= has no number for an answer: {type(error).__name__}: {error}",
            where=where,
            remedy="let it return a number, 0 or more, for every answer",
        ) from error
    return amount


def _suffices(
    spent: int, limit: int | None, price: Cost | None, unit: int, open_calls: int
) -> bool:
    """Whether the budget allows one more call beside the open ones."""
    if limit is None:
        return True
    if callable(price):  # the cost of open calls is unknown
        return spent < limit
    assert price is not None
    return spent + (open_calls + 1) * round(price * unit) <= limit
