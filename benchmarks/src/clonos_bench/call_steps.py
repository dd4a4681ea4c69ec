"""What it costs to log a call: 100 outcomes a step, as we do it, beside a durable step per call.

Engines for workflows (Restate, Temporal, DBOS) write down each step of a workflow before the next
one begins. The baselines do just that, and nothing else such an engine does: an answer is encoded,
written and synced, or committed in PostgreSQL.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import queue
import tempfile
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pyarrow as pa

import clonos
from clonos.core.calls import Outcome
from clonos.core.canonical import encode
from clonos.core.determinants import Outcomes, encode_record
from clonos.errors import ClonosError
from clonos.runtime.calls import CallRunner
from clonos.testing.harness import Answers, Source, StepHarness
from clonos_bench import postgres
from clonos_bench.report import Report
from clonos_bench.statistics import spread

TOGETHER: Final = 100
"""Calls that are open at a time, and outcomes of a step."""
BATCH: Final = 10
ROUNDS: Final = 5
LIFE: Final = 1

Used = tuple[float, float]
"""Seconds of CPU, and of the clock."""


async def answer(key: int) -> int:
    """Answers at once."""
    return key


async def answers(keys: list[int]) -> list[int]:
    """The same for several rows."""
    return keys


def measure(arguments: argparse.Namespace) -> Report:
    """Each kind in turn, several times."""
    columns = ["", "CPU, us a call", "clock, us a call"]
    report = Report("steps", f"a logged call, {TOGETHER} at a time, in one process", columns)
    calls = arguments.step_calls
    kinds: dict[str, Callable[[], Used]] = {
        "asyncio with a timeout, no log": lambda: _alone(calls, _nothing),
        "ours: asked, made, taken, logged": lambda: _ours(calls),
        f"ours, per row, with {BATCH} rows in a call": lambda: _ours(calls, batch=BATCH),
        "a durable step per call: fdatasync": lambda: _synced(calls),
    }
    try:
        with postgres.server() as dsn:
            kinds["a durable step per call: PostgreSQL"] = lambda: _committed(calls, dsn)
            used = _rounds(kinds)
    except ClonosError as error:
        report.notes.append(str(error))
        used = _rounds(kinds)
    for kind, each in used.items():
        cpu, clock = ([1e6 * s / calls for s in seconds] for seconds in zip(*each, strict=True))
        report.add(kind, spread(cpu), spread(clock))
        report.data[kind] = {"cpu_us": cpu, "clock_us": clock}
    report.notes.append(
        f"{calls:,} calls each, {ROUNDS} times; the server's own CPU is not counted, nor is what "
        "makes our log durable: it goes with what is sent anyway"
    )
    return report


def _rounds(kinds: dict[str, Callable[[], Used]]) -> dict[str, list[Used]]:
    used: dict[str, list[Used]] = {kind: [] for kind in kinds}
    for _ in range(ROUNDS):
        for kind, run in kinds.items():
            used[kind].append(run())
    return used


def _timed(run: Callable[[], object]) -> Used:
    cpu_s, began = time.process_time(), time.monotonic()
    run()
    return time.process_time() - cpu_s, time.monotonic() - began


# --- one call after the other is made durable -----------------------------------------------------


async def _nothing(answered: int) -> None:
    del answered


def _alone(calls: int, keep: Callable[[int], Awaitable[None]]) -> Used:
    async def one(key: int) -> None:
        await keep(await asyncio.wait_for(answer(key), 60))

    async def all_() -> None:
        for first in range(0, calls, TOGETHER):
            await asyncio.gather(*(one(key) for key in range(first, first + TOGETHER)))

    return _timed(lambda: asyncio.run(all_()))


def _synced(calls: int) -> Used:
    with tempfile.TemporaryFile(dir=".") as file:  # not in memory, where a sync is nothing

        async def keep(answered: int) -> None:
            os.write(file.fileno(), encode([answered]))
            os.fdatasync(file.fileno())

        return _alone(calls, keep)


def _committed(calls: int, dsn: str) -> Used:
    import psycopg

    with psycopg.connect(dsn, autocommit=True) as sql:
        sql.execute("create table if not exists steps (n bigserial primary key, answer bytea)")

        async def keep(answered: int) -> None:
            sql.execute("insert into steps (answer) values (%s)", [encode(answered)])

        return _alone(calls, keep)


# --- ours -----------------------------------------------------------------------------------------


def _ours(calls: int, batch: int | None = None) -> Used:
    """What a task does for its calls, in the harness, with the runner of a slot."""
    job = clonos.Job("steps", parallelism=1)
    rows = job.source(clonos.sources.from_batches([], schema="key long"), name="in")
    how: dict[str, Any] = {"in_flight": TOGETHER, "ordered": False, "batch": batch}
    asked = rows.with_column_async("said long", answers if batch else answer, "key", **how)
    asked.sink(clonos.sinks.collect())
    harness = StepHarness(job.compile().codes[-1].program())
    heard: queue.Queue[Any] = queue.Queue()
    runner = CallRunner(heard.put)
    runner.make(LIFE, ())  # its thread begins

    def run() -> None:
        for first in range(0, calls, TOGETHER):
            keys = pa.array(range(first, first + TOGETHER), pa.int64())
            batch_ = pa.RecordBatch.from_arrays([keys], ["key"])
            made = harness.feed(Source(batch_)).asked
            runner.make(LIFE, made)
            outcomes: list[Outcome] = []
            while len(outcomes) < len(made):
                outcomes += heard.get(timeout=60).outcomes
            encode_record([Outcomes(outcomes)])
            harness.feed(Answers(tuple(outcomes)))

    try:
        return _timed(run)
    finally:
        runner.close()
