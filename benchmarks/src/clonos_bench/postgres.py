"""Rows into PostgreSQL at a steady rate: how soon they are seen, beside a plain COPY loop.

How many a second there can be is measured by ``clonos-bench sinks``.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyarrow import csv

import clonos
from clonos.errors import ClonosError
from clonos.sources.readers import BaseReader, EndOfInput
from clonos.sources.spec import SourceSpec
from clonos_bench import run
from clonos_bench.report import PERCENTILES, Aim, Report
from clonos_bench.statistics import summarize

SCHEMA: Final = pa.schema(
    [("id", pa.int64()), ("due_us", pa.int64()), ("price", pa.float64()), ("word", pa.string())]
)
DDL: Final = "id bigint, due_us bigint, price double precision, word text"
BATCH_ROWS: Final = 32_768
P50: Final = Aim(15.0)
POLL_S: Final = 0.002
"""How often a reader looks for new rows: less would take the processor from the others."""
LEAD_S: Final = 15.0
"""The first row is due so long after the job was made: its tasks are live by then."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``clonos-bench postgres``."""
    run.report_arguments(parser)
    add = parser.add_argument
    add("--dsn", default="", help="a server; without it one is started in a folder of its own")
    add("--rate", type=float, default=1000.0, help="rows per second, for latency")
    add("--seconds", type=float, default=20.0, help="how long latency is measured")


def measure(arguments: argparse.Namespace) -> Report:
    """From when a row is due until somebody sees it."""
    with contextlib.ExitStack() as stack:
        dsn = arguments.dsn or stack.enter_context(server())
        return _latency(arguments, dsn, stack.enter_context(run.session("local[4]")))


class DueReader(BaseReader):
    """Rows that are due at a steady rate from an instant on; or all of them at once (`rate` 0)."""

    schema = SCHEMA

    def __init__(
        self, rows: int, rate: float, start_s: float, index: int, parallelism: int
    ) -> None:
        self._rows, self._rate, self._start_s = rows, rate, start_s
        self._next = 0

    def open(self, rows_consumed: int) -> None:
        """See :meth:`Reader.open`."""
        self._next = rows_consumed

    def read(self, max_rows: int, max_wait_s: float) -> pa.RecordBatch | None:
        """See :meth:`Reader.read`."""
        if self._next >= self._rows:
            raise EndOfInput
        due = self._rows
        if self._rate:
            wait_s = self._start_s + self._next / self._rate - time.time()
            time.sleep(max(0.0, min(wait_s, max_wait_s)))
            due = min(due, int((time.time() - self._start_s) * self._rate) + 1)
        rows = min(due - self._next, max_rows)
        return self.read_exactly(rows) if rows > 0 else None

    def read_exactly(self, rows: int) -> pa.RecordBatch:
        """See :meth:`Reader.read_exactly`."""
        batch = made_rows(self._next, rows, self._rate, self._start_s)
        self._next += rows
        return batch


def made_rows(first: int, rows: int, rate: float, start_s: float) -> pa.RecordBatch:
    """Rows of :data:`SCHEMA`."""
    ids = np.arange(first, first + rows, dtype=np.int64)
    due = np.int64(start_s * 1e6) + (ids * (1e6 / rate if rate else 0)).astype(np.int64)
    words = pa.array(["word one", "word two", "word three", "word four"])
    return pa.RecordBatch.from_arrays(
        [pa.array(ids), pa.array(due), pa.array(ids * 0.25), words.take(pa.array(ids % 4))],
        schema=SCHEMA,
    )


def _job(dsn: str, table: str, rows: int, rate: float, start_s: float) -> clonos.Job:
    source = SourceSpec("due", SCHEMA, partial(DueReader, rows, rate, start_s), True, SCHEMA)
    job = clonos.Job("postgres", parallelism=1, standbys=0)
    job.source(source, name="rows").sink(clonos.sinks.postgres(dsn, table), name="out")
    return job


