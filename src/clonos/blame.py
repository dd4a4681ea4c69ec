"""Whose fault an error is: the user's own lines, out of a traceback that is mostly ours.

A traceback does not travel between processes. What is told of it is text of bounded size, and only
of frames that the user can do something about.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from linecache import getline
from pathlib import Path
from traceback import FrameSummary, StackSummary, extract_stack, extract_tb
from types import FrameType
from typing import Any, Final, NamedTuple

from clonos.errors import ClonosError, ProtocolError
from clonos.errors.base import GROUP, message_of

FRAMES_MAX: Final = 20
"""Frames reported per exception; of more, the first and the last."""
CAUSES_MAX: Final = 4
"""Exceptions reported of a chain of causes; of more, the last."""
TEXT_MAX: Final = 1000
"""Characters of one exception's message, or of one frame."""
LINE_MAX: Final = 80
"""Characters of a line of code that is named."""

_DUMPED: Final = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.MULTILINE)
_OURS: Final = str(Path(__file__).parent) + os.sep
_PATHS: Final = sysconfig.get_paths()
_LIBRARIES: Final = tuple(
    str(Path(_PATHS[kind], package)) + os.sep
    for kind in ("purelib", "platlib")
    for package in (
        *("confluent_kafka", "paho", "psycopg", "redis", "websockets"),  # of sources and sinks
        *("msgpack", "numpy", "pandas", "py4j", "pyarrow", "pyspark"),
    )
)
_STANDARD: Final = (_PATHS["stdlib"] + os.sep, _PATHS["platstdlib"] + os.sep, "<frozen ")
_SITE: Final = (_PATHS["purelib"] + os.sep, _PATHS["platlib"] + os.sep)


class Complaint(NamedTuple):
    """An error as it is told to another process; ``error`` is the name of its class."""

    error: str
    what: str
    where: str
    remedy: str
    trace: str


def complaint_of(error: BaseException) -> Complaint:
    """What to tell of an error that ends a task.

    One that is none of ours and did not come out of the user's code is a bug in clonos; it is told
    with its place.
    """
    trace = users_traceback(error)
    if isinstance(error, ClonosError):
        kind = type(error).__name__
        stories = error.stories if isinstance(error, ProtocolError) else ()
        what = "\n  story: ".join([error.what, *stories])
        return Complaint(kind, what, error.where, error.remedy, trace or error.trace)
    what = in_short(error)
    if trace:
        return Complaint("OperatorError", what, "", "correct the function", trace)
    frames = extract_tb(error.__traceback__)
    if frames:
        what = f"{what} ({Path(frames[-1].filename).name}:{frames[-1].lineno})"
    return Complaint("InternalError", what, "", "", "")


def users_traceback(error: BaseException) -> str:
    """The user's lines in the traceback of an error and of its causes; "" if there are none.

    Frames of clonos are left out. An exception without any line of the user's is left out as a
    whole: what clonos says of it is elsewhere.

    Examples
    --------
    >>> try:
    ...     1 / 0
    ... except ZeroDivisionError as error:
    ...     print(users_traceback(error))  # doctest: +ELLIPSIS
    Traceback of your code (most recent call last):
      File ...
    ZeroDivisionError: division by zero
    """
    told: list[str] = []
    for link, exception in _causes(error):
        frames = _without_ours(extract_tb(exception.__traceback__))
        if any(map(_is_users, frames)):
            lines = ["Traceback of your code (most recent call last):", *_lines(frames)]
            told += [*([link] if told else []), "\n".join([*lines, in_short(exception)])]
        elif not told and exception is not error and isinstance(exception, ClonosError):
            told += filter(None, [exception.trace])  # of a call, by which it came from elsewhere
    return "\n\n".join(told)


def users_lines(thread: int) -> str:
    """Where a thread of this process is in the user's code; "" if it is not there.

    Examples
    --------
    >>> users_lines(0)
    ''
    """
    frame = sys._current_frames().get(thread)  # noqa: SLF001 - there is no other way to ask
    frames = _without_ours(extract_stack(frame)) if frame is not None else []
    return "\n".join(_lines(frames)) if any(map(_is_users, frames)) else ""


def your_code(does: str, lines: str) -> str:
    """The user's lines where it has not come back, as a trace; "" if there are none."""
    return f"Your code, which {does}:\n{lines}" if lines else ""


