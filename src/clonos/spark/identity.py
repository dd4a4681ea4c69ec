"""Which process a slot is, as it finds out itself. Executors import no more of this folder."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark import TaskContext

SLOT: Final = "clonos.slot"
"""Local property that tells a task which slot it is."""


@dataclass(frozen=True, slots=True)
class SlotInfo:
    """Which process a slot is.

    ``host`` is the address of the interface that faces the driver; bind that one. ``executor``
    is Spark's name for it ("driver" with a local master) and ``jvm_pid`` its process on `node`.
    """

    slot: int
    partition: int | None
    host: str
    node: str
    executor: str
    jvm_pid: int
    pid: int
    attempt: int
    nonce: str


def slot_info(driver_host: str, *, reads: bool) -> SlotInfo:
    """Find out which process this is (inside a Spark task)."""
    context = TaskContext.get()
    assert context is not None
    jvm_pid = _jvm_pid()
    return SlotInfo(
        slot=int(context.getLocalProperty(SLOT) or 0),
        partition=context.partitionId() if reads else None,
        host=interface_towards(driver_host),
        node=socket.gethostname(),
        executor=_executor_of(jvm_pid),
        jvm_pid=jvm_pid,
        pid=os.getpid(),
        attempt=context.taskAttemptId(),
        nonce=secrets.token_hex(8),
    )


def interface_towards(host: str) -> str:
    """The address of this machine's interface that leads to `host`."""
    family, _, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)  # sends nothing: UDP
        return str(probe.getsockname()[0])


def _jvm_pid() -> int:
    """The executor's process: worker's parent is PySpark's daemon, whose parent is the JVM."""
    pid = os.getppid()
    with contextlib.suppress(OSError):
        while pid > 1 and Path(f"/proc/{pid}/comm").read_text().strip() != "java":
            stat = Path(f"/proc/{pid}/stat").read_text()
            pid = int(stat.rpartition(")")[2].split()[1])
    return pid


def _executor_of(jvm_pid: int) -> str:
    """Spark's id of an executor, as its command line says (a worker is not told)."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        words = Path(f"/proc/{jvm_pid}/cmdline").read_bytes().decode().split("\0")
        return words[words.index("--executor-id") + 1]
    return "driver"
