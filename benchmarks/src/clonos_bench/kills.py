"""What strikes a job that is measured: processes are killed or frozen, when all is normal."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from clonos.cluster.driver import RunningJob
from clonos.errors import ClonosError
from clonos.nodes.views import STAGES, Recovery, SlotView
from clonos_bench import run
from clonos_bench.statistics import gap_before
from clonos_bench.watch import Watch

PATIENCE_S: Final = 120.0
"""How long a job may take to be normal again before the measurement gives up."""
LOOK_S: Final = 0.02
"""How often it is looked where a task runs that runs nowhere for the moment."""


@dataclass(frozen=True)
class Kill:
    """What was struck: a process (the first, if there were several) and all tasks that were lost.

    ``at_s``: when (monotonic); of several the first.
    """

    kind: str
    pid: int
    tasks: tuple[str, ...]
    at_s: float


def kill_repeatedly(
    job: RunningJob,
    watch: Watch,
    blows: Iterable[Callable[[], Kill]],
    pause_s: float,
    is_in_time: Callable[[], bool] = lambda: True,
) -> list[Kill]:
    """Strike blow after blow.

    Parameters
    ----------
    pause_s
        For so long every task is live with its standbys before each blow, and after the last.
    is_in_time
        What has to hold for so long, too.
    """
    done: list[Kill] = []
    for blow in blows:
        _wait_until_quiet(job, watch, pause_s, is_in_time)
        done.append(blow())
    _wait_until_quiet(job, watch, pause_s, is_in_time)
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


def _slot_of(job: RunningJob, task: str) -> SlotView:
    return next(slot for slot in job.slots() if task in slot.runs)


def _kill_worker(job: RunningJob, task: str) -> tuple[SlotView, float]:
    """Kill the process that runs a task, and say when: just before anybody could notice it.

    The view is some ms old: one that is gone already is not killed twice, but the next that runs
    the task is.
    """
    until = time.monotonic() + PATIENCE_S
    while True:
        with contextlib.suppress(StopIteration, ProcessLookupError):
            slot = _slot_of(job, task)
            at_s = time.monotonic()
            os.kill(slot.pid, signal.SIGKILL)
            return slot, at_s
        if time.monotonic() > until:
            raise ClonosError(f"no process runs {task}", remedy="see why it is not placed")
        time.sleep(LOOK_S)


def kill_workers(job: RunningJob, tasks: Sequence[str], apart_s: float = 0.0) -> Kill:
    """Kill the processes of some tasks, at once or one after the other."""
    first, at_s = _kill_worker(job, tasks[0])
    slots = [first]
    for number, task in enumerate(tasks[1:], 1):
        time.sleep(max(0.0, at_s + number * apart_s - time.monotonic()))
        slots.append(_kill_worker(job, task)[0])
    lost = tuple(name for slot in slots for name in slot.runs)
    return Kill("worker" if len(tasks) == 1 else "workers", slots[0].pid, lost, at_s)


def kill_executors(job: RunningJob, task: str | None = None) -> Kill:
    """Kill the executor that runs a task, or all of them."""
    slots = [slot for slot in job.slots() if task is None or task in slot.runs]
    if any(slot.executor == "driver" for slot in slots):
        raise ClonosError(
            "the only executor of a local master is the driver itself",
            remedy="use a local-cluster[...]",
        )
    pids = list(dict.fromkeys(slot.executor_pid for slot in slots))
    lost = [name for slot in job.slots() if slot.executor_pid in pids for name in slot.runs]
    at_s = time.monotonic()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    return Kill("executor" if len(pids) == 1 else "executors", pids[0], tuple(lost), at_s)


def freeze_worker(job: RunningJob, watch: Watch, task: str) -> Kill:
    """Stop a task's process (SIGSTOP), and let it go on when the task is live in another one."""
    slot = _slot_of(job, task)
    at_s = time.monotonic()
    os.kill(slot.pid, signal.SIGSTOP)
    try:

        def elsewhere() -> bool:
            mine = [each for each in job.tasks() if each.name in slot.runs]
            return all(each.phase == "live" and each.pid not in {None, slot.pid} for each in mine)

        run.until(job, watch, elsewhere, PATIENCE_S, "what was frozen is live elsewhere")
    finally:
        with contextlib.suppress(ProcessLookupError):  # Spark has ended whom the job has given up
            os.kill(slot.pid, signal.SIGCONT)
    return Kill("frozen", slot.pid, slot.runs, at_s)


def ends_of(kills: Sequence[Kill], end_s: float) -> list[float]:
    """When the time of each kill was over: when the next one came, or at `end_s`."""
    return [*(kill.at_s for kill in kills[1:]), end_s]


def gaps_of(watch: Watch, kills: Sequence[Kill], end_s: float) -> list[float]:
    """The gap that each kill caused in the output of the only partition, in ms."""
    (task,) = watch.tasks()
    times, _ = watch.series(task)
    ends = ends_of(kills, end_s)
    return [gap_before(times, kill.at_s, end) for kill, end in zip(kills, ends, strict=True)]


def stages_of(recoveries: Sequence[Recovery], kill: Kill, end_s: float) -> dict[str, float]:
    """When the last of the tasks that a kill struck reached each stage, in ms after it. What was
    detected after `end_s` is due to something else.

    Of a task that went to a slot that had died, too, the recovery counts that came through.
    """
    mine = [r for r in recoveries if r.name in kill.tasks]
    last = {r.name: r for r in mine if kill.at_s <= r.stages["detected"] < end_s}
    return {
        stage: 1000 * (max(r.stages[stage] for r in last.values()) - kill.at_s)
        for stage in STAGES
        if last and all(stage in r.stages for r in last.values())
    }
