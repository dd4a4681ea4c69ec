"""Rows as user functions see them, and batches made of what they return."""

from __future__ import annotations

import re
from collections import namedtuple
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import islice
from operator import is_
from typing import Any, Final
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from clonos.blame import in_short
from clonos.columns.kept_values import require_kept, require_nulls_allowed, require_pairs
from clonos.columns.schema import has_maps, type_name
from clonos.core.canonical import decode, encode, register
from clonos.errors import CallError, ClonosError, StepTooLarge

_FIRST_US: Final = -62_135_596_800_000_000
_LAST_US: Final = 253_402_300_799_999_999
"""Years 1 to 9999, in microseconds: the range of Python's datetimes."""

_US: Final = {pa.date32(): 86_400_000_000, pa.date64(): 1000, "s": 1_000_000, "ms": 1000, "us": 1}
"""Microseconds in a unit of a type of days, or of times."""

RESULTS_MAX: Final = 10_000_000
"""So many rows may come of one call of a function. They are in memory together, because a call that
fails leaves none."""

FAR: Final = "time that Python lacks: it has only the years 1 to 9999"
_OF_ARROW: Final = re.compile(
    r"Expected bytes, got a '(.+)' object"
    r"|Could not convert .* with type (\S+): (?:tried to|was not a [sd]|was expecting)",
    re.DOTALL,
)
"""Arrow's words for a value of the wrong type."""

UNFIT: Final = (pa.ArrowException, TypeError, ValueError, OverflowError)
"""The exceptions that Arrow raises for a value that does not fit its column's type."""


class Row(tuple[Any, ...]):
    """A row with its columns as attributes (``row.word``) and by name (``row["word"]``).

    Examples
    --------
    >>> row = row_type(("word", "n"))(("spark", 3))
    >>> row.word, row["n"], row[0]
    ('spark', 3, 'spark')
    """

    __slots__ = ()
    _fields: tuple[str, ...] = ()

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            try:
                key = self._fields.index(key)
            except ValueError:
                raise KeyError(key) from None
        return tuple.__getitem__(self, key)

    def __getattr__(self, name: str) -> Any:
        # Columns are properties of the subclass; only unknown names arrive here.
        raise AttributeError(f"the row has no column {name!r}, only {', '.join(self._fields)}")

    def asDict(self) -> dict[str, Any]:  # noqa: N802 - as PySpark's Row spells it
        """The row as a dict, column name to value."""
        return dict(zip(self._fields, self, strict=True))

    def __repr__(self) -> str:
        values = ", ".join(f"{n}={v!r}" for n, v in zip(self._fields, self, strict=True))
        return f"Row({values})"

    def __reduce__(self) -> tuple[Callable[..., Row], tuple[Any, ...]]:
        return _make_row, (self._fields, tuple(self))


@lru_cache(maxsize=1024)
def row_type(names: tuple[str, ...]) -> type[Row]:
    """The class of the rows that have these columns."""
    members: dict[str, Any] = {"__slots__": (), "_fields": names}
    # The attributes of a namedtuple are read in C; it renames those that are not valid there.
    model: Any = namedtuple("model", names, rename=True)  # type: ignore[misc]  # noqa: PYI024
    fields: tuple[str, ...] = model._fields
    for name, field in zip(names, fields, strict=True):
        if not hasattr(Row, name):
            members[name] = vars(model)[field]
    return type("Row", (Row,), members)


def rows_of(batch: pa.RecordBatch) -> list[Row]:
    """The rows of a batch, in order."""
    return Given(batch).rows


