"""Each sink while its task, its executor and the driver are killed: it has what was delivered.

The rows have tokens that nobody could make again, and they also go into files by other tasks. So at
the end two places that were written independently have to have the same content.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from clonos.sinks.kafka_transactions import MARKS
from clonos.storage.tables import Table
from tests.cluster.test_http import Service

ROOT = Path(__file__).parents[2]
FEW = 40
"""Rows that have to be there between two kills."""
WAIT_S = 600.0
"""Only a test that has failed waits for so long."""

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

Row = tuple[Any, ...]


class Driver:
    """The process of the job, and what it has said last."""

    def __init__(self, log: Path, *arguments: str) -> None:
        script = str(Path(__file__).with_name("sink_job.py"))
        self.said: dict[str, Any] = {"quiet": False, "slots": {}}
        self.is_over = False
        self._log = log.open("ab")  # Spark has much to say about processes that die
        self.process = subprocess.Popen(
            [sys.executable, script, *arguments],
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ["PYTHONPATH"]]),
            },
        )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout:
            for line in self.process.stdout:
                if line.startswith("{"):
                    self.said = json.loads(line)
                self.is_over |= line == "over\n"

    @property
    def pids(self) -> set[int]:
        """Of the workers and executors."""
        return {pid for both in self.said["slots"].values() for pid in both}

    def is_quiet_without(self, dead: set[int]) -> bool:
        """All is live and has its standby, and it knows who is dead."""
        return bool(self.said["quiet"]) and not self.pids & dead

    def wait_for(self, condition: Callable[[], Any]) -> None:
        until = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < until, "it has not come about"
            if self.process.poll() is not None:
                self._listener.join()
                assert self.is_over, f"the driver has ended: see {self._log.name}"
            time.sleep(0.05)

    def kill(self, what: str) -> set[int]:
        """``kill -9``; returns who is dead by then."""
        worker, executor = self.said["slots"]["out[0]"]
        victim, dead = {
            "task": (worker, {worker}),
            "executor": (executor, {executor}),
            "driver": (self.process.pid, self.pids),
        }[what]
        os.kill(victim, signal.SIGKILL)
        return dead

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._listener.join()
        self._log.close()


# --- places where rows go ------------------------------------------------------------------------


class Place:
    """One of them.

    Attributes
    ----------
    address
        As ``sink_job.py`` understands it.
    hides
        What an aborted or repeated write has left is not to be seen: so processes may be killed
        while rows are on their way.
    """

    address: str
    hides = True

    def read(self) -> list[Row]:
        """All rows that are to be seen."""
        raise NotImplementedError

    def close(self) -> None:
        """It was started for the test."""


class Postgres(Place):
    def __init__(self, request: Any) -> None:
        self.address = request.getfixturevalue("postgres")
        self._sql("drop table if exists numbers")

    def _sql(self, query: str) -> list[Any]:
        import psycopg

        with psycopg.connect(self.address, autocommit=True) as sql:
            cursor = sql.execute(query)
            return cursor.fetchall() if cursor.description else []

    def read(self) -> list[Row]:
        ((known,),) = self._sql("select to_regclass('numbers')")
        return self._sql("select n, token, more from numbers") if known else []

    def close(self) -> None:
        self._sql("drop table if exists numbers")


class Http(Place):
    """A service that keeps names."""

    def __init__(self, request: Any) -> None:
        del request
        self._service = Service()
        self.address = self._service.url

    def read(self) -> list[Row]:
        assert not self._service.others, "one name, and other rows"
        return [tuple(row.values()) for rows in list(self._service.kept.values()) for row in rows]

    def close(self) -> None:
        self._service.close()


class Kafka(Place):
    """The mock shows what was aborted: there, processes die between transactions."""

    def __init__(self, request: Any) -> None:
        self._kafka = request.getfixturevalue("kafka")
        self.hides = self._kafka.is_real
        if not self._kafka.is_real:
            self._kafka.producer().list_topics(MARKS, timeout=10)
        self._topic = self._kafka.topic()
        self.address = f"{self._kafka.servers} {self._topic}"

    def messages(self) -> Iterator[Any]:
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer(
            {
                "bootstrap.servers": self._kafka.servers,
                "group.id": "test",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
            }
        )
        consumer.assign([TopicPartition(self._topic, n, 0) for n in range(4)])
        with contextlib.closing(consumer):
            ended = 0
            while ended < 4:
                for message in consumer.consume(1000, 0.1):
                    ended += message.error() is not None
                    if message.error() is None:
                        yield message

    def read(self) -> list[Row]:
        return [_of_json(message.value()) for message in self.messages()]


class KafkaWithoutTransactions(Kafka):
    """Messages may come again: then under the same name, with the same content."""

    def __init__(self, request: Any) -> None:
        super().__init__(request)
        self.hides = True

    def read(self) -> list[Row]:
        found: dict[bytes, bytes] = {}
        for message in self.messages():
            ((header, name),) = message.headers()
            assert header == "clonos-key"
            assert found.setdefault(name, message.value()) == message.value()
        return [_of_json(value) for value in found.values()]


class Parquet(Place):
    def __init__(self, request: Any) -> None:
        self.address = str(request.getfixturevalue("tmp_path") / "rows")

    def read(self) -> list[Row]:
        return _of_parquet(Path(self.address).glob("**/[!._]*.parquet"))


class SparkTable(Place):
    """What Spark follows as a stream."""

    def __init__(self, request: Any) -> None:
        self.address = str(request.getfixturevalue("tmp_path") / "rows")

    def read(self) -> list[Row]:
        table = Table(self.address)
        if not table.exists:
            return []
        batches = (batch for one in table.segments() for batch in table.read(one.path))
        return [row for batch in batches for row in zip(*map(_values, batch.columns), strict=True)]


class SparkQuery(Place):
    """Files that Spark writes, as far as they are in its log."""

    def __init__(self, request: Any) -> None:
        self.address = str(request.getfixturevalue("tmp_path") / "rows")

    def read(self) -> list[Row]:
        said: set[str] = set()
        for entries in Path(self.address, "_spark_metadata").glob("[0-9]*"):
            lines = entries.read_text().splitlines()[1:]
            said |= {json.loads(line)["path"].removeprefix("file://") for line in lines}
        return _of_parquet(map(Path, said))


class Sqlite(Place):
    def __init__(self, request: Any) -> None:
        self.address = str(request.getfixturevalue("tmp_path") / "rows.db")

    def read(self) -> list[Row]:
        with contextlib.closing(sqlite3.connect(self.address, timeout=30)) as sql:
            known = sql.execute("select name from sqlite_master where name = 'numbers'").fetchone()
            return sql.execute("select * from numbers").fetchall() if known else []


def _of_json(text: bytes) -> Row:
    return tuple(json.loads(text).values())


def _values(column: Any) -> list[Any]:
    values: list[Any] = column.to_pylist()
    return values


def _of_parquet(files: Any) -> list[Row]:
    tables = (pq.ParquetFile(file).read() for file in files)
    return [row for one in tables for row in zip(*map(_values, one.columns), strict=True)]


def content(rows: Sequence[Row]) -> bytes:
    """To be compared byte for byte."""
    return "\n".join(json.dumps(list(row)) for row in sorted(rows)).encode()


# --- the test ------------------------------------------------------------------------------------

PLACES: dict[str, type[Place]] = {
    "postgres": Postgres,
    "http": Http,
    "kafka": Kafka,
    "kafka without transactions": KafkaWithoutTransactions,
    "table": SparkTable,
    "spark": SparkQuery,
    "transactional": Sqlite,
}
KINDS = [
    pytest.param("parquet", Parquet, ("executor",), id="parquet in short"),
    *(
        pytest.param(kind, place, ("task", "executor", "driver", "task"), marks=pytest.mark.soak)
        for kind, place in {"parquet": Parquet, **PLACES}.items()
    ),
]


@pytest.mark.parametrize(("kind", "place_of", "victims"), KINDS)
def test_it_has_what_was_delivered_whoever_is_killed(kind, place_of, victims, request, tmp_path):
    place = place_of(request)
    arguments = (tmp_path / "log", kind, place.address, str(tmp_path))
    with contextlib.closing(place):
        driver = Driver(*arguments)
        dead: set[int] = set()
        due = 0
        try:
            for victim in (*victims, None):
                due = due_next(place, tmp_path, due)
                driver.wait_for(partial(has, place, due))
                if victim is None:
                    break
                driver.wait_for(partial(driver.is_quiet_without, dead))
                seen = content(place.read())
                dead |= driver.kill(victim)
                assert set(seen.splitlines()) <= set(content(place.read()).splitlines())
                if victim == "driver":
                    driver.close()
                    driver = Driver(*arguments)
            (tmp_path / "over").touch()
            driver.wait_for(lambda: driver.is_over)
        finally:
            driver.close()
        found = place.read()
    kept = _of_parquet((tmp_path / "kept").glob("**/[!._]*.parquet"))
    assert content(found) == content(kept)
    assert sorted(n for n, *_ in found) == list(range(len(found)))
    assert len(found) >= (len(victims) + 1) * FEW


def has(place: Place, rows: int) -> bool:
    """So many are there."""
    return len(place.read()) >= rows


def due_next(place: Place, folder: Path, due: int) -> int:
    """So many rows have to be there before the next kill; if it shows what was aborted, these
    are all that there are."""
    if place.hides:
        return len(place.read()) + FEW
    draft = folder / "limit.draft"
    draft.write_text(str(due + FEW))
    draft.rename(folder / "limit")
    return due + FEW
