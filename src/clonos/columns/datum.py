"""Arguments and results of expression kernels: an Arrow array, or one value for all rows."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

Datum: TypeAlias = Any
"""A ``pa.Array``, or a ``pa.Scalar`` for all rows. A kernel has at least one array."""


class Fault(Exception):
    """Some row has no value.

    Parameters
    ----------
    condition
        The name that Spark gives it, such as ``"DIVIDE_BY_ZERO"``.
    """

    def __init__(self, condition: str) -> None:
        super().__init__(condition)
        self.condition = condition


def any_true(mask: Datum) -> bool:
    """Whether any value is true; nulls are not.

    Examples
    --------
    >>> any_true(pa.array([False, None])), any_true(pa.scalar(True))
    (False, True)
    """
    if isinstance(mask, pa.Scalar):
        return bool(mask.as_py())
    return bool(mask.true_count)


def rows_of_all(arguments: list[Datum]) -> int:
    """How many rows the arguments of a kernel have."""
    return next(len(argument) for argument in arguments if isinstance(argument, pa.Array))


def numpy_of(column: pa.Array, as_type: pa.DataType | None = None) -> np.ndarray[Any, Any]:
    """The values of fixed width, seen as `as_type`; zero for null.

    Examples
    --------
    >>> numpy_of(pa.array([1, None])).tolist()
    [1, 0]
    """
    if as_type is not None and column.type != as_type:
        column = column.view(as_type)
    if column.null_count:
        column = column.fill_null(0)
    values: np.ndarray[Any, Any] = column.to_numpy(zero_copy_only=False)
    return values


def with_nulls_of(
    column: pa.Array, values: np.ndarray[Any, Any], data_type: pa.DataType
) -> pa.Array:
    """Values of fixed width as a column that is null where `column` is.

    Examples
    --------
    >>> with_nulls_of(pa.array([5, None]), np.array([1, 2], np.int32), pa.date32()).to_pylist()
    [datetime.date(1970, 1, 2), None]
    """
    mask = column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None
    made = pa.array(values, mask=mask)
    return made if made.type == data_type else made.view(data_type)
