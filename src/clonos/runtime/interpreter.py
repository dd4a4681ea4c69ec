"""The interpreter of this process while something of ours runs in it: threads and garbage."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

SWITCH_S: Final = 0.0005
"""Interpreter switch interval: bounds what a long computation of one thread adds to the latency of
the loop in another."""

_lock = threading.Lock()
_running = 0
_before = 0.0


@contextmanager
def low_latency() -> Iterator[None]:
    """Nobody in this process waits long for others, until the last of those who want that has
    ended.

    Threads take turns quickly. The interval is the whole process's: it is set by the first, and is
    what it was after the last, unless somebody else has set it meanwhile.

    What is there when the first begins (imported libraries, above all) is passed over by the
    garbage collector. To look at it takes 0.1 s and more, with all threads at a standstill, and
    with a copy of each page that a fork has shared; and it happens seconds after the start.

    Examples
    --------
    >>> before = sys.getswitchinterval()
    >>> with low_latency():
    ...     round(sys.getswitchinterval(), 6), gc.get_freeze_count() > 0
    (0.0005, True)
    >>> sys.getswitchinterval() == before, gc.get_freeze_count()
    (True, 0)
    """
    global _running, _before  # noqa: PLW0603 - as global as the interval is
    with _lock:
        _running += 1
        if _running == 1:
            _before = sys.getswitchinterval()
            sys.setswitchinterval(SWITCH_S)
            gc.collect()  # or what is garbage now would stay
            gc.freeze()
    try:
        yield
    finally:
        with _lock:
            _running -= 1
            is_ours = abs(sys.getswitchinterval() - SWITCH_S) < SWITCH_S / 100
            if not _running and is_ours:
                sys.setswitchinterval(_before)
            if not _running:
                gc.unfreeze()
