"""A query's rows into jobs, through a table: each once, whatever is killed on either side."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as sf

import clonos
from clonos.sinks.data_source import TableSource, end, forget_reader, readers, remove_read
from clonos.sinks.query_writer import QueryWriter
from clonos.storage.tables import Table

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(900),
]

ROWS = 50
"""Per file, and per micro-batch."""


class DeadlyWriter(QueryWriter):
    """Fails once when a batch is in the table, before Spark hears of it."""

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803 - Spark's name
        super().commit(messages, batchId)
        flag = Path(self._path).parent / "fail in commit"
        if flag.exists():
            flag.unlink()
            raise RuntimeError("the driver is gone")


class DeadlySource(TableSource):
    @classmethod
    def name(cls) -> str:
        return "deadly"

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802 - Spark's name
        return DeadlyWriter(self._path, schema, self.options, overwrite=overwrite)


def add_files(folder: Path, numbers: range) -> None:
    (folder / "in").mkdir(exist_ok=True)
    for number in numbers:
        first = number * ROWS
        lines = [json.dumps({"n": n, "key": f"k{n % 7}"}) for n in range(first, first + ROWS)]
        hidden = folder / "in" / f".{number}"
        hidden.write_text("\n".join(lines))
        hidden.rename(folder / "in" / f"{number:03d}.json")


def dying(flag: str) -> Any:
    """A UDF that kills its process once, after it has begun to give rows."""

    @sf.udf("long")
    def same(n: int) -> int:
        if n % ROWS == ROWS - 1 and Path(flag).exists():
            Path(flag).unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return n

    return same


def query(spark: Any, folder: Path, **options: str) -> Any:
    spark.dataSource.register(DeadlySource)
    clicks = (
        spark.readStream.schema("n long, key string")
        .option("maxFilesPerTrigger", 1)
        .json(str(folder / "in"))
        .repartition(2)
        .withColumn("n", dying(str(folder / "die in write"))("n"))
    )
    writer = clicks.writeStream.format("deadly").options(**options)
    return writer.option("checkpointLocation", str(folder / "q")).start(str(folder / "t"))


def through(spark: Any, folder: Path, attempts: int = 1, **options: str) -> None:
    """Let the query take all there is; so often it fails on the way."""
    for _ in range(attempts - 1):
        failing = query(spark, folder, **options)
        with pytest.raises(StreamingQueryException):
            failing.processAllAvailable()
        failing.stop()
    running = query(spark, folder, **options)
    running.processAllAvailable()
    running.stop()


def job(folder: Path, name: str, parallelism: int = 2) -> clonos.Job:
    made = clonos.Job(name, parallelism=parallelism, checkpoint_dir=str(folder / name))
    clicks = made.source(
        clonos.sources.table(str(folder / "t"), "n long, key string"), name="clicks"
    )
    clicks.map(lambda row: (row.key, row.n), "key string, n long", name="turn").sink(
        clonos.sinks.collect(), name="out"
    )
    return made


def arrived(kit: Any, running: Any, rows: int) -> None:
    kit.wait_for(lambda: not running.is_running or running.delivered["out"] >= rows)
    assert running.is_running


def found(result: Any) -> list[int]:
    return sorted(result.table().column("n").to_pylist())


def test_every_row_once_in_every_job_whoever_dies(kit, spark, tmp_path):
    """One job is there before the query, one comes while it writes, one afterwards."""
    add_files(tmp_path, range(3))
    path = str(tmp_path / "t")
    early = job(tmp_path, "early").start(spark)
    kit.wait_for(lambda: list((tmp_path / "t" / "_readers").glob("early*")))
    (tmp_path / "die in write").touch()
    through(spark, tmp_path, attempts=2)
    arrived(kit, early, 3 * ROWS)
    middle = job(tmp_path, "middle", parallelism=1).start(spark)
    arrived(kit, middle, 3 * ROWS)
    kit.wait_quiet(early)
    kit.kill(early, "clicks[1]")
    kit.wait_recovered(early, 1)
    add_files(tmp_path, range(3, 5))
    (tmp_path / "fail in commit").touch()
    through(spark, tmp_path, attempts=2)
    arrived(kit, middle, 5 * ROWS)
    middle.stop()
    add_files(tmp_path, range(5, 6))
    through(spark, tmp_path)
    end(path)
    assert early.wait(300).is_complete
    assert found(early.wait()) == list(range(6 * ROWS))
    again = job(tmp_path, "middle", parallelism=1).start(spark).wait(300)
    assert found(again) == list(range(6 * ROWS))
    assert found(job(tmp_path, "late").start(spark).wait(300)) == list(range(6 * ROWS))
    assert readers(path) == {}
    assert spark.read.format("clonos").load(path).count() == 6 * ROWS


def test_what_every_job_has_passed_is_removed(kit, spark, tmp_path):
    path = str(tmp_path / "t")
    jobs = [job(tmp_path, name, parallelism=1).start(spark) for name in ("a", "b")]
    kit.wait_for(lambda: len(list((tmp_path / "t" / "_readers").glob("*"))) == 2)
    add_files(tmp_path, range(2))
    through(spark, tmp_path, removeRead="true")
    for one in jobs:
        arrived(kit, one, 2 * ROWS)
    kit.wait_for(lambda: all(positions for positions in readers(path).values()))
    kit.wait_for(lambda: remove_read(path) or not Table(path).segments())
    jobs[0].stop()
    add_files(tmp_path, range(2, 4))
    through(spark, tmp_path, removeRead="true")
    arrived(kit, jobs[1], 4 * ROWS)
    rest = job(tmp_path, "a", parallelism=1).start(spark)
    end(path)
    for one in (rest, jobs[1]):
        assert found(one.wait(300)) == list(range(4 * ROWS))
    forget_reader(path, "nobody")
    assert readers(path) == {}


def test_what_a_query_may_not_do_is_said(spark, tmp_path):
    add_files(tmp_path, range(2))
    through(spark, tmp_path)
    shutil.copytree(tmp_path / "q", tmp_path / "old")
    add_files(tmp_path, range(2, 4))
    through(spark, tmp_path)

    def fails(match: str) -> None:
        running = query(spark, tmp_path)
        with pytest.raises(StreamingQueryException, match=match):
            running.processAllAvailable()
        running.stop()

    shutil.rmtree(tmp_path / "q")
    (tmp_path / "old").rename(tmp_path / "q")
    fails("is at batch 2, but has handed over batch 3")
    shutil.rmtree(tmp_path / "q")
    fails("come from")
    assert spark.read.format("clonos").load(str(tmp_path / "t")).count() == 4 * ROWS