def _latency(arguments: argparse.Namespace, dsn: str, spark: Any) -> Report:
    rows = int(arguments.rate * arguments.seconds)
    title = f"from due to visible, {arguments.rate:,.0f} rows/s for {arguments.seconds:g} s (ms)"
    report = Report("postgres", title, PERCENTILES)

    def plain(table: str) -> None:
        """What is due goes in, every 10 ms: a job's source collects for so long, too."""
        reader = DueReader(rows, arguments.rate, time.time() + 1, 0, 1)
        reader.open(0)
        with connected(dsn) as sql, contextlib.suppress(EndOfInput):
            while True:
                time.sleep(0.01)
                if (batch := reader.read(BATCH_ROWS, 0.01)) is not None:
                    copy_rows(sql, table, batch)

    def with_clonos(table: str) -> None:
        job = _job(dsn, table, rows, arguments.rate, time.time() + LEAD_S)
        job.start(spark).wait(LEAD_S + arguments.seconds + 60)

    for what, write in (("COPY in a loop, nothing else", plain), ("clonos", with_clonos)):
        late = _watched(dsn, f"t_{write.__name__}_late", rows, write)
        aims = {"p50": P50} if write is with_clonos else {}
        report.summary(what, summarize(late[~np.isnan(late)]), **aims)
        report.ok &= not np.isnan(late).any()
    report.notes.append("seen by a reader that asks every 2 ms; that is included")
    return report


def _watched(dsn: str, table: str, rows: int, write: Callable[[str], None]) -> Any:
    """How late each row is seen (ms) by a reader that asks again and again."""
    late, over = np.full(rows, np.nan), threading.Event()

    def watch() -> None:
        seen = 0
        with connected(dsn) as sql:
            while seen < rows and not over.is_set():
                query = f"select id, due_us from {table} where id >= {seen}"  # noqa: S608 - ours
                found = sql.execute(query).fetchall()
                now_us = time.time() * 1e6
                for number, due_us in found:
                    late[number] = (now_us - due_us) / 1000
                seen += len(found)
                time.sleep(POLL_S)

    with connected(dsn) as sql:
        sql.execute(f"create table {table} ({DDL}, primary key (id))")
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        write(table)
        watcher.join(10)
    finally:
        over.set()
    return late


def copy_rows(sql: Any, table: str, batch: pa.RecordBatch) -> None:
    """As fast as one can without knowing anything."""
    sink = pa.BufferOutputStream()
    csv.write_csv(batch, sink, csv.WriteOptions(include_header=False))
    with sql.cursor() as cursor, cursor.copy(f"copy {table} from stdin (format csv)") as copy:
        copy.write(memoryview(sink.getvalue()))


@contextlib.contextmanager
def connected(dsn: str) -> Iterator[Any]:
    """A connection, with a transaction for each statement."""
    import psycopg

    with psycopg.connect(dsn, autocommit=True) as sql:
        yield sql


@contextlib.contextmanager
def server() -> Iterator[str]:
    """A server with its defaults, fsync among them."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not found:
        raise ClonosError("PostgreSQL is not installed here", remedy="give --dsn")
    with tempfile.TemporaryDirectory(prefix="pg-") as folder, socket.socket() as free:
        if os.geteuid() == 0:
            shutil.chown(folder, "postgres")
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        data = f"{folder}/data"
        _as_postgres([f"{found[-1]}/initdb", "-D", data, "-A", "trust", "-U", "postgres"])
        free.close()
        control = [f"{found[-1]}/pg_ctl", "-D", data, "-l", f"{folder}/log", "-w"]
        options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c max_wal_size=4GB"
        _as_postgres([*control, "-o", options, "start"])
        try:
            yield f"postgresql://postgres@127.0.0.1:{port}/postgres"
        finally:
            _as_postgres([*control, "-m", "immediate", "stop"])


def _as_postgres(command: list[str]) -> None:
    prefix = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    subprocess.run([*prefix, *command], check=True, capture_output=True, cwd="/")
