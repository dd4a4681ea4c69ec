"""Bad records as rows: the record that a function could not handle, where, and why.

These rows are output like any other, so a replay must make exactly the same ones. Known differences
between processes are left out: addresses of objects, and folders of the user's files. The rest of
an exception's message must be the same each time.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import PurePath
from typing import Any, Final

import pyarrow as pa

from clonos.blame import last_of_users
from clonos.columns.instants import from_ms
from clonos.columns.rows import Row, describe, dicts_of
from clonos.core.canonical import placed

BAD_RECORDS: Final = pa.schema(
    [
        pa.field("time", pa.timestamp("us", "UTC")),
        pa.field("operator", pa.string()),
        pa.field("record", pa.string()),
        pa.field("error", pa.string()),
        pa.field("raised_at", pa.string()),
    ]
)
"""The schema of ``Job.bad_records``."""

PLACE_MAX: Final = 200
"""Characters of a place in the user's code: those of calls are in logs."""

_ADDRESS: Final = re.compile(r"0x[0-9a-fA-F]{8,}")


class BadRecords:
    """The bad records of one step."""

    def __init__(self) -> None:
        self._rows: list[tuple[Any, ...]] = []

    def __bool__(self) -> bool:
        return bool(self._rows)

    def keep(self, now_ms: int, operator: str, error: Exception, record: Any) -> None:
        """Keep a bad record; if it is a batch, all of its rows."""
        told, place = _clean(describe(error)), place_of(error)
        is_batch = isinstance(record, pa.RecordBatch)
        for each in dicts_of(record) if is_batch else [record]:
            self._rows.append((from_ms(now_ms), operator, as_text(each), told, place))

    def take(self) -> pa.RecordBatch:
        """Return all of them, and forget them."""
        rows, self._rows = self._rows, []
        columns = zip(*rows, strict=True)
        arrays = [pa.array(c, f.type) for c, f in zip(columns, BAD_RECORDS, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=BAD_RECORDS)


def as_text(record: Any) -> str:
    """A record as JSON; text as it is.

    Examples
    --------
    >>> from clonos.columns.rows import row_type
    >>> as_text(row_type(("n", "raw"))((3, b"a")))
    '{"n": 3, "raw": "61"}'
    >>> as_text("timer of key 7")
    'timer of key 7'
    """
    if isinstance(record, str):
        return _clean(record)
    if isinstance(record, (bytes, bytearray)):
        return _clean(bytes(record).decode(errors="backslashreplace"))
    plain = record.asDict() if isinstance(record, Row) else record
    try:
        return _clean(_json(plain))
    except (TypeError, ValueError, RecursionError):  # other keys than strings; cycles
        return _shown(plain)


def _json(value: Any) -> str:
    try:
        return json.dumps(value, default=_plain, ensure_ascii=False, allow_nan=False)
    except ValueError:  # JSON has no NaN or infinities
        return json.dumps(_finite(value), default=_plain, ensure_ascii=False, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {name: _finite(held) for name, held in value.items()}
    return [_finite(held) for held in value] if isinstance(value, (list, tuple)) else value


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
        return _clean(str(value))
    except Exception:  # noqa: BLE001 - user code
        return f"<a {type(value).__name__} that cannot be shown>"


def _clean(text: str) -> str:
    """The text without addresses, which differ between processes, and as Arrow can store it."""
    return _ADDRESS.sub("0x...", text).encode(errors="backslashreplace").decode()


def place_of(error: BaseException) -> str | None:
    """The line of user code that raised the error, without its folder, which differs by machine.

    An error of a call comes out of the log, without a traceback; its place is logged with it.
    """
    frame = last_of_users(error)
    if frame is None:
        logged = getattr(error, "raised_at", None)
        return logged if isinstance(logged, str) else None
    return _clean(f"{PurePath(frame.filename).name}:{frame.lineno}, in {frame.name}")[:PLACE_MAX]


def with_place(encoded: bytes, error: BaseException, service: Any) -> bytes:
    """An encoded error of a call to a service; with its place if bad records are kept."""
    place = place_of(error) if getattr(service, "tells_place", False) else None
    return placed(encoded, place) if place else encoded
