"""The rows that an operation gives, as a DataFrame that has not been computed yet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.types import StructField, StructType, TimestampType

from clonos.columns.keys import has_floats
from clonos.columns.schema import RENAME, alike, has_maps, quoted, spark_type
from clonos.dataframes.functions import Step, host
from clonos.errors import NotInSpark
from clonos.graph.logical import Vertex

TIME: Final = "~time"
"""A hidden column: a row's event time in whole milliseconds, on which a watermark is declared."""

WINDOW: Final = "~window"
"""A hidden column of a stream: the window of a result row, on which the watermark is declared."""

_INSTANT: Final = TimestampType()
"""Given as a type, as the name "timestamp" depends on spark.sql.timestampType."""

_UTC: Final = frozenset({"UTC", "Etc/UTC", "GMT", "Z", "+00:00"})
_POLICY: Final = "spark.sql.streaming.multipleWatermarkPolicy"
_TASKS: Final = 'execution="tasks"'


@dataclass(frozen=True)
class EventTime:
    """The event time of a stream.

    Attributes
    ----------
    column
        The present name of the column.
    delay_ms
        Delay of the watermark. It is declared as late as possible, because functions lose it.
    hidden
        The hidden column on which it is declared; empty if it has not been declared yet.
    is_session
        The column is the window of a session: Spark would merge sessions that overlap.
    """

    column: str
    delay_ms: int
    hidden: str = ""
    is_session: bool = False


@dataclass(frozen=True)
class Rows:
    """A DataFrame, and the functions still to be applied to it.

    Attributes
    ----------
    frame
        The columns of `schema` as they were before `steps`, then hidden ones.
    steps
        Functions, to be run in one pass.
    time
        None: there is no event time, or it was lost for the reason in `lost`.
    """

    frame: Any
    schema: pa.Schema
    steps: tuple[Step, ...] = ()
    time: EventTime | None = None
    lost: str = "there is no watermark"

    def with_step(self, step: Step, schema: pa.Schema) -> Rows:
        """The rows after a function."""
        rows = self
        if self.time is not None and self.time.hidden:
            rows = replace(self, frame=self.visible, time=None, lost=_BEHIND)
        elif self.time is not None and self.time.column not in schema.names:
            rows = replace(self, time=None, lost=f"a function leaves out {self.time.column!r}")
        return replace(rows, steps=(*self.steps, step), schema=schema)

    @property
    def applied(self) -> Rows:
        """The same with all functions applied."""
        if not self.steps:
            return self
        frame = self.frame.mapInArrow(host(self.steps), spark_schema(self.schema))
        return replace(self, frame=frame, steps=())

    @property
    def visible(self) -> Any:
        """The DataFrame without hidden columns."""
        frame = self.applied.frame
        return frame if frame.columns == self.schema.names else select(frame, self.schema.names)

    @property
    def hidden(self) -> tuple[str, ...]:
        """Its hidden columns."""
        return (self.time.hidden,) if self.time is not None and self.time.hidden else ()

    def without_time(self, why: str) -> Rows:
        """The same; event time is lost."""
        return replace(self, frame=self.visible, steps=(), time=None, lost=why)


_BEHIND: Final = "a function stands between two operators that wait for event time, and loses it"


