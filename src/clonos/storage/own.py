"""The folder of this user among a machine's temporary files, where everybody may write."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from clonos.errors import UnusableStore


def own_folder(what: str, remedy: str) -> Path:
    """The folder, which is made if it does not exist; nobody else may enter it.

    Parameters
    ----------
    what
        What is kept there, for errors.
    remedy
        What to do if it cannot be used.

    Raises
    ------
    UnusableStore
        There is no folder for temporary files, or another user owns what has the name.
    """
    folder = Path(f"clonos-{os.getuid()}")
    try:
        folder = tempfile.gettempdir() / folder
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise unusable(folder, what, error, remedy) from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise UnusableStore(
            f"{folder} belongs to somebody else, who could read and replace {what}", remedy=remedy
        )
    return folder


def unusable(folder: Path, what: str, error: OSError, remedy: str) -> UnusableStore:
    """The error of a folder of this machine that cannot be made, written or read."""
    return UnusableStore(
        f"the folder {folder} for {what} cannot be used: {error.strerror or error}", remedy=remedy
    )
