"""The operations that storage needs of a file system: ports, and their real adapters.

Everything that this package writes goes through one of two small interfaces: :class:`Files`, which
any file system can serve, and :class:`Disk`, which adds what a journal needs of a local one. Behind
them the simulator has its own disk, which can be full, fail, tear, forget and rot; the code above
is the same. :class:`~clonos.storage.folder.Folder` makes files whole or absent.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Protocol
from urllib.parse import quote
from weakref import WeakSet

import pyarrow as pa
from pyarrow import fs
from xxhash import xxh3_64_hexdigest

from clonos.core.content import CHUNK, Content, pieces_of
from clonos.errors import UnusableStore
from clonos.storage.opened import ScratchFile, open_file

Durability = Literal["fsync", "process"]
"""``"fsync"``: survives a crash of the machine. ``"process"``: survives only the death of the
process."""


NAME_BYTES_MAX: Final = 255
"""The longest name of a file or folder on almost all file systems."""


class Locked(Exception):
    """Another process has the lock. Its name is in the file."""


class LocalDiskFailed(Exception):
    """The local disk failed, not the store, which may be in order: see ``error``."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


class Info(NamedTuple):
    """A file or a folder."""

    path: str
    nbytes: int
    mtime_s: float
    is_folder: bool

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


class Files(Protocol):
    """A file system. Paths are absolute, with slashes.

    Any failure raises `OSError`; a missing file or folder raises `FileNotFoundError`. Nothing is
    durable before it is synced, neither the content of a file nor its name.
    """

    is_local: bool
    """Whether syncing has an effect. Other stores are durable by themselves."""
    refuses: bool
    """Whether :meth:`name` can tell two simultaneous callers apart."""

    def read(self, path: str) -> pa.Buffer:
        """The content of a file."""

    def open(self, path: str) -> Content:
        """Open a file, or a copy of it, to be read part by part. Its content stays even when its
        name is deleted."""

    def write(self, path: str, content: Any, mode: int = 0o666) -> None:
        """Write a new file, or overwrite one whose content may be lost."""

    def sync(self, path: str) -> None:
        """Make the content of a file durable."""

    def sync_folder(self, path: str) -> None:
        """Make the names in a folder durable."""

    def make_folder(self, path: str) -> None:
        """Make a folder and its parents, unless they exist."""

    def rename(self, path: str, new: str) -> None:
        """Give a file another name. A file that had that name is gone."""

    def name(self, path: str, new: str) -> bool:
        """Give a file another name. If that is taken, delete the file and return False."""

    def delete(self, path: str) -> None:
        """Delete a file."""

    def delete_folder(self, path: str) -> None:
        """Delete an empty folder."""

    def info(self, path: str) -> Info | None:
        """The file or folder at a path; None: there is none."""

    def entries(self, folder: str, *, recursive: bool = False) -> list[Info]:
        """The entries of a folder, sorted by path; none if there is no such folder."""


class Tail(Protocol):
    """A file that grows."""

    def write(self, data: bytes) -> None:
        """Append. On an error, a part may have been written."""

    def sync(self) -> None:
        """Make what was appended durable. After an error, nobody knows how much of it is."""

    def close(self) -> None: ...


class Lock(Protocol):
    """Held until it is closed or the process ends."""

    def close(self) -> None: ...


class Disk(Files, Protocol):
    """A local file system, as a journal needs one."""

    @property
    def place(self) -> str:
        """The store that it is in; empty if it is this machine's."""

    def append(self, path: str) -> Tail:
        """Open an existing file at its end."""

    def truncate(self, path: str, nbytes: int) -> None:
        """Cut a file off."""

    def lock(self, path: str, holder: str) -> Lock:
        """Take the lock of this name; raises :class:`Locked`."""


