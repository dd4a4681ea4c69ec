"""Traps for functions that bypass ``ctx``: calls are recorded, and connections refused."""

from __future__ import annotations

import datetime as dt
import os
import random
import socket
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType, ModuleType
from typing import Any, Final

import numpy as np

from clonos.blame import is_users_file, users_line
from clonos.operators.context import Context
from clonos.testing.harness import StepOutput

FUNCTIONS: Final = frozenset(
    {"time.time", "time.time_ns", "time.monotonic", "time.monotonic_ns", "time.perf_counter",
     "time.perf_counter_ns", "time.process_time", "time.process_time_ns", "time.clock_gettime",
     "posix.urandom", "posix.getpid", "_thread.get_ident"}
)  # fmt: skip
"""Functions in C whose result differs each time, or in each process."""
PERHAPS: Final = frozenset({"builtins.id", "builtins.hash"})
"""Such functions that are often harmless; they are reported only if something differs."""
CLOCKS: Final = frozenset({"now", "utcnow", "today"})
PYTHON: Final[dict[CodeType, str]] = {
    uuid.uuid1.__code__: "uuid.uuid1",
    uuid.uuid4.__code__: "uuid.uuid4",
}
"""Functions in Python, by their code."""
OF_A_STEP: Final = frozenset({Context.random.fget.__code__, StepOutput.clock_ms.__code__})  # type: ignore[attr-defined]
"""Uses of ``ctx`` whose result differs by step; other batches mean other steps."""
HARMLESS: Final = ("logging", "warnings", "importlib", "traceback")
"""Libraries whose own uses do not count."""


class Refused(BaseException):  # users' functions may well catch every Exception
    """A function wanted to connect to another process outside of ``ctx``."""


_is_open = False


def install(ahead_s: float) -> None:
    """From now on, this process's clock is ahead by this much, and sockets do not connect.

    Call it before user modules are imported, because they may copy functions out of modules.
    """
    if ahead_s:
        now, now_ns = time.time, time.time_ns
        time.time = lambda: now() + ahead_s
        time.time_ns = lambda: now_ns() + int(ahead_s * 1e9)
    for name in dir(np.random):
        function = getattr(np.random, name)
        if getattr(function, "__self__", None) is _NUMPY_RANDOM:
            setattr(np.random, name, _numpy(function))
    for name in ("connect", "connect_ex", "sendto"):
        setattr(socket.socket, name, _guarded(getattr(socket.socket, name), name))
    socket.getaddrinfo = _guarded(socket.getaddrinfo, "getaddrinfo")


@contextmanager
def connections() -> Iterator[None]:
    """Allow sockets to connect, for real calls that are recorded."""
    global _is_open  # noqa: PLW0603 - sockets are global, too
    before, _is_open = _is_open, True
    try:
        yield
    finally:
        _is_open = before


def _numpy(function: Callable[..., Any]) -> Any:
    """Wrap a function in Python, so that it can be watched."""

    def numpy_random(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    PYTHON[numpy_random.__code__] = "numpy.random"
    return numpy_random


def _guarded(function: Callable[..., Any], name: str) -> Any:
    def guarded(*args: Any, **kwargs: Any) -> Any:
        if _is_open:
            return function(*args, **kwargs)
        to = args[0] if name == "getaddrinfo" else args[-1]
        raise Refused(f"{to!r} ({users_line(_outside(sys._getframe()))})")  # noqa: SLF001

    return guarded


def _outside(frame: FrameType | None) -> FrameType | None:
    """The frame that called this module."""
    while frame is not None and frame.f_globals.get("__name__") == __name__:
        frame = frame.f_back
    return frame


class Watch:
    """Records the uses of watched functions.

    Attributes
    ----------
    asked
        The function used, by line of user code.
    perhaps
        The same for functions that are often harmless.
    knows_step
        Whether a function uses values of ``ctx`` that differ by step.
    """

    def __init__(self) -> None:
        self.asked: dict[str, str] = {}
        self.perhaps: dict[str, str] = {}
        self.knows_step = False

    @contextmanager
    def watching(self) -> Iterator[None]:
        before = sys.getprofile()
        sys.setprofile(self._look)
        try:
            yield
        finally:
            sys.setprofile(before)

    def _look(self, frame: FrameType, event: str, called: Any) -> None:
        if event == "c_call":
            name = _name(called)
            if name in PERHAPS:
                self._note(self.perhaps, frame, name)
            elif name:
                self._note(self.asked, frame, name)
        elif event == "call":
            if frame.f_code is _ENVIRON:
                if _names(_users(frame), "environ", "getenv"):
                    self._note(self.asked, frame.f_back, "os.environ")
            elif frame.f_code in PYTHON:
                self._note(self.asked, frame.f_back, PYTHON[frame.f_code])
            elif frame.f_code in OF_A_STEP:
                self.knows_step = True

    def _note(self, notes: dict[str, str], frame: FrameType | None, name: str) -> None:
        if not _is_harmless(frame) and (line := users_line(frame)):
            notes.setdefault(line, name.removeprefix("builtins.").replace("posix.", "os."))


def _name(called: Any) -> str:
    """The name of a function in C, if it is watched."""
    owner, name = getattr(called, "__self__", None), getattr(called, "__name__", "")
    if isinstance(owner, ModuleType):
        full = f"{owner.__name__}.{name}"
        return full if full in FUNCTIONS or full in PERHAPS else ""
    if owner is _RANDOM:
        return "the random module"
    is_clock = isinstance(owner, type) and issubclass(owner, dt.date) and name in CLOCKS
    return f"datetime.{name}" if is_clock else ""


_ENVIRON: Final = type(os.environ).__getitem__.__code__
_NUMPY_RANDOM: Final = getattr(np.random.random_sample, "__self__")  # noqa: B009 - not in its stub
_RANDOM: Final = getattr(random.random, "__self__")  # noqa: B009 - not in its stub


def _users(frame: FrameType | None) -> FrameType | None:
    """The innermost frame of user code."""
    while frame is not None and not is_users_file(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def _names(frame: FrameType | None, *names: str) -> bool:
    """Whether a function mentions one of these names; extension modules have no frames."""
    return frame is not None and not set(names).isdisjoint(frame.f_code.co_names)


def _is_harmless(frame: FrameType | None) -> bool:
    """Whether a harmless library in between makes the call for itself."""
    user = _users(frame)
    while frame is not None and frame is not user:
        if frame.f_globals.get("__name__", "").partition(".")[0] in HARMLESS:
            return True
        frame = frame.f_back
    return False
