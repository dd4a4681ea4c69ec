"""Tries a step that may kill the process in a copy of the process.

The copy is made by ``fork``, as Spark makes its Python workers: it has the memory of user code and
its open files, but no other threads, and ends without cleaning up. It dies with this process, and
after a time limit.

Connections are not shared, because the answer to a request of the copy might come to this process,
or the other way round. In the copy all sockets and pipes look as if the other side had closed them,
so clients open new connections there.

A trial has real effects: calls are made, and the step will make them again. Locks that other
threads hold during the fork stay locked in the copy; if it needs one, it hangs, and the trial has
no result. Before the fork, a trial waits for imports to end, because of their locks.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import select
import signal
import socket
import stat
import sys
import threading
import time
import warnings
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FrameType
from typing import Final

from clonos.core.events import Trial

LIMIT_S: Final = 10.0
"""A trial that takes longer has no result. The whole slot waits for it, and so do fences."""
_IMPORT_CODE: Final = ModuleSpec.__init__.__code__.co_filename
"""The file name of Python's own code for imports."""
_STANDARD_FILES: Final = 3
_DEATH_SIGNAL: Final = 1
"""``PR_SET_PDEATHSIG`` of Linux: which signal a process gets when its parent dies."""


def attempt(do: Callable[[], None], limit_s: float = LIMIT_S) -> Trial:
    """Call `do` in a copy of this process, and return what became of the copy.

    An exception is no death: the step itself will raise it, too.
    """
    if not hasattr(os, "fork"):
        return Trial.UNKNOWN
    for stream in (sys.stdout, sys.stderr):  # else their buffers are written twice
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    _wait_for_imports(limit_s)
    told, tell = os.pipe()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", DeprecationWarning
            )  # "may lead to deadlocks": see above
            pid = os.fork()
    except OSError:  # no room for another process
        os.close(told)
        os.close(tell)
        return Trial.UNKNOWN
    if pid == 0:
        _be_the_copy(do, tell, limit_s)
    os.close(tell)  # only the copy has it now: it closes when the copy dies
    try:
        return _outcome(pid, told, limit_s)
    finally:
        os.close(told)


def _be_the_copy(do: Callable[[], None], tell: int, limit_s: float) -> None:
    try:
        _die_with_the_parent(limit_s)
        _disconnect(tell)
        gc.disable()  # objects finalized here are in use there
        try:
            do()
        except (SystemExit, KeyboardInterrupt):  # they end the slot
            raise
        except BaseException:  # noqa: BLE001 - an exception of any kind, a panic of Rust's among them
            os.write(tell, b"?")
        else:
            os.write(tell, b".")
    finally:
        os._exit(1)


def _die_with_the_parent(limit_s: float) -> None:
    """Otherwise our connections would stay open when this slot dies, and nobody would notice its
    death."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, 2 * limit_s)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)


def _disconnect(tell: int) -> None:
    """Take all connections away from the copy, except the one on which it tells its result."""
    ours, others = socket.socketpair()
    others.close()
    for path in list(Path("/dev/fd").iterdir()):
        number = int(path.name)
        if number < _STANDARD_FILES or number in {tell, ours.fileno()}:
            continue
        with contextlib.suppress(OSError):
            mode = os.fstat(number).st_mode
            if stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode):
                os.dup2(ours.fileno(), number)


def _wait_for_imports(limit_s: float) -> None:
    """Let other threads end their imports, whose locks would stay locked in the copy. On a busy
    machine a large library takes seconds."""
    until_s = time.monotonic() + limit_s
    while _others_import() and time.monotonic() < until_s:
        time.sleep(0.001)


def _others_import() -> bool:
    me = threading.get_ident()
    frames = sys._current_frames()  # noqa: SLF001 - there is no other way to see it
    return any(_imports(frame) for thread, frame in frames.items() if thread != me)


def _imports(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == _IMPORT_CODE:
            return True
        frame = frame.f_back
    return False


def _outcome(pid: int, told: int, limit_s: float) -> Trial:
    word = _word(pid, told, limit_s)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)
    return {b".": Trial.SURVIVED, b"": Trial.DIED}.get(word, Trial.UNKNOWN)


def _word(pid: int, told: int, limit_s: float) -> bytes:
    """What the copy tells; b"" if it dies without a word, b"?" if nothing is known in time."""
    poll = select.poll()
    poll.register(told, select.POLLIN)
    with contextlib.ExitStack() as opened:
        if sys.platform == "linux":  # a process that the copy has forked may keep the pipe open
            with contextlib.suppress(OSError):
                copy = os.pidfd_open(pid)
                opened.callback(os.close, copy)
                poll.register(copy, select.POLLIN)
        if not poll.poll(1000 * limit_s):
            return b"?"
    os.set_blocking(told, False)
    try:
        return os.read(told, 1)
    except BlockingIOError:
        return b""
