"""Killing workers and executors of a job, one at a time, each when it has been normal for long."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from clonos.cluster.driver import RunningJob
from clonos.errors import ClonosError
from clonos_bench import run
from clonos_bench.watch import Watch

PATIENCE_S: Final = 120.0
"""How long a job may take to be normal again before the measurement gives up."""


@dataclass(frozen=True)
class Kill:
    """What was killed, and when (s, monotonic): a process and the tasks that ran in it."""

    kind: str
    pid: int
    tasks: tuple[str, ...]
    at_s: float


def kill_repeatedly(
    job: RunningJob,
    watch: Watch,
    kind: str,
    victims: Sequence[str],
    count: int,
    pause_s: float,
    is_in_time: Callable[[], bool] = lambda: True,
) -> list[Kill]:
    """Kill the workers (or executors) of `victims` in turn, `count` times in all.

    Parameters
    ----------
    kind
        "worker" or "executor".
    victims
        Names of tasks.
    pause_s
        For so long every task is live with its standbys before each kill, and after the last.
    is_in_time
        What has to hold for so long, too.
    """
    done: list[Kill] = []
    for number in range(count + 1):
        _wait_until_quiet(job, watch, pause_s, is_in_time)
        if number < count:
            done.append(_kill(job, kind, victims[number % len(victims)]))
    return done


def _wait_until_quiet(
    job: RunningJob, watch: Watch, pause_s: float, is_in_time: Callable[[], bool]
) -> None:
    since = time.monotonic()

    def quiet() -> bool:
        nonlocal since
        if not (run.all_live(job) and is_in_time()):
            since = time.monotonic()
        return time.monotonic() - since >= pause_s

    run.until(job, watch, quiet, PATIENCE_S, "all is live and in time")


def _kill(job: RunningJob, kind: str, victim: str) -> Kill:
    slots = job.slots()
    slot = next(slot for slot in slots if victim in slot.runs)
    pid, tasks = slot.pid, list(slot.runs)
    if kind == "executor":
        if slot.executor == "driver":
            raise ClonosError(
                "the only executor of a local master is the driver itself",
                remedy="use --executor-master local-cluster[...]",
            )
        pid = slot.executor_pid
        tasks = [name for s in slots if s.executor_pid == pid for name in s.runs]
    at_s = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    return Kill(kind, pid, tuple(tasks), at_s)
