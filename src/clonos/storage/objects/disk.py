"""Files and a lock in a place that has only objects: a journal there outlives the driver's machine.

All changes are in a :class:`~clonos.storage.objects.chain.Chain`, so a group of the journal is one
object. A writer creates a fence first, so a driver that was frozen or cut off writes nothing after
another one took over.

The lock is a lease. Its holder *beats*: a thread writes a count into an object. A process that
wants the lock watches the count and the chain, and takes the lock when neither has changed for
:data:`LEASE_S` by its own stopwatch; no clocks are compared. If the holder was only slow, the fence
stops it, and nothing is lost.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Final, TypeGuard

import pyarrow as pa

from clonos.core.canonical import decode, encode
from clonos.core.content import Content, content_of, pieces_of
from clonos.storage.files import Info, Lock, Locked, Tail
from clonos.storage.lease import Stopwatch
from clonos.storage.objects.chain import Chain, Fence
from clonos.storage.objects.stores import Objects
from clonos.storage.objects.tree import Change, Tree
from clonos.storage.terms import taken_over

_LOG: Final = logging.getLogger("clonos")

LEASE_S: Final = 12.0
"""The lock may be taken from a holder that has shown no sign of life for this long."""
BEAT_S: Final = 3.0
"""Time from one beat to the next."""
WATCH_S: Final = 0.5
"""Time from one look to the next."""
STEP_S: Final = 3.0
"""What counts of this time, at most, if the store is slow to answer."""
CHANGES_MAX: Final = 200
"""After this many changes they are merged into a base ..."""
WASTE: Final = 3
"""... or when they have this many times the size of all files, and more than ..."""
WASTE_BYTES: Final = 4 << 20
"""... this many bytes."""
_NOBODY: Final = ""
_BEAT: Final = "beat"


class ObjectDisk:
    """A :class:`~clonos.storage.files.Disk` of objects, for several threads.

    It has only one lock, whatever its name. The content of its files is also in memory: a segment
    of the journal, and little else.

    Parameters
    ----------
    objects
        The objects of one job.
    lease_s, beat_s
        See :data:`LEASE_S` and :data:`BEAT_S`.

    Examples
    --------
    >>> import tempfile
    >>> from clonos.storage.objects.stores import FolderObjects
    >>> folder = "file://" + tempfile.mkdtemp()
    >>> one, other = (ObjectDisk(FolderObjects(folder)) for _ in range(2))
    >>> one.make_folder("/fraud")
    >>> one.write("/fraud/job.json", b"{}")
    >>> other.read("/fraud/job.json").to_pybytes()
    b'{}'
    """

    is_local = False
    refuses = True

    def __init__(
        self, objects: Objects, *, lease_s: float = LEASE_S, beat_s: float = BEAT_S
    ) -> None:
        self._objects, self._lease_s, self._beat_s = objects, lease_s, beat_s
        self._mutex = threading.RLock()
        self._chain = Chain(objects)
        self._has_begun = False
        self._held: _HeldLock | None = None

    @property
    def place(self) -> str:
        """Where the objects are, without secrets."""
        return self._objects.place

    # --- changes ---------------------------------------------------------------------------------

    def _change(self, make: Callable[[Tree], Change | None]) -> None:
        """Add the change that `make` returns; it is called again if another writer was faster."""
        with self._mutex:
            while True:
                tree = self._now()
                change = make(tree)
                if change is None or (self._may_write() and self._chain.add(change)):
                    return

    def _now(self) -> Tree:
        """The files and folders as of now. While we may write, nobody else changes them."""
        if not self._chain.is_ours:
            self._chain.refresh()
        self._require_ours()
        return self._chain.tree

    def _may_write(self) -> bool:
        """Whether we may write. If nobody has the lock, get the right to write; False: look
        again."""
        if self._has_begun and self._chain.is_ours:
            return True
        fence = self._chain.fence
        if _is_held(fence):
            raise PermissionError(f"{self.place} is in use: {fence.holder}")
        # A writer without the lock gives that right up at once, so that the next one may take it.
        self._has_begun = self._chain.begin(_NOBODY) and self._chain.end()
        return False

    def _require_ours(self) -> None:
        if self._has_begun and not self._chain.is_ours and self._held is not None:
            raise taken_over(self.place)

    # --- files -----------------------------------------------------------------------------------

    def read(self, path: str) -> pa.Buffer:
        with self._mutex:
            return self._seen().read(path)

    def _seen(self) -> Tree:
        if self._held is None or not self._chain.is_ours:
            self._chain.refresh()
        return self._chain.tree

    def open(self, path: str) -> Content:
        return content_of(self.read(path).to_pybytes())

    def write(self, path: str, content: Any, mode: int = 0o666) -> None:
        whole = b"".join(pieces_of(content))
        self._change(lambda tree: tree.write(path, whole, time.time()))

    def sync(self, path: str) -> None:
        """Nothing to do: each change is durable."""

    def sync_folder(self, path: str) -> None:
        """Nothing to do: each change is durable."""

    def make_folder(self, path: str) -> None:
        self._change(lambda tree: tree.make_folder(path))

    def rename(self, path: str, new: str) -> None:
        self._change(lambda tree: tree.rename(path, new))

    def name(self, path: str, new: str) -> bool:
        was_free: list[bool] = []

        def given(tree: Tree) -> Change:
            was_free.append(tree.info(new) is None)
            return tree.rename(path, new) if was_free[-1] else tree.delete(path)

        self._change(given)
        return was_free[-1]

    def delete(self, path: str) -> None:
        self._change(lambda tree: tree.delete(path))

    def delete_folder(self, path: str) -> None:
        self._change(lambda tree: tree.delete_folder(path))

    def info(self, path: str) -> Info | None:
        with self._mutex:
            return self._seen().info(path)

    def entries(self, folder: str, *, recursive: bool = False) -> list[Info]:
        with self._mutex:
            return self._seen().entries(folder, recursive=recursive)

    # --- what a journal needs --------------------------------------------------------------------

    def append(self, path: str) -> Tail:
        with self._mutex:
            self._seen().read(path)  # it must exist
        return _Tail(self, path)

    def add(self, path: str, data: bytes) -> None:
        """Append to a file; each call is one object."""
        self._change(lambda tree: tree.append(path, data, time.time()))

    def truncate(self, path: str, nbytes: int) -> None:
        self._change(
            lambda tree: tree.write(path, tree.read(path)[:nbytes].to_pybytes(), time.time())
        )

    def lock(self, path: str, holder: str) -> Lock:
        """Take the lock, which takes :data:`LEASE_S` if its holder has died; raises
        :class:`~clonos.storage.files.Locked` if the holder lives."""
        first, watch, silent_s = self._signs(), Stopwatch(STEP_S), 0.0
        while True:
            with self._mutex:
                has_moved, fence = self._signs() != first, self._chain.fence
                if _is_held(fence):
                    if has_moved:
                        raise Locked(fence.holder)
                    silent_s += watch.since_last_look()
                    is_over = silent_s > self._lease_s
                else:
                    is_over = True
                if is_over and self._chain.begin(holder):
                    self._has_begun = True
                    self._held = _HeldLock(self, self._chain.last, self._beat_s)
                    return self._held
            time.sleep(min(WATCH_S, self._beat_s))

    def _signs(self) -> tuple[Any, ...]:
        """Signs of life: they change as long as a holder lives."""
        with self._mutex:
            self._chain.refresh()
            last, fence = self._chain.last, self._chain.fence
        try:
            number, count = decode(self._objects.read(_BEAT))
        except FileNotFoundError:
            number = count = 0
        # Who has lost the lock may not know, and beat on.
        return last, fence, count if fence is not None and fence.number == number else 0

    def beat(self, number: int, count: int) -> bool:
        """Show that we live, and merge old changes; False: another driver has the lock.

        A change may take long, because it is large. Then it shows who has the lock.
        """
        chain, base = self._chain, None
        if self._mutex.acquire(timeout=self._beat_s):
            try:
                chain.refresh()
                if not chain.is_ours:
                    return False
                size = chain.bytes_since_base
                is_due = chain.last - chain.base > CHANGES_MAX or (
                    size > WASTE_BYTES and size > WASTE * chain.tree.nbytes
                )
                base = chain.snapshot() if is_due else None
            finally:
                self._mutex.release()
        self._objects.put(_BEAT, encode((number, count)))
        if base is not None:
            chain.put_together(*base)
            with self._mutex:
                chain.has_base(base[0])
        return True

    def free(self, held: _HeldLock) -> None:
        """Give the lock up at once, if we still have it."""
        with self._mutex:
            if self._held is held:
                self._held = None
                if self._chain.is_ours:
                    self._chain.end()


def _is_held(fence: Fence | None) -> TypeGuard[Fence]:
    """Whether somebody has the lock. (A writer without it may have died before giving up its
    right.)"""
    return fence is not None and not fence.is_free and fence.holder != _NOBODY


class _Tail:
    """A file that grows by one object at a time."""

    def __init__(self, disk: ObjectDisk, path: str) -> None:
        self._disk, self._path = disk, path

    def write(self, data: bytes) -> None:
        self._disk.add(self._path, data)

    def sync(self) -> None:
        """Nothing to do: each change is durable."""

    def close(self) -> None:
        """Nothing is open."""


class _HeldLock:
    """A lock whose beats come from a thread."""

    def __init__(self, disk: ObjectDisk, fence: int, pause_s: float) -> None:
        self._disk, self._fence, self._pause_s = disk, fence, pause_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="clonos-lease", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        count = 0
        while not self._over.wait(self._pause_s):
            count += 1
            try:
                if not self._disk.beat(self._fence, count):
                    _LOG.warning("another driver has taken the lock of %s", self._disk.place)
                    return  # the next change fails, and tells
            except OSError as error:  # the store is away: the next write tells
                _LOG.debug("no beat of the lock of %s: %s", self._disk.place, error)

    def close(self) -> None:
        if self._over.is_set():
            return
        self._over.set()
        self._thread.join()
        try:
            self._disk.free(self)
        except OSError as error:
            _LOG.debug("the lock of %s was not given up: %s", self._disk.place, error)
