"""Materialized sources: DataFrames that Spark writes to files once, and that slots read.

A DataFrame that is recomputed after a failure may have another order; files do not change. They
also allow any slot to run the task, and a restarted job to read the same rows.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.fs as pafs

from clonos.errors import SourceError
from clonos.sources.files_reader import FileList, ParquetReader
from clonos.sources.queries import hadoop_path
from clonos.sources.spec import SourceSpec
from clonos.spark.slots import SPARK_ERRORS, in_short

_TIMES: Final = "spark.sql.parquet.outputTimestampType"


def materialized(
    source: SourceSpec, operator: str, parallelism: int, spark: Any, uri: str
) -> SourceSpec:
    """A source of files below `uri`, which Spark writes unless an earlier run has done so.

    Raises
    ------
    SourceError
        The DataFrame cannot be computed or written.
    """
    try:
        if not _is_complete(uri):
            frame = source.dataframe
            if frame.rdd.getNumPartitions() < parallelism:
                frame = frame.repartition(parallelism)
            _write(frame, spark, uri)
        files = FileList.find(uri)
    except (*SPARK_ERRORS, pa.ArrowException) as error:
        raise SourceError(
            f"the DataFrame could not be materialized in {uri}: {in_short(error)}",
            where=operator,
            remedy="check that the DataFrame can be computed and that Spark and pyarrow both reach "
            "the checkpoint_dir",
        ) from error
    factory = partial(ParquetReader, files, source.schema)
    return replace(source, dataframe=None, factory=factory)


def _is_complete(uri: str) -> bool:
    """Spark writes this file last."""
    if "://" in uri:
        system, path = pafs.FileSystem.from_uri(uri)
    else:
        system, path = pafs.LocalFileSystem(), uri
    return bool(system.get_file_info(f"{path}/_SUCCESS").is_file)


def _write(frame: Any, spark: Any, uri: str) -> None:
    before = spark.conf.get(_TIMES, None)
    spark.conf.set(_TIMES, "TIMESTAMP_MICROS")
    try:
        frame.write.mode("overwrite").parquet(hadoop_path(uri))
    finally:
        spark.conf.set(_TIMES, before) if before is not None else spark.conf.unset(_TIMES)
