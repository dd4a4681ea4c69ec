"""The job that is soaked: two keyed stages with state, a service, timers, random draws, sinks.

::

    rows -> count per customer -> ask, per merchant
              -> "answers": a table, written by its tasks
              -> "dear": Parquet files, written by its tasks
              -> bill per merchant, by timers -> "bills": delivered to the driver
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

import clonos
from clonos.errors import CallError
from clonos_bench.jobs import Schedule, paced
from clonos_bench.soak.service import ATTEMPTS, ask

CUSTOMERS: Final = 5_000
MERCHANTS: Final = 40
DEAR: Final = 900
"""Rates from here on go to the sink "dear", too."""
BILL_MS: Final = 200
"""A merchant's rows are billed so long after the first of them."""
_LAST_MS: Final = 1 << 50
"""An event time that only the end of the input reaches."""


def spread(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Customer and merchant of each row."""
    ids = batch.column(0).to_numpy()
    mixed = (ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(17)
    customers = (mixed % np.uint64(CUSTOMERS)).astype(np.int64)
    merchants = (mixed // np.uint64(CUSTOMERS) % np.uint64(MERCHANTS)).astype(np.int64)
    return pa.RecordBatch.from_arrays(
        [batch.column(0), pa.array(customers), pa.array(merchants)], ["id", "customer", "merchant"]
    )


class Count(clonos.Process):
    """Numbers the rows of each customer."""

    def open(self, ctx: clonos.ProcessContext) -> None:
        self._seen = ctx.state("seen", "long")

    def on_row(self, row: Any, ctx: clonos.ProcessContext) -> list[tuple[int, ...]]:
        seen = self._seen.get(0) + 1
        self._seen.set(seen)
        return [(row.id, row.customer, row.merchant, seen)]


class Ask:
    """Asks for the rates of a batch; a refusal is an answer like others, and one asks again."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __call__(self, batch: pa.RecordBatch, ctx: clonos.Context) -> pa.RecordBatch:
        ids = batch.column("id").to_pylist()
        answer = None
        for attempt in range(ATTEMPTS):
            try:
                answer = ctx.call(ask, self._url, ids)
                break
            except CallError:
                if attempt == ATTEMPTS - 1:
                    raise
        assert answer is not None
        nonces = pa.array([answer["nonce"]] * len(ids), pa.int64())
        rates = pa.array(answer["rates"], pa.int64())
        return pa.RecordBatch.from_arrays(
            [*batch.columns, nonces, rates], [*batch.schema.names, "nonce", "rate"]
        )


class Bill(clonos.Process):
    """Bills a merchant's rows when its timer is due, and the last ones at the end of the input."""

    def open(self, ctx: clonos.ProcessContext) -> None:
        self._open = ctx.state("open")  # rows, their rates' sum
        self._bills = ctx.state("bills", "long")

    def on_row(self, row: Any, ctx: clonos.ProcessContext) -> None:
        rows, total = self._open.get((0, 0))
        if not rows:
            ctx.timers.processing_time(ctx.clock.now_ms() + BILL_MS)
            ctx.timers.event_time(_LAST_MS)
        self._open.set((rows + 1, total + row.rate))

    def on_timer(
        self, key: Any, due: int, ctx: clonos.ProcessContext
    ) -> list[tuple[int, ...]] | None:
        rows, total = self._open.get((0, 0))
        if not rows:
            return None
        number = self._bills.get(0) + 1
        self._bills.set(number)
        self._open.clear()
        return [(key, number, rows, total, int(ctx.random.integers(1 << 40)))]


def build(
    folder: Path,
    url: str,
    *,
    rate: float,
    rows: int,
    parallelism: int,
    standbys: int,
    sources: int | None = None,
) -> clonos.Job:
    """The job, with its output and its checkpoint in `folder`; ``sources``: tasks that read rows,
    if they are not as many as others."""
    job = clonos.Job(
        "soak",
        parallelism=parallelism,
        standbys=standbys,
        checkpoint_dir=str(folder / "checkpoint"),
    )
    source = paced(Schedule(rate, 0, str(folder), waits=True), rows=rows)
    keyed = "id long, customer long, merchant long"
    counted = (
        job.source(source, name="rows", parallelism=sources)
        .map_batches(spread, keyed, name="spread")
        .key_by("customer")
        .process(Count(), f"{keyed}, seen long", name="count")
    )
    asked = counted.key_by("merchant").map_batches(
        Ask(url), f"{keyed}, seen long, nonce long, rate long", name="ask"
    )
    asked.sink(clonos.sinks.table(str(folder / "answers")), name="answers")
    asked.filter(lambda row: row.rate >= DEAR).sink(
        clonos.sinks.parquet(str(folder / "dear")), name="dear"
    )
    bills = asked.key_by("merchant").process(
        Bill(), "merchant long, number long, rows long, total long, draw long", name="bill"
    )
    bills.sink(clonos.sinks.collect(), name="bills")
    return job
