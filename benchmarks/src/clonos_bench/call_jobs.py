"""The jobs of ``clonos-bench calls``, and the services that they ask.

A service is a coroutine in the same process, so that its own cost is next to nothing: a real one
adds that of its client. It writes down what it was asked and what it has answered, in a file per
process.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import struct
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import clonos
from clonos.core.housekeeper import Deliver
from clonos.core.messages import Kind
from clonos_bench import jobs

Keys = npt.NDArray[np.int64]
Times = npt.NDArray[np.float64]

_EVENT: Final = struct.Struct("<qd?").pack
_NAMED: Final = struct.Struct("<q24s").pack


async def at_once(key: int) -> int:  # noqa: ARG001 - what is asked
    """Answers without waiting."""
    return 1


def plain(key: int) -> int:  # noqa: ARG001
    """The same without a call."""
    return 1


async def slow(folder: str, seconds: float, key: int) -> int:
    """Answers after a while, and keeps books."""
    books = _book(folder)
    os.write(books, _EVENT(key, time.time(), False))
    await asyncio.sleep(seconds)
    os.write(books, _EVENT(key, time.time(), True))
    return 1


async def with_keys(folder: str, seconds: float, key: int, *, call: clonos.EffectCall) -> int:
    """... and of what it was told to do under which name."""
    seen = await slow(folder, seconds, key)
    os.write(_book(folder, "names"), _NAMED(key, call.key.encode()))
    return seen


async def was_made(folder: str, key: int) -> Any:
    """The service looks into its books; each question is written down, too."""
    os.write(_book(folder, "checks"), b"?")
    found = any(((e["key"] == key) & e["answered"]).any() for e in events(folder).values())
    return clonos.Made(1) if found else clonos.NotMade()


_books: dict[tuple[str, str, int], int] = {}


def _book(folder: str, kind: str = "calls") -> int:
    name = folder, kind, os.getpid()
    if name not in _books:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        _books[name] = os.open(f"{folder}/{os.getpid()}.{kind}", flags)
    return _books[name]


def names(folder: str) -> np.ndarray[Any, Any]:
    """What was done, under which name: as often as a service was told so that knows no names."""
    kind = np.dtype([("key", "<i8"), ("name", "S24")])
    return np.concatenate([np.fromfile(p, kind) for p in Path(folder).glob("*.names")])


def questions(folder: str) -> int:
    """How often a service was asked what it had done."""
    return sum(path.stat().st_size for path in Path(folder).glob("*.checks"))


def events(folder: str) -> dict[int, np.ndarray[Any, Any]]:
    """By process, what was asked and answered."""
    kind = np.dtype([("key", "<i8"), ("at", "<f8"), ("answered", "?")])
    return {int(p.stem): np.fromfile(p, kind) for p in Path(folder).glob("*.calls")}


class Outs:
    """When the row of each key was delivered."""

    def __init__(self) -> None:
        self.came: list[tuple[float, pa.RecordBatch]] = []

    def delivered(self, operator: str, output: Deliver) -> None:
        """Hears of each output."""
        del operator
        batch = output.item.batch
        if output.item.kind is Kind.BATCH and batch is not None:
            self.came.append((time.time(), batch.payload))

    @property
    def ids(self) -> Keys:
        """All rows, as they came."""
        return np.concatenate([rows.column("id").to_numpy() for _, rows in self.came])

    def after_ms(self, keys: Keys, at_s: float) -> Times:
        """How long after a moment these were."""
        rows = [rows.num_rows for _, rows in self.came]
        times = np.repeat([came_s for came_s, _ in self.came], rows)
        return 1000 * (times[np.isin(self.ids, keys)] - at_s)

    def oldest(self, begin_s: float, end_s: float) -> tuple[Keys, Times]:
        """Of each output that came in this time its first row by number, and when it came."""
        came = [(at_s, rows) for at_s, rows in self.came if begin_s <= at_s < end_s]
        ids = [int(rows.column("id").to_numpy().min()) for _, rows in came]
        return np.array(ids, np.int64), np.array([at_s for at_s, _ in came])


def asked_and_answered(folder: str, keys: Keys) -> tuple[Times, Times]:
    """When each of these was asked, and answered; for jobs in which nothing is asked twice."""
    every = np.concatenate(list(events(folder).values()))
    of_all = {
        said: np.sort(every[every["answered"] == said], order="key") for said in (False, True)
    }
    asked, answered = (e["at"][np.searchsorted(e["key"], keys)] for e in of_all.values())
    return asked, answered


def add_key(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Every row is its own key."""
    return pa.RecordBatch.from_arrays([batch.column(0), batch.column(0)], ["key", "id"])


def define(
    arguments: argparse.Namespace, source: Any, fn: Any, *, protected: bool = True, **how: Any
) -> clonos.Job:
    """Source -> a slot of its own: a call per row -> sink."""
    job = clonos.Job(
        "calls",
        parallelism=arguments.parallelism,
        standbys=1 if protected else 0,
        checkpoint_interval="500 ms",
        guarantee="exactly_once" if protected else "at_least_once",
    )
    rows = job.source(source, name="source").start_new_chain().slot_group("calls")
    keyed = rows.map_batches(add_key, "key long, id long", name="key")
    if fn is plain:
        asked = keyed.with_column("seen long", fn, "key", name="ask")
    else:
        asked = keyed.with_column_async("seen long", fn, "key", name="ask", **how)
    asked.sink(clonos.sinks.callback(jobs.nothing), name="sink")
    return job
