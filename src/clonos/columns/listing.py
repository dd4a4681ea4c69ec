"""The functions that column expressions may use in tasks, as a table for ``docs/columns.md``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa

from clonos.columns import casts
from clonos.columns.functions import FUNCTIONS, Function
from clonos.columns.schema import TIMESTAMP

SAMPLES: Final = {
    "boolean": pa.bool_(),
    "integers": pa.int32(),
    "float, double": pa.float64(),
    "decimal": pa.decimal128(10, 2),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": TIMESTAMP,
    "timestamp_ntz": pa.timestamp("us"),
    "struct": pa.struct([("x", pa.int32())]),
}
"""A type of each kind that functions distinguish."""

LAZY_SQL: Final = {
    "And": ("a and b", "boolean"),
    "Or": ("a or b", "boolean"),
    "CaseWhen": ("case when a then b else c end", "boolean, and values: all but struct"),
    "Coalesce": ("coalesce(a, b, ...)", "all but struct"),
    "CreateNamedStruct": ("struct(a, b, ...)", "all but struct"),
}
"""How functions that are computed lazily are written, and their argument types."""

_INT, _TEXT, _INTERVAL = pa.int32(), pa.string(), pa.duration("us")
_RESULTS: Final = (
    pa.bool_(), pa.int32(), pa.float64(), pa.decimal128(11, 2), pa.decimal128(21, 4),
    pa.decimal128(10, 2),
)  # fmt: skip


def table() -> str:
    """The functions as they are written in SQL, in Markdown.

    Examples
    --------
    >>> table().splitlines()[2]
    '| `a and b` | boolean |  |'
    """
    lines = ["| written | of | raises |", "| --- | --- | --- |"]
    lines += [f"| `{sql}` | {kinds} |  |" for sql, kinds in LAZY_SQL.values()]
    for name, function in FUNCTIONS.items():
        if name != "Cast":
            raised = ", ".join(f"`{condition}`" for condition in function.conditions)
            lines.append(
                f"| `{_escaped(function.sql)}` | {', '.join(_kinds(function))} | {raised} |"
            )
    by_source: dict[str, list[str]] = {}
    for source, target in casts.CASTS:
        by_source.setdefault(source, []).append(target)
    for source, targets in by_source.items():
        raised = ", ".join(f"`{one}`" for one in casts.CONDITIONS.get(source, ()))
        lines.append(f"| `cast(a as ...)`, to {', '.join(targets)} | {source} | {raised} |")
    return "\n".join(lines)


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


def _kinds(function: Function) -> list[str]:
    """The kinds of its first argument; of the second, if the first is a name."""
    found = [kind for kind, one in SAMPLES.items() if _takes(function, _forms(one))]
    if len(found) >= len(SAMPLES) - 1:
        return ["all" if len(found) == len(SAMPLES) else "all but struct"]
    return found or [kind for kind, one in SAMPLES.items() if _takes(function, [(_TEXT, one)])]


def _forms(one: pa.DataType) -> Iterator[tuple[pa.DataType, ...]]:
    yield from ((one,), (one, one), (one, _INT), (one, _INT, _INT), (one, _INTERVAL))


def _takes(function: Function, forms: Iterable[tuple[pa.DataType, ...]]) -> bool:
    return any(function.accepts(form, result) for form in forms for result in (*_RESULTS, form[-1]))
