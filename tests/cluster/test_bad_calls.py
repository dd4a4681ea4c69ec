"""What services and functions may do in a real job: each row has what became of its call."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle

import clonos
from clonos import errors
from clonos.core.blame import OUTSIDE_MANY
from clonos.core.watch import DEATHS, LIVES

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


def lethal(deaths: Path, kind: str) -> Any:
    """A function that ends its process for one row, when others have come and their calls are open;
    it says so first."""

    def judge(n: int) -> int:
        if n == 50:
            with deaths.open("a") as file:
                file.write(".")
            os._exit(0)
        time.sleep(0.01)
        return n

    async def ask(n: int) -> int:
        await asyncio.sleep(0.01)
        return judge(n) if n == 50 else n

    return {"coroutine": ask, "function": judge}[kind]


@pytest.mark.parametrize("kind", ["coroutine", "function"])
def test_a_call_that_kills_ends_the_job_by_its_row(spark, tmp_path, kind):
    job = clonos.Job("lethal")
    rows = job.source(clonos.sources.from_batches([[(n,) for n in range(100)]], "n long"))
    asked = rows.with_column_async("m long", lethal(tmp_path / "deaths", kind), "n")
    asked.sink(clonos.sinks.collect())
    with pytest.raises(errors.PoisonRecord, match=r"making this call ends the process.*n=50"):
        job.run(spark, timeout_s=600)
    assert 1 + OUTSIDE_MANY + DEATHS <= len((tmp_path / "deaths").read_text()) <= LIVES


def test_a_call_that_kills_may_be_left_out(spark, tmp_path):
    job = clonos.Job("lethal", on_bad_record="keep")
    rows = job.source(clonos.sources.from_batches([[(n,) for n in range(100)]], "n long"))
    asked = rows.with_column_async("m long", lethal(tmp_path / "deaths", "coroutine"), "n")
    asked.sink(clonos.sinks.collect(), name="out")
    job.bad_records.sink(clonos.sinks.collect(), name="bad")
    result = job.run(spark, timeout_s=600)
    assert sorted(result.table("out").column("n").to_pylist()) == [n for n in range(100) if n != 50]
    (bad,) = result.table("bad").to_pylist()
    assert json.loads(bad["record"]) == {"n": 50}
    assert bad["error"].startswith("PoisonRecord: making this call ends the process")
