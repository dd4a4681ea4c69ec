"""What of an in-flight log lies on the disk: its oldest items, a file for some of them each.

What the receiver has is needed again only if it fails, and it needs the oldest first. So what is on
the disk is the beginning of the log, in files of consecutive items. Only batches are spilled; of
each item stays what tells it from others, its size and digest included.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from clonos.core.messages import Item
from clonos.core.program import Batch

FILE_BYTES: Final = 16 << 20
"""The size of a file, at most, unless a single batch is larger."""
KEPT_BYTES: Final = 512
"""About what an item takes in memory whose batch is on the disk."""


class OnDisk:
    """Stands for the content of a batch that is on the disk."""


ON_DISK: Final = OnDisk()


@dataclass(slots=True)
class SpillFile:
    """Batches of the items `first` ... `last`; those that are none have none."""

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
        By item: what was read back, and not sent yet.
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
        """Whether the newest file is on its way."""
        return bool(self.files) and not self.files[-1].is_written

    def begin(self, items: Sequence[Item]) -> int:
        """A file for these; its number."""
        self._numbers += 1
        self.files.append(SpillFile(self._numbers, items[0].seq, items[-1].seq))
        return self._numbers

    def find(self, number: int) -> SpillFile | None:
        """The file of this number, if anybody needs it still."""
        return next((file for file in self.files if file.number == number), None)

    def to_load(self, seq: int) -> list[int]:
        """Files to read back so that item `seq` can be sent, and the next: each is asked once."""
        files = [file for file in self.files if file.is_written and file.last >= seq][:2]
        due = [file.number for file in files if file.number not in self._asked]
        self._asked.update(due)
        return due

    def came(self, number: int, batches: dict[int, Batch], cursor: int) -> None:
        """A file was read back."""
        if number in self._asked:
            self.loaded.update((seq, b) for seq, b in batches.items() if seq >= cursor)

    def rewind(self) -> None:
        """The receiver asks for something else: what was read back for it is of no use."""
        self.loaded.clear()
        self._asked.clear()

    def truncate(self, seq: int) -> list[int]:
        """Files of which nobody needs anything any more."""
        gone = []
        while self.files and self.files[0].last <= seq and self.files[0].is_written:
            gone.append(self.files.popleft().number)
        for old in [s for s in self.loaded if s <= seq]:
            del self.loaded[old]
        return gone