class Given:
    """A batch and its rows as passed to user functions."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._columns = [(column, values_of(column)) for column in batch.columns]
        cls = row_type(tuple(batch.schema.names))
        self.rows: list[Row] = list(
            map(cls, zip(*(values for _, values in self._columns), strict=True))
        )

    def column_with(self, field: pa.Field, values: Sequence[Any]) -> pa.Array | None:
        """The column that holds exactly these objects, if any: most values are passed on.

        Not for lists and maps: they remain the same objects after a function has changed them.
        """
        for column, originals in self._columns:
            if (
                column.type == field.type
                and len(originals) == len(values)
                and originals[0] is values[0]
                and not pa.types.is_nested(field.type)
                and (field.nullable or not column.null_count)
                and all(map(is_, originals, values))
            ):
                return column
        return None


def values_of(column: pa.Array) -> list[Any]:
    """The same as ``to_pylist``, but several times as fast for common types.

    Examples
    --------
    >>> values_of(pa.array([1, 2])), values_of(pa.array(["a", None]))
    ([1, 2], ['a', None])
    """
    data_type = column.type
    if pa.types.is_string(data_type):
        values: list[Any] = column.to_numpy(zero_copy_only=False).tolist()
        return values
    if column.null_count or not len(column):
        return column.to_pylist()  # type: ignore[no-any-return]
    if pa.types.is_integer(data_type) or pa.types.is_floating(data_type):
        return column.to_numpy().tolist()  # type: ignore[no-any-return]
    if pa.types.is_timestamp(data_type) and data_type.unit == "us":
        low, high = pc.min_max(column.cast(pa.int64())).as_py().values()
        if data_type.tz in (None, "UTC") and low >= _FIRST_US and high <= _LAST_US:
            instants: list[Any] = column.view(pa.int64()).to_numpy().view("M8[us]").tolist()
            if data_type.tz is None:
                return instants
            zone = column[0].as_py().tzinfo
            return [instant.replace(tzinfo=zone) for instant in instants]
    return column.to_pylist()  # type: ignore[no-any-return]


def shown_values(column: pa.Array) -> list[Any]:
    """The values of a column; those that Python lacks, such as a time after the year 9999, are
    texts.

    Examples
    --------
    >>> [str(day) for day in shown_values(pa.array([0, 4_000_000], pa.date32()))]
    ['1970-01-01', '12921-08-18']
    """
    try:
        return values_of(column)
    except UNFIT:
        return [value_of(scalar) for scalar in column]


def dicts_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """The rows to be shown or written down, see `shown_values`; :func:`rows_of` has those for
    functions."""
    names, columns = batch.schema.names, map(shown_values, batch.columns)
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def value_of(scalar: pa.Scalar) -> Any:
    """A value, or a text of one that Python lacks."""
    try:
        return scalar.as_py()
    except UNFIT:
        try:
            return str(scalar.cast(pa.string()))
        except pa.ArrowException:  # a text of what is inside of it would fail, too
            return f"<a {type(scalar).__name__} that cannot be shown>"


def unreadable(batch: pa.RecordBatch) -> list[int]:
    """The rows with a day or time that Python lacks, as they are before year 1 or after 9999.

    Examples
    --------
    >>> far = pa.array([0, None, 2**62]).view(pa.timestamp("us"))
    >>> unreadable(pa.record_batch({"at": far, "n": [1, 2, 3]}))
    [2]
    """
    columns = [column for column in batch.columns if _has_far(column)]
    rows = range(batch.num_rows if columns else 0)
    return [i for i in rows if any(_has_far(column.slice(i, 1)) for column in columns)]


def has_times(data_type: pa.DataType) -> bool:
    """Whether values of a type are days or times, or have some inside.

    Examples
    --------
    >>> has_times(pa.list_(pa.date32())), has_times(pa.struct({"n": pa.int64()}))
    (True, False)
    """
    if pa.types.is_nested(data_type):
        return any(has_times(data_type.field(i).type) for i in range(data_type.num_fields))
    return _us_of(data_type) is not None


def _us_of(data_type: pa.DataType) -> int | None:
    """How many microseconds the unit of a day or time has."""
    return _US.get(data_type.unit if pa.types.is_timestamp(data_type) else data_type)


def _has_far(column: pa.Array) -> bool:
    """Whether there is such a time in a column, or inside of it."""
    data_type = column.type
    if pa.types.is_struct(data_type) or pa.types.is_list(data_type):
        inside = column.flatten()
        return any(map(_has_far, inside if isinstance(inside, list) else [inside]))
    if pa.types.is_map(data_type):
        start, end = column.offsets[0].as_py(), column.offsets[-1].as_py()
        parts = (column.keys, column.items)
        return any(_has_far(part.slice(start, end - start)) for part in parts)
    per_us = _us_of(data_type)
    if per_us is None or column.null_count == len(column):
        return False
    numbers = column.view(pa.int32() if data_type.bit_width == 32 else pa.int64())
    low, high = pc.min_max(numbers).as_py().values()
    return bool(low < _FIRST_US // per_us or high > _LAST_US // per_us)


def column_of(field: pa.Field, values: Sequence[Any]) -> pa.Array:
    """A column of Python values.

    Raises
    ------
    ValueError
        One does not fit. If it is the only one, it is told.

    Examples
    --------
    >>> column_of(pa.field("n", pa.int64()), ["five"])
    Traceback (most recent call last):
    ValueError: column 'n' (long): 'five' is of type str
    """
    try:
        if has_maps(field.type):
            require_pairs(field.type, values)
        column = pa.array(values, field.type)
        require_kept(field.type, values)
    except Exception as error:  # noqa: BLE001 - objects of users may raise anything
        said = f"column {field.name!r} ({type_name(field.type)}): {_unfit(values, error)}"
        raise ValueError(said) from (None if isinstance(error, UNFIT) else error)
    require_nulls_allowed(field, column)
    return column


def _unfit(values: Sequence[Any], error: Exception) -> str:
    """Why values do not fit. What Arrow says of types is put into the user's words."""
    if not isinstance(error, UNFIT):
        return in_short(error)
    text = str(error)
    if len(values) != 1:
        return _cut(text)
    (value,) = values
    shown, kind = short(value), type(value).__name__
    if (found := _OF_ARROW.match(text)) is None:
        return _cut(text if shown in text else f"{shown}: {text}")
    inner = (found[1] or found[2]).rpartition(".")[2]
    return f"{shown} is of type {kind}" + ("" if inner == kind else f", with {inner} inside")


