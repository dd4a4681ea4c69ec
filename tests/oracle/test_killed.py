"""Random programs whose Spark tasks are killed: the rows are those of tasks in memory."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from clonos.dataframes.rows import spark_schema
from clonos.dataframes.stateless import dataframe_of
from clonos.spark.session import get_or_create
from tests.oracle.judges import REFUSED, Case
from tests.oracle.programs import SCHEMA

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("new_jvm")]


@pytest.fixture(scope="module")
def spark(new_jvm: None) -> Iterator[Any]:
    config = {
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "3",
        "spark.sql.streaming.stateStore.maintenanceInterval": "1h",
    }
    session = get_or_create("local[2,4]", config=config)  # a task is tried four times
    yield session
    session.stop()


def dying(flag: Path) -> Any:
    """Passes batches on, and takes its process with it, once."""

    def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            if batch.num_rows and flag.exists():
                flag.unlink(missing_ok=True)
                os.kill(os.getpid(), signal.SIGKILL)

    return same


class Killed(Case):
    """A program of which a task dies at each source."""

    def __init__(self, seed: int, folder: Path, *, streams: bool) -> None:
        super().__init__(seed, streams=streams)
        self._folder = folder / f"flags {streams} {seed}"
        self._folder.mkdir()

    @property
    def deaths(self) -> int:
        """How many processes have died."""
        return self.program.sources - len(list(self._folder.iterdir()))

    def _frame(self, spark: Any, sources: list[Any]) -> Any:
        schema, frames = spark_schema(SCHEMA), []
        for number, batches in enumerate(self.inputs):
            flag = self._folder / str(number)
            flag.touch()
            table = pa.Table.from_batches(batches, SCHEMA)
            rows = sources[number] if self.streams else dataframe_of(spark, table)
            frames.append(rows.mapInArrow(dying(flag), schema))
        return super()._frame(spark, frames)


def judge_all(seeds: range, spark: Any, folder: Path, *, streams: bool) -> Counter[str]:
    """What became of the programs of these seeds, and how many processes died."""
    found: Counter[str] = Counter()
    for seed in seeds:
        case = Killed(seed, folder, streams=streams)
        tasks = case.in_tasks()
        if isinstance(tasks, str):  # it fails for its rows: nothing to be retried
            continue
        plan = case.as_stream(spark, folder / str(seed)) if streams else case.as_batch(spark)
        if plan == REFUSED:
            found["refused"] += 1
            continue
        assert plan == tasks, case.told({"tasks": tasks, "killed plan": plan})
        found["equal"] += bool(tasks)
        found["deaths"] += case.deaths
    return found


def test_some_programs(spark, tmp_path):
    found = judge_all(range(6), spark, tmp_path, streams=False)
    assert found["equal"] >= 2, found
    assert found["deaths"] >= 3, found


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_many_programs(spark, tmp_path):
    found = judge_all(range(2000, 2100), spark, tmp_path, streams=False)
    assert found["equal"] >= 50, found
    assert found["deaths"] >= 60, found


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_many_programs_on_streams(spark, tmp_path):
    found = judge_all(range(2000, 2020), spark, tmp_path, streams=True)
    assert found["equal"] >= 8, found
    assert found["deaths"] >= 10, found
