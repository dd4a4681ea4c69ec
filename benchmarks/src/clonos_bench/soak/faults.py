"""Faults drawn from a seed: processes that are killed or frozen while a job runs; and changes that
somebody asks for meanwhile."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Final

from clonos.cluster.driver import RunningJob
from clonos.errors import ClonosError
from clonos.nodes.views import SlotView
from clonos_bench.processes import started

FREEZE_S: Final = (0.2, 14.0)
"""A process is frozen for between so long and so long, short times being the likelier."""

_WEIGHTS: Final = {
    "worker": 6,
    "pair": 3,
    "again": 3,
    "standby": 2,
    "executor": 1,
    "freeze": 3,
    "move": 2,
    "drain": 1,
    "rescale": 1,
}
KINDS: Final = tuple(_WEIGHTS)
PLANNED: Final = ("move", "drain", "rescale")
"""What the user asks for; the job may refuse it, and goes on then."""
PARALLELISM_MAX: Final = 4
_PATIENCE_S: Final = 20.0
"""So long it may take."""


@dataclass
class _Frozen:
    pid: int
    life: str | None
    until_s: float


class Faults:
    """Strikes a job at random moments.

    Parameters
    ----------
    mean_s
        Mean time between faults.
    kinds
        Of :data:`KINDS`. "worker": a task's process is killed; "pair": two at once; "again":
        that of the task that was struck last; "standby": a process without tasks; "executor":
        one of Spark's executors with all that runs there; "freeze": a process stands still for a
        while; "move": a task changes its slot; "drain": all tasks leave an executor; "rescale":
        the job goes on with another parallelism, from 1 to one more than now, but 4 at most.
    told
        Hears of every fault: kind, what was struck, its processes.
    """

    def __init__(
        self,
        job: RunningJob,
        seed: int,
        mean_s: float,
        kinds: Sequence[str],
        told: Callable[[str, str, Sequence[int]], None],
    ) -> None:
        self._job, self._random, self._mean_s, self._told = job, random.Random(seed), mean_s, told
        self._kinds = kinds
        self._due_s: float | None = None
        self._last: tuple[str, ...] = ()
        self._frozen: list[_Frozen] = []
        self._asked: Future[None] | None = None
        self._pool = ThreadPoolExecutor(1)

    def look(self, now_s: float) -> None:
        """Called often, with the time in s since the epoch."""
        for frozen in [f for f in self._frozen if f.until_s <= now_s]:
            self._thaw(frozen)
        if self._due_s is None:
            self._due_s = now_s + self._random.expovariate(1 / self._mean_s)
        elif now_s >= self._due_s:
            self._due_s = None
            self._strike(now_s)

    def end(self) -> None:
        """Thaw what is frozen; nothing happens any more."""
        for frozen in list(self._frozen):
            self._thaw(frozen)
        self._pool.shutdown()

    def _thaw(self, frozen: _Frozen) -> None:
        self._frozen.remove(frozen)
        if started(frozen.pid) == frozen.life:
            with contextlib.suppress(
                ProcessLookupError
            ):  # it may have been dead when it was struck
                os.kill(frozen.pid, signal.SIGCONT)

    def _strike(self, now_s: float) -> None:
        kind = self._random.choices(self._kinds, [_WEIGHTS[k] for k in self._kinds])[0]
        if kind in PLANNED:
            self._ask(kind)
            return
        slots = self._job.slots()
        busy = [slot for slot in slots if slot.runs]
        if not busy:
            return  # all are down already
        victims = self._victims(kind, slots, busy)
        is_whole = kind == "executor" and victims[0].executor != "driver"
        pids = tuple({s.executor_pid if is_whole else s.pid for s in victims})
        what = ", ".join("+".join(s.runs) or "standby" for s in victims)
        if kind == "freeze":
            low, high = FREEZE_S
            seconds = low * (high / low) ** self._random.random()
            self._frozen += [_Frozen(pid, started(pid), now_s + seconds) for pid in pids]
            what = f"{what} for {seconds:.1f} s"
        for pid in pids:
            try:
                os.kill(pid, signal.SIGSTOP if kind == "freeze" else signal.SIGKILL)
            except ProcessLookupError:
                continue  # it has just died of an earlier fault
        self._last = victims[0].runs or self._last
        self._told(kind, what, pids)

    def _ask(self, kind: str) -> None:
        """Ask for a change, unless one is under way."""
        if self._asked is not None and not self._asked.done():
            return
        draw, job = self._random, self._job
        executors = sorted({slot.executor for slot in job.slots()})
        if not executors:
            return  # all are down already
        if kind == "move":
            task = draw.choice(job.tasks()).name
            what, change = task, partial(job.move, task, timeout_s=_PATIENCE_S)
        elif kind == "drain":
            executor = draw.choice(executors)
            what, change = executor, partial(job.drain, executor, timeout_s=_PATIENCE_S)
        else:
            now = sum(task.name.startswith("count[") for task in job.tasks())
            number = draw.randint(1, min(now + 1, PARALLELISM_MAX))
            what, change = (
                str(number),
                partial(job.rescale, number, within=f"{_PATIENCE_S} seconds"),
            )
        self._asked = self._pool.submit(self._change, kind, what, change)

    def _change(self, kind: str, what: str, change: Callable[[], None]) -> None:
        began_s = time.monotonic()
        try:
            change()
            said = f"{what}, done in"
        except (ClonosError, TimeoutError) as error:  # refused: it goes on as it was
            said = f"{what}, {type(error).__name__}: {error} after"
        self._told(kind, f"{said} {time.monotonic() - began_s:.1f} s", ())

    def _victims(
        self, kind: str, slots: Sequence[SlotView], busy: Sequence[SlotView]
    ) -> Sequence[SlotView]:
        one = self._random.choice(busy)
        match kind:
            case "pair":
                return self._random.sample(busy, min(2, len(busy)))
            case "again":
                return [next((s for s in busy if s.runs == self._last), one)]
            case "standby":
                idle = [slot for slot in slots if not slot.runs]
                return [self._random.choice(idle)] if idle else [one]
            case "executor" if one.executor != "driver":  # of a local master: this very process
                return [slot for slot in slots if slot.executor_pid == one.executor_pid]
        return [one]
