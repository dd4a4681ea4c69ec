"""Deliberate mistakes with effects."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import Any

from clonos.core.calls import CallId, OpenCalls, Outcome, Request
from clonos.core.canonical import encode
from clonos.simulator.jobs.programs import Waiting
from clonos.simulator.mistakes.mutation import Mutation, mutation

_numbers = count()


def release_at_once(original: Any) -> Any:
    def released(self: OpenCalls, _: int) -> Any:
        return original(self, 1 << 60)

    return released


def without_doubt(original: Any) -> Any:
    def hold(self: OpenCalls, effects: Iterable[tuple[CallId, Request]], position: int) -> None:
        certain = [(call, request._replace(in_doubt=False)) for call, request in effects]
        original(self, certain, position)

    return hold


def settled_unasked(original: Any) -> Any:
    """An effect that an earlier life may have made is settled without a check."""

    def begun(self: OpenCalls, position: int) -> Any:
        reads = original(self, position)
        for call in [call for call, (_, request) in self._held.items() if request.in_doubt]:
            _, request = self._held.pop(call)
            self.heard([Outcome(*call, request.digest, True, encode(0))])
        return reads

    return begun


def shared_name(original: Any) -> Any:
    """Two rows have the same idempotency key."""

    def request(self: Waiting, number: int) -> tuple[CallId, Request]:
        call, asked = original(self, number)
        return call, asked._replace(key=asked.key and str(number // 2))

    return request


def name_of_a_life(original: Any) -> Any:
    def request(self: Waiting, number: int) -> tuple[CallId, Request]:
        if not hasattr(self, "life"):
            self.life = next(_numbers)  # type: ignore[attr-defined]
        call, asked = original(self, number)
        key = asked.key and f"{asked.key} of life {self.life}"  # type: ignore[attr-defined]
        return call, asked._replace(key=key)

    return request


WRONG_EFFECTS: dict[str, Mutation] = {
    "effects do not wait for their log": mutation(
        "log before effect", (OpenCalls, "released", release_at_once)
    ),
    "an effect of an earlier life is no doubt": mutation(
        "effects", (OpenCalls, "_hold", without_doubt)
    ),
    "an effect has another name in another life": mutation(
        "effects", (Waiting, "request", name_of_a_life)
    ),
    "a row leaves before it is known what has come of its effect": mutation(
        "effects", (OpenCalls, "begun", settled_unasked)
    ),
    "rows share an effect": mutation("effects", (Waiting, "request", shared_name)),
}
