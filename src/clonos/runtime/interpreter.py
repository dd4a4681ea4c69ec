"""How fast threads of this process take turns, while something of ours runs in it."""

from __future__ import annotations

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
def quick_switching() -> Iterator[None]:
    """Let threads take turns quickly, until the last of those who want that has ended.

    The interval is the whole process's: it is set by the first, and is what it was after the last,
    unless somebody else has set it meanwhile.

    Examples
    --------
    >>> before = sys.getswitchinterval()
    >>> with quick_switching():
    ...     round(sys.getswitchinterval(), 6)
    0.0005
    >>> sys.getswitchinterval() == before
    True
    """
    global _running, _before  # noqa: PLW0603 - as global as the interval is
    with _lock:
        _running += 1
        if _running == 1:
            _before = sys.getswitchinterval()
            sys.setswitchinterval(SWITCH_S)
    try:
        yield
    finally:
        with _lock:
            _running -= 1
            is_ours = abs(sys.getswitchinterval() - SWITCH_S) < SWITCH_S / 100
            if not _running and is_ours:
                sys.setswitchinterval(_before)
