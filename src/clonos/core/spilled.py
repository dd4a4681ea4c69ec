"""The part of an in-flight log that is on the local disk: its oldest items, in files.

Items that the receiver has are needed again only if it fails, and then the oldest are needed first.
So the beginning of the log is on the disk, in files of consecutive items. Only batches are spilled;
number, size and digest of each item stay in memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from clonos.core.messages import Item
from clonos.core.program import Batch

FILE_BYTES: Final = 16 << 20
"""The maximum size of a file, unless a single batch is larger."""
KEPT_BYTES: Final = 512
"""Roughly what an item takes in memory if its batch is on the disk."""


class OnDisk:
    """Stands for the content of a batch that is on the disk."""


ON_DISK: Final = OnDisk()


@dataclass(slots=True)
class SpillFile:
    """The batches among the items `first` ... `last`."""

    number: int
    first: int
    last: int
    is_written: bool = False


class Spilled:
    """The files of one channel, oldest first.

    Attributes
    ----------
    nbytes
        Size of the batches that are on the disk and no longer in memory.
    loaded
        By item: batches that were read back and not sent yet.
    """

    __slots__ = ("_asked", "_numbers", "files", "loaded", "nbytes")

    def __init__(self) -> None:
        self.files: deque[SpillFile] = deque()
        self.nbytes = 0
        self.loaded: dict[int, Batch] = {}
        self._asked: set[int] = set()
        self._numbers = 0

    @property
    def is_writing(self) -> bool:
        """Whether the newest file is being written."""
        return bool(self.files) and not self.files[-1].is_written

    def begin(self, items: Sequence[Item]) -> int:
        """Begin a file for these items. Return its number."""
        self._numbers += 1
        self.files.append(SpillFile(self._numbers, items[0].seq, items[-1].seq))
        return self._numbers

    def find(self, number: int) -> SpillFile | None:
        """The file of this number, if it is still needed."""
        return next((file for file in self.files if file.number == number), None)

    def to_load(self, seq: int) -> list[int]:
        """The files to read back so that item `seq` and the next can be sent; each is returned
        once."""
        files = [file for file in self.files if file.is_written and file.last >= seq][:2]
        due = [file.number for file in files if file.number not in self._asked]
        self._asked.update(due)
        return due

    def came(self, number: int, batches: dict[int, Batch], cursor: int) -> None:
        """A file was read back."""
        if number in self._asked:
            self.loaded.update((seq, b) for seq, b in batches.items() if seq >= cursor)

    def rewind(self) -> None:
        """The receiver asks for other items: those that were read back are of no use."""
        self.loaded.clear()
        self._asked.clear()

    def truncate(self, seq: int) -> list[int]:
        """Forget items up to `seq`. Return the files that nobody needs any more."""
        gone = []
        while self.files and self.files[0].last <= seq and self.files[0].is_written:
            gone.append(self.files.popleft().number)
        for old in [s for s in self.loaded if s <= seq]:
            del self.loaded[old]
        return gone