class LocalFiles:
    """The :class:`Disk` of this machine."""

    place = ""
    is_local = True
    refuses = True

    def read(self, path: str) -> pa.Buffer:
        if Path(path).stat().st_size == 0:
            return pa.py_buffer(b"")  # an empty file cannot be mapped
        with pa.memory_map(path) as source:
            return source.read_buffer()

    def open(self, path: str) -> Content:
        return open_file(path)

    def write(self, path: str, content: Any, mode: int = 0o666) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
        try:
            for piece in pieces_of(content):
                _write_all(descriptor, piece)
        finally:
            os.close(descriptor)

    def sync(self, path: str) -> None:
        _sync(path, os.O_RDONLY)

    def sync_folder(self, path: str) -> None:
        _sync(path, os.O_RDONLY | os.O_DIRECTORY)

    def make_folder(self, path: str) -> None:
        Path(path).mkdir(parents=True, exist_ok=True)

    def rename(self, path: str, new: str) -> None:
        Path(path).replace(new)

    def name(self, path: str, new: str) -> bool:
        try:
            os.link(path, new)
        except FileExistsError:
            Path(path).unlink()
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            return self._name_without_links(path, new)
        Path(path).unlink()
        return True

    def _name_without_links(self, path: str, new: str) -> bool:
        try:
            try:
                _rename_unless_taken(path, new)
            except OSError as error:
                if error.errno not in _NO_SUCH_RENAME:
                    raise
                # Others see the empty file, which remains if we die now.
                os.close(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC))
                Path(path).replace(new)
        except FileExistsError:
            Path(path).unlink()
            return False
        return True

    def delete(self, path: str) -> None:
        Path(path).unlink()

    def delete_folder(self, path: str) -> None:
        Path(path).rmdir()

    def info(self, path: str) -> Info | None:
        try:
            found = Path(path).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        is_folder = stat.S_ISDIR(found.st_mode)
        return Info(path, 0 if is_folder else found.st_size, found.st_mtime, is_folder)

    def entries(self, folder: str, *, recursive: bool = False) -> list[Info]:
        return sorted(self._walk(folder, recursive=recursive))

    def _walk(self, folder: str, *, recursive: bool) -> Iterator[Info]:
        try:
            paths = list(Path(folder).iterdir())
        except FileNotFoundError:
            return
        for path in paths:
            info = self.info(str(path))
            if info is not None:  # else it was deleted just now
                yield info
                if recursive and info.is_folder:
                    yield from self._walk(info.path, recursive=True)

    def append(self, path: str) -> Tail:
        return _LocalTail(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC))

    def truncate(self, path: str, nbytes: int) -> None:
        os.truncate(path, nbytes)

    def lock(self, path: str, holder: str) -> Lock:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # flock, not lockf: it also refuses a second lock of the same process.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            found = os.read(descriptor, 300).decode(errors="replace")
            os.close(descriptor)
            raise Locked(found or "unknown") from error
        os.ftruncate(descriptor, 0)
        os.write(descriptor, holder.encode())
        return _LocalLock(descriptor)


_NO_LINKS: Final = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
"""Errors of file systems that have no hard links."""


_NO_SUCH_RENAME: Final = {errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP}
"""Errors of systems that always replace a file that has the name."""
_THIS_FOLDER: Final = -100
_NO_REPLACE: Final = 1


def _rename_unless_taken(path: str, new: str) -> None:
    """Linux can do this, but not all of its file systems, nor Python."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    number = errno.ENOSYS
    if rename is not None:
        paths = os.fsencode(path), _THIS_FOLDER, os.fsencode(new)
        number = ctypes.get_errno() if rename(_THIS_FOLDER, *paths, _NO_REPLACE) else 0
    if number:
        raise OSError(number, os.strerror(number), new)


class _Descriptor:
    def __init__(self, descriptor: int) -> None:
        self._fd = descriptor

    def close(self) -> None:
        descriptor, self._fd = self._fd, -1
        if descriptor >= 0:
            os.close(descriptor)


class _LocalLock(_Descriptor):
    """A forked child, such as one of a pool of the user's, is given a copy of each descriptor, and
    the lock lasts until all copies are closed. So a child closes its copy at once."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor)
        _LOCKS.add(self)


_LOCKS: Final[WeakSet[_LocalLock]] = WeakSet()


def _leave_locks() -> None:
    for lock in list(_LOCKS):
        lock.close()


os.register_at_fork(after_in_child=_leave_locks)


class _LocalTail(_Descriptor):
    def write(self, data: bytes) -> None:
        _write_all(self._fd, data)

    def sync(self) -> None:
        os.fdatasync(self._fd)


def _write_all(descriptor: int, content: Any) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


def _sync(path: str, flags: int) -> None:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _on_the_local_disk() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LocalDiskFailed(error) from error


