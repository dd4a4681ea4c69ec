"""A job whose driver can be killed, too: it numbers rows until there is a file ``over``.

    python tests/cluster/sink_job.py KIND ADDRESS FOLDER

Each row has a token that nobody could make again. The rows go into the sink under test and, by
tasks of their own, into files of ``FOLDER/kept``. Numbers from that in the file ``limit`` on are
held back. The program says in lines of JSON where its tasks are.
"""

from __future__ import annotations

import json
import secrets
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

import clonos
from clonos.sources.readers import BaseReader, EndOfInput
from clonos.sources.spec import SourceSpec
from clonos.spark.session import get_or_create
from examples.transactional.sqlite_sink import sqlite

ROWS: Final = "n long, token string, more double"
SQLITE_ROWS: Final = "n integer, token text, more real"
BATCH: Final = 4
PAUSE_S: Final = 0.02
SCHEMA: Final = pa.schema([pa.field("n", pa.int64())])
CONFIG: Final = {
    "spark.ui.enabled": "false",
    "spark.deploy.maxExecutorRetries": "-1",
}
"""Else the master ends an application whose executors are killed too often."""


class Numbers(BaseReader):
    """One after the other."""

    schema = SCHEMA

    def __init__(self, folder: Path) -> None:
        self._over, self._limit = folder / "over", folder / "limit"
        self._next = 0

    def open(self, rows_consumed: int) -> None:
        """See :class:`~clonos.sources.readers.Reader`."""
        self._next = rows_consumed

    def read(self, max_rows: int, max_wait_s: float) -> pa.RecordBatch | None:
        """A few of them, now and then."""
        is_over = self._over.exists()  # asked before the limit, which is not raised afterwards
        rows = min(max_rows, BATCH)
        if self._limit.exists():
            rows = min(rows, int(self._limit.read_text()) - self._next)
        if rows <= 0 or is_over:
            if is_over:
                raise EndOfInput
            time.sleep(max_wait_s)
            return None
        time.sleep(PAUSE_S)
        return self.read_exactly(rows)

    def read_exactly(self, rows: int) -> pa.RecordBatch:
        """So many of them."""
        first, self._next = self._next, self._next + rows
        return pa.RecordBatch.from_pydict({"n": range(first, self._next)}, schema=SCHEMA)


def numbers(folder: Path, index: int, parallelism: int) -> Numbers:
    """One task has all."""
    assert (index, parallelism) == (0, 1)
    return Numbers(folder)


def with_token(row: Any, ctx: Any) -> tuple[int, str, float]:
    """A row that is another one if it is made again and the log is not asked."""
    return row.n, ctx.call(secrets.token_hex, 8), row.n + 0.25


def sink(kind: str, address: str) -> Any:
    """Where the rows go."""
    servers, _, topic = address.partition(" ")
    makers = {
        "postgres": lambda: clonos.sinks.postgres(address, "numbers"),
        "http": lambda: clonos.sinks.http(address, rows_per_request=10),
        "kafka": lambda: clonos.sinks.kafka(servers, topic),
        "kafka without transactions": lambda: clonos.sinks.kafka(
            servers, topic, transactions=False
        ),
        "parquet": lambda: clonos.sinks.parquet(address),
        "table": lambda: clonos.sinks.table(address),
        "spark": lambda: clonos.sinks.spark("parquet", address),
        "transactional": lambda: sqlite(address, "numbers", SQLITE_ROWS),
    }
    return makers[kind]()


def main(kind: str, address: str, folder: str) -> None:
    """Start, or go on."""
    spark = get_or_create("local-cluster[2,4,1024]", "sink job", config=CONFIG)
    settings: dict[str, Any] = {"parallelism": 1, "checkpoint_interval": "300 ms"}
    job = clonos.Job("sinks", checkpoint_dir=f"{folder}/checkpoint", **settings)
    source = SourceSpec("numbers", SCHEMA, partial(numbers, Path(folder)), True, SCHEMA)
    rows = job.source(source, name="in").map(with_token, ROWS, name="token")
    rows.slot_group("out").start_new_chain().sink(sink(kind, address), name="out")
    kept = clonos.sinks.parquet(f"{folder}/kept")
    rows.slot_group("kept").start_new_chain().sink(kept, name="kept")
    running = job.start(spark)
    while running.is_running:
        slots, tasks = running.slots(), running.tasks()
        stand_by = [name for slot in slots for name in slot.keeps]
        is_quiet = bool(tasks) and all(t.phase == "live" and t.name in stand_by for t in tasks)
        places = {name: (slot.pid, slot.executor_pid) for slot in slots for name in slot.runs}
        say(json.dumps({"quiet": is_quiet, "slots": places}))
        time.sleep(0.1)
    running.wait(120)
    say("over")


def say(line: str) -> None:
    """... to whoever has started it."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
