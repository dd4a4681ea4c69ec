"""A declarative pipeline of which jobs are parts: Spark's own command runs it for a test."""

import os
from typing import Any

from pyspark import pipelines as dp
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

import clonos

spark: Any = SparkSession.getActiveSession()
FOLDER = os.environ["CLONOS_TEST_FOLDER"]

# Outside of the functions below: in them Spark allows no analysis.
rows = clonos.Job("batch").source(spark.read.parquet(f"{FOLDER}/in"))
batch = rows.map(lambda row: (row.n * 2,), "twice long").to_dataframe(spark, execution="spark")

files = spark.readStream.schema("n long, at timestamp").parquet(f"{FOLDER}/in")
mapped = (
    clonos.Job("stream").source(files).map(lambda row: (row.n % 2, row.at), "k long, at timestamp")
)
keyed = mapped.with_watermark("at", "1 second").key_by("k")
windows = keyed.window(clonos.tumbling("2 seconds", on="at")).agg(n=clonos.count())
stream = windows.to_dataframe(spark, execution="spark")


@dp.materialized_view
def doubled():
    return batch


@dp.materialized_view
def total():
    return spark.read.table("doubled").agg(F.sum("twice").alias("total"))


@dp.table
def counted():
    return stream


dp.create_sink(name="out", format="clonos", options={"path": f"{FOLDER}/table"})


@dp.append_flow(target="out")
def written():
    return spark.readStream.table("counted").select("k", "n")
