"""``groupBy(...).agg(...)`` as PySpark users write it: keys, one window, aggregates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from clonos.api import windows
from clonos.api.columns import is_column
from clonos.columns.formula import Column, Constant, Expression, apply
from clonos.columns.schema import TIMESTAMP, quoted, require_columns
from clonos.errors import BadGraph, NotInTasks, WrongType
from clonos.operators.aggregates import Aggregate
from clonos.operators.operations import Project
from clonos.operators.stateless.columns import Projection
from clonos.operators.windows.content import WINDOW_END, WINDOW_START
from clonos.operators.windows.kinds import Fixed, Session, Window

if TYPE_CHECKING:
    from clonos.api.streams import Stream
    from clonos.spark.grouping import Asked

LOCAL: Final = pa.timestamp("us")
"""A time without a zone."""

WINDOW: Final = "window"
"""What Spark calls the column of either kind of window, without an alias: this and the next."""
SESSION: Final = "session_window"

_KINDS: Final = {"count": "count", "sum": "sum", "min": "min", "max": "max", "avg": "avg",
    "mean": "avg"}  # fmt: skip
_AGGREGATES: Final = "use F.count, F.sum, F.min, F.max or F.avg; others are for a Process"
_WINDOW: Final = 'groupBy("user", F.window("time", "10 seconds"))'
_PLAN: Final = '.to_dataframe(spark, execution="spark").groupBy(...)'
INSTEAD: Final = {
    **dict.fromkeys(["apply", "applyInArrow", "applyInPandas"],
        f".window(...).rows(), or let Spark run it: {_PLAN}"),
    "applyInPandasWithState": ".key_by(...).process(...)",
    "transformWithStateInPandas": "transformWithState(...), whose processor has rows",
    "cogroup": ".key_by(...).join(other.key_by(...), ...)",
    "pivot": f"{_PLAN}: the columns of a stream are known when it is defined",
}  # fmt: skip
"""What grouped DataFrames have and grouped streams have not, and what to write instead."""


class GroupedStream:
    """Rows grouped by key and window; see :meth:`Stream.groupBy`."""

    def __init__(self, stream: Stream, columns: Sequence[Any]) -> None:
        self._stream = stream
        self._keys: dict[str, str] = {}  # of the result, and of the rows
        self._names: list[str] = []  # of the result, in order
        self._window: Window | None = None
        self._window_name = ""
        for column in columns:
            self._group_by(column)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            told = f"; write {INSTEAD[name]}" if name in INSTEAD else ""
            raise AttributeError(f"a grouped stream has no {name!r}{told}", name=name, obj=self)

    # --- what is grouped by ---------------------------------------------------------------------

    def _group_by(self, column: Any) -> None:
        if isinstance(column, str):
            if self._has(column) or "." not in column:
                require_columns(self._stream.schema, [column], "groupBy")
                self._key(column, column)
                return
            column = _field(column)
        if not is_column(column):
            raise WrongType(
                f"{column!r} is not a column", where="groupBy", remedy=f"write {_WINDOW}"
            )
        one = _asked(column, "groupBy")
        if one.function in (WINDOW, SESSION):
            if self._window is not None:
                raise BadGraph("two windows", where="groupBy", remedy="group by one, then again")
            self._window = self._window_of(one)
            self._window_name = one.name or one.function
            self._names.append(self._window_name)
            return
        of = "" if one.function else one.arguments[0]
        if isinstance(of, str) and of == one.name and self._has(of):
            self._key(of, of)
            return
        if not one.name:
            raise _nameless(one, "groupBy")
        # Not under its own name: aggregates may be of a column that has it.
        hidden = f"~key {one.name}"
        self._stream = self._stream.withColumn(hidden, one.column)
        self._key(one.name, hidden)

    def _has(self, column: str) -> bool:
        return column in self._stream.schema.names

    def _key(self, name: str, of: str) -> None:
        self._keys[name] = of
        self._names.append(name)

    def _window_of(self, one: Asked) -> Window:
        time, *durations = one.arguments
        found = [getattr(duration, "value", None) for duration in durations]
        said = [duration for duration in found if isinstance(duration, str)]
        if len(said) < len(found):
            raise NotInTasks(
                f"the length of {one.function} is computed for each row",
                where="groupBy",
                remedy='write it as a text, such as "10 seconds"',
            )
        on = self._time(time)
        if one.function == SESSION:
            return windows.session(said[0], on)
        size, slide, *start = said
        if start and start[0].split()[0] != "0":
            raise NotInTasks(
                f"windows that begin at {start[0]}", where="groupBy", remedy="leave startTime out"
            )
        return windows.sliding(size, slide, on)

    def _time(self, time: Any) -> str | None:
        """The column of event time; None: the time at which a row arrives."""
        if isinstance(time, str):
            require_columns(self._stream.schema, [time], "groupBy")
            return time
        one = _asked(time, "groupBy")
        if one.function in ("current_timestamp", "now"):
            return None
        raise NotInTasks(
            "the time of a window is computed",
            where="groupBy",
            remedy="compute it before, as a column with a watermark: withColumn(...)",
        )

    # --- what is computed -----------------------------------------------------------------------

    def agg(self, *columns: Any, name: str | None = None, parallelism: int | None = None) -> Stream:
        """A row per key and window when the window is over: its key and window, and these columns.

        Parameters
        ----------
        columns
            ``F.count``, ``F.sum``, ``F.min``, ``F.max`` and ``F.avg``, or a dict of columns and the
            names of these functions.

        Raises
        ------
        NotInTasks
            It is another function.
        BadGraph
            There is no window: the rows of a key never end.

        Examples
        --------
        >>> hot = bids.groupBy("item", F.window("time", "10 s", "5 s")).agg(  # doctest: +SKIP
        ...     F.count("*").alias("bids"), F.max("price").alias("dearest")
        ... )
        """
        if len(columns) == 1 and isinstance(columns[0], dict):
            pairs = list(columns[0].items())
            made = [self._of_name(kind, of) for of, kind in pairs]
        else:
            made = [self._of_column(column) for column in columns]
        return self._made(made, name, parallelism)

    def count(self) -> Stream:
        """The number of rows, as ``count``.

        Examples
        --------
        >>> bids.groupBy("item", F.window("time", "10 seconds")).count()  # doctest: +SKIP
        """
        return self._made([("count", Aggregate("count", None))], None, None)

    def sum(self, *columns: str) -> Stream:
        """The sums of columns, as ``sum(column)``."""
        return self._each("sum", columns)

    def min(self, *columns: str) -> Stream:
        """The smallest values of columns, as ``min(column)``."""
        return self._each("min", columns)

    def max(self, *columns: str) -> Stream:
        """The largest values of columns, as ``max(column)``."""
        return self._each("max", columns)

    def avg(self, *columns: str) -> Stream:
        """The means of columns, as ``avg(column)``."""
        return self._each("avg", columns)

    mean = avg

    def transformWithState(self, *arguments: Any, **options: Any) -> Stream:  # noqa: N802 - PySpark's
        """:meth:`KeyedStream.transformWithState` of the rows of each key.

        Examples
        --------
        >>> clicks.groupBy("user").transformWithState(  # doctest: +SKIP
        ...     statefulProcessor=Count(), outputStructType="user string, n long",
        ...     outputMode="Append", timeMode="None",
        ... )
        """
        if self._window is not None or not self._keys:
            raise BadGraph(
                "transformWithState is for the rows of a key, without a window",
                where="transformWithState",
                remedy='write groupBy("user").transformWithState(...)',
            )
        keyed = self._stream.key_by(*self._keys.values())
        return keyed.transformWithState(*arguments, **options)

    def _each(self, kind: str, columns: Sequence[str]) -> Stream:
        return self._made([self._of_name(kind, of) for of in columns], None, None)

    def _of_name(self, kind: str, of: str) -> tuple[str, Aggregate]:
        if kind not in _KINDS or (of == "*" and kind != "count"):
            raise NotInTasks(f"the aggregate {kind!r} of {of}", where="agg", remedy=_AGGREGATES)
        if of == "*":
            return "count(1)", Aggregate("count", None)
        return f"{_KINDS[kind]}({of})", Aggregate(_KINDS[kind], of)

    def _of_column(self, column: Any) -> tuple[str, Aggregate]:
        if not is_column(column):
            raise WrongType(f"{column!r} is not a column", where="agg", remedy=_AGGREGATES)
        one = _asked(column, "agg")
        if one.function not in _KINDS or len(one.arguments) != 1:
            raise NotInTasks(
                f"the aggregate {one.function or one.name!r}", where="agg", remedy=_AGGREGATES
            )
        if not one.name:
            raise _nameless(one, "agg")
        (of,) = one.arguments
        if not isinstance(of, str) and not is_column(of):  # a constant
            if one.function != "count" or of.value is None:
                raise NotInTasks(f"{one.name} of a constant", where="agg", remedy=_AGGREGATES)
            return one.name, Aggregate("count", None)
        if isinstance(of, str) and not self._has(of):  # a session may ignore case
            of = _field(quoted(of))
        if not isinstance(of, str):
            hidden = f"~of {one.name}"
            self._stream = self._stream.withColumn(hidden, of)
            of = hidden
        return one.name, Aggregate(_KINDS[one.function], of)

    def _made(
        self, made: Sequence[tuple[str, Aggregate]], name: str | None, parallelism: int | None
    ) -> Stream:
        window = self._window
        if not isinstance(window, (Fixed, Session)):
            raise BadGraph(
                "an aggregate of all rows that ever come is never complete",
                where="groupBy",
                remedy=f"group by a window, too: {_WINDOW}; or keep a state: key_by(...).process",
            )
        names = [*self._names, *(name for name, _ in made)]
        if twice := [name for name in names if names.count(name) > 1]:
            raise BadGraph(
                f"the output would have two columns {twice[0]!r}",
                where="groupBy",
                remedy='give one of them another name: .alias("total")',
            )
        aggregates: dict[str, Any] = dict(made)
        keyed = self._stream.key_by(*self._keys.values()) if self._keys else self._stream
        rows = keyed.window(window).agg(**aggregates, **_given(name=name, parallelism=parallelism))
        return self._as_spark(rows, list(aggregates))

    def _as_spark(self, rows: Stream, aggregates: Sequence[str]) -> Stream:
        """The same columns as Spark gives: the window's bounds are one of them."""
        from clonos.spark.expressions import read_by

        on = getattr(self._window, "event_time", None)
        is_local = on is not None and self._stream.schema.field(on).type == LOCAL
        bounds: list[Expression] = [Column(n, TIMESTAMP) for n in (WINDOW_START, WINDOW_END)]
        if is_local:  # so are the bounds
            bounds = [apply("Cast", [bound], LOCAL) for bound in bounds]
        parts = [pa.field(n, b.type) for n, b in zip(("start", "end"), bounds, strict=True)]
        struct = pa.struct(parts)
        labels = [Constant(pa.scalar(part.name)) for part in parts]
        both: list[Expression] = [labels[0], bounds[0], labels[1], bounds[1]]
        whole = apply("CreateNamedStruct", both, struct)
        of = self._keys | {name: name for name in aggregates}  # all but the window
        fields = {name: rows.schema.field(column) for name, column in of.items()}
        columns = tuple(
            (fields[n].with_name(n), Column(of[n], fields[n].type))
            if n in of
            else (pa.field(n, struct, nullable=False), whole)
            for n in (*self._names, *aggregates)
        )
        names = (*self._names, *aggregates)

        def choose(frame: Any) -> Any:
            from pyspark.sql import functions as sf

            start, end = sf.col(WINDOW_START), sf.col(WINDOW_END)
            if is_local:
                start, end = start.cast("timestamp_ntz"), end.cast("timestamp_ntz")
            window = sf.struct(start.alias("start"), end.alias("end"))
            return frame.select(
                *((sf.col(quoted(of[n])) if n in of else window).alias(n) for n in names)
            )

        operation = Project(Projection(columns), choose, read_by())
        return rows._projected("select", operation, None, None)  # noqa: SLF001 - our own


def _field(name: str) -> Any:
    """A field of a struct."""
    from pyspark.sql import functions as sf

    from clonos.spark.session import active

    active()  # or an error that says what to do
    return sf.col(name)


def _asked(column: Any, where: str) -> Asked:
    from clonos.spark.grouping import asked

    return asked(column, where)


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _nameless(one: Asked, where: str) -> WrongType:
    return WrongType(
        f"{one.function or 'an expression'}(...) has no name",
        where=where,
        remedy='give it one: .alias("total")',
    )
