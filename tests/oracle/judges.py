"""What computes a program: tasks in memory, Spark's batch plan, its streaming plan, DuckDB."""

from __future__ import annotations

import math
import os
from collections import Counter
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import PySparkException

import clonos
from clonos.dataframes.rows import spark_schema
from clonos.errors import ClonosError, NotInSpark
from clonos.testing import InMemoryRun
from tests.lethal import Lethal
from tests.oracle import sql
from tests.oracle.programs import (
    FAR,
    FAR_ROW,
    SCHEMA,
    SPAN_MS,
    Program,
    batch_of,
    batches_of,
    build,
    rows_of,
)

FAILED = "failed"
REFUSED = "refused"
Judgement = Counter[tuple[Any, ...]] | str

_numbers = count()


class Case:
    """A program with its rows."""

    def __init__(self, seed: int, *, streams: bool = False, kind: str | None = None) -> None:
        self.seed, self.streams = seed, streams
        self.lethal: tuple[
            Lethal, ...
        ] = ()  # what kills Spark's tasks, before the program and behind
        self.error = ""
        self.program = Program(seed, streams=streams, kind=kind)
        self._random = random = Random(f"rows {seed}")
        since_ms = 1 if streams else -SPAN_MS // 2  # Spark's streams begin in 1970
        nulls = not streams and random.random() < 0.2
        self.inputs = [
            batches_of(random, rows_of(random, nulls_in_time=nulls, since_ms=since_ms))
            for _ in range(self.program.sources)
        ]
        if streams:
            for batches in self.inputs:
                batches.append(batch_of([FAR_ROW]))

    def in_tasks(self) -> Judgement:
        """Tasks in memory, restored now and then."""
        stream = build(self.program.text, [clonos.sources.from_batches(b) for b in self.inputs])
        stream.sink(clonos.sinks.collect(), name="out")
        compiled = stream._job.compile()
        try:
            run = InMemoryRun(compiled, seed=self.seed, batch_rows=7, restore=0.1)
            return self._bag(run.run()["out"])
        except ClonosError:
            return FAILED

    def in_duckdb(self) -> Judgement | None:
        """DuckDB, where the program has been written in SQL, too."""
        if not self.program.sql:
            return None
        with duckdb.connect() as connection:
            connection.execute(f"set timezone = 'UTC'; {sql.MACROS}")
            for name, batches in zip("lr", self.inputs, strict=False):
                rows = pa.Table.from_batches(batches)
                if name == "r":
                    rows = rows.rename_columns([f"{column}2" for column in rows.column_names])
                connection.register(name, rows)
            try:
                return self._bag(connection.sql(self.program.sql).to_arrow_table())
            except duckdb.InvalidInputException:  # a row without event time
                return FAILED

    def as_batch(self, spark: Any) -> Judgement:
        """Spark's batch plan."""
        sources = [clonos.sources.from_batches(batches) for batches in self.inputs]
        return self._judged(lambda: self._frame(spark, sources).toArrow())

    def as_stream(self, spark: Any, folder: Path) -> Judgement:
        """Spark's streaming plan; each batch is a micro-batch."""
        frames = []
        for number, batches in enumerate(self.inputs):
            path = folder / f"in{number}"
            path.mkdir(parents=True)
            for at, rows in enumerate(batches):
                pq.write_table(pa.Table.from_batches([rows]), path / f"{at}.parquet")
                os.utime(path / f"{at}.parquet", (1_000_000 + at, 1_000_000 + at))
            reader = spark.readStream.schema(spark_schema(SCHEMA))
            frames.append(reader.option("maxFilesPerTrigger", 1).parquet(str(path)))
        return self._judged(lambda: self._streamed(spark, frames, folder))

    def _streamed(self, spark: Any, frames: list[Any], folder: Path) -> pa.Table:
        name = f"oracle_{next(_numbers)}"
        frame = self._frame(spark, frames)
        query = (
            frame.writeStream.format("memory").queryName(name).trigger(availableNow=True)
            .option("checkpointLocation", str(folder / "checkpoint")).start()
        )  # fmt: skip
        assert query.awaitTermination(100)
        found = spark.table(name).toArrow()
        spark.catalog.dropTempView(name)
        return found

    def _frame(self, spark: Any, sources: list[Any]) -> Any:
        stream = build(self.program.text, sources, self.lethal)
        return stream.to_dataframe(spark, execution="spark")

    def _judged(self, table: Any) -> Judgement:
        try:
            return self._bag(table())
        except NotInSpark:
            return REFUSED
        except PySparkException as error:
            self.error = str(error)[:2000]
            return REFUSED if "order of arrival" in self.error else FAILED

    def _bag(self, table: pa.Table) -> Counter[tuple[Any, ...]]:
        rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
        made = (tuple(map(_comparable, row)) for row in rows)
        return Counter(row for row in made if not (self.streams and _is_late(row)))

    def told(self, judgements: dict[str, Judgement]) -> str:
        """The program as code, with what was found."""
        lines = [f"# seed {self.seed}, streams={self.streams}", self.program.text]
        for number, batches in enumerate(self.inputs):
            given = [batch.to_pylist() for batch in batches]
            lines.append(f"# in{number} = {given}")
        first, *others = judgements.items()
        lines.append(f"# {first[0]}: {_shown(first[1])}")
        for name, found in others:
            if isinstance(found, str) or isinstance(first[1], str):
                lines.append(f"# {name}: {_shown(found)}")
            else:
                lines.append(f"# only {first[0]}: {first[1] - found}")
                lines.append(f"# only {name}: {found - first[1]}")
        return "\n".join([*lines, self.error])


def judge(case: Case, spark: Any, folder: Path) -> str:
    """Compare the judges of a program; what became of it."""
    tasks = case.in_tasks()
    in_sql = case.in_duckdb()
    if in_sql is not None:
        assert in_sql == tasks, case.told({"tasks": tasks, "DuckDB": in_sql})
    plan = case.as_stream(spark, folder) if case.streams else case.as_batch(spark)
    if plan == REFUSED:
        return REFUSED
    name = "streaming plan" if case.streams else "batch plan"
    assert plan == tasks, case.told({"tasks": tasks, name: plan})
    if isinstance(tasks, str):
        return FAILED
    return "equal" if tasks else "empty"


def _comparable(value: Any) -> Any:
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else repr(value)  # -0.0 is equal to 0.0
    return value


def _is_late(row: tuple[Any, ...]) -> bool:
    """Whether it tells of windows, or rows, that the last row does not end."""
    return any(getattr(value, "year", 0) >= FAR.year for value in row)


def _shown(found: Judgement) -> str:
    return found if isinstance(found, str) else str(dict(found))
