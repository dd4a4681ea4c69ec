"""Every kind of function that PySpark runs: retried, it gets the same answers."""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark import TaskContext, cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from clonos import causal
from clonos.errors import ClonosError
from clonos.spark.session import get_or_create

pytestmark = pytest.mark.spark

ROWS = 12


@pytest.fixture(scope="module")
def spark(new_jvm):
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # executors have no tests
    settings = {
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "4",
        "spark.task.maxFailures": "4",
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
    }
    session = get_or_create("local[2,4]", "causal surfaces", config=settings)
    yield session
    session.stop()
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


class Journal:
    """A service that answers differently each time and writes down what it was asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, question):  # with type hints PySpark would look for its own among them
        with (self.folder / "asked").open("a") as out:
            out.write(f"{question}\n")
        return time.time_ns() + 0.5

    def asked(self) -> Counter[str]:
        path = self.folder / "asked"
        return Counter(path.read_text().split() if path.exists() else [])


def context_of_task() -> TaskContext:
    context = TaskContext.get()
    assert context is not None
    return context


def fail_late(folder: Path, rows: Iterator[Any]) -> Iterator[Any]:
    """Fail the first attempt of each partition after it has handed back some rows."""
    context = context_of_task()
    for number, row in enumerate(rows):
        yield row
        mark = folder / f"failed {context.stageId()} {context.partitionId()}"
        if number == 1 and not mark.exists():
            mark.touch()
            time.sleep(0.1)
            raise RuntimeError("the first attempt fails")


@pytest.fixture
def journal(tmp_path):
    return Journal(tmp_path)


@pytest.fixture
def log(spark, tmp_path):
    with causal.start(spark, tmp_path / "log", run="surfaces", durability="process") as running:
        yield running


def in_udf(frame, ask, folder):
    return frame.select("id", F.udf(lambda x: ask(x) + 0.0, "double")("id").alias("answer"))


def in_pickled_udf(frame, ask, folder):
    answer = F.udf(ask, "double", useArrow=False)
    return frame.select("id", answer("id").alias("answer"))


def in_arrow_udf(frame, ask, folder):
    answer = F.udf(ask, "double", useArrow=True)
    return frame.select("id", answer("id").alias("answer"))


def in_pandas_udf(frame, ask, folder):
    @F.pandas_udf("double")  # type: ignore[attr-defined]
    def answer(ids: pd.Series) -> pd.Series:
        return pd.Series(ask.map(ids.tolist(), concurrency=2))

    return frame.select("id", answer("id").alias("answer"))


def in_map_in_pandas(frame, ask, folder):
    def answer(frames):
        for batch in frames:
            yield batch.assign(answer=[ask(x) for x in batch["id"].tolist()])

    return frame.mapInPandas(answer, "id long, answer double")


def in_map_in_arrow(frame, ask, folder):
    def answer(batches):
        for batch in batches:
            answers = [ask(x) for x in batch.column("id").to_pylist()]
            yield batch.append_column("answer", pa.array(answers, pa.float64()))

    return frame.mapInArrow(answer, "id long, answer double")


def in_apply_in_pandas(frame, ask, folder):
    def answer(group):
        return group.assign(answer=[ask(x) for x in group["id"].tolist()])

    return frame.groupBy("id").applyInPandas(answer, "id long, answer double")


def in_rdd(frame, ask, folder):
    rdd = frame.rdd.mapPartitions(lambda rows: [(row.id, ask(row.id)) for row in rows])
    return rdd.toDF("id long, answer double")


class Reader(DataSourceReader):
    def __init__(self, ask):
        self.ask = ask

    def partitions(self):
        return [InputPartition(value) for value in range(2)]

    def read(self, partition):
        for x in range(partition.value, ROWS, 2):
            yield (x, self.ask(x))


def in_reader(frame, ask, folder):
    class Source(DataSource):
        @classmethod
        def name(cls):
            return "causal_reader"

        def schema(self):
            return "id long, answer double"

        def reader(self, schema):
            return Reader(ask)

    frame.sparkSession.dataSource.register(Source)
    return frame.sparkSession.read.format("causal_reader").load()


SURFACES = [
    in_pickled_udf,
    in_arrow_udf,
    in_pandas_udf,
    in_map_in_pandas,
    in_map_in_arrow,
    in_apply_in_pandas,
    in_rdd,
    in_reader,
]


@pytest.mark.parametrize("surface", SURFACES)
def test_a_failed_attempt_changes_nothing(spark, log, journal, tmp_path, surface):
    frame = spark.range(ROWS, numPartitions=2)
    asking = surface(frame, causal.service(journal, name="ask"), tmp_path)

    def fail(batches):
        yield from fail_late(tmp_path, batches)

    failing = asking.repartition(2, "id") if surface is in_rdd else asking
    rows = failing.mapInArrow(fail, asking.schema).collect()
    assert list(tmp_path.glob("failed *"))
    assert sorted(row.id for row in rows) == list(range(ROWS))
    assert journal.asked() == {str(x): 1 for x in range(ROWS)}
    again = {row.id: row.answer for row in asking.collect()}
    assert again == {row.id: row.answer for row in rows}
    assert set(journal.asked().values()) == {1}


def test_the_clock_and_random_numbers(spark, log, tmp_path):
    def now(batches):
        for batch in batches:
            ids = batch.column("id").to_pylist()
            clock = [causal.clock.now_ms() for _ in ids]
            drawn = [causal.random(x).random() for x in ids]
            yield pa.RecordBatch.from_pydict({"id": ids, "now": clock, "drawn": drawn})

    frame = spark.range(ROWS, numPartitions=2).mapInArrow(now, "id long, now long, drawn double")
    first = sorted(frame.collect())
    assert sorted(frame.collect()) == first
    assert len({row.drawn for row in first}) == ROWS


class Message(WriterCommitMessage):
    pass


def test_in_the_writer_of_a_data_source(spark, log, journal, tmp_path):
    ask = causal.service(journal, name="ask")

    class Writer(DataSourceWriter):
        def write(self, iterator):
            rows = [(row.id, ask(row.id)) for row in iterator]
            causal.settle()
            with (tmp_path / "written").open("a") as out:
                out.writelines(json.dumps(row) + "\n" for row in rows)
            mark = tmp_path / f"failed {context_of_task().partitionId()}"
            if not mark.exists():
                mark.touch()
                raise RuntimeError("after the rows are out")
            return Message()

    class Sink(DataSource):
        @classmethod
        def name(cls):
            return "causal_writer"

        def schema(self):
            return "id long"

        def writer(self, schema, overwrite):
            return Writer()

    spark.dataSource.register(Sink)
    spark.range(ROWS, numPartitions=2).write.format("causal_writer").mode("append").save()
    written = (tmp_path / "written").read_text().splitlines()
    assert len(written) == 2 * ROWS
    assert len(set(written)) == ROWS
    assert set(journal.asked().values()) == {1}


class Doubtful(StatefulProcessor):
    """Asks once per row, keeps the sum of the answers; its first attempt fails."""

    def __init__(self, ask, folder):
        self.ask, self.folder = ask, folder

    def init(self, handle):
        self.seen = handle.getValueState("seen", "n long")

    def handleInputRows(self, key, rows, timer_values):  # noqa: N802
        count = self.seen.get()[0] if self.seen.exists() else 0
        for frame in rows:
            for x in frame["value"].tolist():
                count += 1
                self.seen.update((count,))
                yield pd.DataFrame({"id": [x], "answer": [self.ask(x)], "n": [count]})
        mark = self.folder / f"failed {context_of_task().partitionId()}"
        if not mark.exists():
            mark.touch()
            raise RuntimeError("the first attempt fails")

    def close(self):
        pass


def stream(spark):
    return (
        spark.readStream.format("rate-micro-batch")
        .options(rowsPerBatch=ROWS, numPartitions=2, startTimestamp=1000)
        .load()
    )


def wait_for_batches(query, last):
    give_up = time.monotonic() + 60
    while time.monotonic() < give_up:
        query.awaitTermination(0.05)
        if query.exception() is not None:
            raise query.exception()
        if (query.lastProgress or {"batchId": -1})["batchId"] >= last:
            query.stop()
            return
    raise TimeoutError


def test_in_transform_with_state(spark, log, journal, tmp_path):
    pytest.importorskip("google.protobuf")
    ask = causal.service(journal, name="ask")
    rows = []
    query = (
        stream(spark)
        .withColumn("key", F.col("value") % 3)
        .groupBy("key")
        .transformWithStateInPandas(
            Doubtful(ask, tmp_path), "id long, answer double, n long", "append", "None"
        )
        .writeStream.foreachBatch(lambda frame, _: rows.extend(frame.collect()))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    wait_for_batches(query, 1)
    assert list(tmp_path.glob("failed *"))
    ids = [row.id for row in rows]
    assert len(ids) == len(set(ids)) >= 2 * ROWS
    assert {count for _, count in journal.asked().items()} == {1}


@pytest.mark.filterwarnings("default")
def test_asynchronous_progress_tracking_is_refused(spark, log, journal, tmp_path):
    ask = causal.service(journal, name="ask")
    writer = in_udf(stream(spark).selectExpr("value AS id"), ask, None).writeStream
    query = (
        writer.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .option("asyncProgressTrackingEnabled", "true")
        .start()
    )
    with pytest.raises(StreamingQueryException, match=r"UnsupportedQuery.*asyncProgress"):
        wait_for_batches(query, 1)
    assert not journal.asked()  # nothing is asked whose answer could be lost


def test_in_the_stream_reader_of_a_data_source(spark, log, journal, tmp_path):
    ask = causal.service(journal, name="ask")

    class Stream(DataSourceStreamReader):
        def initialOffset(self):  # noqa: N802
            return {"rows": 0}

        def latestOffset(self, *limits):  # noqa: N802
            self.rows = getattr(self, "rows", 0) + 4
            return {"rows": self.rows}

        def partitions(self, start, end):
            return [InputPartition((start["rows"], end["rows"]))]

        def read(self, partition):
            for x in range(*partition.value):
                yield (x, ask(x))
            mark = tmp_path / f"failed {partition.value[0]}"
            if not mark.exists():
                mark.touch()
                raise RuntimeError("the first attempt fails")

    class Source(DataSource):
        @classmethod
        def name(cls):
            return "causal_stream"

        def schema(self):
            return "id long, answer double"

        def streamReader(self, schema):  # noqa: N802
            return Stream()

    spark.dataSource.register(Source)
    rows = []
    query = (
        spark.readStream.format("causal_stream")
        .load()
        .writeStream.foreachBatch(lambda frame, _: rows.extend(frame.collect()))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    wait_for_batches(query, 1)
    assert list(tmp_path.glob("failed *"))
    assert len({row.id for row in rows}) == len(rows) >= 8
    assert set(journal.asked().values()) == {1}


def test_parts_of_a_batch_job(spark, log, journal):
    ask = causal.service(journal, name="ask")

    def answers():
        return [row.answer for row in in_udf(spark.range(3), ask, None).collect()]

    with log.batch("monday"):
        monday = answers()
    with log.batch("tuesday"):
        tuesday = answers()
        assert answers() == tuesday
    assert set(monday).isdisjoint(tuesday)
    assert log.nbytes == 0
    wednesday = []

    def crash():
        wednesday.extend(answers())
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), log.batch("wednesday"):
        crash()
    with log.batch("wednesday"):
        assert answers() == wednesday


def test_other_partitions_after_a_restart(spark, journal, tmp_path):
    """The next driver may cut the same rows into other partitions."""
    ask = causal.service(journal, name="ask")

    def answers(partitions):
        frame = spark.range(ROWS, numPartitions=partitions)
        return {row.id: row.answer for row in in_udf(frame, ask, None).collect()}

    first_log = causal.start(spark, tmp_path / "log", run="restarted")
    first = answers(4)
    first_log.stop()
    with causal.start(spark, tmp_path / "log", run="restarted"):
        assert answers(3) == first
    assert set(journal.asked().values()) == {1}


def test_other_rows_than_before_are_not_written(spark, log, tmp_path):
    wrote = []

    @causal.exactly_once
    def write(frame, batch_id):
        wrote.append(batch_id)
        raise RuntimeError("the sink is gone")

    def start():
        query = (
            stream(spark)
            .withColumn("drawn", F.rand())
            .writeStream.foreachBatch(write)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )
        with pytest.raises(Exception, match=r"(?i)error") as caught:
            query.awaitTermination(60)
        return str(caught.value)

    assert "the sink is gone" in start()
    assert "causal services instead" in start()
    assert wrote == [0]


def test_a_sink_in_postgresql_with_the_log_there_too(spark, postgres, journal, tmp_path):
    psycopg = pytest.importorskip("psycopg")
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("create table scores (id bigint, answer double precision, note text)")
    ask = causal.service(journal, name="ask")
    insert = causal.postgres_sink(postgres, "scores")
    attempts = itertools.count()

    @causal.exactly_once
    def write(frame, batch_id):
        insert(frame, batch_id)
        if next(attempts) == 1:
            raise RuntimeError("between sink and commit")

    def start():
        return (
            in_udf(stream(spark).withColumnRenamed("value", "id"), ask, None)
            .withColumn("note", F.lit(None).cast("string"))
            .writeStream.foreachBatch(write)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )

    with causal.start(spark, store=postgres):
        with pytest.raises(Exception, match="between sink and commit"):
            start().awaitTermination(60)
        wait_for_batches(start(), 2)
    with psycopg.connect(postgres) as connection:
        ids = [row[0] for row in connection.execute("select id from scores")]
    assert sorted(ids) == list(range(len(ids)))
    assert len(ids) >= 3 * ROWS
    assert set(journal.asked().values()) == {1}


def test_on_the_driver(spark, log):
    with pytest.raises(causal.OnDriver, match="foreachBatch"):
        causal.call(dict)
    with pytest.raises(ClonosError, match="has a log already"):
        causal.start(spark, "elsewhere")


def test_an_error_in_a_task_says_what_to_do(spark, log):
    frame = spark.range(1).select(F.udf(lambda x: causal.call(object) and x, "long")("id"))
    with pytest.raises(Exception, match=r"response\.json\(\) rather than"):
        frame.collect()


def test_functions_of_installed_modules_say_what_they_miss(spark, tmp_path):
    frame = spark.range(1).select(F.udf(lambda x: causal.clock.now_ms(), "long")("id"))
    with pytest.raises(Exception, match=r"causal\.start\(spark, directory\)"):
        frame.collect()


def test_the_secret_is_nowhere_in_sight(spark, log):
    key = log._server.secret.key
    jvm_conf = spark.sparkContext._jvm.java.lang.System.getProperties().toString()
    seen = str(spark.sparkContext.getConf().getAll()) + jvm_conf
    assert key.hex() not in seen
    assert repr(key) not in seen
