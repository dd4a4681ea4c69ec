"""A local disk for state that does not fit into memory; it is slow and may be full."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from clonos.core.content import Content, Writable


class Order:
    """A `Shelved` file: each look at it may find it written."""

    def __init__(self, fill: Callable[[Writable], object], random: Random) -> None:
        self._fill, self._random = fill, random
        self._file: MemoryFile | None = None
        self._is_full = random.random() < 0.1

    @property
    def content(self) -> Content | None:
        if self._file is None and not self._is_full and self._random.random() < 0.6:
            file = MemoryFile()
            self._fill(file)
            self._file = file
        return self._file

    @property
    def failed(self) -> bool:
        return self._is_full


class MemoryFile:
    """A file that grows at its end."""

    def __init__(self) -> None:
        self._content = bytearray()

    def __len__(self) -> int:
        return len(self._content)

    def write(self, content: bytes) -> None:
        """Append."""
        self._content += content

    def read(self, start: int, end: int) -> bytes:
        """Some of it."""
        return bytes(self._content[start:end])

    def expect(self, start: int, end: int) -> None:
        """It is here."""


class SlowShelf:
    """A :class:`~clonos.core.content.Shelf` that carries out orders now, later, or never.

    Examples
    --------
    >>> order = SlowShelf(Random(2)).write(lambda file: file.write(b"run"), is_long=False)
    >>> while order.content is None:
    ...     pass
    >>> order.content.read(0, 3)
    b'run'
    """

    def __init__(self, random: Random) -> None:
        self._random = random

    def write(self, fill: Callable[[Writable], object], *, is_long: bool) -> Order:
        """Take an order."""
        del is_long
        return Order(fill, self._random)
