"""What ``transformWithState`` is given, checked and turned into an operation."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from clonos.api.frames import watermark_of
from clonos.columns.schema import parse_schema
from clonos.errors import BadGraph, NotInTasks, WrongType
from clonos.operators.operations import TransformRows
from clonos.operators.process.stateful import EVENT, MODES, StatefulHandle

if TYPE_CHECKING:
    from clonos.api.keyed import KeyedStream


def transform_operation(
    stream: KeyedStream,
    processor: Any,
    schema: Any,
    *,
    output_mode: str,
    time_mode: str,
    initial_state: Any,
    event_time_column: str,
    where: str,
) -> TransformRows:
    """The operation; `processor` is asked what states it has, as Spark does.

    Raises
    ------
    NotInTasks
        Something of Spark's that tasks do not have.
    WrongType, BadGraph
        It would not run in Spark either.
    """
    if not is_processor(processor):
        raise WrongType(
            f"{processor!r} is not a StatefulProcessor object",
            where=where,
            remedy="derive a class from pyspark.sql.streaming.StatefulProcessor and give an object "
            "of it; a clonos.Process is for process(...)",
        )
    _require_output(output_mode, where)
    mode = str(time_mode).lower()
    if mode not in MODES:
        known = ", ".join(f'"{name}"' for name in MODES.values())
        raise WrongType(f"timeMode={time_mode!r}", where=where, remedy=f"use one of {known}")
    if initial_state is not None:
        raise NotInTasks(
            "initialState: a task's state begins empty, or in a checkpoint",
            where=where,
            remedy="read these rows as a source of their own, with union(...) before it",
        )
    if event_time_column:
        raise NotInTasks(
            f"eventTimeColumnName={event_time_column!r}: the watermark goes on as it came",
            where=where,
            remedy="leave it out; if results have other times, write withWatermark after it",
        )
    time = _time_of(stream, where) if mode == EVENT else None
    handle = StatefulHandle(None, mode, where)
    asked = copy.deepcopy(processor)
    asked.init(handle)
    asked.close()
    return TransformRows(processor, stream.keys, parse_schema(schema), mode, time, handle.declared)


def is_processor(given: Any) -> bool:
    """Whether this is one of Spark's, told without importing PySpark."""
    return any(
        cls.__module__.startswith("pyspark.") and cls.__name__ == "StatefulProcessor"
        for cls in type(given).__mro__
    )


def _require_output(output_mode: str, where: str) -> None:
    mode = str(output_mode).lower()
    if mode == "complete":
        raise NotInTasks(
            'outputMode="Complete": rows that have gone on are not taken back',
            where=where,
            remedy='use "Append", or "Update", which is the same here',
        )
    if mode not in ("append", "update"):
        raise WrongType(f"outputMode={output_mode!r}", where=where, remedy='use "Append"')


def _time_of(stream: KeyedStream, where: str) -> str:
    found = watermark_of(stream._vertex)  # noqa: SLF001 - our own
    if found is None or found.column not in stream.columns:
        raise BadGraph(
            'timeMode="EventTime" without a watermark, or its column was dropped or renamed',
            where=where,
            remedy='write withWatermark("time", "5 seconds") before it',
        )
    return found.column
