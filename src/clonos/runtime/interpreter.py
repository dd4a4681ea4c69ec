"""Settings of the interpreter while clonos runs in it: threads, garbage collection."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

SWITCH_S: Final = 0.0005
"""Interpreter switch interval: limits how much a long computation in one thread delays the loop in
another."""

_lock = threading.Lock()
_running = 0
_has_run = False
_before = 0.0


@contextmanager
def low_latency() -> Iterator[None]:
    """Keep pauses of threads short in this process, until the last ``with`` block has ended.

    Threads switch often. The interval belongs to the whole process: the first block sets it, and
    the last one restores it, unless somebody else has changed it meanwhile.

    The garbage collector skips all objects that exist when the first block begins, mostly those of
    imported libraries. Traversing them would take 0.1 s and more, seconds after the start;
    meanwhile no thread runs, and each page that is shared with a forked process is copied.

    Examples
    --------
    >>> before = sys.getswitchinterval()
    >>> with low_latency():
    ...     round(sys.getswitchinterval(), 6), gc.get_freeze_count() > 0
    (0.0005, True)
    >>> sys.getswitchinterval() == before, gc.get_freeze_count()
    (True, 0)
    """
    global _running, _has_run, _before  # noqa: PLW0603 - as global as the interval is
    with _lock:
        _running += 1
        if _running == 1:
            _before = sys.getswitchinterval()
            sys.setswitchinterval(SWITCH_S)
            # Garbage of now would stay. A full collection would be such a pause, which a job that
            # begins can bear if another one may have left something large.
            gc.collect(2 if _has_run else 1)
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
                _has_run = True
                gc.unfreeze()
