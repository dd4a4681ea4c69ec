"""Spooled sources: a DataFrame that Spark writes down once, and that slots read from its files.

A DataFrame that is recomputed after a failure may come in another order; files do not. They also
let any slot run the task, and a restarted job read the very same rows.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.fs as pafs

from clonos.errors import SourceError
from clonos.graph.compile import CompiledJob, TaskCode
from clonos.operators.files_reader import FileList, ParquetReader
from clonos.spark.feeding import hadoop_path
from clonos.spark.slots import SPARK_ERRORS, in_short
from clonos.storage.files import folder_name

_TIMES: Final = "spark.sql.parquet.outputTimestampType"


def spooled(compiled: CompiledJob, spark: Any, base: str) -> CompiledJob:
    """The job with every source that is to be spooled reading files below `base`."""
    found: dict[str, FileList] = {}
    for code in compiled.codes:
        operator = code.source_name
        if code.source is not None and code.source.kind == "spool" and operator not in found:
            found[operator] = _spool(code, spark, f"{base}/{folder_name(operator)}")
    return replace(compiled, codes=tuple(_reading(code, found) for code in compiled.codes))


def _reading(code: TaskCode, found: dict[str, FileList]) -> TaskCode:
    files = found.get(code.source_name)
    if files is None or code.source is None:
        return code
    factory = partial(ParquetReader, files, code.source.schema)
    return replace(code, source=replace(code.source, dataframe=None, factory=factory))


def _spool(code: TaskCode, spark: Any, uri: str) -> FileList:
    """Write the DataFrame, unless an earlier run of the job has."""
    assert code.source is not None
    try:
        if not _is_complete(uri):
            frame = code.source.dataframe
            if frame.rdd.getNumPartitions() < code.parallelism:
                frame = frame.repartition(code.parallelism)
            _write(frame, spark, uri)
        return FileList.find(uri)
    except (*SPARK_ERRORS, pa.ArrowException) as error:
        raise SourceError(
            f"the DataFrame could not be spooled to {uri}: {in_short(error)}",
            where=code.source_name,
            remedy="see that the DataFrame can be computed and that Spark and pyarrow both reach "
            "the checkpoint_dir",
        ) from error


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
