"""Processes that tests start and kill, or ask about, and the ports at which they listen."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def free_port() -> int:
    """A port at which nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def start(script: str, *arguments: object) -> Any:
    """A process that runs a script, which prints a line when it is ready."""
    process = subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline()
    return process


def kill(process: Any) -> None:
    """Returns when it is gone."""
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()


@contextmanager
def no_more_files() -> Iterator[None]:
    """This process can open no files meanwhile."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    held: list[int] = []
    try:
        newest = os.dup(0)
        held.append(newest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (newest + 1, limits[1]))
        while True:  # numbers below it may be free
            try:
                held.append(os.dup(0))
            except OSError:
                break
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for number in held:
            os.close(number)


def is_there(pid: int) -> bool:
    """Whether it runs: of one that has ended, its parent may have yet to hear."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
