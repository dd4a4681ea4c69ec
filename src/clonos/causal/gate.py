"""Nothing leaves a task before the answers that it depends on are durable.

Whatever a Python worker hands back to Spark goes through ``dump_stream(iterator, stream)`` of one
of PySpark's serializers, for all kinds of functions and since the first PySpark. In a worker that
uses causal services these methods get a stream that settles the task's answers first, once per
write: a pickled batch of rows or an Arrow batch, not a row.

Where a task began before the gate was there (the causal object came out of a broadcast variable, in
mid-task), every answer of that task is made durable by itself: slower, and just as safe.
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
    """Until :func:`connect`."""


class _Gate:
    """What the gate does, and for which attempt it came too late."""

    def __init__(self) -> None:
        self.settle: Callable[[], None] = lambda: None
        self.end: _End = _end_nothing
        self.is_installed = False
        self.is_open = False
        self.too_late_for = -1


_gate: Final = _Gate()


def connect(settle: Callable[[], None], end: _End) -> None:
    """What to do before output leaves, and when there will be no more of it."""
    _gate.settle, _gate.end = settle, end


def install() -> None:
    """Put the gate into this worker."""
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
        # Within it, others may be used for other things, such as state for transformWithState.
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
    """A stream; before anything is written to it, the task's answers are made durable."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, data: Any) -> Any:
        _gate.settle()
        return self._stream.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
