"""Files that appear whole or not at all, and how much a write must survive."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Literal
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


def name_once(system: Any, unfinished: str, path: str) -> None:
    """Give a finished file its name on a file system of pyarrow, unless another has it already:
    then ours is deleted.

    Where the file system can neither link nor refuse, as object stores cannot, the later of two
    that do this at the same moment has it.
    """
    is_there = False
    if system.type_name == "local":
        with suppress(OSError):  # the name is taken; or this disk knows no links
            os.link(unfinished, path)
        is_there = system.get_file_info(path).is_file
    if not is_there:
        try:
            system.move(unfinished, path)
        except OSError:
            if not system.get_file_info(path).is_file:
                raise  # else HDFS: it does not move onto a file
        else:
            return
    system.delete_file(unfinished)


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
