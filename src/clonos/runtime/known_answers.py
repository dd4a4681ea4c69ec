"""The answers of a service that a task remembers, so as not to ask the same question again.

The memory only decides whether a call is made. A remembered answer is an outcome like any other,
and logged: a replay knows the answer, wherever it came from. So the memory does not survive the
life of a task, and need not.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

from clonos.core.calls import CallId, Outcome
from clonos.core.canonical import encode
from clonos.errors import UnencodableValue

ENTRIES_MAX: Final = 100_000
BYTES_MAX: Final = 64 << 20
"""Limit for questions and answers together; the least recently used go first."""


class KnownAnswers:
    """Answers by question, for some time.

    Parameters
    ----------
    ttl_s
        How long an answer is good, from when it came.
    clock
        Returns seconds.

    Examples
    --------
    >>> now = [0.0]
    >>> memory = KnownAnswers(10.0, lambda: now[0])
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
        self._asking: dict[bytes, tuple[CallId, asyncio.Future[Outcome | None]]] = {}

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
        """Remember an answer that has just come; `left_s`: how long it is good, if it came from
        elsewhere."""
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

    async def outcome_or_turn(self, question: bytes, call: CallId, digest: int) -> Outcome | None:
        """The outcome of a call, from memory or from another call that asks the same at the same
        time; None: the call has to ask, and to say :meth:`done` afterwards."""
        while (answer := self.get(question)) is None:
            _, asking = self._asking.get(question, (None, None))
            if asking is None:
                asking = asyncio.get_running_loop().create_future()
                self._asking[question] = call, asking
                return None
            await asyncio.wait([asking])
            if (said := asking.result()) is not None:
                return said._replace(number=call.number, digest=digest, attempts=0, ms=0)
        return Outcome(*call, digest, True, answer, attempts=0)

    def done(self, question: bytes, call: CallId, outcome: Outcome | None) -> None:
        """The call that had to ask is over, or was given up. Calls that wait for it have its
        outcome; None: the next of them has to ask."""
        asker, asking = self._asking.get(question, (None, None))
        if asking is not None and asker == call:
            del self._asking[question]
            asking.set_result(outcome)


def question_of(arguments: Any) -> bytes | None:
    """The bytes that identify a question; None: its arguments cannot be encoded."""
    try:
        return encode(list(arguments))
    except UnencodableValue:
        return None
