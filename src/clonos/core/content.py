"""Bytes that need not be in memory: large content is read piece by piece, when it is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Protocol, SupportsBytes, runtime_checkable

from xxhash import xxh3_64


class Content(Protocol):
    """Bytes that never change, perhaps on a disk. ``str()`` says where they are."""

    def __len__(self) -> int: ...

    def read(self, start: int, end: int) -> bytes:
        """The bytes from `start` to `end`. Raises `OSError` if they cannot be read."""

    def expect(self, start: int, end: int) -> None:
        """Say that these bytes will be read soon: a disk fetches many places together much sooner
        than one after the other."""


class Writable(Content, Protocol):
    """Content that grows at its end until somebody reads it."""

    def write(self, content: bytes) -> object: ...


@runtime_checkable
class Encodable(Protocol):
    """Something that is encoded only when it is stored."""

    def encoded(self) -> Chunks: ...


class InMemory:
    """Bytes in memory.

    Examples
    --------
    >>> InMemory(b"abc").read(1, 9)
    b'bc'
    """

    def __init__(self, content: bytes) -> None:
        self._content = content

    def __str__(self) -> str:
        return "memory"

    def __len__(self) -> int:
        return len(self._content)

    def read(self, start: int, end: int) -> bytes:
        return self._content[start:end]

    def expect(self, start: int, end: int) -> None:
        """It is here."""


class Part:
    """A part of other content.

    Examples
    --------
    >>> part = Part(InMemory(b"abcdef"), 2, 5)
    >>> len(part), part.read(1, 9)
    (3, b'de')
    """

    def __init__(self, whole: Content, start: int, end: int) -> None:
        self._whole, self._start, self._end = whole, start, end

    def __str__(self) -> str:
        return str(self._whole)

    def __len__(self) -> int:
        return self._end - self._start

    def read(self, start: int, end: int) -> bytes:
        return self._whole.read(self._start + start, min(self._start + end, self._end))

    def expect(self, start: int, end: int) -> None:
        self._whole.expect(self._start + start, min(self._start + end, self._end))


class Shelved(Protocol):
    """Something that is being written to the local disk."""

    @property
    def content(self) -> Content | None:
        """The content, as soon as it is on the disk."""

    @property
    def failed(self) -> bool:
        """Whether the disk did not take it."""


class Shelf(Protocol):
    """Space on the local disk for what does not fit into memory. Files stay as long as they are
    referred to."""

    def write(self, fill: Callable[[Writable], object], *, is_long: bool) -> Shelved:
        """Have another thread write something. ``is_long``: shorter writes need not wait for it."""


STATE_MEMORY: Final = 512 << 20
"""How much of a slot's memory its values, timers, rows by key and pieces of windows may take."""
CHUNK: Final = 1 << 20
"""How much of content that is not in memory is read at once."""


class Chunks:
    """A concatenation of other content. Iteration reads a piece at a time.

    Examples
    --------
    >>> chunks = Chunks([b"ab", InMemory(b"cd")])
    >>> len(chunks), bytes(chunks), chunks.digest() == Chunks([b"abcd"]).digest()
    (4, b'abcd', True)
    >>> chunks.read(1, 3)
    b'bc'
    """

    def __init__(self, parts: Sequence[bytes | Content]) -> None:
        self._parts = parts

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def __iter__(self) -> Iterator[bytes]:
        for part in self._parts:
            if isinstance(part, bytes):
                yield part
            elif isinstance(part, Chunks):
                yield from part
            else:
                for start in range(0, len(part), CHUNK):
                    yield part.read(start, start + CHUNK)

    def __bytes__(self) -> bytes:
        return b"".join(self)

    def read(self, start: int, end: int) -> bytes:
        return b"".join(part.read(*span) for part, span in self._parts_of(start, end))

    def expect(self, start: int, end: int) -> None:
        for part, span in self._parts_of(start, end):
            part.expect(*span)

    def _parts_of(self, start: int, end: int) -> Iterator[tuple[Content, tuple[int, int]]]:
        at = 0
        for part in self._parts:
            size = len(part)
            if start < at + size and end > at:
                yield content_of(part), (max(start - at, 0), min(end - at, size))
            at += size

    def digest(self) -> int:
        """The :func:`~clonos.core.digest.content_digest` of all of it."""
        state = xxh3_64()
        for chunk in self:
            state.update(chunk)
        digest: int = state.intdigest()
        return digest


def encoded(delta: bytes | SupportsBytes | Encodable) -> bytes | Chunks:
    """A sealed delta, which is encoded only now, unless it is already."""
    if isinstance(delta, Encodable):
        return delta.encoded()
    return delta if isinstance(delta, Chunks) else bytes(delta)


def chunks_of(content: bytes | Content) -> Chunks:
    """The same content, to be iterated over."""
    return content if isinstance(content, Chunks) else Chunks([content])


def content_of(content: bytes | Content) -> Content:
    """The same content, to be read."""
    return InMemory(content) if isinstance(content, bytes) else content


def pieces_of(content: Any) -> Iterable[Any]:
    """What is to be written, piece by piece."""
    return content if isinstance(content, Chunks) else (content,)
