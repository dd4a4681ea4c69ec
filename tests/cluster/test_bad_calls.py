"""What services and functions may do in a real job: each row has what became of its call."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import Counter
from typing import Any

import pytest
from pyspark import cloudpickle

import clonos

cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default"), pytest.mark.timeout(900)]

ATTEMPTS = 2


class TooManyRequests(Exception):
    headers = {"Retry-After": "1"}  # noqa: RUF012 - as clients have it


class Unruly(clonos.Service):
    """Does as it is told."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()

    async def call(self, what: str) -> Any:
        self.asked[what] += 1
        found: Any = getattr(self, what, None)
        return what if found is None else await found()

    async def never(self) -> None:
        await asyncio.Event().wait()

    async def stubborn(self) -> None:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.1)

    async def thing(self) -> object:
        return object()

    async def knot(self) -> list[Any]:
        found: list[Any] = []
        found.append(found)
        return found

    async def flood(self) -> str:
        return "x" * (100 << 20)

    async def leave(self) -> None:
        sys.exit(3)

    async def mistake(self) -> int:
        prices: dict[str, int] = {}
        return prices["lamp"]

    async def down(self) -> str:
        if self.asked["down"] < ATTEMPTS:
            raise ConnectionRefusedError(111, "nobody listens")
        return "up again"

    async def busy(self) -> str:
        if self.asked["busy"] == 1:
            raise TooManyRequests
        return f"asked {self.asked['busy']} times"


BECOMES = {
    "fine": "fine",
    "never": "TimeoutError: no answer within 1 s",
    "stubborn": "TimeoutError: no answer within 1 s: it was cancelled, and the coroutine goes on",
    "thing": "a value of type object cannot be kept in state or in the log",
    "knot": "a value of type list cannot be kept: recursion limit exceeded",
    "flood": "an answer of 104857605 bytes; at most 262144 are logged",
    "leave": "RuntimeError: SystemExit: 3",
    "mistake": "KeyError: 'lamp'",
    "down": "up again",
    "busy": "asked ",
}
ROWS = [(what,) for what in BECOMES] * 2


def said(_: str, error: Exception) -> str:
    """Instead of an answer."""
    return f"{type(error).__name__}: {error}"


def test_each_row_has_what_became_of_its_call(spark):
    job = clonos.Job("bad calls", parallelism=1, checkpoint_interval="200 ms")
    rows = job.source(clonos.sources.from_batches([ROWS], "what string"), name="in")
    how: dict[str, Any] = {"timeout": "1 second", "attempts": ATTEMPTS, "on_error": said}
    told = rows.with_column_async(
        "told string",
        Unruly(),
        "what",
        backoff=("10 ms", "20 ms"),
        ordered=False,
        name="ask",
        **how,
    )
    told.sink(clonos.sinks.collect(), name="out")
    result = job.run(spark, timeout_s=600)
    found = [(row["what"], row["told"]) for row in result.table().to_pylist()]
    assert Counter(what for what, _ in found) == dict.fromkeys(BECOMES, 2)
    for what, told_of_it in found:
        assert BECOMES[what] in told_of_it, what
    assert result.bill["ask"].calls == len(ROWS)
