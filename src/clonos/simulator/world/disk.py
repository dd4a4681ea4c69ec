"""A disk that can be full, fail, tear, forget and rot; processes and machines that die.

Written data is in the machine's memory. Until it is synced, each sector may or may not be on the
disk, in any order; the same holds for the names in folders. :meth:`Disk.lose_power` decides. Real
file systems are kinder: they order some of these writes.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

import pyarrow as pa

from clonos.core.content import Content, pieces_of
from clonos.storage.files import Info, Locked

SECTOR: Final = 16
"""Bytes written atomically. Real sectors are larger; small ones tear small files."""

ROOM: Final = 1 << 40
"""Bytes of a disk that is never full."""


class Died(BaseException):
    """The process has died at this call. Nothing that it does afterwards has any effect."""


@dataclass
class _File:
    data: bytearray = field(default_factory=bytearray)
    """The content that processes see."""
    durable: bytearray = field(default_factory=bytearray)
    """The content that is certainly on the disk."""
    dirty: list[tuple[int, bytes]] = field(default_factory=list)
    """Unsynced writes with their offsets; a negative offset: the file was truncated there."""
    mtime_s: float = 0.0

    def write(self, offset: int, content: bytes) -> None:
        self.data[offset:] = content if offset >= 0 else b""
        self.dirty.append((offset, content))

    def cut(self, nbytes: int) -> None:
        del self.data[nbytes:]
        self.dirty.append((-1 - nbytes, b""))

    def sync(self) -> None:
        _write(self.durable, self.dirty)
        self.dirty.clear()

    def settle(self, random: Random) -> None:
        """The power fails: parts of the unsynced data are on the disk."""
        kept: list[tuple[int, bytes]] = []
        chance = random.choice((0.0, 0.5, 1.0))
        for offset, content in self.dirty:
            if offset < 0:
                kept += [(offset, content)] if random.random() < chance else []
                continue
            for start in range(0, len(content), SECTOR):
                if random.random() < chance:
                    kept.append((offset + start, content[start : start + SECTOR]))
        _write(self.durable, kept)
        self.dirty.clear()
        self.data = bytearray(self.durable)


def _write(data: bytearray, writes: list[tuple[int, bytes]]) -> None:
    for offset, part in writes:
        if offset < 0:
            del data[-1 - offset :]
        else:
            data.extend(bytes(max(0, offset - len(data))))
            data[offset : offset + len(part)] = part


@dataclass
class _Folder:
    names: dict[str, _File | _Folder] = field(default_factory=dict)
    durable: dict[str, _File | _Folder] = field(default_factory=dict)
    changes: list[tuple[str, _File | _Folder | None]] = field(default_factory=list)
    """Names added or removed since the last sync."""

    def set(self, name: str, node: _File | _Folder | None) -> None:
        if node is None:
            del self.names[name]
        else:
            self.names[name] = node
        self.changes.append((name, node))

    def sync(self) -> None:
        self.durable = dict(self.names)
        self.changes.clear()

    def settle(self, random: Random) -> None:
        for name in {name: None for name, _ in self.changes}:
            choices = [self.durable.get(name), *(n for other, n in self.changes if other == name)]
            chosen = random.choice(choices)
            self.durable.pop(name, None)
            if chosen is not None:
                self.durable[name] = chosen
        self.changes.clear()
        self.names = dict(self.durable)
        for node in self.names.values():
            node.settle(random)


def _files(folder: _Folder, path: str) -> Iterator[tuple[str, int]]:
    for name, node in folder.names.items():
        if isinstance(node, _Folder):
            yield from _files(node, f"{path}/{name}")
        else:
            yield f"{path}/{name}", len(node.data)


class Disk:
    """The disk of one machine.

    Parameters
    ----------
    random
        Decides what is lost.
    capacity
        Total bytes that files may take.

    Attributes
    ----------
    faults
        Called before each file operation of a process with its name and path; returns the error
        number with which it fails, or 0.
    drops_pages
        After a failed sync, treat the pages as clean although they are not on the disk, as Linux
        does.

    Examples
    --------
    >>> disk = Disk(Random(1))
    >>> files = disk.mount()
    >>> files.make_folder("/a")
    >>> files.write("/a/b", b"content")
    >>> disk.lose_power()
    >>> disk.mount().entries("/")
    []
    """

    def __init__(self, random: Random, capacity: int = ROOM) -> None:
        self.random, self.capacity = random, capacity
        self.faults: Callable[[str, str], int] = _none
        self.drops_pages = True
        self._root = _Folder()
        self._locks: dict[int, tuple[SimulatedFiles, str]] = {}
        self._now_s = 0.0

    def mount(self, dies_at: int | None = None) -> SimulatedFiles:
        """The disk as a process sees it; the process dies at that call (counted from 0)."""
        return SimulatedFiles(self, dies_at)

    def observe(self) -> SimulatedFiles:
        """The disk as seen by an observer that suffers no faults."""
        return SimulatedFiles(self, None, is_exempt=True)

    def content(self) -> dict[str, int]:
        """All files, and their bytes."""
        return dict(_files(self._root, ""))

    def copy(self) -> Disk:
        """A copy of the disk with the durable data only."""
        twin = Disk(Random(self.random.getrandbits(64)))
        twin._root = deepcopy(self._root)
        twin.lose_power()
        return twin

    def lose_power(self) -> None:
        """The machine dies, and all its processes; it starts again with what is on the disk."""
        for process, _ in list(self._locks.values()):
            process.die()
        self._root.settle(self.random)

    def heal(self) -> None:
        """It works again, and has room."""
        self.faults, self.capacity = _none, ROOM

    @property
    def is_well(self) -> bool:
        """Whether it works, and has room."""
        return self.faults is _none and self.capacity == ROOM

    def flip(self, path: str, bit: int) -> None:
        """Flip a bit of a file, on the disk and in memory."""
        file = self.file(path)
        byte, bit = divmod(bit, 8)
        file.data[byte] ^= 1 << bit
        if byte < len(file.durable):
            file.durable[byte] ^= 1 << bit

    def lose(self, path: str) -> None:
        """A file is gone."""
        folder, name = self.folder(path.rpartition("/")[0]), path.rpartition("/")[2]
        del folder.names[name]
        folder.durable.pop(name, None)

    @property
    def used(self) -> int:
        """Total bytes of all files."""
        return sum(len(f.data) for _, f in walk("", self._root) if isinstance(f, _File))

    # --- for SimulatedFiles ---

    def tick(self) -> float:
        self._now_s += 1.0
        return self._now_s

    def find(self, path: str) -> _File | _Folder | None:
        node: _File | _Folder | None = self._root
        for name in path.strip("/").split("/"):
            if name:
                node = node.names.get(name) if isinstance(node, _Folder) else None
        return node

    def file(self, path: str) -> _File:
        node = self.find(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if isinstance(node, _Folder):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return node

    def folder(self, path: str) -> _Folder:
        node = self.find(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if isinstance(node, _File):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return node

    def take_lock(self, process: SimulatedFiles, path: str, holder: str) -> int:
        inode = id(self.file(path))
        if inode in self._locks:
            raise Locked(self._locks[inode][1])
        self._locks[inode] = (process, holder)
        return inode

    def free_lock(self, inode: int) -> None:
        self._locks.pop(inode, None)

    def free_locks_of(self, process: SimulatedFiles) -> None:
        self._locks = {i: held for i, held in self._locks.items() if held[0] is not process}


def _none(_call: str, _path: str) -> int:
    return 0


def walk(path: str, folder: _Folder) -> Iterator[tuple[str, _File | _Folder]]:
    """All that is in a folder and below it."""
    for name, node in folder.names.items():
        yield f"{path}/{name}", node
        if isinstance(node, _Folder):
            yield from walk(f"{path}/{name}", node)


class SimulatedFiles:
    """One process's view of a :class:`Disk`; implements :class:`clonos.storage.files.Disk`.

    Attributes
    ----------
    calls
        How many file operations it has made; each is a crash point.
    """

    place = ""
    is_local = True
    refuses = True

    def __init__(self, disk: Disk, dies_at: int | None = None, *, is_exempt: bool = False) -> None:
        self._disk, self._dies_at = disk, dies_at
        self._is_exempt = is_exempt  # from faults
        self.calls = 0
        self.is_dead = self._is_detached = False

    def detach(self) -> None:
        """The disk is moved to another machine, and no call of this process succeeds any more."""
        self._is_detached = True
        self._disk.free_locks_of(self)

    def dies_within(self, *calls: int) -> None:
        """The process dies at one of its next calls, within a number drawn from `calls`."""
        random = self._disk.random
        self._dies_at = self.calls + random.randrange(random.choice(calls))

    def die(self) -> None:
        """The process ends; its writes stay, on the disk or in memory."""
        self.is_dead = True
        self._disk.free_locks_of(self)

    def act(self, call: str, path: str, do: Callable[[], Any], part: Any = None) -> Any:
        """Make a call. It may fail, or be the last one, carried out or not."""
        if self.is_dead:
            raise Died
        if self._is_detached:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        number, self.calls = self.calls, self.calls + 1
        is_last = number == self._dies_at
        if is_last and self._disk.random.random() < 0.5:
            if part is not None:
                part(self._disk.random.random())
            self.die()
            raise Died
        if not self._is_exempt and (failure := self._disk.faults(call, path)):
            if call == "sync" and self._disk.drops_pages:
                self._disk.file(path).dirty.clear()
            elif part is not None:
                part(self._disk.random.random())
            raise OSError(failure, os.strerror(failure), path)
        result = do()
        if is_last:
            self.die()
            raise Died
        return result

    # --- Files ---

    def read(self, path: str) -> pa.Buffer:
        return self.act("read", path, lambda: pa.py_buffer(bytes(self._disk.file(path).data)))

    def open(self, path: str) -> Content:
        opened: Content = self.act("read", path, lambda: _Opened(self._disk.file(path)))
        return opened

    def write(self, path: str, content: Any, mode: int = 0o666) -> None:
        data = b"".join(pieces_of(content))
        self.act("write", path, lambda: self._fill(path, data), lambda p: self._part(path, data, p))

    def _part(self, path: str, data: bytes, share: float) -> None:
        self._fill(path, data[: int(share * len(data))])

    def _fill(self, path: str, data: bytes) -> None:
        folder, name = self._disk.folder(path.rpartition("/")[0]), path.rpartition("/")[2]
        if name not in folder.names:
            folder.set(name, _File())
        node = self._disk.file(path)
        if node.data:
            node.cut(0)
        self.grow(node, data)

    def grow(self, file: _File, data: bytes) -> None:
        """Append what fits on the disk."""
        disk = self._disk
        room = disk.capacity - disk.used if disk.capacity < ROOM else ROOM  # counting takes time
        file.mtime_s = self._disk.tick()
        file.write(len(file.data), data[: max(0, room)])
        if len(data) > room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def sync(self, path: str) -> None:
        self.act("sync", path, lambda: self._disk.file(path).sync())

    def sync_folder(self, path: str) -> None:
        self.act("sync_folder", path, lambda: self._disk.folder(path or "/").sync())

    def make_folder(self, path: str) -> None:
        self.act("make_folder", path, lambda: self._make(path))

    def _make(self, path: str) -> None:
        here = self._disk.folder("/")
        for name in path.strip("/").split("/"):
            if name not in here.names:
                here.set(name, _Folder())
            node = here.names[name]
            if isinstance(node, _File):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            here = node

    def rename(self, path: str, new: str) -> None:
        self.act("rename", new, lambda: self._move(path, new))

    def _move(self, path: str, new: str) -> None:
        file = self._disk.file(path)
        self._disk.folder(new.rpartition("/")[0]).set(new.rpartition("/")[2], file)
        self._disk.folder(path.rpartition("/")[0]).set(path.rpartition("/")[2], None)

    def name(self, path: str, new: str) -> bool:
        return bool(self.act("name", new, lambda: self._name(path, new)))

    def _name(self, path: str, new: str) -> bool:
        is_free = self._disk.find(new) is None
        if is_free:
            self._move(path, new)
        else:
            self._remove(path)
        return is_free

    def delete(self, path: str) -> None:
        self.act("delete", path, lambda: self._remove(path))

    def _remove(self, path: str) -> None:
        self._disk.file(path)
        self._disk.folder(path.rpartition("/")[0]).set(path.rpartition("/")[2], None)

    def delete_folder(self, path: str) -> None:
        def delete() -> None:
            if self._disk.folder(path).names:
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
            self._disk.folder(path.rpartition("/")[0]).set(path.rpartition("/")[2], None)

        self.act("delete_folder", path, delete)

    def info(self, path: str) -> Info | None:
        node = self.act("info", path, lambda: self._disk.find(path))
        return None if node is None else _info(path, node)

    def entries(self, folder: str, *, recursive: bool = False) -> list[Info]:
        node = self.act("entries", folder, lambda: self._disk.find(folder))
        if node is None:
            return []
        path = folder.rstrip("/")
        found = walk(path, self._disk.folder(folder))
        return sorted(_info(p, n) for p, n in found if recursive or p.rpartition("/")[0] == path)

    # --- Disk ---

    def append(self, path: str) -> Tail:
        tail: Tail = self.act("append", path, lambda: Tail(self, path, self._disk.file(path)))
        return tail

    def truncate(self, path: str, nbytes: int) -> None:
        self.act("truncate", path, lambda: self._disk.file(path).cut(nbytes))

    def lock(self, path: str, holder: str) -> _Lock:
        if self._disk.find(path) is None:
            self.write(path, holder.encode())
        inode = self.act("lock", path, lambda: self._disk.take_lock(self, path, holder))
        return _Lock(self._disk, inode)


class Tail:
    """A file that grows."""

    def __init__(self, process: SimulatedFiles, path: str, file: _File) -> None:
        self._process, self._path, self._file = process, path, file

    def write(self, data: bytes) -> None:
        def part(share: float) -> None:
            self._process.grow(self._file, data[: int(share * len(data))])

        self._process.act("write", self._path, lambda: self._process.grow(self._file, data), part)

    def sync(self) -> None:
        self._process.act("sync", self._path, self._file.sync)

    def close(self) -> None:
        """Closing flushes nothing."""


class _Opened:
    """An opened file, which stays readable if it is renamed or deleted. It may rot."""

    def __init__(self, file: _File) -> None:
        self._file = file

    def __str__(self) -> str:
        return "a simulated file"

    def __len__(self) -> int:
        return len(self._file.data)

    def read(self, start: int, end: int) -> bytes:
        return bytes(self._file.data[start:end])

    def expect(self, start: int, end: int) -> None:
        """Nothing changes."""


class _Lock:
    def __init__(self, disk: Disk, inode: int) -> None:
        self._disk, self._inode = disk, inode

    def close(self) -> None:
        self._disk.free_lock(self._inode)


def _info(path: str, node: _File | _Folder) -> Info:
    if isinstance(node, _Folder):
        return Info(path, 0, 0.0, is_folder=True)
    return Info(path, len(node.data), node.mtime_s, is_folder=False)
