"""Finds out that a child does not go on, and where it is; also if it holds Python's lock."""

from __future__ import annotations

import faulthandler
import mmap
import os
import signal
import struct
import time
from pathlib import Path
from typing import Final

from clonos.blame import dumped_lines

_PLACE: Final = struct.Struct("=qq")
PAUSE_S: Final = 0.02
DUMP_S: Final = 2.0
"""How long a child may take to tell its lines."""


class Steps:
    """How far a child is, in memory that its parent reads.

    Parameters
    ----------
    lines
        A file for the lines where the child is.
    """

    def __init__(self, lines: Path) -> None:
        self._lines = lines
        self._shared = mmap.mmap(-1, _PLACE.size)
        self._shared[:] = _PLACE.pack(-1, 0)

    def opened(self) -> None:
        """The child begins."""
        self._file = self._lines.open("wb")
        faulthandler.register(signal.SIGUSR1, self._file, all_threads=False)

    def next(self, task: int) -> None:
        """The child begins another step, of this task."""
        _, steps = _PLACE.unpack(self._shared[:])
        self._shared[:] = _PLACE.pack(task, steps + 1)

    @property
    def task(self) -> int:
        """The task of the step; -1: none has begun."""
        task: int = _PLACE.unpack(self._shared[:])[0]
        return task

    def wait(self, child: int, timeout_s: float) -> int | None:
        """The status with which a child has ended; None: a step has taken longer than this."""
        began_s = since_s = time.monotonic()
        known = self._shared[:]
        while True:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return status
            now_s, place = time.monotonic(), self._shared[:]
            if place != known:
                known, since_s = place, now_s
            elif now_s - since_s >= timeout_s:
                return None
            time.sleep(min(PAUSE_S, 0.001 + (now_s - began_s) / 20))

    def end(self, child: int) -> str:
        """End a child; returns the user's lines where it was."""
        os.kill(child, signal.SIGUSR1)
        until_s, dumped = time.monotonic() + DUMP_S, b""
        while time.monotonic() < until_s:
            before, dumped = dumped, self._lines.read_bytes()
            if dumped and dumped == before:
                break
            time.sleep(PAUSE_S)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return dumped_lines(dumped.decode(errors="replace"))
