"""Answers that are used again for equal questions: ``cache_ttl=``.

What is remembered is neither state nor log. A row that gets such an answer logs it as its own, with
0 attempts; so whatever dies, that row keeps it, and a new life begins with nothing in its memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from clonos.core.canonical import encode
from clonos.errors import UnencodableValue

ENTRIES_MAX: Final = 10_000
BYTES_MAX: Final = 16 << 20
"""Of the answers that a task remembers of one service; the oldest are forgotten first."""


class _Known(NamedTuple):
    answer: bytes
    until_s: float


class Memory:
    """The newest answers of one service, for so many seconds each.

    Examples
    --------
    >>> memory = Memory(60.0)
    >>> question = question_of(["Rome"])
    >>> memory.put(question, b"Italy", 100.0)
    >>> memory.get(question, 159.0), memory.get(question, 160.0)
    (b'Italy', None)
    """

    def __init__(self, ttl_s: float) -> None:
        self._ttl_s = ttl_s
        self._known: dict[bytes, _Known] = {}  # oldest first
        self._nbytes = 0

    def __len__(self) -> int:
        return len(self._known)

    def get(self, question: bytes, now_s: float) -> bytes | None:
        """The encoded answer, if there is one that is still good."""
        known = self._known.get(question)
        return known.answer if known is not None and now_s < known.until_s else None

    def put(self, question: bytes, answer: bytes, now_s: float) -> None:
        """Remember what was answered just now."""
        self._forget(question)
        self._known[question] = _Known(answer, now_s + self._ttl_s)
        self._nbytes += len(answer)
        while len(self._known) > ENTRIES_MAX or self._nbytes > BYTES_MAX:
            self._forget(next(iter(self._known)))

    def _forget(self, question: bytes) -> None:
        if (known := self._known.pop(question, None)) is not None:
            self._nbytes -= len(known.answer)


def question_of(arguments: Sequence[Any]) -> bytes | None:
    """What equal arguments have in common; None: nobody can tell."""
    try:
        return blake2b(encode(list(arguments)), digest_size=16).digest()
    except UnencodableValue:
        return None
