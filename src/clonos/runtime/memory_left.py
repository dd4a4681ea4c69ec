"""How much memory is left to this process: if it keeps more, the system kills it; and what it can
give back."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

LOOK_S: Final = 1.0
"""A look reads some files of the system, so there is at most one in this time."""
_UNLIMITED: Final = 1 << 60


def give_back() -> None:
    """Give memory that the C library keeps for later back to the system.

    glibc has an arena for each of several threads. What is freed in one stays there, in as many
    bytes as there once were, unless it is the end of the arena. After a few changes of the threads,
    a driver that frees 64 MiB of small batches now and then had kept it several times.

    Examples
    --------
    >>> give_back()
    """
    with contextlib.suppress(AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


class MemoryLeft:
    """The memory that the process keeps, and what is left to it, in bytes; (0, 0) if unknown.

    What is left is the least of what the machine has, what the limits of containers allow (control
    groups, version 1 or 2), and what Spark's ``spark.executor.pyspark.memory`` allows.

    Examples
    --------
    >>> kept, left = MemoryLeft()()
    >>> kept > 1_000_000, left > 0
    (True, True)
    """

    def __init__(
        self, system: Path = Path("/"), clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._system, self._clock = system, clock
        self._looked_s = -LOOK_S
        self._found = (0, 0)

    def __call__(self) -> tuple[int, int]:
        """Both numbers, at most a second old."""
        if self._clock() - self._looked_s >= LOOK_S:
            self._looked_s = self._clock()
            with contextlib.suppress(OSError, ValueError, IndexError):  # another system
                self._found = self._look()
        return self._found

    def _look(self) -> tuple[int, int]:
        page = os.sysconf("SC_PAGE_SIZE")
        size, resident, shared = map(int, self._text("proc/self/statm").split()[:3])
        left = [*self._of_machine(), *self._of_groups()]
        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit != resource.RLIM_INFINITY:
            left.append(limit - size * page)
        return (resident - shared) * page, max(0, min(left))

    def _of_machine(self) -> Iterator[int]:
        for line in self._text("proc/meminfo").splitlines():
            if line.startswith("MemAvailable:"):
                yield int(line.split()[1]) * 1024

    def _of_groups(self) -> Iterator[int]:
        """What is left in each control group of the process that has a limit."""
        groups = self._system / "sys/fs/cgroup"
        for line in self._text("proc/self/cgroup").splitlines():
            number, kinds, path = line.split(":", 2)
            names = None
            if number == "0" and not kinds:
                root, names = groups, ("memory.max", "memory.current", "inactive_file")
            elif "memory" in kinds.split(","):
                root = groups / "memory"
                names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            if names is None:
                continue
            inside = Path(path.lstrip("/"))
            for group in (inside, *inside.parents):  # in a container, only the root is there
                yield from _of_group(root / group, *names)

    def _text(self, path: str) -> str:
        return (self._system / path).read_text("ascii", "replace")


def _of_group(group: Path, limit: str, used: str, cache: str) -> Iterator[int]:
    with contextlib.suppress(OSError, ValueError):  # "max", or there is no such file
        most, now = (int((group / name).read_text("ascii")) for name in (limit, used))
        statistics = (group / "memory.stat").read_text("ascii").splitlines()
        freed = sum(int(line.split()[1]) for line in statistics if line.startswith(cache + " "))
        if most < _UNLIMITED:
            yield most - now + freed
