"""What a task remembers of a service's answers, so as not to ask the same question again.

It decides only whether a call is made. What comes of it is an outcome like any other, and logged:
a replay knows the answer, wherever it came from. So the memory need not survive, and does not; a
new life of the task begins with none.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

from clonos.core.canonical import encode
from clonos.errors import UnencodableValue

ENTRIES_MAX: Final = 100_000
BYTES_MAX: Final = 64 << 20
"""Of questions and answers; what was not asked for longest goes first."""


class Memory:
    """Answers by question, for some time.

    Parameters
    ----------
    ttl_s
        How long an answer is good for, from when it came.
    clock
        In seconds.

    Examples
    --------
    >>> now = [0.0]
    >>> memory = Memory(10.0, lambda: now[0])
    >>> memory.put(b"question", b"answer")
    >>> now[0] = 9.0
    >>> memory.get(b"question")
    b'answer'
    >>> now[0] = 11.0
    >>> memory.get(b"question") is None
    True
    """

    def __init__(
        self,
        ttl_s: float,
        clock: Callable[[], float],
        entries: int = ENTRIES_MAX,
        nbytes: int = BYTES_MAX,
    ) -> None:
        self._ttl_s, self._clock = ttl_s, clock
        self._entries, self._nbytes_max, self._nbytes = entries, nbytes, 0
        self._known: OrderedDict[bytes, tuple[float, bytes]] = OrderedDict()
        self._asking: dict[bytes, asyncio.Future[None]] = {}

    def get(self, question: bytes) -> bytes | None:
        """The answer, if it is known and good."""
        known = self._known.get(question)
        if known is None:
            return None
        until_s, answer = known
        if until_s < self._clock():
            self._forget(question)
            return None
        self._known.move_to_end(question)
        return answer

    def put(self, question: bytes, answer: bytes, left_s: float | None = None) -> None:
        """It was answered just now; or it is good for so long."""
        if question in self._known:
            self._forget(question)
        good_s = self._ttl_s if left_s is None else min(left_s, self._ttl_s)
        self._known[question] = self._clock() + good_s, answer
        self._nbytes += len(question) + len(answer)
        while len(self._known) > self._entries or self._nbytes > self._nbytes_max:
            self._forget(next(iter(self._known)))

    def _forget(self, question: bytes) -> None:
        _, answer = self._known.pop(question)
        self._nbytes -= len(question) + len(answer)

    async def get_or_turn(self, question: bytes) -> bytes | None:
        """The answer; None: it is for the caller to ask, and to say :meth:`done` afterwards.

        Who has the same question meanwhile waits.
        """
        while (answer := self.get(question)) is None:
            asking = self._asking.get(question)
            if asking is None:
                self._asking[question] = asyncio.get_running_loop().create_future()
                return None
            await asyncio.wait([asking])
        return answer

    def done(self, question: bytes) -> None:
        """Who asked has put the answer, or there is none, or it is not waited for any longer."""
        if (asking := self._asking.pop(question, None)) is not None:
            asking.set_result(None)


def question_of(arguments: Any) -> bytes | None:
    """What tells a question from others; None: it cannot be told."""
    try:
        return encode(list(arguments))
    except UnencodableValue:
        return None
