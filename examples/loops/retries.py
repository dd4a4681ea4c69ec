"""Orders that are tried again, later each time, until the shop answers.

``python -m examples.loops.retries`` runs it on Spark and compares it with what must come out.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import clonos

ORDERS = "id long, attempt int"
FIRST_DELAY = timedelta(milliseconds=50)
"""Before the second attempt; then twice as long each time."""


def fails(order: int, attempt: int) -> bool:
    """Stands for a shop that is closed now and then: orders need up to four attempts."""
    return attempt < 1 + order % 4


class Try(clonos.Process):
    """Asks the shop; what fails comes out again after a delay."""

    def open(self, ctx: Any) -> None:
        self.waits = ctx.state("waits")

    def on_row(self, row: Any, ctx: Any) -> Iterator[tuple[int, int, bool]]:
        if ctx.call(fails, row.id, row.attempt):
            self.waits.set(row.attempt)
            ctx.timers.processing_time(ctx.clock.now() + FIRST_DELAY * 2 ** (row.attempt - 1))
        else:
            yield row.id, row.attempt, True

    def on_timer(self, key: Any, due: int, ctx: Any) -> Iterator[tuple[int, int, bool]]:
        yield key, self.waits.get(), False


def build(orders: Any, **settings: Any) -> clonos.Job:
    """A job over a source of orders: rows (id, 1)."""
    job = clonos.Job("retries", **settings)
    rows = job.source(orders, name="orders", parallelism=1).rebalance()
    again = job.feedback(ORDERS, name="again")
    tried = (
        rows.union(again, name="enter")
        .key_by("id")
        .process(Try(), "id long, attempt int, is_done boolean", name="try")
    )
    failed = tried.filter(lambda row: not row.is_done, name="failed")
    again.feed(failed.map(lambda row: (row.id, row.attempt + 1), ORDERS, name="go round"))
    done = tried.filter(lambda row: row.is_done, name="done")
    done.sink(clonos.sinks.collect(), name="orders done")
    return job


def expected(count: int) -> list[tuple[int, int]]:
    """Each order once, with the number of attempts that it needs."""
    return [(order, 1 + order % 4) for order in range(count)]


def done(table: Any) -> list[tuple[int, int]]:
    """What the job has done, as :func:`expected` has it."""
    return sorted((row["id"], row["attempt"]) for row in table.to_pylist())


def main() -> int:
    """Return 0 if each order was done once, after as many attempts as it needs."""
    batches = [[(n, 1) for n in range(first, first + 50)] for first in range(0, 1000, 50)]
    job = build(clonos.sources.from_batches(batches, ORDERS), parallelism=2)
    found = done(job.run().table())
    is_right = found == expected(1000)
    sys.stdout.write(f"{len(found)} orders, {'as' if is_right else 'NOT as'} expected\n")
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
