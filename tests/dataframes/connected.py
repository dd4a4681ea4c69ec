"""Jobs as plans of a Spark Connect session: run as a process by a test."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

import clonos
from clonos import causal
from clonos.errors import ClonosError


class Programs:
    """One method each; all read the same hundred rows."""

    def __init__(self, spark: Any, folder: Path) -> None:
        self._spark, self._folder = spark, folder
        rows = "id as n", "timestamp_millis(1704067200000 + id * 100) as at", "id % 3 as k"
        spark.range(100).selectExpr(*rows).coalesce(1).write.parquet(f"{folder}/in")

    def _rows(self, *, streams: bool = False, job: clonos.Job | None = None) -> Any:
        reader = self._spark.readStream if streams else self._spark.read
        frame = reader.schema("n long, at timestamp, k long").parquet(f"{self._folder}/in")
        return (job or clonos.Job("connected")).source(frame)

    def _count(self, stream: Any) -> int:
        frame = stream.to_dataframe(self._spark, execution="spark")
        return int(frame.count())

    def functions(self) -> int:
        doubled = self._rows().map(lambda row: (row.n * 2,), "twice long")
        return self._count(doubled.filter(lambda row: row.twice > 50))

    def windows(self) -> int:
        keyed = self._rows().with_watermark("at", "1 second").key_by("k")
        window = clonos.tumbling("2 seconds", on="at")
        return self._count(keyed.window(window).agg(n=clonos.count()))

    def top(self) -> int:
        rows = self._rows().with_watermark("at", "1 second")
        return self._count(rows.window(clonos.tumbling("2 seconds", on="at")).top(1, "n"))

    def look_up(self) -> int:
        table = self._spark.range(5).selectExpr("id as key", "'x' as value")
        return self._count(self._rows().look_up(table, {"n": "key"}))

    def join(self) -> int:
        job = clonos.Job("connected")
        left = self._rows(job=job).with_watermark("at", "1 second")
        right = left.withColumnsRenamed({"n": "m", "at": "then", "k": "key"})
        right = right.with_watermark("then", "1 second")
        pairs = left.key_by("k").join(right.key_by("key"), keep="1 second", on=("at", "then"))
        return self._count(pairs)

    def batch(self) -> int:
        job = clonos.Job("connected")
        self._rows(job=job).map(lambda row: (row.n,), "n long").sink(clonos.sinks.collect())
        return int(job.run(self._spark, execution="spark").table().num_rows)

    def stream(self) -> int:
        out = f"{self._folder}/table"
        job = clonos.Job("connected", checkpoint_dir=f"{self._folder}/streamed")
        rows = self._rows(streams=True, job=job).map(lambda row: (row.n,), "n long")
        rows.sink(clonos.sinks.table(out))
        job.start(self._spark, execution="spark", available_now=True).wait(300)
        return int(self._spark.read.format("clonos").load(out).count())

    def asking(self) -> int:
        asked = self._rows().map(lambda row, ctx: (ctx.call(len, f"{row.n}"),), "digits int")
        with causal.start(self._spark, f"{self._folder}/log", run="asking", host="127.0.0.1"):
            frame = asked.to_dataframe(self._spark, execution="spark")
            return int(frame.agg(F.sum("digits")).collect()[0][0])

    def column(self) -> int:
        return self._count(self._rows().where("n > 50"))

    def group(self) -> int:
        rows = self._rows().with_watermark("at", "1 second")
        return self._count(rows.groupBy("k", F.window("at", "2 seconds")).agg(F.count("*")))

    def callback(self) -> int:
        job = clonos.Job("connected")
        self._rows(streams=True, job=job).sink(clonos.sinks.callback(lambda batch: None))
        job.start(self._spark, execution="spark", available_now=True)
        return 0


def main(folder: Path) -> None:
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    for key, value in (
        ("spark.sql.session.timeZone", "UTC"),
        ("spark.sql.shuffle.partitions", "2"),
    ):
        spark.conf.set(key, value)
    programs, found = Programs(spark, folder), dict[str, int | str]()
    for name in [name for name in vars(Programs) if name[0] != "_"]:
        program: Callable[[], int] = getattr(programs, name)
        try:
            found[name] = program()
        except ClonosError as error:
            found[name] = f"{type(error).__name__}: {error.what}"
    (folder / "found.json").write_text(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
