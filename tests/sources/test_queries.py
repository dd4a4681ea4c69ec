"""What the end of a feeding query means, with a query that only plays Spark's part."""

# ruff: noqa: N802, N815 - the names are Spark's

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JError
from pyspark.errors import StreamingQueryException

from clonos.errors import (
    ClonosError,
    FeedFailed,
    JobCancelled,
    OtherQuery,
    SourceError,
    SparkStopped,
)
from clonos.sources.queries import FeedingQuery
from clonos.sources.spec import Feeding
from clonos.sources.spool import Part, Spool
from clonos.spark.micro_batches import MicroBatchFailed
from clonos.storage import planned
from clonos.storage.planned import extent

SCHEMA = pa.schema([("n", pa.int64())])


class Played:
    """Session, DataFrame, writer and query in one: whatever is asked of it, it answers itself."""

    def __init__(self):
        self.options: dict[str, Any] = {}
        self.over = threading.Event()
        self.error: Exception | None = None
        self.stopped = self.is_spark_stopped = False
        self.query_id = "the query"
        self.parts: list[tuple[str, int, int]] = []
        self.take: Any = None

    # as a DataFrame, and its session
    sparkSession = sparkContext = _jsc = writeStream = property(lambda self: self)

    def sc(self):
        return self

    def isStopped(self):
        return self.is_spark_stopped

    def getLocalProperty(self, name):
        return self.query_id

    def mapInArrow(self, write, schema):
        return self

    def collect(self):
        return self.parts

    # as a writer
    def queryName(self, name):
        self.options["name"] = name
        return self

    def outputMode(self, mode):
        self.options["mode"] = mode
        return self

    def option(self, key, value):
        self.options[key] = value
        return self

    def trigger(self, **options):
        self.options |= options
        return self

    def foreachBatch(self, take):
        self.take = take
        return self

    def start(self):
        if self.error is not None:
            raise self.error
        return self

    # as a query
    @property
    def isActive(self):
        return not self.stopped

    def awaitTermination(self):
        self.over.wait(60)
        if self.error is not None:
            raise self.error

    def stop(self):
        self.stopped = True
        self.over.set()

    def end(self, error=None):
        self.error = error
        self.over.set()


@pytest.fixture
def spool(tmp_path):
    return Spool(str(tmp_path), 1, "process")


class Fed:
    def __init__(self, spool, feeding=None):
        self.spark = Played()
        self.reported: list[ClonosError] = []
        self.checkpoint = spool.uri + "/a b"
        self.query = FeedingQuery(
            "job: in",
            self.spark,
            SCHEMA,
            feeding or Feeding(),
            spool,
            self.checkpoint,
            self.reported.append,
        )

    def plan(self, batch, text):
        """What Spark does before it hands a batch over."""
        offsets = Path(self.checkpoint, "offsets")
        offsets.mkdir(parents=True, exist_ok=True)
        Path(self.checkpoint, "metadata").touch()
        (offsets / str(batch)).write_text(text)

    def over(self) -> list[ClonosError]:
        self.query._watcher.join(5)
        return self.reported


def test_options(spool):
    fed = Fed(spool, Feeding("update", "2 seconds"))
    fed.query.start()
    assert fed.spark.options == {
        "name": "job: in",
        "mode": "update",
        "checkpointLocation": f"file://{spool.uri}/a b",
        "processingTime": "2 seconds",
    }
    fed.query.close()
    bounded = Fed(Spool(spool.uri, 1, "process"), Feeding(available_now=True))
    bounded.query.start()
    assert bounded.spark.options["availableNow"] is True
    bounded.query.close()


def test_a_batch_is_taken_when_the_function_returns(spool):
    fed = Fed(spool)
    fed.query.start()
    fed.spark.parts = [("rows/x", 3, 100)]
    fed.plan(0, "up to 3")
    fed.spark.take(fed.spark, 0)
    assert spool.newest is not None
    assert (spool.newest.query, spool.newest.batch) == ("the query", 0)
    assert spool.newest.parts == (Part("rows/x", 3, 100),)
    fed.query.close()


def test_a_batch_that_spark_has_planned_anew_is_not_the_old_one(spool):
    fed = Fed(spool)
    fed.query.start()
    fed.plan(7, "up to 10")
    fed.spark.parts = [("rows/x", 3, 100)]
    for _ in range(2):
        fed.spark.take(fed.spark, 7)
    fed.plan(7, "up to 12")
    with pytest.raises(OtherQuery, match="restore its newest state"):
        fed.spark.take(fed.spark, 7)
    with pytest.raises(SourceError, match="planned for batch 8"):
        fed.spark.take(fed.spark, 8)
    fed.query.close()


