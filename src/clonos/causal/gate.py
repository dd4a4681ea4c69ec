"""The gate: no output leaves a task before the answers that it depends on are durable.

All output of a Python worker goes through ``dump_stream(iterator, stream)`` of one of PySpark's
serializers, for all kinds of functions and in all versions of PySpark. In a worker that uses causal
services, these methods get a stream that first makes the task's answers durable, once per write (a
pickled batch of rows or an Arrow batch, not a row).

If a task began before the gate was installed (the causal object came from a broadcast variable, in
mid-task), each answer of that task is made durable at once: slower, but just as safe.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final, Protocol

from pyspark import TaskContext, serializers


class _End(Protocol):
    def __call__(self, *, succeeded: bool) -> None: ...


def _end_nothing(*, succeeded: bool) -> None:
    """Used until :func:`connect`."""


class _Gate:
    """The gate's functions, and the attempt for which it came too late."""

    def __init__(self) -> None:
        self.settle: Callable[[], None] = lambda: None
        self.end: _End = _end_nothing
        self.is_installed = False
        self.is_open = False
        self.too_late_for = -1


_gate: Final = _Gate()


def connect(settle: Callable[[], None], end: _End) -> None:
    """Set the functions to call before output leaves, and after the last output."""
    _gate.settle, _gate.end = settle, end


def install() -> None:
    """Install the gate in this worker."""
    if _gate.is_installed:
        return
    _gate.is_installed = True
    context = TaskContext.get()
    if context is not None and _is_writing(sys._getframe()):  # noqa: SLF001 - to look up
        _gate.too_late_for = context.taskAttemptId()
    for cls in _subclasses(serializers.Serializer):
        if "dump_stream" in vars(cls):
            cls.dump_stream = _guarded(cls.dump_stream)


def guards(attempt: int) -> bool:
    """Whether all output of this task attempt passes the gate."""
    return _gate.is_installed and attempt != _gate.too_late_for


def _subclasses(cls: type[Any]) -> Iterator[type[Any]]:
    yield cls
    for below in cls.__subclasses__():
        yield from _subclasses(below)


def _is_writing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_name == "dump_stream":
            return True
        frame = frame.f_back
    return False


def _guarded(dump_stream: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(dump_stream)
    def guarded(self: Any, iterator: Any, stream: Any) -> None:
        # Nested calls are for other purposes, such as the state of transformWithState.
        if _gate.is_open or TaskContext.get() is None:
            dump_stream(self, iterator, stream)
            return
        _gate.is_open = True
        succeeded = False
        try:
            dump_stream(self, iterator, _Settled(stream))
            succeeded = True
        finally:
            _gate.is_open = False
            _gate.end(succeeded=succeeded)

    return guarded


class _Settled:
    """A stream that makes the task's answers durable before each write."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, data: Any) -> Any:
        _gate.settle()
        return self._stream.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
