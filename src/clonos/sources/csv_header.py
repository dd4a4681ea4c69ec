"""The first line of a CSV file names its columns, and must name those of the schema.

Values are taken by position. A header with the same names in another order would give each value to
another column, and nobody would notice as long as the types fit.
"""

from __future__ import annotations

import codecs
import io
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.csv as pa_csv

from clonos.columns.schema import to_ddl
from clonos.errors import UnknownColumn

_BLANK = (b"", codecs.BOM_UTF8)
_SHOWN_MAX = 2000


def without_header(
    pieces: Iterable[list[bytes | None]], header: list[bytes | None], schema: pa.Schema, path: str
) -> Iterator[list[bytes | None]]:
    """The lines of a file, or of a part of it, without its header, which is checked first.

    Parameters
    ----------
    header
        The header as a list of one line; if empty, it is the first line of `pieces`.

    Raises
    ------
    UnknownColumn
        The header has other names than the schema, or another order.
    ValueError
        It cannot be read as a line of CSV.
    """
    is_checked = False
    for lines in pieces:
        if not header and lines:
            header = [lines.pop(0)]
        # Blank lines are no rows, so a file that has nothing else needs no header.
        if not is_checked and header and (header[0] not in _BLANK or any(lines)):
            require_header(header[0], schema, path)
            is_checked = True
        if lines:
            yield lines


def require_header(line: bytes | None, schema: pa.Schema, path: str) -> None:
    """Raise `UnknownColumn` unless a header names the columns of a schema, in their order."""
    names = _names(line)
    if _same(names, schema.names):
        return
    if not names:
        remedy = "name them in its first line"
    elif len(set(names)) < len(names):
        remedy = "name each column of the file once"
    else:
        remedy = (
            f"write schema={_cut(_fitting(names, schema))!r}, as the file has them, and rename "
            "columns afterwards; if its first line is a row, add a header"
        )
    raise UnknownColumn(
        f"the columns of this CSV file are {_cut(', '.join(names)) or 'not named'}, but those of "
        f"the schema are {_cut(', '.join(schema.names))}; values are taken by position",
        where=path,
        remedy=remedy,
    )


def _names(line: bytes | None) -> list[str]:
    if line is None:
        raise ValueError("its first line, the header, is longer than allowed")
    line = line.removeprefix(codecs.BOM_UTF8)
    line.decode()  # checks that it is UTF-8
    if b"\r" in line:  # for Arrow the header ends there, and the rest would be lost
        raise ValueError("its first line has a \\r, but a line ends with \\n or \\r\\n")
    if not line.strip():
        return []
    read = pa_csv.ReadOptions(use_threads=False, block_size=len(line) + 16)
    found = pa_csv.read_csv(io.BytesIO(line + b"\n"), read_options=read).schema.names
    return [name.strip() for name in found]


def _same(names: list[str], wanted: list[str]) -> bool:
    """Whether they are the same, but for spaces around them and, if all differ in more, case."""
    wanted = [name.strip() for name in wanted]
    if names == wanted:
        return True
    folded = [name.casefold() for name in names]
    return len(set(folded)) == len(folded) and folded == [name.casefold() for name in wanted]


def _fitting(names: list[str], schema: pa.Schema) -> str:
    """The schema that fits the file: types by name, or else by position."""
    by_name = {field.name.strip().casefold(): field for field in schema}
    fields = []
    for i, name in enumerate(names):
        field = by_name.get(name.casefold())
        if field is None and len(names) == len(schema):
            field = schema.field(i)
        fields.append(pa.field(name, pa.string()) if field is None else field.with_name(name))
    return to_ddl(pa.schema(fields))


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}..."