def test_all_that_a_source_has_noted_is_durable_before_its_rows_are(tmp_path, monkeypatch):
    """Sources count their notes by themselves, and begin a new file where they merge old ones."""
    synced: list[str] = []
    for name in ("sync_file", "sync_directory"):
        monkeypatch.setattr(
            planned, name, lambda path: synced.append(str(Path(path).relative_to(tmp_path)))
        )

    def plan(batch, *notes):
        for note in ("metadata", f"offsets/{batch}", *notes):
            path = tmp_path / note
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(note)
        synced.clear()
        extent(str(tmp_path), batch, "fsync", done)
        return sorted(name for name in synced if name.startswith("sources"))

    done: set[Path] = set()
    notes = ["sources/0/2", "sources/0/3.compact", "sources/1/0"]
    assert plan(7, *notes) == sorted(["sources", "sources/0", "sources/1", *notes])
    assert {"metadata", "offsets/7", "offsets", "."} <= set(synced)
    assert plan(8) == []
    (tmp_path / "sources/0/2").unlink()
    assert plan(9, "sources/0/4") == ["sources", "sources/0", "sources/0/4"]
    assert len(done) == 3
    done.clear()  # another driver
    assert "sources/0/3.compact" in plan(10)


def test_stopped_by_the_user_the_input_is_over(spool):
    fed = Fed(spool)
    fed.query.start()
    fed.spark.end()
    assert not fed.over()
    assert spool.is_ended


def test_cancelled_in_spark_is_no_failure(spool):
    fed = Fed(spool)
    fed.query.start()
    cause = "[SPARK_JOB_CANCELLED] Job 4 cancelled as part of cancellation of all jobs"
    text = f"Py4JJavaError: An error occurred\n: SparkException: {cause} SQLSTATE: XXKDA\n\tat x"
    fed.spark.end(StreamingQueryException(text))
    (told,) = fed.over()
    assert isinstance(told, JobCancelled)
    assert told.what.endswith(": Job 4 cancelled as part of cancellation of all jobs")
    assert told.where == "job: in"


@pytest.mark.parametrize(
    "error", [StreamingQueryException("a division by zero"), Py4JError("the JVM is gone")]
)
def test_a_failure_is_told(spool, error):
    fed = Fed(spool)
    fed.query.start()
    fed.spark.end(error)
    (told,) = fed.over()
    assert isinstance(told, FeedFailed)
    assert str(error) in str(told)
    assert told.where == "job: in"
    assert not spool.is_ended


CANCELLED = "[SPARK_JOB_CANCELLED] Job 4 cancelled because SparkContext was shut down"


@pytest.mark.parametrize(
    "error",
    [None, StreamingQueryException("a NullPointerException"), StreamingQueryException(CANCELLED)],
    ids=["as if it were the end", "in some way", "as a cancelled job"],
)
def test_stopped_with_spark_the_input_is_not_over(spool, error):
    fed = Fed(spool)
    fed.query.start()
    fed.spark.is_spark_stopped = True
    fed.spark.end(error)
    (told,) = fed.over()
    assert isinstance(told, SparkStopped)
    assert not spool.is_ended


def test_what_we_say_is_told_and_not_what_spark_makes_of_it(spool):
    spool.take("another", 0, [Part("rows/x", 1, 1)])
    fed = Fed(spool)
    fed.query.start()
    fed.plan(1, "")
    with pytest.raises(OtherQuery):
        fed.spark.take(fed.spark, 1)
    fed.spark.end(StreamingQueryException("py4j.Py4JException: a page of text"))
    (told,) = fed.over()
    assert isinstance(told, OtherQuery)


def test_an_end_that_cannot_be_written_is_told(spool, monkeypatch):
    def full():
        raise OSError("no space left on device")

    monkeypatch.setattr(spool, "end", full)
    fed = Fed(spool)
    fed.query.start()
    fed.spark.end()
    (told,) = fed.over()
    assert "no space left" in str(told)


def test_closed_it_is_stopped_and_can_go_on_another_time(spool):
    fed = Fed(spool)
    fed.query.start()
    fed.query.close()
    assert fed.spark.stopped
    assert not fed.over()
    assert not Spool(spool.uri, 1, "process").is_ended
    with pytest.raises(MicroBatchFailed, match="InterruptedException"):
        fed.spark.take(fed.spark, 0)


def test_a_batch_fails_for_being_stopped_when_spark_knows_of_it(spool, monkeypatch):
    """Spark logs an error, and says that the query has failed, if it comes before."""
    fed = Fed(spool)
    stop, may_stop = fed.spark.stop, threading.Event()
    monkeypatch.setattr(fed.spark, "stop", lambda: may_stop.wait(60) and stop())
    fed.query.start()
    fed.query.leave()
    with ThreadPoolExecutor(1) as pool:
        taking = pool.submit(fed.spark.take, fed.spark, 0)
        assert not wait([taking], 0.1).done
        may_stop.set()
        with pytest.raises(MicroBatchFailed, match="InterruptedException"):
            taking.result(5)
    fed.query.close()
    assert not fed.over()


def test_queries_that_do_not_stop_hold_nobody_up_for_long(spool, caplog, monkeypatch):
    feds = [Fed(spool) for _ in range(3)]
    hang = threading.Event()
    for fed in feds:
        monkeypatch.setattr(fed.spark, "stop", hang.wait)
        fed.query.start()
    since = time.monotonic()
    for fed in feds:
        fed.query.leave()
    for fed in feds:
        fed.query.close(since + 0.2)
    assert time.monotonic() - since < 2
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 3
    hang.set()
    for fed in feds:
        fed.spark.end()


def test_a_query_that_does_not_start(spool):
    fed = Fed(spool)
    fed.spark.error = StreamingQueryException("no such format")
    with pytest.raises(SourceError, match="no such format"):
        fed.query.start()
    fed.query.close()
