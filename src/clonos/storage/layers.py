"""Layers (or any other bytes) kept on any filesystem that pyarrow knows."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar

from pyarrow import ArrowException

from clonos.core.content import Chunks, Content, Part, encoded
from clonos.core.digest import content_digest
from clonos.core.events import StoreLayer
from clonos.core.layer import layer_chunks, layer_path, open_layer, refer_to
from clonos.core.levels import LayerRef
from clonos.core.sealed import Layer
from clonos.errors import OtherContent, StoreAway, UnreadableLayer, UnusableStore
from clonos.storage.files import Durability, Files, LocalDiskFailed, files_of
from clonos.storage.folder import Folder
from clonos.storage.retry import Retry, may_pass

_TRAILER: Final = struct.Struct("<QQ8s")
_MAGIC: Final = b"CLONSTOR"

OPENED_BYTES: Final = 1 << 20
"""Layers of at least this size are not read as a whole."""

_T = TypeVar("_T")


class LayerStore:
    """Files that are whole or absent, checked when read. Written once, never changed.

    Parameters
    ----------
    uri
        A local path, or a URI such as ``"file:///data/layers"``, ``"s3://bucket/job"`` or
        ``"hdfs://namenode/job"``. Every process of the job must reach it.
    durability
        What a stored layer survives on a local filesystem. Other stores are durable by themselves.
    files
        The file system in which `uri` is a path, if it is none of those.
    retry
        Retries until the file system works again. Without it, every method raises
        :class:`~clonos.errors.StoreAway` if the file system fails. Errors that waiting does
        not mend, such as missing permissions, are an `UnusableStore` at once.

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
        self,
        uri: str | Path,
        durability: Durability = "fsync",
        files: Files | None = None,
        retry: Retry | None = None,
    ) -> None:
        self._uri, self._retry = str(uri), retry
        found, root = files_of(uri) if files is None else (files, self._uri)
        self.is_local = found.is_local
        self._folder = Folder(found, root, durability)

    def put(self, ref_path: str, data: bytes | Chunks) -> int:
        """Store `data` under `ref_path` and return the bytes it takes.

        Atomic: no reader ever sees a part. Storing the same content again changes nothing.
        """
        content = _framed(data)
        self._do(ref_path, lambda: self._folder.put(ref_path, content))
        return len(content)

    def make_room(self, paths: Iterable[str]) -> None:
        """Make the folders of these paths, so that to put something there takes less time."""
        for path in paths:
            folder = self._folder.path(path).rpartition("/")[0]
            self._do(path, lambda folder=folder: self._folder.make_folder(folder))  # type: ignore[misc]

    def create(self, path: str, data: bytes) -> bool:
        """Store `data` under `path` unless something else is there; then False.

        Of two simultaneous callers one is refused, if the file system can do that.
        """
        content = _framed(data)
        try:  # the same content is ours, from an attempt that seemed to have failed
            self._do(path, lambda: self._folder.keep(path, content, lambda _: False))
        except OtherContent:
            return False
        return True

    def get(self, path: str) -> bytes:
        """Return what was stored under `path`.

        Raises
        ------
        UnreadableLayer
            It is missing or not what was stored.
        """
        try:
            stored = self._do(path, lambda: self._folder.read(path))
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

    def open(self, path: str) -> Content:
        """The same, to be read part by part. Of a file on a local file system, only the length is
        verified; other content is copied to the local disk."""
        try:
            opened = self._do(path, lambda: self._folder.open(path))
        except FileNotFoundError as error:
            raise self._unreadable(path, "it is missing") from error
        except LocalDiskFailed as failed:
            raise failed.error from None
        end = len(opened) - _TRAILER.size
        if end < 0:
            raise self._unreadable(path, f"it has only {len(opened)} bytes")
        trailer = self._do(path, lambda: opened.read(end, len(opened)))
        nbytes, digest, magic = _TRAILER.unpack(trailer)
        if magic != _MAGIC or nbytes != end:
            raise self._unreadable(path, "its end is not the one that was written")
        content = Part(opened, 0, end)
        if not self.is_local and Chunks([content]).digest() != digest:
            raise self._unreadable(path, "its checksum is wrong")
        return content

    def has(self, path: str) -> bool:
        """Whether something is stored under `path`."""
        return self._do(path, lambda: self._folder.has(path))

    def delete(self, paths: Iterable[str]) -> None:
        """Delete these; those that are gone already do not matter."""
        for path in paths:
            self._do(path, lambda path=path: self._folder.delete([path]))  # type: ignore[misc]

    def list(self) -> list[str]:
        """Every stored path, sorted."""
        found = self._do("", lambda: self._folder.entries(recursive=True))
        return [info.path for info in found if not info.is_folder]

    def everything(self) -> tuple[str, ...]:
        """Every path, including files that killed writers have left or that others are writing just
        now."""
        found = self._do("", lambda: self._folder.unfinished(recursive=True))
        return (*self.list(), *(info.path for info in found))

    def sweep(self) -> int:
        """Delete files that killed writers have left; only while nobody writes. Return how many."""
        found = self._do("", lambda: self._folder.unfinished(recursive=True))
        self.delete(info.path for info in found)
        return len(found)

    def _do(self, path: str, attempt: Callable[[], _T]) -> _T:
        def reach() -> _T:
            try:
                return attempt()
            except FileNotFoundError:
                raise
            except (OSError, ArrowException) as error:
                kind = StoreAway if may_pass(error) else UnusableStore
                raise kind(
                    f"the store cannot be used: {error}",
                    where=f"{self._uri}/{path}".rstrip("/"),
                    remedy="check that every process reaches it and that it has room",
                ) from error

        return reach() if self._retry is None else self._retry(reach)

    def _unreadable(self, path: str, why: str) -> UnreadableLayer:
        return UnreadableLayer(
            f"the stored layer cannot be read: {why}",
            where=f"{self._uri}/{path}",
            remedy="recover from an older floor or a standby; check that every process reaches the "
            "store and that nothing else deletes from it",
        )


def put_layer(store: LayerStore, sealed: StoreLayer) -> LayerRef:
    """Store a sealed layer, which is encoded only now."""
    return put_whole(store, replace(sealed.layer, delta=encoded(sealed.delta)))


def put_whole(store: LayerStore, layer: Layer, path: str = "") -> LayerRef:
    """Store a layer, by default under its own path; parts that are not in memory are copied."""
    content = layer_chunks(layer)
    path = path or layer_path(layer.task, layer.epoch, layer.incarnation)
    return refer_to(layer, content, path, store.put(path, content))


def get_layers(
    store: LayerStore, refs: Iterable[LayerRef], opened_bytes: int = OPENED_BYTES
) -> tuple[Layer, ...]:
    """Read layers, and check that each is the one that its reference names.

    Parameters
    ----------
    opened_bytes
        Layers of at least this size are opened: see :meth:`LayerStore.open`.
    """
    return tuple(
        open_layer(store.open(ref.path) if ref.nbytes >= opened_bytes else store.get(ref.path), ref)
        for ref in refs
    )


def _framed(data: bytes | Chunks) -> bytes | Chunks:
    if isinstance(data, Chunks):
        return Chunks([data, _TRAILER.pack(len(data), data.digest(), _MAGIC)])
    return b"".join((data, _TRAILER.pack(len(data), content_digest(data), _MAGIC)))
