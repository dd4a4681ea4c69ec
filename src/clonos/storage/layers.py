"""Layers (or any other bytes) kept on any filesystem that pyarrow knows."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyarrow import ArrowException

from clonos.core.digest import content_digest
from clonos.core.layer import UnreadableLayer
from clonos.errors import ClonosError
from clonos.storage.files import Durability, Files, files_of
from clonos.storage.folder import Folder

_TRAILER: Final = struct.Struct("<QQ8s")
_MAGIC: Final = b"CLONSTOR"


class StoreAway(ClonosError):
    """A store cannot be reached, or takes nothing, for the moment: it may be tried again."""


class LayerStore:
    """Files that are whole or absent, checked when read. Written once, never changed.

    Parameters
    ----------
    uri
        A local path, or a URI such as ``"file:///data/layers"``, ``"s3://bucket/job"`` or
        ``"hdfs://namenode/job"``. Every process of the job must reach it.
    durability
        On a local filesystem, what a stored layer survives. Others decide themselves.
    files
        The file system that `uri` is a path in, if it is none of those.

    Every method raises :class:`StoreAway` where the file system fails.

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

    def __init__(
        self, uri: str | Path, durability: Durability = "fsync", files: Files | None = None
    ) -> None:
        self._uri = str(uri)
        found, root = files_of(uri) if files is None else (files, self._uri)
        self.is_local = found.is_local
        self._folder = Folder(found, root, durability)

    def put(self, ref_path: str, data: bytes) -> int:
        """Store `data` under `ref_path` and return the bytes it takes.

        Atomic: no reader ever sees a part. Storing the same again changes nothing.
        """
        content = _framed(data)
        with self._reaching(ref_path):
            self._folder.put(ref_path, content)
        return len(content)

    def create(self, path: str, data: bytes) -> bool:
        """Store `data` under `path` unless something is there; False then.

        Of two that come at once one is refused, as far as the file system can do that.
        """
        with self._reaching(path):
            return self._folder.create(path, _framed(data))

    def get(self, path: str) -> bytes:
        """Return what was stored under `path`.

        Raises
        ------
        UnreadableLayer
            It is missing or not what was stored.
        """
        try:
            with self._reaching(path):
                stored = self._folder.read(path)
        except FileNotFoundError as error:
            raise self._unreadable(path, "it is missing") from error
        end = len(stored) - _TRAILER.size
        if end < 0:
            raise self._unreadable(path, f"it has only {len(stored)} bytes")
        nbytes, digest, magic = _TRAILER.unpack_from(stored, end)
        if magic != _MAGIC or nbytes != end:
            raise self._unreadable(path, "its end is not the one that was written")
        data: bytes = stored[:end].to_pybytes()
        if content_digest(data) != digest:
            raise self._unreadable(path, "its checksum is wrong")
        return data

    def has(self, path: str) -> bool:
        """Whether something is stored under `path`."""
        with self._reaching(path):
            return self._folder.has(path)

    def delete(self, paths: Iterable[str]) -> None:
        """Delete these; those that are gone already are none of our business."""
        with self._reaching(""):
            self._folder.delete(paths)

    def list(self) -> list[str]:
        """Every stored path, sorted."""
        with self._reaching(""):
            found = self._folder.entries(recursive=True)
        return [info.path for info in found if not info.is_folder]

    def sweep(self) -> int:
        """Delete what killed writers left unfinished; only while nobody writes. Return how many."""
        with self._reaching(""):
            leftovers = [info.path for info in self._folder.unfinished(recursive=True)]
            self._folder.delete(leftovers)
        return len(leftovers)

    @contextmanager
    def _reaching(self, path: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except (OSError, ArrowException) as error:
            raise StoreAway(
                f"the store cannot be used: {error}",
                where=f"{self._uri}/{path}".rstrip("/"),
                remedy="see that every process reaches it and that it has room",
            ) from error

    def _unreadable(self, path: str, why: str) -> UnreadableLayer:
        return UnreadableLayer(
            f"the stored layer cannot be read: {why}",
            where=f"{self._uri}/{path}",
            remedy="recover from an older floor or a standby; see that every process reaches the "
            "store and that nothing else deletes from it",
        )


def _framed(data: bytes) -> bytes:
    return b"".join((data, _TRAILER.pack(len(data), content_digest(data), _MAGIC)))