def dumped_lines(dump: str) -> str:
    """The user's lines in what :mod:`faulthandler` says of a thread, innermost frame first."""
    told = reversed(_DUMPED.findall(dump))
    frames = _without_ours([FrameSummary(file, int(line), code) for file, line, code in told])
    return "\n".join(_lines(frames)) if any(map(_is_users, frames)) else ""


def awaiting_lines(waits: Any) -> str:
    """Where a coroutine waits in the user's code; "" if it does not wait there."""
    frames: list[tuple[FrameType, int]] = []
    while waits is not None:
        frame = getattr(waits, "cr_frame", None)
        frames += [(frame, frame.f_lineno)] if frame is not None else []
        waits = getattr(waits, "cr_await", None)
    found = _without_ours(StackSummary.extract(iter(frames)))
    return "\n".join(_lines(found)) if any(map(_is_users, found)) else ""


def users_line(frame: FrameType | None) -> str:
    """The line of the innermost frame of the user's; "" if clonos itself is nearer."""
    while frame is not None:
        code = frame.f_code
        if is_users_file(code.co_filename):
            said = getline(code.co_filename, frame.f_lineno).strip()[:LINE_MAX]
            return f"{code.co_filename}:{frame.f_lineno}, in {code.co_name}: {said}"
        if frame.f_globals.get("__name__", "").startswith("clonos."):
            return ""
        frame = frame.f_back
    return ""


def last_of_users(error: BaseException) -> FrameSummary | None:
    """The innermost of the user's frames that an error went through."""
    frames = _without_ours(extract_tb(error.__traceback__))
    return next((frame for frame in reversed(frames) if _is_users(frame)), None)


def in_short(error: BaseException) -> str:
    """The class and the message of an exception, which may be long, or fail to say anything."""
    try:
        text = message_of(error)
    except BaseException:  # noqa: BLE001 - user code
        text = "<an exception that cannot be shown>"
    name = type(error).__name__
    return _cut(f"{name}: {text}" if text else name)


def _causes(error: BaseException) -> Iterator[tuple[str, BaseException]]:
    """An exception and what led to it, the first cause first, as Python tells them."""
    chain: list[tuple[str, BaseException]] = []
    current: BaseException | None = error
    following: BaseException | None
    while current is not None and all(known is not current for _, known in chain):
        if isinstance(current, GROUP):
            link, following = "This was the first error of the group:", current.exceptions[0]
        elif current.__cause__ is not None or current.__suppress_context__:
            link, following = "This was the cause of:", current.__cause__
        else:
            link, following = "While this was handled, there came:", current.__context__
        chain.append((link, current))
        current = following
    yield from reversed(chain[:CAUSES_MAX])


def _without_ours(frames: Sequence[FrameSummary]) -> list[FrameSummary]:
    """What we have called, and not who has called us: that is a slot, or a test."""
    is_ours = [frame.filename.startswith(_OURS) for frame in frames]
    first = is_ours.index(True) if True in is_ours else 0
    last = len(frames) - 1 - is_ours[::-1].index(True) if True in is_ours else 0
    found = [
        frame
        for i, frame in enumerate(frames)
        if i >= first
        and not is_ours[i]
        and (i > last or not frame.filename.startswith(_LIBRARIES))  # Spark's daemon may be ours
    ]
    users = [_is_users(frame) for frame in found]
    return found[users.index(True) :] if True in users else found  # a thread is not called by us


def _is_users(frame: FrameSummary) -> bool:
    return is_users_file(frame.filename)


def is_users_file(name: str) -> bool:
    """Whether a file is the user's, not a library's. The user's packages may be installed, too."""
    if name.startswith(_OURS) or name.endswith((".pxi", ".pyx")):  # compiled: a library's
        return False
    if name.startswith(_SITE):
        return not name.startswith(_LIBRARIES)
    return not name.startswith(_STANDARD)


def _lines(frames: Sequence[FrameSummary]) -> list[str]:
    half = FRAMES_MAX // 2
    left_out = len(frames) - 2 * half
    if left_out <= 0:
        return _formatted(frames)
    return [*_formatted(frames[:half]), f"  ... {left_out} more", *_formatted(frames[-half:])]


def _formatted(frames: Sequence[FrameSummary]) -> list[str]:
    return [_cut(text.rstrip("\n")) for text in StackSummary.from_list(list(frames)).format()]


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}..."
