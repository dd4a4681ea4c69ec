"""What processes have used, from /proc."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def cpu_seconds(pid: int) -> float | None:
    """User and system time of a process with all its threads; None if it is gone.

    Examples
    --------
    >>> cpu_seconds(os.getpid()) > 0
    True
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text("ascii")
    except OSError:
        return None
    # The name, in parentheses, may contain blanks: fields are counted from behind it.
    fields = text.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def machine_cpu_seconds() -> float:
    """What all processes of this machine have used so far, the kernel's work for them included.

    The difference of two readings misses nobody (workers that came and went, the virtual machine
    that hosts them), but it takes an otherwise idle machine for it to mean anything.

    Examples
    --------
    >>> machine_cpu_seconds() > 0
    True
    """
    fields = Path("/proc/stat").read_text("ascii").split(maxsplit=9)
    user, nice, system, _idle, _waiting, hard, soft = map(int, fields[1:8])
    return (user + nice + system + hard + soft) / os.sysconf("SC_CLK_TCK")


def started(pid: int) -> str | None:
    """Tells a process from a later one of the same number; None if there is none.

    Examples
    --------
    >>> started(os.getpid()) == started(os.getpid())
    True
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[19]
    except OSError:
        return None


def resident_bytes(pid: int) -> int:
    """What a process keeps in memory of its own, shared libraries aside; 0 if it is gone.

    Examples
    --------
    >>> resident_bytes(os.getpid()) > 1e6
    True
    """
    try:
        fields = Path(f"/proc/{pid}/statm").read_text("ascii").split()
    except OSError:
        return 0
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")


def open_files(pids: Iterable[int]) -> list[Path]:
    """The regular files that processes have open, those without a name, too, as /proc has them.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryFile() as file:
    ...     Path(f"/proc/{os.getpid()}/fd/{file.fileno()}") in open_files([os.getpid()])
    True
    """
    found: list[Path] = []
    for pid in pids:
        with suppress(OSError):  # it is gone
            found += [path for path in Path(f"/proc/{pid}/fd").iterdir() if path.is_file()]
    return found


def forget(path: Path) -> None:
    """Have the system's cache forget a file, as far as nobody maps it: who reads it next, reads
    the disk. A file that is gone, or none, is left alone."""
    with suppress(OSError), path.open("rb") as file:
        os.fdatasync(file.fileno())  # what is not on the disk yet cannot be forgotten
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def command_line(pid: int) -> str:
    """How a process was started; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except OSError:
        return ""


def descendants(pid: int) -> list[int]:
    """All processes below `pid`, parents before children."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text("ascii").rpartition(")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found: list[int] = []
    rest = [pid]
    while rest:
        below = children.get(rest.pop(0), [])
        found += below
        rest += below
    return found


class CpuMeter:
    """CPU seconds of a changing set of processes, each from when it was first looked at."""

    def __init__(self) -> None:
        self._first: dict[int, float] = {}
        self._last: dict[int, float] = {}

    def look(self, pids: Iterable[int]) -> None:
        """Called now and then; what a process used after the last look is not seen."""
        for pid in pids:
            used = cpu_seconds(pid)
            if used is not None:
                self._first.setdefault(pid, used)
                self._last[pid] = used

    @property
    def seconds(self) -> float:
        return sum(self._last.values()) - sum(self._first.values())
