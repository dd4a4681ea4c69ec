"""Sinks: where rows go. Give one to ``stream.sink(...)``.

Rows are delivered once, in order per sink task, as soon as they are durable.

Their parts are modules of this package: their description (``spec``), what a task writes with
(``file_buffer``, ``writers``, ``tables``), what the driver does with rows (``delivered``,
``outputs``), and how Spark reads them (``data_source``).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

from clonos.columns.durations import parse_duration
from clonos.errors import WrongType
from clonos.sinks.file_buffer import FileBufferOperator
from clonos.sinks.spec import SinkSpec

__all__ = ["callback", "collect", "console", "parquet", "spark_write", "table"]


def collect() -> SinkSpec:
    """Keep the rows; they are the job's result.

    Examples
    --------
    >>> collect().kind
    'collect'
    """
    return SinkSpec("collect")


def console() -> SinkSpec:
    """Print the rows in the driver."""
    return SinkSpec("console")


def callback(fn: Callable[..., Any]) -> SinkSpec:
    """Call ``fn(batch)`` in the driver with each delivered Arrow batch."""
    return SinkSpec("callback", fn=_function(fn, "callback"))


def parquet(
    path: str, *, rows_per_file: int = 100_000, linger: str | timedelta = "1 second"
) -> SinkSpec:
    """Write Parquet files, from the tasks themselves.

    Parameters
    ----------
    path
        A folder on any file system of pyarrow.
    rows_per_file
        A file is written when there are so many rows, ...
    linger
        ... or after this time.
    """
    return _files("parquet", path, rows_per_file, linger)


def table(
    path: str, *, rows_per_file: int = 100_000, linger: str | timedelta = "100 ms"
) -> SinkSpec:
    """Write a growing table that Spark and other readers follow while the job runs.

    ``spark.readStream.format("clonos").load(path)`` is it as a stream, ``spark.read`` as it is
    now; see :mod:`clonos.sinks.data_source`.

    Parameters
    ----------
    path
        A folder on any file system of pyarrow, for this job only.
    rows_per_file
        Rows become visible when there are so many, ...
    linger
        ... or after this time.
    """
    return _files("table", path, rows_per_file, linger)


def spark_write(fn: Callable[..., Any]) -> SinkSpec:
    """Call ``fn(df)`` with a Spark DataFrame of all rows when the job has ended."""
    return SinkSpec("spark_write", fn=_function(fn, "spark_write"))


def _files(kind: str, path: str, rows_per_file: int, linger: str | timedelta) -> SinkSpec:
    if rows_per_file < 1:
        raise WrongType(f"rows_per_file={rows_per_file}", remedy="give a number above 0")
    head = partial(FileBufferOperator, rows_per_file, parse_duration(linger, minimum_ms=0))
    return SinkSpec(kind, head, path=str(path))


def _function(fn: Callable[..., Any], where: str) -> Callable[..., Any]:
    if not callable(fn):
        raise WrongType(f"{fn!r} is not a function", where=where)
    return fn
