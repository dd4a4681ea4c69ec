"""Layers (or any other bytes) kept on any filesystem that pyarrow knows."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final

from pyarrow import ArrowException, fs

from clonos.core.digest import content_digest
from clonos.core.layer import UnreadableLayer
from clonos.errors import ClonosError, ProtocolError
from clonos.storage.files import (
    UNFINISHED,
    Durability,
    sync_directory,
    sync_file,
    unfinished_name,
)

_TRAILER: Final = struct.Struct("<QQ8s")
_MAGIC: Final = b"CLONSTOR"


class UnusableStore(ClonosError):
    """The URI of a store is wrong or its filesystem out of reach."""


class LayerStore:
    """Files that are whole or absent, checked when read. Written once, never changed.

    Parameters
    ----------
    uri
        A local path, or a URI such as ``"file:///data/layers"``, ``"s3://bucket/job"`` or
        ``"hdfs://namenode/job"``. Every process of the job must reach it.
    durability
        On a local filesystem, what a stored layer survives. Others decide themselves.

    Examples
    --------
    >>> import tempfile
    >>> store = LayerStore(tempfile.mkdtemp())
    >>> store.put("3/000000000017-1-2.layer", b"state")
    29
    >>> store.get("3/000000000017-1-2.layer")
    b'state'
    >>> store.list()
    ['3/000000000017-1-2.layer']
    """

    def __init__(self, uri: str | Path, durability: Durability = "fsync") -> None:
        self._uri = str(uri)
        base, root = _filesystem(self._uri)
        self._root = root
        self.is_local = isinstance(base, fs.LocalFileSystem)
        self._syncs = self.is_local and durability == "fsync"
        base.create_dir(root, recursive=True)
        self._fs = fs.SubTreeFileSystem(root, base)

    def put(self, ref_path: str, data: bytes) -> int:
        """Store `data` under `ref_path` and return the bytes it takes.

        Atomic: no reader ever sees a part. Storing the same again changes nothing.
        """
        path = _relative(ref_path)
        unfinished = unfinished_name(path)
        trailer = _TRAILER.pack(len(data), content_digest(data), _MAGIC)
        self._fs.create_dir(str(PurePosixPath(path).parent), recursive=True)
        try:
            with self._fs.open_output_stream(unfinished) as stream:
                stream.write(data)
                stream.write(trailer)
            if self._syncs:
                sync_file(self._local(unfinished))
            if not self.is_local and self.has(path):
                self._fs.delete_file(path)  # HDFS does not move onto a file
            self._fs.move(unfinished, path)
        except BaseException:
            if self.has(unfinished):
                self._fs.delete_file(unfinished)
            raise
        if self._syncs:
            sync_directory(self._local(path).parent)
        return len(data) + len(trailer)

    def get(self, path: str) -> bytes:
        """Return what was stored under `path`.

        Raises
        ------
        UnreadableLayer
            It is missing or not what was stored.
        """
        try:
            with self._fs.open_input_stream(_relative(path)) as stream:
                stored: bytes = stream.read()
        except FileNotFoundError as error:
            raise self._unreadable(path, "it is missing") from error
        except (OSError, ArrowException) as error:
            raise self._unreadable(path, str(error)) from error
        end = len(stored) - _TRAILER.size
        if end < 0:
            raise self._unreadable(path, f"it has only {len(stored)} bytes")
        nbytes, digest, magic = _TRAILER.unpack_from(stored, end)
        if magic != _MAGIC or nbytes != end:
            raise self._unreadable(path, "its end is not the one that was written")
        data = stored[:end]
        if content_digest(data) != digest:
            raise self._unreadable(path, "its checksum is wrong")
        return data

    def has(self, path: str) -> bool:
        """Whether something is stored under `path`."""
        return bool(self._fs.get_file_info(path).type != fs.FileType.NotFound)

    def delete(self, paths: Iterable[str]) -> None:
        """Delete these; those that are gone already are none of our business."""
        for path in paths:
            with suppress(FileNotFoundError):
                self._fs.delete_file(_relative(path))

    def list(self) -> list[str]:
        """Every stored path, sorted."""
        return [path for path in self._files() if not path.endswith(UNFINISHED)]

    def sweep(self) -> int:
        """Delete what killed writers left unfinished; only while nobody writes. Return how many."""
        leftovers = [path for path in self._files() if path.endswith(UNFINISHED)]
        self.delete(leftovers)
        return len(leftovers)

    def _files(self) -> Iterable[str]:
        found = self._fs.get_file_info(fs.FileSelector("", recursive=True))
        return sorted(info.path for info in found if info.type == fs.FileType.File)

    def _local(self, path: str) -> Path:
        return Path(self._root) / path

    def _unreadable(self, path: str, why: str) -> UnreadableLayer:
        return UnreadableLayer(
            f"the stored layer cannot be read: {why}",
            where=f"{self._uri}/{path}",
            remedy="recover from an older floor or a standby; see that every process reaches the "
            "store and that nothing else deletes from it",
        )


def _filesystem(uri: str) -> tuple[fs.FileSystem, str]:
    if "://" in uri:
        try:
            base, root = fs.FileSystem.from_uri(uri)
        except (ArrowException, OSError) as error:
            raise UnusableStore(
                f"{uri!r} is no place to keep layers: {error}",
                remedy="give a local path or a URI such as file:///data/layers or s3://bucket/job",
            ) from error
        return base, root
    return fs.LocalFileSystem(), str(Path(uri).absolute())


def _relative(path: str) -> str:
    parts = PurePosixPath(path)
    if not path or parts.is_absolute() or ".." in parts.parts:
        raise ProtocolError(f"{path!r} is not a path inside a store", remedy="use layer_path()")
    return str(parts)
