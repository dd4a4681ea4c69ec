"""What Arrow does not check when a column is made: values that it would change without a word.

It cuts off what follows the point of a number (12.99 becomes 12), and takes a number that is too
large for a float for infinity, pandas' ``NaT`` for a day of the year 1, a text for the list of its
letters, a row for its values in whatever order, and nulls in parts that may have none. Of a moment
it takes the day, or leaves out the nanoseconds. Of a dict it leaves out what the struct has no
field for. It ends the process if there is None among the pairs of a map.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from datetime import date, datetime, time
from functools import lru_cache
from itertools import chain
from math import inf
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

_WHOLE: Final = frozenset({int, type(None)})
"""Types of which no value has a fraction."""
_DAYS: Final = frozenset({date, type(None)})
"""Types of which every value is a day."""
_TIMES: Final = frozenset({date, datetime, type(None)})
"""Types of which every value is a moment or a day."""
_TEXTS: Final = frozenset({str, bytes, bytearray})
_TOO_LARGE: Final = float.fromhex("0x1.ffffffp127")
"""The least number for which a float of 32 bits has only infinity."""


def require_kept(data_type: pa.DataType, values: Sequence[Any]) -> None:
    """Raise `ValueError` or `TypeError` if a value fits the type only when it is changed.

    `values` can be made an array of the type; what is inside of lists, maps and structs counts.

    Examples
    --------
    >>> require_kept(pa.list_(pa.int64()), [[1, 2.0], None])
    >>> require_kept(pa.list_(pa.int64()), [[1, 2.5]])
    Traceback (most recent call last):
    ValueError: 2.5 is no whole number
    """
    if pa.types.is_integer(data_type):
        _require_whole(values)
    elif pa.types.is_float32(data_type):
        _require_finite(values)
    elif pa.types.is_date(data_type) or pa.types.is_timestamp(data_type):
        _require_times(values, of_days=pa.types.is_date(data_type))
    elif pa.types.is_map(data_type):
        pairs = [pair for value in values if value is not None for pair in _pairs(value)]
        require_kept(data_type.key_type, [key for key, _ in pairs])
        require_kept(data_type.item_type, [item for _, item in pairs])
    elif pa.types.is_list(data_type) or pa.types.is_large_list(data_type):
        _require_lists(values)
        if _may_change(data_type.value_type):
            inside = chain.from_iterable(value for value in values if value is not None)
            require_kept(data_type.value_type, list(inside))
    elif pa.types.is_struct(data_type):
        _require_fields(data_type, values)


def require_pairs(data_type: pa.DataType, values: Iterable[Any]) -> None:
    """Raise `TypeError` if a map has no pair among its pairs: of None, Arrow ends the process.

    The values may be anything: what is no map at all is left to Arrow.

    Examples
    --------
    >>> require_pairs(pa.map_(pa.string(), pa.int64()), [{"a": None}, None, [None]])
    Traceback (most recent call last):
    TypeError: None is no pair of a key and a value
    """
    if pa.types.is_struct(data_type):
        for i, part in enumerate(data_type):
            if pa.types.is_nested(part.type):
                require_pairs(part.type, [_part(value, i, part.name) for value in values])
        return
    kind = data_type.item_type if pa.types.is_map(data_type) else data_type.value_type
    for value in values:
        is_dict = isinstance(value, dict)
        may_hold = is_dict or isinstance(value, (Sequence, AbstractSet))
        if not (may_hold or hasattr(value, "__array__")):
            continue
        inside = list(value.values() if is_dict else value)
        if pa.types.is_map(data_type) and not is_dict:
            for pair in inside:  # also what pandas takes for None
                if not isinstance(pair, (tuple, dict)):
                    raise TypeError(f"{pair!r:.200} is no pair of a key and a value")
            inside = [_part(pair, 1, "value") for pair in inside]
        if pa.types.is_nested(kind):
            require_pairs(kind, inside)


def _part(value: Any, place: int, name: str) -> Any:
    """A part of a struct, or of a pair; None: there is none."""
    if isinstance(value, dict):
        return value.get(name)
    return value[place] if isinstance(value, tuple) and place < len(value) else None


def require_nulls_allowed(field: pa.Field, column: pa.Array) -> None:
    """Raise `ValueError` if there is a null where the field, or a part of it, may have none.

    Examples
    --------
    >>> inner = pa.struct([pa.field("x", pa.int64(), nullable=False)])
    >>> require_nulls_allowed(pa.field("s", inner), pa.array([{"x": None}], inner))
    Traceback (most recent call last):
    ValueError: null in column 's.x', which is not nullable
    """
    if not field.nullable and column.null_count:
        raise ValueError(f"null in column {field.name!r}, which is not nullable")
    if not _has_required(field.type):
        return
    if pa.types.is_struct(field.type):
        alive = column.drop_null()
        parts = [(part.name, part, alive.field(i)) for i, part in enumerate(field.type)]
    elif pa.types.is_map(field.type):
        ends = column.offsets  # items are those of the array of which this is a slice
        inside = column.items.slice(ends[0].as_py(), ends[-1].as_py() - ends[0].as_py())
        parts = [("value", field.type.item_field, inside)]
    else:
        parts = [("element", field.type.value_field, column.flatten())]
    for name, part, inside in parts:
        require_nulls_allowed(part.with_name(f"{field.name}.{name}"), inside)


def infinities(values: pa.Array | pa.ChunkedArray) -> int:
    """How many infinite numbers are in an array, or inside of it: a cast to floats adds some.

    Examples
    --------
    >>> numbers = pa.array([[1e300], None, [float("inf")]])
    >>> infinities(numbers), infinities(numbers.cast(pa.list_(pa.float32())))
    (1, 2)
    """
    types = pa.types
    if types.is_floating(values.type):
        return pc.sum(pc.is_inf(values)).as_py() or 0
    if types.is_list(values.type) or types.is_large_list(values.type):
        return infinities(values.flatten())
    if types.is_struct(values.type):
        return sum(map(infinities, values.flatten()))
    if types.is_map(values.type):
        return infinities(values.keys) + infinities(values.items)
    return 0


@lru_cache(maxsize=1024)
def _may_change(data_type: pa.DataType) -> bool:
    """Whether a value of this type, or in it, can be one that is changed."""
    is_one = (
        pa.types.is_integer(data_type)
        or pa.types.is_float32(data_type)
        or pa.types.is_date(data_type)
        or pa.types.is_timestamp(data_type)
    )
    return bool(is_one or pa.types.is_nested(data_type))


@lru_cache(maxsize=1024)
def _has_required(data_type: pa.DataType) -> bool:
    """Whether a part of the type may have no nulls."""
    if pa.types.is_struct(data_type):
        parts = list(data_type)
    elif pa.types.is_map(data_type):
        parts = [data_type.item_field]
    elif pa.types.is_list(data_type) or pa.types.is_large_list(data_type):
        parts = [data_type.value_field]
    else:
        return False
    return any(not part.nullable or _has_required(part.type) for part in parts)


def _require_whole(numbers: Sequence[Any]) -> None:
    if set(map(type, numbers)) <= _WHOLE:
        return
    for number in numbers:
        if number is not None and number != int(number):
            raise ValueError(f"{number!r} is no whole number")


def _require_finite(numbers: Sequence[Any]) -> None:
    for number in numbers:
        if number is not None and _TOO_LARGE <= abs(number) < inf:
            raise ValueError(f"{number!r} is too large for a float")


def _require_times(values: Sequence[Any], *, of_days: bool) -> None:
    if set(map(type, values)) <= (_DAYS if of_days else _TIMES):
        return
    for value in values:
        if isinstance(value, date):
            if value != value:  # noqa: PLR0124 - pandas' NaT, which is of no class of ours
                raise ValueError("NaT is no moment and no day: None is null")
            if of_days and isinstance(value, datetime) and value.time() != time():
                raise ValueError(f"{value!r} is a moment, not a day: use its date()")
            if getattr(value, "nanosecond", 0):  # of pandas
                raise ValueError(f"{value!r} has nanoseconds, and a time has microseconds")
        elif isinstance(value, float):
            raise TypeError(f"{value!r} is a number, not a datetime")


def _require_lists(values: Sequence[Any]) -> None:
    if _TEXTS.isdisjoint(map(type, values)):
        return
    text = next(value for value in values if type(value) in _TEXTS)
    raise ValueError(f"{text!r} is a text, not a list")


def _require_fields(data_type: pa.DataType, structs: Sequence[Any]) -> None:
    structs = [struct for struct in structs if struct is not None]
    structs = [dict(struct) if isinstance(struct, list) else struct for struct in structs]
    names = [part.name for part in data_type]
    for struct in structs:
        _require_names(names, struct)
    for i, part in enumerate(data_type):
        if _may_change(part.type):
            values = [s.get(part.name) if isinstance(s, dict) else s[i] for s in structs]
            require_kept(part.type, values)


def _require_names(names: list[str], struct: Any) -> None:
    """Refuse a dict with a name that the struct lacks, and a row with its names in another order.

    Arrow leaves out the one, and takes the other by position.
    """
    if isinstance(struct, dict):
        if unknown := [name for name in struct if name not in names]:
            raise ValueError(f"no field {unknown[0]!r} among {', '.join(names)}")
        return
    given = getattr(struct, "_fields", None) or getattr(struct, "__fields__", None)
    if given is not None and list(given) != names and set(given) == set(names):
        raise ValueError(f"the fields are {', '.join(given)}, not {', '.join(names)}")


def _pairs(value: Any) -> list[tuple[Any, Any]]:
    """The keys and values of a map, in each of the forms that Arrow takes."""
    if isinstance(value, dict):
        return list(value.items())
    for pair in value:
        if isinstance(pair, dict):
            _require_names(["key", "value"], pair)
    return [(_part(pair, 0, "key"), _part(pair, 1, "value")) for pair in value]
