"""How often the plan of a job has been replaced: the first record of its journal, if it ever
was."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgpack

VERSION: Final = "version"
"""The kind of the record."""


def version_of(records: Iterable[bytes]) -> int:
    """How often the plan of a job had been replaced when this journal was written.

    Examples
    --------
    >>> version_of([msgpack.packb(("version", 2)), msgpack.packb(("term", 3, 0, False))])
    2
    """
    for record in records:
        kind, *fields = msgpack.unpackb(record, strict_map_key=False)
        return int(fields[0]) if kind == VERSION else 0
    return 0
