"""Threads that are ready for what they will do: what takes time is done while nobody waits for it.

A thread's first words to Spark open a connection and start a thread of the JVM. Where a process has
died and its task waits for the next one, that took the busy driver longer than Spark needs to start
the process.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

Ready = Callable[[], Any]
"""Returns what was made ready; makes it now if that has not been done or has failed."""


class ReadyThread:
    """A thread that waits for the one thing it will do.

    Parameters
    ----------
    name
        Of the thread.
    prepare
        Makes it ready. Called in the thread, at most once more if it raises.
    after_s
        When to prepare, if there is nothing to do before.

    Examples
    --------
    >>> thread, said = ReadyThread("greeter", lambda: "hello", after_s=0.0), SimpleQueue()
    >>> thread.do(lambda ready: said.put(ready()))
    >>> said.get()
    'hello'
    """

    def __init__(self, name: str, prepare: Callable[[], Any], after_s: float) -> None:
        self._prepare, self._after_s = prepare, after_s
        self._orders: SimpleQueue[Callable[[Ready], None] | None] = SimpleQueue()
        self.thread = threading.Thread(target=self._work, name=name, daemon=True)
        self.thread.start()

    def do(self, act: Callable[[Ready], None]) -> None:
        """Do this, and end."""
        self._orders.put(act)

    def dismiss(self) -> None:
        """End, with nothing done."""
        self._orders.put(None)

    def _work(self) -> None:
        ready = self._prepare
        try:
            order = self._orders.get(timeout=self._after_s)
        except Empty:
            with contextlib.suppress(Exception):  # raised again where somebody hears of it
                made = self._prepare()
                ready = lambda: made  # noqa: E731
            order = self._orders.get()
        if order is not None:
            order(ready)
