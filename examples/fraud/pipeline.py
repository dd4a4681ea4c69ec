"""Payments -> what is usual for the card -> a prompt -> a paid model -> cards that are blocked.

This is all that one writes. :func:`brief` is the prompt that the job begins with, :func:`careful`
the one that is tried on its past, and adopted.
"""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final

import clonos

ROWS: Final = "id long, at timestamp, card string, cents long, country string"
KNOWN: Final = f"{ROWS}, home string, usual long, lately long"
SCORED: Final = f"{KNOWN}, prompt string, score double, request long"
CENTS_PER_TOKEN: Final = 0.002
SURE: Final = 0.8
LARGE_CENTS: Final = 10_000
HOUR_S: Final = 3600

Card = dict[str, Any]
"""What is known of a card: its home, what is usual, and when it was used within the last hour."""


def seen(card: Card, at: datetime, cents: int, country: str) -> tuple[tuple[str, int, int], Card]:
    """What was known of a card before a payment, and what is known behind it.

    Examples
    --------
    >>> known, card = seen({}, datetime(2030, 5, 4, 9), 2000, "DE")
    >>> seen(card, datetime(2030, 5, 4, 9, 5), 4000, "US")[0]
    ('DE', 2000, 1)
    """
    now_s = int(at.timestamp())
    times = [then for then in card.get("times", []) if then > now_s - HOUR_S]
    home, usual = card.get("home", country), card.get("usual", cents)
    becomes = {"home": home, "usual": (9 * usual + cents) // 10, "times": [*times, now_s]}
    return (home, usual, len(times)), becomes


class Profile(clonos.Process):
    """Remembers each card."""

    def open(self, ctx: clonos.ProcessContext) -> None:
        self.card = ctx.state("card")

    def on_row(self, row: Any, ctx: clonos.ProcessContext) -> Iterable[Any]:
        known, becomes = seen(self.card.get({}), row.at, row.cents, row.country)
        self.card.set(becomes)
        yield (*row, *known)


def brief(cents: int, country: str, *_: object) -> str:
    """The prompt of the first hours."""
    return f"Is this payment fraud? {cents / 100:.2f} EUR in {country}."


def careful(cents: int, country: str, home: str, usual: int, lately: int) -> str:
    """Another one, for large payments and for those abroad. It has more words, so it costs more."""
    asked = brief(cents, country)
    if cents < LARGE_CENTS and country == "DE":
        return asked
    return (
        f"{asked} The card is from {home}, its payments are usually of {usual / 100:.2f} EUR, and "
        f"it was used {lately} times within the last hour."
    )


class World:
    """A client of the model, which charges for every token, and of the bank."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, prompt: str) -> dict[str, Any]:
        """The model never says the same twice."""
        return self.post("/score", {"prompt": prompt})

    def block(self, id: int, card: str, *, call: clonos.EffectCall) -> None:  # noqa: A002 - a column
        """The owner will find out at the till."""
        self.post("/block", {"id": id, "card": card}, call.key)

    def post(self, path: str, body: dict[str, Any], key: str = "") -> dict[str, Any]:
        """One request; the headers say which process asks, and for which effect."""
        headers = {"Asker": str(os.getpid()), "Idempotency-Key": key}
        data = json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers)  # noqa: S310 - ours
        with urllib.request.urlopen(request, timeout=20) as response:  # noqa: S310 - ours
            answer: dict[str, Any] = json.load(response)
            return answer


def price(answer: dict[str, Any]) -> float:
    """What a call of the model costs, in cents."""
    return float(answer["tokens"] * CENTS_PER_TOKEN)


def build(
    source: Any, world: World, checkpoint: str, history_interval: str = "5 seconds"
) -> clonos.Job:
    """Two tasks judge payments. The job keeps its past for an hour."""
    job = clonos.Job(
        "fraud",
        parallelism=2,
        checkpoint_dir=checkpoint,
        checkpoint_interval="500 ms",
        history="1 hour",
        history_interval=history_interval,
    )
    payments = job.source(source, name="payments", parallelism=1)
    known = payments.key_by("card").process(Profile(), KNOWN, name="profile")
    of = ("cents", "country", "home", "usual", "lately")
    asked = known.with_column("prompt string", brief, *of, name="prompt")
    answered = asked.with_column_async(
        "answer struct<score: double, tokens: long, request: long>",
        world.ask, "prompt", name="judge", cost=price, in_flight=20, attempts=4,
    )  # fmt: skip
    scored = answered.map(
        lambda row: (*row[:-1], row.answer["score"], row.answer["request"]), SCORED, name="score"
    )
    scored.sink(clonos.sinks.collect(), name="scored")
    alerts = scored.filter(lambda row: row.score > SURE, name="sure")
    alerts.for_each_async(
        clonos.effect(world.block, idempotent=True), "id", "card", name="block", attempts=4
    )
    return job
