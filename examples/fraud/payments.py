"""A day of card payments, with frauds among them: the same day each time."""

from __future__ import annotations

import math
import random
from typing import Final, NamedTuple

DAY_S: Final = 24 * 3600
CARDS: Final = 90
HERE: Final = "DE"
ELSEWHERE: Final = ("US", "BR", "TH", "PL", "FR")
TESTS: Final = 3
"""Small payments by which a thief finds out whether a card works."""


class Payment(NamedTuple):
    """As the shop sends it; `fraud` is what its owner will say of it some weeks later."""

    id: int
    at_s: int
    card: str
    cents: int
    country: str
    fraud: bool

    def row(self) -> dict[str, object]:
        """What the job is told."""
        return {"id": self.id, "at": clock(self.at_s), "card": self.card, "cents": self.cents,
                "country": self.country}  # fmt: skip


class Owner(NamedTuple):
    """Who pays with a card: where, how much, and whether it is a person who travels."""

    card: str
    home: str
    usual_cents: int
    travels: bool


def clock(at_s: int) -> str:
    """A moment of the day, as a timestamp.

    Examples
    --------
    >>> clock(3600 * 9 + 61)
    '2030-05-04T09:01:01Z'
    """
    return f"2030-05-04T{at_s // 3600:02}:{at_s // 60 % 60:02}:{at_s % 60:02}Z"


def day(count: int, seed: int = 4) -> list[Payment]:
    """About `count` payments, in their order. One in forty leads to a theft.

    Examples
    --------
    >>> payments = day(1000)
    >>> sum(payment.fraud for payment in payments), payments == day(1000)
    (24, True)
    >>> [payment.id for payment in payments] == list(range(len(payments)))
    True
    """
    chosen = random.Random(seed)
    owners = [_owner(chosen, number) for number in range(CARDS)]
    thefts = count // 40
    found = [_usual(chosen, chosen.choice(owners)) for _ in range(count - thefts * (TESTS + 1))]
    for _ in range(thefts):
        found += _theft(chosen, chosen.choice(owners))
    found.sort(key=lambda payment: payment.at_s)
    return [payment._replace(id=number) for number, payment in enumerate(found)]


def _owner(chosen: random.Random, number: int) -> Owner:
    home = HERE if chosen.random() < 0.75 else chosen.choice(ELSEWHERE)
    usual = round(math.exp(chosen.gauss(8.3, 0.9)))  # 40 euros, give or take
    return Owner(f"card-{number:02}", home, usual, chosen.random() < 0.15)


def _usual(chosen: random.Random, owner: Owner) -> Payment:
    at_s = int(chosen.triangular(5, 24, 15) * 3600) % DAY_S
    cents = max(99, round(owner.usual_cents * math.exp(chosen.gauss(0, 0.4))))
    is_away = owner.travels and chosen.random() < 0.5
    country = chosen.choice(ELSEWHERE) if is_away else owner.home
    return Payment(0, at_s, owner.card, cents, country, fraud=False)


def _theft(chosen: random.Random, owner: Owner) -> list[Payment]:
    """Some small payments within minutes, then a large one."""
    begin_s = chosen.randrange(2 * 3600, DAY_S - 1200)
    country = owner.home if chosen.random() < 0.4 else chosen.choice(ELSEWHERE)
    small = [
        Payment(0, begin_s + 120 * n, owner.card, chosen.randrange(100, 500), country, fraud=False)
        for n in range(TESTS)
    ]
    cents = max(15_000, round(owner.usual_cents * chosen.uniform(4, 9)))
    at_s = begin_s + 120 * TESTS + chosen.randrange(300)
    return [*small, Payment(0, at_s, owner.card, cents, country, fraud=True)]
