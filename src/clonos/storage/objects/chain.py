"""Changes in one order for all writers, in a store that only promises that a name is created once.

Each change is an object with the next number, created only if no object has that number: so of two
writers one succeeds, and the other reads again. A writer first creates a *fence*, which is a change
like any other. If a writer was frozen while another one began, the number of its next change is
that of the other's fence: it finds the fence there, and stops. No clocks are compared, and nothing
that arrives late does harm. (Elsewhere: a compare-and-swap log; an epoch or fencing token.)

Old changes are merged into a *base* and deleted, but never a fence, because its number would be
free again for the writer that it has stopped. Nor is the change before a fence deleted: its writer
may not have heard that it was made, and may try that number again. All other old numbers are free
again for a writer that has not looked for a long time and wants to begin. So a fence counts only if
no base goes as far as its number; its writer checks this after creating the fence.

::

    changes/000000000000042     a change or a fence
    bases/000000000000040       all that the changes up to this number have made
    beat                        that of the writer; see clonos.storage.objects.disk

The store must offer a create that fails if the name is taken, and lists and reads that show
everything written before they began. S3, Google's and Azure's storage promise both.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any, Final

from xxhash import xxh3_64_digest

from clonos.core.canonical import decode, encode
from clonos.errors import ProtocolError, UnreadableObjects
from clonos.storage.objects.stores import Objects
from clonos.storage.objects.tree import Change, Tree

_CHANGES: Final = "changes"
_BASES: Final = "bases"
_FENCE: Final = "fence"
_FREE: Final = "free"
_DIGEST_BYTES: Final = 8
_LOADS_MAX: Final = 10
"""Others may merge changes while we read them; if that seems to happen more often than this in a
row, the chain is damaged."""


@dataclass(frozen=True)
class Fence:
    """Which writer may write, since which number, for which holder, and whether it has given that
    up."""

    number: int
    writer: str
    holder: str
    is_free: bool


class Chain:
    """The changes, as far as they were read, and their result.

    For one thread at a time.

    Parameters
    ----------
    objects
        The place of the objects; nothing but the chain may be in it.

    Attributes
    ----------
    last
        The number of the last change that was read.
    tree
        The files and folders that the changes up to there have made.
    fence
        The fence of the writer that may write; None: nobody has ever begun.
    """

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._writer = secrets.token_hex(8)
        self._start(0, Tree(), None, [])

    def _start(self, base: int, tree: Tree, fence: Fence | None, fences: list[int]) -> None:
        self.last = self.base = base
        self.tree, self.fence, self._fences = tree, fence, fences
        self.bytes_since_base = 0

    @property
    def is_ours(self) -> bool:
        """Whether we are the writer that may write."""
        return self.fence is not None and self.fence.writer == self._writer

    # --- reading ---------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Read the changes since the last time.

        Raises
        ------
        OSError
            The store is away.
        UnreadableObjects
            An object is missing or damaged.
        """
        for _ in range(_LOADS_MAX):
            try:
                if self.last == 0:
                    self._load()
                if self._follow():
                    return
            except FileNotFoundError:  # merged and deleted while we read
                pass
            self._start(0, Tree(), None, [])
        raise self._unreadable("changes are missing")

    def _load(self) -> None:
        """Begin with the newest base, if there is one."""
        bases = self._objects.names(_BASES)
        if bases:
            number = _number(bases[-1])
            tree, fence, fences = self._decoded(bases[-1], self._objects.read(bases[-1]))
            known = None if fence is None else Fence(*fence)
            self._start(number, Tree.of(tree), known, list(fences))

    def _follow(self) -> bool:
        """Apply the next changes; False: some of them are in a base by now.

        This is checked before any change is applied: a number that is free again may have been used
        by a writer that came too late.
        """
        names = self._objects.names(_CHANGES, after=_name(self.last))
        contents = self._objects.read_all(names)
        are_next = [_number(name) for name in names] == list(
            range(self.last + 1, self.last + 1 + len(names))
        )
        if not are_next or self._newest_base() > self.last:
            return False
        if contents and not contents[-1]:
            contents.pop()  # some file systems show a file before it has its content
        for content in contents:
            self._take(content)
        return True

    def _newest_base(self) -> int:
        bases = self._objects.names(_BASES)
        return _number(bases[-1]) if bases else 0

    def _take(self, content: bytes) -> None:
        number = self.last + 1
        writer, _, change = self._decoded(_name(number), content)
        if change[0] == _FENCE:
            self.fence = Fence(number, writer, change[1], is_free=False)
            self._fences.append(number)
        elif self.fence is None or self.fence.writer != writer:
            raise self._unreadable(f"change {number} is of a writer who was stopped")
        elif change[0] == _FREE:
            self.fence = Fence(self.fence.number, writer, self.fence.holder, is_free=True)
        else:
            self.tree.apply(change)
        self.last = number
        self.bytes_since_base += len(content)

    def _decoded(self, name: str, content: bytes) -> Any:
        digest, body = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        if xxh3_64_digest(body) != digest:
            raise self._unreadable(f"{name} is not what was written")
        try:
            return decode(body)
        except ProtocolError as error:
            raise self._unreadable(f"{name}: {error.what}") from error

    # --- writing ---------------------------------------------------------------------------------

    def add(self, change: Change) -> bool:
        """Make this the next change; False: another writer was faster, and its change was read.

        Raises
        ------
        OSError
            Nobody knows whether the change is there, or will be; if so, the next attempt finds it.
        """
        content = self._create(change)
        if content is None:
            self.refresh()
            return False
        self._take(content)
        return True

    def _create(self, change: Change) -> bytes | None:
        """Create the object with the next number and return its content; None: the number was
        taken."""
        name = _name(self.last + 1)
        content = _encoded((self._writer, secrets.token_bytes(8), change))
        # The object there may be ours: a client retries if it has not heard of its success.
        is_there = self._objects.create(name, content) or self._objects.read(name) == content
        return content if is_there else None

    def begin(self, holder: str) -> bool:
        """Create a fence: from then on only we may write. False: another change came first."""
        content = self._create((_FENCE, holder))
        if content is None or self._newest_base() > self.last:  # that number was used long ago
            self.refresh()
            return False
        self._take(content)
        return True

    def end(self) -> bool:
        """Give up the right to write."""
        return self.add((_FREE,))

    # --- old changes -----------------------------------------------------------------------------

    def snapshot(self) -> tuple[int, bytes, list[int]]:
        """The number of a base as of now, its content, and the numbers of all fences."""
        fence = self.fence
        known = fence and (fence.number, fence.writer, fence.holder, fence.is_free)
        fences = list(self._fences)
        return self.last, _encoded((self.tree.value(), known, fences)), fences

    def put_together(self, number: int, content: bytes, fences: list[int]) -> None:
        """Write a base, and delete the changes in it. Any thread of any process may do so: the
        result is the same."""
        self._objects.put(_name(number, _BASES), content)
        kept = {number for fence in fences for number in (fence - 1, fence)}
        old = [name for name in self._objects.names(_CHANGES) if _number(name) <= number]
        self._objects.delete([name for name in old if _number(name) not in kept])
        bases = self._objects.names(_BASES)
        self._objects.delete([name for name in bases if _number(name) < number])

    def has_base(self, number: int) -> None:
        """Changes up to this number are in a base."""
        self.base, self.bytes_since_base = number, 0

    def _unreadable(self, why: str) -> UnreadableObjects:
        return UnreadableObjects(
            f"the journal's objects cannot be read: {why}",
            where=self._objects.place,
            remedy="find out who else writes there; restore them from a copy, or start the job "
            "afresh with another journal",
        )


def _encoded(value: Any) -> bytes:
    body = encode(value)
    return xxh3_64_digest(body) + body


def _name(number: int, folder: str = _CHANGES) -> str:
    return f"{folder}/{number:015d}"


def _number(name: str) -> int:
    return int(name.rpartition("/")[2])
