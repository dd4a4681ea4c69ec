"""Threads that are made ready in advance, while nobody waits for them.

A thread's first words to Spark open a connection and start a thread of the JVM; each of the next
ones waits for a reply, and then for Python's lock, which takes time in a busy driver.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

Ready = Callable[[], Any]
"""Returns what was prepared, or raises what was raised then."""


class ReadyThread:
    """A thread that makes itself ready, waits for the one thing it will do, does it, and ends.

    Parameters
    ----------
    name
        Of the thread.
    prepare
        Called in the thread.

    Raises
    ------
    RuntimeError
        The process may start no more threads.

    Examples
    --------
    >>> thread, said = ReadyThread("greeter", lambda: "hello"), SimpleQueue()
    >>> thread.do(lambda ready: said.put(ready()))
    >>> said.get()
    'hello'
    """

    def __init__(self, name: str, prepare: Callable[[], Any]) -> None:
        self.name = name
        self._prepare = prepare
        self._orders: SimpleQueue[Callable[[Ready], None] | None] = SimpleQueue()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def do(self, act: Callable[[Ready], None]) -> None:
        """Do this, and end."""
        self._orders.put(act)

    def dismiss(self) -> None:
        """End, with nothing done."""
        self._orders.put(None)

    def _work(self) -> None:
        ready: Ready = self._prepare
        with suppress(Exception):  # what fails long in advance is tried again
            prepared = self._prepare()
            ready = lambda: prepared  # noqa: E731
        if (act := self._orders.get()) is not None:
            act(ready)


class Successors:
    """At most one thread in readiness for each of several places.

    Parameters
    ----------
    first_s
        How long after a place's first thread is asked for it is made ...
    again_s
        ... and each later one.

    Examples
    --------
    >>> successors = Successors(first_s=0.0, again_s=0.0)
    >>> successors.ask(3, "hello", lambda: ReadyThread("greeter", lambda: "hello"))
    >>> successors.close()
    """

    def __init__(self, first_s: float, again_s: float) -> None:
        self._first_s, self._again_s = first_s, again_s
        self._places: set[int] = set()
        self._lock = threading.Lock()
        self._ready: dict[int, tuple[Hashable, ReadyThread]] = {}
        self._asked: SimpleQueue[tuple[float, int, Hashable, Callable[[], ReadyThread]] | None]
        self._asked = SimpleQueue()
        self._is_begun = self._is_closed = False

    def take(self, place: int, what: Hashable) -> ReadyThread | None:
        """The thread that is ready to do this at a place. One that is ready for something else is
        dismissed."""
        with self._lock:
            known, thread = self._ready.pop(place, (None, None))
        if thread is not None and known != what:
            thread.dismiss()
            return None
        return thread

    def ask(self, place: int, what: Hashable, make: Callable[[], ReadyThread]) -> None:
        """Have a thread for this place soon, if the process may start one."""
        after_s = self._again_s if place in self._places else self._first_s
        self._places.add(place)
        self._asked.put((time.monotonic() + after_s, place, what, make))
        with self._lock:
            if self._is_begun or self._is_closed:
                return
            self._is_begun = True
        try:
            threading.Thread(target=self._work, name="clonos-successors", daemon=True).start()
        except RuntimeError:  # it may be possible later
            self._is_begun = False

    def close(self) -> None:
        """Dismiss them all; no other is made."""
        with self._lock:
            self._is_closed = True
            waiting, self._ready = self._ready, {}
        self._asked.put(None)
        for _, thread in waiting.values():
            thread.dismiss()

    def _work(self) -> None:
        while (asked := self._asked.get()) is not None:
            due_s, place, what, make = asked
            time.sleep(max(0.0, due_s - time.monotonic()))
            if self._is_closed:
                return
            with suppress(RuntimeError):  # no more threads: the next launch tries for itself
                self._put(place, what, make())

    def _put(self, place: int, what: Hashable, thread: ReadyThread) -> None:
        with self._lock:
            if self._is_closed:
                thread.dismiss()
                return
            _, replaced = self._ready.pop(place, (None, None))
            self._ready[place] = what, thread
        if replaced is not None:
            replaced.dismiss()
