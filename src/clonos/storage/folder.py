"""Files that are whole or absent, and durable when a call has returned.

A file is filled under a hidden name, made durable, and only then gets its name. Then the name is
made durable, with the names of the folders around it, because a file is no safer than they are.
"""

from __future__ import annotations

import errno
import logging
import secrets
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final

import pyarrow as pa

from clonos.core.content import Content
from clonos.errors import OtherContent, ProtocolError
from clonos.storage.files import Durability, Files, Info

_LOG: Final = logging.getLogger("clonos")

UNFINISHED: Final = ".tmp"
"""Suffix of a file that is still being written."""


class Folder:
    """A place in a file system. Paths are relative to it and lead nowhere else.

    Parameters
    ----------
    files, root
        See :func:`~clonos.storage.files.files_of`.
    durability
        What a file survives on a local file system. Other stores are durable by themselves.
    mode
        The permissions of its files, if the file system has any.

    Examples
    --------
    >>> import tempfile
    >>> from clonos.storage.files import files_of
    >>> folder = Folder(*files_of(tempfile.mkdtemp()), "fsync")
    >>> folder.create("a/b", b"first"), folder.create("a/b", b"second")
    (True, False)
    >>> folder.read("a/b").to_pybytes()
    b'first'
    """

    def __init__(self, files: Files, root: str, durability: Durability, mode: int = 0o666) -> None:
        self.files, self.root, self._mode = files, root, mode
        self.is_synced = durability == "fsync" and files.is_local
        self._ready: set[str] = set()
        self._is_anchored = False  # the folders around this one are durable

    def path(self, name: str) -> str:
        """The path of a name in the file system."""
        parts = name.split("/")
        if not name or not parts[0] or ".." in parts:
            raise ProtocolError(f"{name!r} is not a path inside a store", remedy="use layer_path()")
        return f"{self.root}/{'/'.join(part for part in parts if part not in ('', '.')) or '.'}"

    # --- writing ---

    def put(self, name: str, content: Any) -> None:
        """Store a file. An earlier file of this name is gone."""
        path = self.path(name)
        self._give(path, content, self.files.rename)

    def create(self, name: str, content: Any) -> bool:
        """Store a file unless the name is taken. Of several simultaneous callers, one succeeds.

        This holds if the file system `refuses`; otherwise the last caller's file remains.
        """
        path = self.path(name)
        if self.files.info(path) is not None:
            return False
        return self._give(path, content, self.files.name) is not False

    def keep(self, name: str, content: Any, is_same: Callable[[pa.Buffer], bool]) -> None:
        """Make sure that the file exists and is durable, no matter which process has written it.

        A file that is found under the name is verified: an empty or unreadable one is replaced.

        Parameters
        ----------
        is_same
            Whether a file with other bytes means the same. If this, or reading the file, raises,
            the file is damaged.

        Raises
        ------
        OtherContent
            An undamaged file that means something else has the name.
        """
        path = self.path(name)
        if self.create(name, content):
            return
        found = self.files.read(path)
        if not found.equals(pa.py_buffer(content)):
            try:
                agrees = is_same(found)
            except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
                _LOG.warning("%s was damaged and is written again: %s", path, error)
                self.put(name, content)
                return
            if not agrees:
                raise OtherContent(
                    "a file of the name to be written exists, with other content",
                    where=path,
                    remedy="find out who else writes there; if the file is not needed, move it "
                    "away and start the job again",
                )
        if self.is_synced:  # its writer may have died before syncing it
            self.files.sync(path)
            self.files.sync_folder(path.rpartition("/")[0])

    def _give(self, path: str, content: Any, name: Callable[[str, str], bool | None]) -> Any:
        """Fill a file and let `name` give it its name."""
        folder, _, last = path.rpartition("/")
        self.make_folder(folder)
        unfinished = f"{folder}/.{last}.{secrets.token_hex(4)}{UNFINISHED}"
        try:
            try:
                self.files.write(unfinished, content, self._mode)
            except FileNotFoundError:  # another process has deleted the empty folder
                self._ready.clear()
                self._is_anchored = False
                self.make_folder(folder)
                self.files.write(unfinished, content, self._mode)
            if self.is_synced:
                self.files.sync(unfinished)
            done = name(unfinished, path)
        except BaseException:
            with suppress(OSError):
                self.files.delete(unfinished)
            raise
        if self.is_synced:
            self.files.sync_folder(folder)
        return done

    def make_folder(self, path: str) -> None:
        """Make a folder below this one, or this one, unless it exists, and make it durable.

        An existing folder may have been made by a process that died before its name was durable.
        """
        if path in self._ready:
            return
        self.files.make_folder(path)
        if self.is_synced:
            around = path
            while around != self.root:
                around = around.rpartition("/")[0]
                self.files.sync_folder(around)
            if not self._is_anchored:
                self._sync_around()
                self._is_anchored = True
        self._ready.add(path)

    def _sync_around(self) -> None:
        """Sync the folders around this one, up to the first that we may not open."""
        around = self.root
        while around != "/":
            around = around.rpartition("/")[0] or "/"
            try:
                self.files.sync_folder(around)
            except PermissionError:  # then it was there before us
                return
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise  # EINVAL: the file system cannot sync folders

    # --- reading ---

    def read(self, name: str) -> pa.Buffer:
        """The content of a file."""
        return self.files.read(self.path(name))

    def open(self, name: str) -> Content:
        """See :meth:`~clonos.storage.files.Files.open`."""
        return self.files.open(self.path(name))

    def info(self, name: str) -> Info | None:
        """Size and time of a file; None: it does not exist."""
        return self.files.info(self.path(name))

    def has(self, name: str) -> bool:
        """Whether there is a file (or folder) of this name."""
        return self.info(name) is not None

    def entries(self, under: str = "", *, recursive: bool = False) -> list[Info]:
        """Finished files and folders in a folder, sorted, with paths relative to this folder."""
        return [info for info in self._all(under, recursive=recursive) if not is_unfinished(info)]

    def unfinished(self, *, recursive: bool = False) -> list[Info]:
        """Files that killed writers have left, or that others are filling just now."""
        return [info for info in self._all("", recursive=recursive) if is_unfinished(info)]

    def _all(self, under: str, *, recursive: bool) -> list[Info]:
        folder = self.path(under) if under else self.root
        found = self.files.entries(folder, recursive=recursive)
        return [info._replace(path=info.path[len(self.root) + 1 :]) for info in found]

    # --- deleting ---

    def delete(self, names: Iterable[str]) -> None:
        """Delete these files; those that are gone already do not matter."""
        for name in names:
            with suppress(FileNotFoundError):
                self.files.delete(self.path(name))


def is_unfinished(info: Info) -> bool:
    """Whether it is a file that :class:`Folder` has not named yet."""
    return not info.is_folder and info.path.endswith(UNFINISHED)
