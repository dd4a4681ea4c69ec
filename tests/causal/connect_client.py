"""A Spark Connect client with causal services: run as a process by a test."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path


def main(folder):
    from pyspark.sql import SparkSession
    from pyspark.sql.functions import udf

    import clonos
    from clonos import causal
    from clonos.errors import SparkSetup

    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    try:
        causal.start(spark, folder / "log")
    except causal.UnsupportedSession as error:
        sys.stdout.write(f"said {error}\n")

    def ask(number):
        with (folder / "asked").open("a") as out:
            out.write(f"{number}\n")
        return next(itertools.count()) + id(object()) * 0.5

    service = causal.service(ask, name="ask")

    with causal.start(spark, folder / "log", run="connected") as log:
        frame = spark.range(10).select("id", udf(service, "double")("id").alias("a"))
        assert sorted(frame.collect()) == sorted(frame.collect())
        try:
            with log.batch("part"):
                pass
        except causal.UnsupportedSession as error:
            sys.stdout.write(f"said {error}\n")
    for session in (spark, None):
        job = clonos.Job("connected")
        job.source(spark.range(3)).sink(clonos.sinks.collect())
        try:
            job.start(session)
        except SparkSetup as error:
            sys.stdout.write(f"said {error}\n")
    sys.stdout.write(f"asked {len((folder / 'asked').read_text().split())}\n")
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
