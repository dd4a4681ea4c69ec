"""Changes in one order for all, where the only help is that a name can be given once.

Each change is an object of the next number, created only if nobody has: so of two writers one has
it, and the other looks again. Whoever begins to write creates a *fence* first, a change like any
other. A writer that was frozen meanwhile wants a number that is taken, for its next change is the
number at which somebody has put a fence; it finds that there, and has lost. No clock is asked, and
nothing that arrives late does harm. (Elsewhere: a log of compare-and-swap, an epoch or fencing
token.)

What was changed long ago is put together in a *base*, and the changes in it are deleted, but never
a fence: its number would be free again for the writer whom it has stopped. Nor is the change before
a fence: that writer may not have heard yet that it was made, and try that number again. Other
numbers are free again, for somebody who has not looked for a long time and wants to begin. So a
fence counts only if there is no base yet that goes as far, which its writer looks for after it has
put it.

::

    changes/000000000000042     a change or a fence
    bases/000000000000040       all that the changes up to this number have made
    beat                        of whoever writes; see clonos.storage.objects.disk

Needed of the store: a create that fails if the name is taken, and lists and reads that show what
was written before they began. S3, Google's and Azure's storage promise both.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any, Final

from xxhash import xxh3_64_digest

from clonos.core.canonical import decode, encode
from clonos.errors import ClonosError, ProtocolError
from clonos.storage.objects.stores import Objects
from clonos.storage.objects.tree import Change, Tree

_CHANGES: Final = "changes"
_BASES: Final = "bases"
_FENCE: Final = "fence"
_FREE: Final = "free"
_DIGEST_BYTES: Final = 8
_LOADS_MAX: Final = 10
"""Others may put changes together while we read them; more often than this in a row is damage."""


class UnreadableObjects(ClonosError):
    """Objects of a journal are damaged or missing."""


@dataclass(frozen=True)
class Fence:
    """Who may write: since which number, under what name, and whether it has given that up."""

    number: int
    writer: str
    holder: str
    is_free: bool


class Chain:
    """The changes, as far as they were read, and what they make.

    For one thread at a time.

    Parameters
    ----------
    objects
        Only the chain is there.

    Attributes
    ----------
    last
        The number of the last change that was read.
    tree
        What the changes up to there have made.
    fence
        Of whoever may write; None: nobody has ever.
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
        """Whether it is us who may write."""
        return self.fence is not None and self.fence.writer == self._writer

    # --- reading ---------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Read what has come since the last time.

        Raises
        ------
        OSError
            The store is away.
        UnreadableObjects
            Something is missing, or is not what was written.
        """
        for _ in range(_LOADS_MAX):
            try:
                if self.last == 0:
                    self._load()
                if self._follow():
                    return
            except FileNotFoundError:  # it was put together and deleted while we read
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
        """Apply what comes next; False: some of it is in a base by now.

        Nothing is applied before that is known: under numbers that are free again may be what
        somebody has put too late.
        """
        names = self._objects.names(_CHANGES, after=_name(self.last))
        contents = self._objects.read_all(names)
        are_next = [_number(name) for name in names] == list(
            range(self.last + 1, self.last + 1 + len(names))
        )
        if not are_next or self._newest_base() > self.last:
            return False
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
        """Let this be the next change; False: another one has been faster, and was read.

        Raises
        ------
        OSError
            Nobody knows whether it is there, or comes to be; if so, the next one finds it there.
        """
        content = self._create(change)
        if content is None:
            self.refresh()
            return False
        self._take(content)
        return True

    def _create(self, change: Change) -> bytes | None:
        """What was put under the next number; None: it was taken."""
        name = _name(self.last + 1)
        content = _encoded((self._writer, secrets.token_bytes(8), change))
        # What is found there may be ours: a client tries again if it has not heard of a success.
        is_there = self._objects.create(name, content) or self._objects.read(name) == content
        return content if is_there else None

    def begin(self, holder: str) -> bool:
        """Put a fence: from then on only we may write. False: something has come before it."""
        content = self._create((_FENCE, holder))
        if content is None or self._newest_base() > self.last:  # that number was used, long ago
            self.refresh()
            return False
        self._take(content)
        return True

    def end(self) -> bool:
        """Give that up."""
        return self.add((_FREE,))

    # --- old changes -----------------------------------------------------------------------------

    def snapshot(self) -> tuple[int, bytes, list[int]]:
        """What a base is made of: its number, its content, and which changes are fences."""
        fence = self.fence
        known = fence and (fence.number, fence.writer, fence.holder, fence.is_free)
        fences = list(self._fences)
        return self.last, _encoded((self.tree.value(), known, fences)), fences

    def put_together(self, number: int, content: bytes, fences: list[int]) -> None:
        """Write a base, and delete what is in it. Any thread may, and anybody: it is the same."""
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
            remedy="see who else writes there; restore them from a copy, or start the job afresh "
            "with another journal",
        )


def _encoded(value: Any) -> bytes:
    body = encode(value)
    return xxh3_64_digest(body) + body


def _name(number: int, folder: str = _CHANGES) -> str:
    return f"{folder}/{number:015d}"


def _number(name: str) -> int:
    return int(name.rpartition("/")[2])