@dataclass(frozen=True)
class Site:
    """The place of an operation in the job, for its translation."""

    spark: Any
    vertex: Vertex
    streams: bool
    job: str
    lineage: str | None

    def refusal(self, why: str, remedy: str = "") -> NotInSpark:
        """The error for an operation that has no equivalent plan."""
        remedy = (
            f"{remedy}, or run the job with {_TASKS}" if remedy else f"run the job with {_TASKS}"
        )
        return NotInSpark(why, where=self.vertex.name, remedy=remedy)

    @cached_property
    def is_utc(self) -> bool:
        """Whether the session's zone is UTC."""
        return self.spark.conf.get("spark.sql.session.timeZone") in _UTC

    @cached_property
    def is_ansi(self) -> bool:
        """Whether the session's arithmetic fails on overflow."""
        return str(self.spark.conf.get("spark.sql.ansi.enabled")) == "true"

    def in_ms(self, rows: Rows, column: str) -> Column:
        """An event time truncated to milliseconds, as tasks see it; null if there is none."""
        data_type = rows.schema.field(column).type
        if not (pa.types.is_timestamp(data_type) and data_type.tz) and not self.is_utc:
            raise self.refusal(
                f"column {column!r} is {data_type}: tasks read it as UTC, this session does not",
                'set spark.sql.session.timeZone to "UTC"',
            )
        return F.date_trunc("MILLISECOND", col(column).cast(_INSTANT))

    def required(self, made: Column, column: str) -> Column:
        """The event time, with an error for null, as in tasks."""
        told = f"{self.vertex.name}: no event time in column {column!r}"
        return F.coalesce(made, F.raise_error(F.lit(told)).cast(_INSTANT))

    def timed(self, rows: Rows, column: str, name: str = TIME, *, is_required: bool = True) -> Any:
        """The rows with their event time in a hidden column, and the watermark on it in a stream.

        Raises
        ------
        NotInSpark
            In a stream, if the watermark is on another column, or was lost.
        """
        time = rows.time
        if self.streams and self.spark.conf.get(_POLICY) != "min":
            raise self.refusal(
                "the newest of several watermarks counts: rows that are not late would be lost",
                f'set {_POLICY} to "min"',
            )
        if self.streams and (time is None or time.column != column):
            told = rows.lost if time is None else f"the watermark is on {time.column!r}"
            raise self.refusal(
                f"it needs event time in {column!r}, but {told}",
                f"write with_watermark({column!r}, ...) directly before it",
            )
        if self.streams and time is not None and time.hidden:
            if time.hidden != name:
                raise self.refusal("its event time is that of the windows before it")
            return rows.frame
        made = self.in_ms(rows, column)
        if is_required:
            made = self.required(made, column)
        if not self.streams or time is None:
            return rows.visible.withColumn(name, made)
        # Spark's watermarks begin in 1970: it would silently drop older rows as late.
        told = f"{self.vertex.name}: an event time before 1970 in column {column!r} of a stream"
        begin = F.timestamp_seconds(F.lit(0))
        is_old = made < begin if name == TIME else made <= begin  # a window ends later
        made = F.when(is_old, F.raise_error(F.lit(told)).cast(_INSTANT)).otherwise(made)
        frame = rows.visible.withColumn(name, made)
        # Our watermark passes times before `newest - delay`; Spark's would also pass that
        # time itself, hence 1 ms more.
        return frame.withWatermark(quoted(name), f"{time.delay_ms + 1} milliseconds")

    def require_distinct(self, schema: pa.Schema) -> None:
        """Refuse names that this session cannot distinguish."""
        found = alike(schema.names)
        if found and str(self.spark.conf.get("spark.sql.caseSensitive")) != "true":
            told = "columns {!r} and {!r} are the same for this session".format(*found)
            raise self.refusal(told, RENAME)

    def require_comparable(self, schema: pa.Schema, what: str) -> None:
        """Refuse columns by which Spark neither groups nor sorts."""
        for field in schema:
            if has_maps(field.type):
                raise self.refusal(
                    f"column {field.name!r} is a map: Spark {what}", "select other columns"
                )


def one_zero(column: Column, data_type: pa.DataType) -> Column:
    """0.0 for -0.0, as in tasks wherever both count as equal."""
    if not pa.types.is_floating(data_type):
        return column
    return (column + F.lit(0.0)).cast("float" if data_type.bit_width == 32 else "double")


def signs(schema: pa.Schema) -> list[Column]:
    """Columns that distinguish rows that differ only in the signs of zeros, equal to Spark."""
    return [col(field.name).cast("string") for field in schema if has_floats(field.type)]


def col(name: str) -> Column:
    """A column by its name, whatever characters the name contains."""
    return F.col(quoted(name))


def cols(names: Sequence[str] | pa.Schema) -> list[Column]:
    """Several columns by name."""
    return [col(name) for name in (names.names if isinstance(names, pa.Schema) else names)]


def select(frame: Any, names: Iterable[str | tuple[str, str]]) -> Any:
    """Columns of a DataFrame by their names, or by their names with new ones.

    As text: making a ``Column`` takes a dozen calls to Java.
    """
    pairs = (name if isinstance(name, tuple) else (name, name) for name in names)
    return frame.selectExpr(
        *(quoted(old) if old == new else f"{quoted(old)} AS {quoted(new)}" for old, new in pairs)
    )


def spark_schema(schema: pa.Schema) -> StructType:
    """An Arrow schema as a Spark schema.

    Raises
    ------
    NotInSpark
        Spark has no such type.
    """
    fields = []
    for field in schema:
        known = spark_type(field.type)
        if known is None:
            raise NotInSpark(
                f"column {field.name!r} is {field.type}, a type that Spark does not have",
                remedy="cast it where the stream begins",
            )
        fields.append(StructField(field.name, known, field.nullable))
    return StructType(fields)
