"""Watches the event loop of the calls: one coroutine that blocks keeps all calls waiting.

While it blocks, the loop runs nothing, not even timeouts. So this module's own thread gives up the
calls whose time is over, and warns the user of the lines that block.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from clonos.blame import users_lines
from clonos.core.calls import CallId, Outcome, Request

LOGGER: Final = logging.getLogger("clonos")

BEAT_S: Final = 0.25
"""How often the loop shows that it runs."""
BLOCKED_S: Final = 1.0
"""A loop that has shown nothing for this long is blocked, if it is in user code."""

GiveUp = Callable[[int, Sequence[tuple[CallId, Request]], str], None]
"""Called with a life, its calls whose time is over, and the lines that have blocked the loop."""


class CallWatch:
    """Knows which calls are open; belongs to one event loop.

    Parameters
    ----------
    give_up
        Called in the thread of the watch.
    """

    def __init__(self, give_up: GiveUp) -> None:
        self._give_up = give_up
        self._lock = threading.Lock()
        self._open: defaultdict[int, dict[CallId, tuple[Request, float]]] = defaultdict(dict)
        self._beat_s = time.monotonic()
        self._thread_of_loop = 0
        self._is_over = threading.Event()
        self._has_warned = False

    def start(self) -> None:
        """The loop begins, in this thread."""
        self._thread_of_loop = threading.get_ident()
        self.beat()
        threading.Thread(target=self._run, name="clonos-calls-watch", daemon=True).start()

    def close(self) -> None:
        self._is_over.set()

    def beat(self) -> float:
        """The loop runs. Return how long it has not shown that."""
        before, self._beat_s = self._beat_s, time.monotonic()
        return self._beat_s - before

    # --- calls ----------------------------------------------------------------------------------

    def asked(self, life: int, calls: Iterable[tuple[CallId, Request]]) -> None:
        now = time.monotonic()
        with self._lock:
            self._open[life].update((call, (request, now)) for call, request in calls)

    def over(self, life: int, outcomes: Iterable[Outcome]) -> tuple[Outcome, ...]:
        """The outcomes whose call was not given up meanwhile."""
        with self._lock:
            ours = self._open.get(life, {})
            return tuple(o for o in outcomes if ours.pop(o.id, None) is not None)

    def is_open(self, life: int, call: CallId) -> bool:
        """Whether a call was not given up."""
        with self._lock:
            return call in self._open.get(life, ())

    def forget(self, life: int) -> None:
        """A life is over."""
        with self._lock:
            self._open.pop(life, None)

    # --- the watch ------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._is_over.wait(BEAT_S):
            now = time.monotonic()
            if now - self._beat_s < BLOCKED_S:
                self._has_warned = False
            elif lines := users_lines(self._thread_of_loop):  # else only the machine is busy
                self._is_blocked(now, lines)

    def _is_blocked(self, now: float, lines: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            LOGGER.warning(
                "a coroutine has kept all calls of this process waiting for %.1f s. Await slow "
                "operations, or pass a plain function, which runs in a thread. It is here:\n%s",
                now - self._beat_s,
                lines,
            )
        for life, calls in self._overdue(now).items():
            self._give_up(life, calls, lines)

    def _overdue(self, now: float) -> dict[int, list[tuple[CallId, Request]]]:
        """Calls that have had no answer within their time, all of it while the loop was blocked."""
        found: dict[int, list[tuple[CallId, Request]]] = {}
        with self._lock:
            for life, calls in self._open.items():
                late = [
                    (call, request)
                    for call, (request, asked_s) in calls.items()
                    if now - max(asked_s, self._beat_s) >= request.service.timeout_s
                ]
                for call, _ in late:
                    del calls[call]
                if late:
                    found[life] = late
        return found