class ArrowFiles:
    """Any file system that pyarrow knows: object stores, HDFS."""

    is_local = False

    def __init__(self, system: fs.FileSystem) -> None:
        self._fs = system
        self.refuses = system.type_name == "hdfs"  # it does not move a file onto another

    def read(self, path: str) -> pa.Buffer:
        with self._fs.open_input_stream(path) as stream:
            return stream.read_buffer()

    def open(self, path: str) -> Content:
        with _on_the_local_disk():
            copy = ScratchFile()  # many small reads from such a store would take too long
        with self._fs.open_input_stream(path) as stream:
            while piece := stream.read(CHUNK):
                with _on_the_local_disk():
                    copy.write(piece)
        with _on_the_local_disk():
            copy.finish()
        return copy

    def write(self, path: str, content: Any, mode: int = 0o666) -> None:
        with self._fs.open_output_stream(path) as stream:
            for piece in pieces_of(content):
                stream.write(piece)

    def sync(self, path: str) -> None:
        """Nothing to do: the store is durable by itself."""

    def sync_folder(self, path: str) -> None:
        """Nothing to do: the store is durable by itself."""

    def make_folder(self, path: str) -> None:
        self._fs.create_dir(path, recursive=True)

    def rename(self, path: str, new: str) -> None:
        if self.refuses:
            with suppress(FileNotFoundError):
                self._fs.delete_file(new)
        self._fs.move(path, new)

    def name(self, path: str, new: str) -> bool:
        if self.info(new) is None:
            try:
                self._fs.move(path, new)
            except OSError:
                if self.info(new) is None:
                    raise  # else another process was faster
            else:
                return True
        self._fs.delete_file(path)
        return False

    def delete(self, path: str) -> None:
        self._fs.delete_file(path)

    def delete_folder(self, path: str) -> None:
        self._fs.delete_dir(path)

    def info(self, path: str) -> Info | None:
        found = self._fs.get_file_info(path)
        return None if found.type == fs.FileType.NotFound else _info(found)

    def entries(self, folder: str, *, recursive: bool = False) -> list[Info]:
        selector = fs.FileSelector(folder, recursive=recursive, allow_not_found=True)
        return sorted(_info(found) for found in self._fs.get_file_info(selector))


def _info(found: Any) -> Info:
    is_folder = found.type == fs.FileType.Directory
    return Info(found.path, found.size or 0, (found.mtime_ns or 0) / 1e9, is_folder)


def files_of(uri: str | Path) -> tuple[Files, str]:
    """The file system of a URI or local path, and the path in it.

    Raises
    ------
    UnusableStore
        There is no such file system.

    Examples
    --------
    >>> files, path = files_of("file:///data/a%20b")
    >>> files.is_local, path
    (True, '/data/a b')
    """
    text = str(uri)
    if "://" not in text:
        return LocalFiles(), str(Path(text).absolute())
    try:
        system, path = fs.FileSystem.from_uri(text)
    except (pa.ArrowException, OSError) as error:
        raise UnusableStore(
            f"{text!r} is no place to keep files: {error}",
            remedy="give a local path or a URI such as file:///data/layers or s3://bucket/job; in "
            "keys of a URI, write / as %2F",
        ) from None  # it has the keys
    if isinstance(system, fs.LocalFileSystem):
        return LocalFiles(), str(path).rstrip("/") or "/"
    return ArrowFiles(system), str(path).rstrip("/")


def folder_name(name: str, longest: int = NAME_BYTES_MAX) -> str:
    """A folder's name for any text. It is the same in a path and in a URI, and never leads
    elsewhere, as ``..`` would. Where a text is too long for a name, a digest stands for its end.

    Parameters
    ----------
    longest
        How long it may be; less if something comes behind it.

    Examples
    --------
    >>> folder_name("a/b"), folder_name(".."), folder_name("by_key")
    ('a=2Fb', '=2E=2E', 'by_key')
    >>> folder_name("注文" * 100, 40)
    '=E6=B3=A8=E6=96=87~...'
    """
    whole = _quoted(name)
    if len(whole) <= longest:
        return whole
    end = f"~{xxh3_64_hexdigest(name.encode())}"
    begin, left = "", longest - len(end)
    for letter in map(_quoted, name):  # readers of the name see whole letters
        if len(begin) + len(letter) > left:
            break
        begin += letter
    return begin + end


def _quoted(text: str) -> str:
    return quote(text, safe="").replace(".", "%2E").replace("%", "=")


def in_this_process(act: Callable[..., object]) -> Callable[..., None]:
    """The same, but a forked child that ends, or forgets its copies, does nothing: what is to be
    cleaned up is its parent's."""
    mine = os.getpid()

    def unless_forked(*args: Any, **options: Any) -> None:
        if os.getpid() == mine:
            act(*args, **options)

    return unless_forked


def sync_file(path: str | Path) -> None:
    """Make a local file's content durable."""
    LocalFiles().sync(str(path))


def sync_directory(path: str | Path) -> None:
    """Make the names in a local directory durable."""
    LocalFiles().sync_folder(str(path))


def own_folder(what: str, remedy: str) -> Path:
    """The folder of this user among the machine's temporary files, where everybody may write. It is
    made if it does not exist; nobody else may enter it.

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
