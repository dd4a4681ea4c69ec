"""Strings in column expressions, as Spark computes them in its binary collation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from clonos.columns.datum import Datum
from clonos.columns.rows import values_of


def _text(datum: Datum) -> str:
    text: str = datum.as_py()
    return text


def length(arguments: Sequence[Datum], result: pa.DataType) -> Datum:
    """Characters of a string, bytes of a binary value."""
    (column,) = arguments
    kernel = pc.binary_length if column.type == pa.binary() else pc.utf8_length
    return kernel(column).cast(result)


def octets(arguments: Sequence[Datum], result: pa.DataType) -> Datum:
    """Bytes."""
    return pc.binary_length(arguments[0]).cast(result)


def substring(arguments: Sequence[Datum], result: pa.DataType) -> Datum:
    """Characters from a position, which counts from 1, or from the end if it is negative."""
    del result
    column, position, wanted = arguments
    if not (position.is_valid and wanted.is_valid):
        return pa.nulls(len(column), column.type)
    at, size = position.as_py(), wanted.as_py()
    start = at - 1 if at > 0 else at
    stop = start + size
    if start < 0:
        # `start` counts from the end; a slice that would reach beyond the end stops there.
        if stop >= 0:
            return pc.utf8_slice_codeunits(column, start)
        return pc.utf8_slice_codeunits(column, start, max(start, stop))
    return pc.utf8_slice_codeunits(column, start, max(start, stop))


def concat(arguments: Sequence[Datum], result: pa.DataType) -> Datum:
    """All strings joined; null if one of them is null."""
    return pc.binary_join_element_wise(*arguments, pa.scalar("", result))


def trimmed(kernel: Callable[..., Any]) -> Callable[[Sequence[Datum], pa.DataType], Datum]:
    """``trim``, ``ltrim`` and ``rtrim``: of spaces, or of given characters."""

    def compute(arguments: Sequence[Datum], result: pa.DataType) -> Datum:
        del result
        column, *of = arguments
        if of and not of[0].is_valid:
            return pa.nulls(len(column), column.type)
        characters = _text(of[0]) if of else " "
        return kernel(column, characters=characters) if characters else column

    return compute


def in_case(
    ascii_kernel: Callable[[pa.Array], pa.Array], of_string: Callable[[str], str]
) -> Callable[[Sequence[Datum], pa.DataType], Datum]:
    """``upper`` and ``lower``: by Arrow for ASCII, by Python for other strings."""

    def compute(arguments: Sequence[Datum], result: pa.DataType) -> Datum:
        (column,) = arguments
        if pc.all(pc.string_is_ascii(column)).as_py() is not False:
            return ascii_kernel(column)
        made = [None if text is None else of_string(text) for text in values_of(column)]
        return pa.array(made, result)

    return compute


def with_pattern(kernel: Callable[..., Any]) -> Callable[[Sequence[Datum], pa.DataType], Datum]:
    """A kernel that searches for a constant string."""

    def compute(arguments: Sequence[Datum], result: pa.DataType) -> Datum:
        column, pattern = arguments
        if not pattern.is_valid:
            return pa.nulls(len(column), result)
        return kernel(column, pattern=_text(pattern))

    return compute


def replace(arguments: Sequence[Datum], result: pa.DataType) -> Datum:
    """``replace`` of one constant by another."""
    column, search, by = arguments
    if not (search.is_valid and by.is_valid):
        return pa.nulls(len(column), result)
    if not _text(search):
        return column
    return pc.replace_substring(column, pattern=_text(search), replacement=_text(by))


def is_plain_pattern(constants: Sequence[pa.Scalar | None]) -> bool:
    """Whether a pattern of ``like`` escapes nothing."""
    pattern = constants[1]
    return pattern is not None and "\\" not in (pattern.as_py() or "")
