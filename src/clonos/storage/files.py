"""Files that appear whole or not at all, and how much a write must survive."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal
from urllib.parse import quote

Durability = Literal["fsync", "process"]
"""``"fsync"``: survives the machine. ``"process"``: survives the death of the process only."""

UNFINISHED: Final = ".tmp"
"""How the name of a file ends while it is being written."""


def folder_name(name: str) -> str:
    """A folder's name for what may hold anything. It is the same in a path and in a URI, and leads
    nowhere else, as ``..`` would.

    Examples
    --------
    >>> folder_name("a/b"), folder_name(".."), folder_name("by_key")
    ('a=2Fb', '=2E=2E', 'by_key')
    """
    return quote(name, safe="").replace(".", "%2E").replace("%", "=")


def unfinished_name(path: str) -> str:
    """Return a name beside `path` that no other writer uses."""
    return f"{path}.{secrets.token_hex(4)}{UNFINISHED}"


def sync_file(path: str | Path) -> None:
    """Make a file's content durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(path: str | Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: Path, write: Callable[[Path], None], durability: Durability) -> None:
    """Let `write` fill a file beside `path`, which then takes its name.

    Whoever looks at `path` sees the old file or the new one, never a part. On an error nothing
    of the new one is left.
    """
    unfinished = Path(unfinished_name(str(path)))
    try:
        write(unfinished)
        if durability == "fsync":
            sync_file(unfinished)
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    if durability == "fsync":
        sync_directory(path.parent)
