"""A job that fails at one row; run by a driver of its own, and looked at by another process."""

import os
import sys
from typing import Any

import clonos

BAD = 777


def score(row: Any, ctx: Any) -> tuple[Any, ...]:
    """What a service says is no more to be had afterwards."""
    # In which order a set is passed through is the same in all slots, and in a replay.
    key = next(iter({row.key, f"other {row.key}", "common", "rare"}))
    return row.n, key, ctx.call(ask, row.n) + ctx.clock.now_ms() % 2


def ask(n: int) -> int:
    """A service with changing answers."""
    import random

    return random.randrange(1_000_000)


class Total(clonos.Process):
    """A sum that never sees one of the rows."""

    def open(self, ctx: clonos.ProcessContext) -> None:
        self.total = ctx.state("total", "long")

    def on_row(self, row: Any, ctx: clonos.ProcessContext) -> Any:
        self.total.set(self.total.get(0) + row.score)
        if row.n == BAD and "CORRECTED" not in os.environ:
            raise ValueError(f"score {row.score} after {self.total.get()}")
        return [(row.key, self.total.get())]


class Corrected(Total):
    """It sees all of them."""

    def on_row(self, row: Any, ctx: clonos.ProcessContext) -> Any:
        self.total.set(self.total.get(0) + row.score)
        return [(row.key, self.total.get())]


def job() -> clonos.Job:
    """The checkpoint is elsewhere, or given."""
    folder = sys.argv[1] if len(sys.argv) == 2 else None
    made = clonos.Job(
        "failing",
        checkpoint_dir=folder,
        checkpoint_interval="300 ms",
        history="1 hour",
        history_interval="400 ms",
    )
    rows = [[(n, f"key {n % 3}") for n in range(1_000)]]
    source = clonos.sources.from_batches(rows, schema="n long, key string")
    numbers = made.source(source, name="numbers", rows_per_second=500)
    scored = numbers.map(score, "n long, key string, score long", name="score")
    totals = scored.key_by("key").process(Total(), "key string, total long", name="total")
    totals.sink(clonos.sinks.collect(), name="out")
    return made


if __name__ == "__main__":
    from clonos.spark.session import get_or_create

    job().run(get_or_create("local[4]"), timeout_s=300)
