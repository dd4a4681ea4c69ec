"""Files and folders in memory, and changes to them as data.

A change is checked when it is proposed, and then applied by every reader of the chain: the same
changes in the same order make the same tree.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from clonos.storage.files import Info

Change = tuple[Any, ...]
"""A word and its arguments: ``("write", path, content, time)``, ``("append", path, content,
time)``, ``("rename", path, new)``, ``("delete", path)``, ``("folder", path)``, ``("no folder",
path)``."""


@dataclass
class _File:
    chunks: list[bytes]
    modified_s: float

    @property
    def nbytes(self) -> int:
        return sum(map(len, self.chunks))


@dataclass
class Tree:
    """The files and folders as of now. All paths are absolute; the root always exists."""

    files: dict[str, _File] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)

    # --- changes ---------------------------------------------------------------------------------

    def write(self, path: str, content: bytes, now_s: float) -> Change:
        """Write a file, replacing its content."""
        self._require_folder(path.rpartition("/")[0])
        if path in self.folders:
            raise IsADirectoryError(errno.EISDIR, "a folder has that name", path)
        return ("write", path, content, now_s)

    def append(self, path: str, content: bytes, now_s: float) -> Change:
        """Append to a file."""
        self._file(path)
        return ("append", path, content, now_s)

    def rename(self, path: str, new: str) -> Change:
        """Give a file another name. A file that had that name is gone."""
        self._file(path)
        self._require_folder(new.rpartition("/")[0])
        return ("rename", path, new)

    def delete(self, path: str) -> Change:
        """Delete a file."""
        self._file(path)
        return ("delete", path)

    def make_folder(self, path: str) -> Change | None:
        """Make a folder and its parents; None: it exists."""
        for folder in _around(path):
            if folder in self.files:
                raise NotADirectoryError(errno.ENOTDIR, "it is a file", folder)
        return None if path in self.folders else ("folder", path)

    def delete_folder(self, path: str) -> Change:
        """Delete a folder, which must be empty."""
        self._require_folder(path)
        if any(info.path.startswith(f"{path}/") for info in self._all()):
            raise OSError(errno.ENOTEMPTY, "the folder is not empty", path)
        return ("no folder", path)

    def apply(self, change: Change) -> None:
        """Apply a change, which was checked when it was proposed, with no other change in
        between."""
        kind, path, *rest = change
        if kind == "write":
            self.files[path] = _File([rest[0]], rest[1])
        elif kind == "append":
            file = self.files[path]
            file.chunks.append(rest[0])
            file.modified_s = rest[1]
        elif kind == "rename":
            self.files[rest[0]] = self.files.pop(path)
        elif kind == "delete":
            del self.files[path]
        elif kind == "folder":
            self.folders.update(_around(path))
        else:
            self.folders.discard(path)

    # --- what there is ---------------------------------------------------------------------------

    def read(self, path: str) -> pa.Buffer:
        """The content of a file."""
        file = self._file(path)
        if len(file.chunks) > 1:
            file.chunks = [b"".join(file.chunks)]
        return pa.py_buffer(file.chunks[0])

    def info(self, path: str) -> Info | None:
        """The file or folder at a path; None: there is none."""
        if path in self.folders:
            return Info(path, 0, 0.0, is_folder=True)
        file = self.files.get(path)
        return None if file is None else Info(path, file.nbytes, file.modified_s, is_folder=False)

    def entries(self, folder: str, *, recursive: bool) -> list[Info]:
        """The entries of a folder, sorted by path."""
        start = len(folder) + 1
        below = (info for info in self._all() if info.path.startswith(f"{folder}/"))
        return sorted(info for info in below if recursive or "/" not in info.path[start:])

    @property
    def nbytes(self) -> int:
        """The size of all files."""
        return sum(file.nbytes for file in self.files.values())

    def _all(self) -> Iterator[Info]:
        for path in (*self.files, *self.folders):
            info = self.info(path)
            assert info is not None
            yield info

    def _file(self, path: str) -> _File:
        if path not in self.files:
            raise FileNotFoundError(errno.ENOENT, "there is no such file", path)
        return self.files[path]

    def _require_folder(self, path: str) -> None:
        if path and path not in self.folders:
            raise FileNotFoundError(errno.ENOENT, "there is no such folder", path)

    # --- as a value ------------------------------------------------------------------------------

    def value(self) -> Any:
        """The whole tree as an immutable value."""
        files = {path: (tuple(f.chunks), f.modified_s) for path, f in self.files.items()}
        return (files, tuple(sorted(self.folders)))

    @classmethod
    def of(cls, value: Any) -> Tree:
        """Inverse of :meth:`value`."""
        files, folders = value
        made = {path: _File([b"".join(chunks)], s) for path, (chunks, s) in files.items()}
        return cls(made, set(folders))


def _around(path: str) -> list[str]:
    """A folder and its parents.

    Examples
    --------
    >>> _around("/a/b")
    ['/a', '/a/b']
    """
    names = path.strip("/").split("/")
    return ["/" + "/".join(names[: i + 1]) for i in range(len(names))] if path.strip("/") else []
