"""Bad records as rows: what no function could handle, where, and why.

Such rows are output like any other: they are made again by a replay, digit for digit. So nothing
goes into them that differs from process to process: no address of an object, no path.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import PurePath
from typing import Any, Final

import pyarrow as pa

from clonos.blame import in_short, last_of_users
from clonos.columns.instants import from_ms
from clonos.columns.rows import Row, rows_of

BAD_RECORDS: Final = pa.schema(
    [
        pa.field("time", pa.timestamp("us", "UTC")),
        pa.field("operator", pa.string()),
        pa.field("record", pa.string()),
        pa.field("error", pa.string()),
        pa.field("raised_at", pa.string()),
    ]
)
"""Of ``Job.bad_records``."""

_ADDRESS: Final = re.compile(r" at 0x[0-9a-fA-F]+")


class BadRecords:
    """Those of one step."""

    def __init__(self) -> None:
        self._rows: list[tuple[Any, ...]] = []

    def __bool__(self) -> bool:
        return bool(self._rows)

    def keep(self, now_ms: int, operator: str, error: Exception, record: Any) -> None:
        """One more; of a batch, all of its rows."""
        told = _same_everywhere(in_short(error))
        place = _place(error)
        records: Iterable[Any] = rows_of(record) if isinstance(record, pa.RecordBatch) else [record]
        for each in records:
            self._rows.append((from_ms(now_ms), operator, as_text(each), told, place))

    def take(self) -> pa.RecordBatch:
        """All of them, and forget them."""
        rows, self._rows = self._rows, []
        columns = zip(*rows, strict=True)
        arrays = [pa.array(c, f.type) for c, f in zip(columns, BAD_RECORDS, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=BAD_RECORDS)


def as_text(record: Any) -> str:
    """A record as JSON, or as it is if it is text.

    Examples
    --------
    >>> from clonos.columns.rows import row_type
    >>> as_text(row_type(("n", "raw"))((3, b"a")))
    '{"n": 3, "raw": "61"}'
    >>> as_text("timer of key 7")
    'timer of key 7'
    """
    if isinstance(record, str):
        return record
    if isinstance(record, (bytes, bytearray)):
        return bytes(record).decode(errors="backslashreplace")
    plain = record.asDict() if isinstance(record, Row) else record
    try:
        return json.dumps(plain, default=_plain, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):  # keys that are no text; lists in themselves
        return _shown(plain)


def _plain(value: Any) -> Any:
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).hex()
    if isinstance(value, (set, frozenset)):
        return sorted(map(_shown, value))
    if hasattr(value, "isoformat"):
        return value.isoformat()
    return _shown(value)


def _shown(value: Any) -> str:
    try:
        return _same_everywhere(str(value))
    except Exception:  # noqa: BLE001 - user code
        return f"<a {type(value).__name__} that cannot be shown>"


def _same_everywhere(text: str) -> str:
    return _ADDRESS.sub("", text)


def _place(error: BaseException) -> str | None:
    """The user's own line that raised it. Folders differ from machine to machine."""
    frame = last_of_users(error)
    if frame is None:
        return None
    return f"{PurePath(frame.filename).name}:{frame.lineno}, in {frame.name}"
