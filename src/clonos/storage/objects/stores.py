"""The port for a place that has only objects, and its adapters."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, Final, Protocol

import pyarrow as pa

from clonos.errors import UnusableStore, masked
from clonos.extras import imported
from clonos.storage.files import files_of
from clonos.storage.folder import Folder

REMOTE: Final = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss")
"""URI schemes of object stores."""
FOLDERS: Final = ("file", "hdfs", "viewfs")
"""URI schemes of file systems that refuse the second of two files with one name."""

_RETRIES: Final = 2
_SILENCE_S: Final = 10
_MB_PER_S: Final = 1.0
"""Large contents have longer: a network is expected to be this fast."""
_LARGE_BYTES: Final = 1 << 20
_FOR_EVER_S: Final = 24 * 3600
_FEW: Final = 4
_AT_ONCE: Final = 16
"""How many objects are read at the same time, if there are more than a few."""
_DELETED: Final = 500
"""How many objects are deleted at a time."""


class Objects(Protocol):
    """Named contents. What was written is durable, and seen by all later reads and lists.

    Any failure raises `OSError`; a missing object raises `FileNotFoundError`. Names have slashes.
    """

    place: str
    """Where the objects are, without secrets."""

    def create(self, name: str, content: bytes) -> bool:
        """Write an object unless the name is taken: then False. After an error nobody knows whether
        it is there, or will be."""

    def put(self, name: str, content: bytes) -> None:
        """Write an object. An earlier object of this name is gone."""

    def read(self, name: str) -> bytes:
        """The content of an object."""

    def read_all(self, names: Sequence[str]) -> list[bytes]:
        """The contents of several objects."""

    def names(self, folder: str, after: str = "") -> list[str]:
        """The names in a folder, sorted; only those after `after`."""

    def delete(self, names: Sequence[str]) -> None:
        """Delete these; some may be gone already."""


class FolderObjects:
    """Objects that are files in a folder which several machines may see: a mount, HDFS.

    Raises
    ------
    UnusableStore
        There is no such file system, or it cannot refuse the second of two files with one name.
    """

    def __init__(self, uri: str) -> None:
        files, root = files_of(uri)
        if not files.refuses:
            raise UnusableStore(
                f"{masked(uri)} cannot refuse the second of two files of one name",
                remedy="give a mount, hdfs://, s3://, gs:// or az://, or a database",
            )
        self.place = masked(uri)
        # The content may have secrets.
        self._folder = Folder(files, root, "fsync", 0o600)

    def create(self, name: str, content: bytes) -> bool:
        with _arrow_errors():
            return self._folder.create(name, content)

    def put(self, name: str, content: bytes) -> None:
        with _arrow_errors():
            self._folder.put(name, content)

    def read(self, name: str) -> bytes:
        with _arrow_errors():
            found: bytes = self._folder.read(name).to_pybytes()
            return found

    def read_all(self, names: Sequence[str]) -> list[bytes]:
        return [self.read(name) for name in names]

    def names(self, folder: str, after: str = "") -> list[str]:
        with _arrow_errors():
            names = [info.path for info in self._folder.entries(folder) if not info.is_folder]
        return sorted(name for name in names if name > after)

    def delete(self, names: Sequence[str]) -> None:
        with _arrow_errors():
            self._folder.delete(names)


@contextmanager
def _arrow_errors() -> Iterator[None]:
    try:
        yield
    except pa.ArrowException as error:
        raise OSError(errno.EIO, str(error)) from error


class RemoteObjects:
    """Objects of S3, of Google's or Azure's storage, or of a compatible store.

    Keys, regions and endpoints come from the environment, as each store's own tools read them.

    Parameters
    ----------
    options
        Further options for ``obstore.store.from_url``.

    Raises
    ------
    UnusableStore
        The URI names no such store.
    """

    def __init__(self, uri: str, **options: Any) -> None:
        where = "a journal on an object store"
        self._api = imported("obstore", extra="objects", where=where)
        stores = imported("obstore.store", extra="objects", where=where)
        self._errors = imported("obstore.exceptions", extra="objects", where=where)
        self.place = masked(uri)
        self._open = partial(_opened, stores.from_url, uri, options)
        try:
            self._store = self._open(timeout=timedelta(seconds=_SILENCE_S))
            # A process that opens a store in memory twice has two stores.
            self._is_remote = uri.partition("://")[0] in REMOTE
            self._reading = self._store
            if self._is_remote:
                self._reading = self._open(
                    timeout=timedelta(seconds=_FOR_EVER_S),
                    read_timeout=timedelta(seconds=_SILENCE_S),
                )
        except (self._errors.BaseError, ValueError) as error:
            raise UnusableStore(
                f"{self.place} is no object store: {error}",
                remedy="give s3://bucket/folder, gs://bucket/folder or az://container/folder, and "
                "keys in the environment",
            ) from None

    def _for(self, content: bytes) -> Any:
        """The store, with enough time to write this."""
        if not self._is_remote or len(content) < _LARGE_BYTES:
            return self._store
        needs_s = _SILENCE_S + len(content) / 1e6 / _MB_PER_S
        return self._open(timeout=timedelta(seconds=needs_s))

    def create(self, name: str, content: bytes) -> bool:
        with self._told():
            try:
                to = self._for(content)
                self._api.put(to, name, content, mode="create", use_multipart=False)
            except self._errors.AlreadyExistsError:
                return False
        return True

    def put(self, name: str, content: bytes) -> None:
        with self._told():
            self._api.put(self._for(content), name, content, use_multipart=False)

    def read(self, name: str) -> bytes:
        with self._told():
            return bytes(self._api.get(self._reading, name).bytes())

    def read_all(self, names: Sequence[str]) -> list[bytes]:
        if len(names) < _FEW:
            return [self.read(name) for name in names]
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="clonos-objects") as pool:
            return list(pool.map(self.read, names))

    def names(self, folder: str, after: str = "") -> list[str]:
        with self._told():
            pages = self._api.list(self._store, f"{folder}/", offset=after or None)
            return sorted(found["path"] for page in pages for found in page)

    def delete(self, names: Sequence[str]) -> None:
        for start in range(0, len(names), _DELETED):
            with self._told():
                try:
                    self._api.delete(self._store, list(names[start : start + _DELETED]))
                except FileNotFoundError:
                    continue

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Turn errors of the store into `OSError`, in one line."""
        try:
            yield
        except self._errors.BaseError as error:
            text = str(error).partition("\n")[0]
            raise OSError(errno.EIO, f"{self.place}: {text}") from None


def _opened(
    from_url: Callable[..., Any], uri: str, options: dict[str, Any], **timeouts: timedelta
) -> Any:
    settings = {
        "client_options": {
            **timeouts,
            # The only setting in the environment that client_options would hide.
            "allow_http": os.environ.get("AWS_ALLOW_HTTP", "").lower() in {"1", "true"},
        },
        "retry_config": {
            "max_retries": _RETRIES,
            "retry_timeout": timedelta(seconds=_SILENCE_S),
        },
    }
    return from_url(uri, **{**settings, **options})


def is_object_store(uri: object) -> bool:
    """Whether a journal there is a chain of objects.

    Examples
    --------
    >>> [is_object_store(uri) for uri in ("s3://bucket/jobs", "file:///mnt/jobs", "/data/jobs")]
    [True, True, False]
    """
    scheme = uri.partition("://")[0] if isinstance(uri, str) and "://" in uri else ""
    return scheme in REMOTE or scheme in FOLDERS


def objects_of(uri: str) -> Objects:
    """The objects below a URI."""
    is_remote = uri.partition("://")[0] in REMOTE
    return RemoteObjects(uri) if is_remote else FolderObjects(uri)
