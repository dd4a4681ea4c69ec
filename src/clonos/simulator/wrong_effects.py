"""Deliberate mistakes with effects; :mod:`clonos.simulator.mutations` says what each is."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import Any

from clonos.core.calls import CallId, OpenCalls, Request
from clonos.simulator.programs import Waiting

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


def name_of_a_life(original: Any) -> Any:
    def request(self: Waiting, number: int) -> tuple[CallId, Request]:
        if not hasattr(self, "life"):
            self.life = next(_numbers)  # type: ignore[attr-defined]
        call, asked = original(self, number)
        key = asked.key and f"{asked.key} of life {self.life}"  # type: ignore[attr-defined]
        return call, asked._replace(key=key)

    return request
