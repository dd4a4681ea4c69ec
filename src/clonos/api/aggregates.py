"""What can be computed in a window. Named as in SQL, so they hide Python's when star-imported."""

from __future__ import annotations

from clonos.operators.aggregates import Aggregate


def count(column: str | None = None) -> Aggregate:
    """The number of rows, or of values in `column` that are not null.

    Examples
    --------
    >>> count()
    Aggregate(kind='count', column=None)
    """
    return Aggregate("count", column)


def sum(column: str) -> Aggregate:  # noqa: A001 - as in PySpark's functions
    """The sum of a numeric column: a bigint for integers, a double for floats, and for decimals a
    decimal with ten more digits. A sum that does not fit fails the job, as in Spark's ANSI mode.

    Examples
    --------
    >>> import clonos
    >>> paid = clonos.Job().source(clonos.sources.from_batches([], "user string, cents long"))
    >>> day = paid.key_by("user").window(clonos.tumbling("1 day"))
    >>> day.agg(total=clonos.sum("cents"), n=clonos.count()).schema.names
    ['user', 'window_start', 'window_end', 'total', 'n']
    """
    return Aggregate("sum", column)


def min(column: str) -> Aggregate:  # noqa: A001 - see sum
    """The smallest value of a column of numbers, times or strings."""
    return Aggregate("min", column)


def max(column: str) -> Aggregate:  # noqa: A001 - see sum
    """The largest value of a column of numbers, times or strings."""
    return Aggregate("max", column)


def avg(column: str) -> Aggregate:
    """The mean of a numeric column: a double; for decimals, one with more digits, as in Spark."""
    return Aggregate("avg", column)
