"""Trying in a copy of this process what may kill it.

The copy is made by ``fork``, as Spark makes its Python workers: it has everything that user code
has opened and remembers. What differs from this process is left out of it: it has no other threads,
sends nothing on our connections and ends without cleaning up. It dies with this process, and after
a time limit.

What is tried is done for real: calls are made, and will be made again. Locks that other threads
held at that moment stay locked in the copy; if it needs one, it hangs, and says nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import select
import signal
import sys
import warnings
from collections.abc import Callable
from typing import Final

from clonos.core.events import Trial

LIMIT_S: Final = 10.0
"""A trial that takes longer says nothing. The whole slot waits for it, fences included."""
_DEATH_SIGNAL: Final = 1
"""``PR_SET_PDEATHSIG`` of Linux: which signal a process gets when its parent dies."""


def attempt(do: Callable[[], None], limit_s: float = LIMIT_S) -> Trial:
    """Call `do` in a copy of this process, and say what became of it.

    An exception is no death: whatever it means, the step itself will raise it, too.
    """
    if not hasattr(os, "fork"):
        return Trial.UNKNOWN
    for stream in (sys.stdout, sys.stderr):  # else what they hold is written twice
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    told, tell = os.pipe()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", DeprecationWarning
            )  # "may lead to deadlocks": see above
            pid = os.fork()
    except OSError:  # there is no room for another process
        os.close(told)
        os.close(tell)
        return Trial.UNKNOWN
    if pid == 0:
        _be_the_copy(do, tell, limit_s)
    os.close(tell)  # the copy's is the only one: it closes when the copy dies
    try:
        return _outcome(pid, told, limit_s)
    finally:
        os.close(told)


def _be_the_copy(do: Callable[[], None], tell: int, limit_s: float) -> None:
    try:
        _die_with_the_parent(limit_s)
        gc.disable()  # what is finalized here is still in use there
        try:
            do()
        except Exception:  # noqa: BLE001 - an exception of any kind
            os.write(tell, b"?")
        else:
            os.write(tell, b".")
    finally:
        os._exit(1)


def _die_with_the_parent(limit_s: float) -> None:
    """Else our connections would stay open when this slot dies, and nobody would know that."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, 2 * limit_s)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)


def _outcome(pid: int, told: int, limit_s: float) -> Trial:
    poll = select.poll()
    poll.register(told, select.POLLIN)
    word = os.read(told, 1) if poll.poll(1000 * limit_s) else b"?"
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)
    return {b".": Trial.SURVIVED, b"": Trial.DIED}.get(word, Trial.UNKNOWN)