class RowBuilder:
    """Makes batches of one schema from the results of user functions."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._names: tuple[str, ...] = tuple(schema.names)

    def as_tuple(self, result: Any) -> tuple[Any, ...]:
        """One returned row as a tuple in the order of the schema.

        A tuple or list is read by position, a dict (or Row with the same columns) by name;
        anything else is the value of the only column.
        """
        if type(result) is not tuple:
            if isinstance(result, dict):
                return self._from_dict(result)
            as_dict = getattr(result, "asDict", None)
            if as_dict is not None and set(named := as_dict()) == set(self._names):
                return tuple(named[name] for name in self._names)
            if not isinstance(result, (tuple, list)):
                if len(self._names) != 1 or result is None:
                    raise TypeError(f"{short(result)} is not a row of {', '.join(self._names)}")
                return (result,)
        if len(result) != len(self._names):
            raise ValueError(f"{len(result)} values for the columns {', '.join(self._names)}")
        return tuple(result)

    def _from_dict(self, result: dict[str, Any]) -> tuple[Any, ...]:
        unknown = [name for name in result if name not in self._names]
        if unknown:
            raise ValueError(f"no column {unknown[0]!r} among {', '.join(self._names)}")
        return tuple(map(result.get, self._names))

    def build(
        self,
        rows: Sequence[tuple[Any, ...]],
        on_bad: Callable[[Exception, tuple[Any, ...]], None],
        made_of: Given | None = None,
    ) -> pa.RecordBatch | None:
        """A batch of `rows`; those that do not fit are passed to `on_bad` and left out.

        `made_of`: the input, whose values the function may have passed on unchanged.
        """
        if not rows:
            return None
        try:
            return self._build(rows, made_of)
        except UNFIT:
            good = []
            for row in rows:
                try:
                    self._build([row])
                except UNFIT as error:
                    on_bad(error, row)
                else:
                    good.append(row)
            return self._build(good) if good else None

    def _build(
        self, rows: Sequence[tuple[Any, ...]], made_of: Given | None = None
    ) -> pa.RecordBatch:
        columns = []
        for field, values in zip(self.schema, zip(*rows, strict=True), strict=True):
            column = made_of.column_with(field, values) if made_of is not None else None
            columns.append(column_of(field, values) if column is None else column)
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


_YIELD: Final = "yield rows, or return a list of them"


def results_of(returned: Any, make: Callable[[Any], Any]) -> list[Any]:
    """The rows that `make` makes of what a function has returned, which may be any number."""
    if returned is None:
        return []
    if isinstance(returned, (str, bytes, dict, Row)):
        raise TypeError(f"returned {short(returned)}: {_YIELD}")
    try:
        some = islice(returned, RESULTS_MAX + 1)
    except TypeError:
        raise TypeError(f"returned {short(returned)}: {_YIELD}") from None
    try:
        results = [make(result) for result in some]
    except (TypeError, ValueError) as error:
        if not isinstance(returned, tuple):
            raise
        # Several rows may be a tuple; more often it is a row.
        raise TypeError(f"{error}; returned {short(returned)}: {_YIELD}") from None
    if len(results) > RESULTS_MAX:
        raise StepTooLarge(
            f"more than {RESULTS_MAX:,} rows come of one call",
            remedy="see whether what the function yields ever ends; if so, let it return fewer "
            "rows, for example the name of what holds them",
        )
    return results


def short(value: object, length: int = 200) -> str:
    """The repr of a value, cut for an error message; it may be user code that fails."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - user code
        text = f"<{type(value).__name__} that cannot be shown>"
    return _cut(text, length)


def _cut(text: str, length: int = 500) -> str:
    return text if len(text) <= length else f"{text[:length]}..."


def describe(error: BaseException) -> str:
    """An exception in one line, to be quoted in another one that says what to do."""
    if isinstance(error, CallError):
        return error.what  # the name of what it stands for
    if isinstance(error, ClonosError):
        return f"{type(error).__name__}: {error.what}"
    return in_short(error)


def _make_row(names: tuple[str, ...], values: tuple[Any, ...]) -> Row:
    return row_type(tuple(names))(values)


register(
    33,
    Row,
    lambda row: encode([list(row._fields), list(row)]),
    lambda data: _make_row(*decode(data)),
)
register(34, UUID, lambda uuid: uuid.bytes, lambda data: UUID(bytes=data))
