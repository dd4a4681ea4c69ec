"""Who is killed in the demo: real processes, with ``kill -9``, while rows are flowing."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import clonos
from clonos.errors import DefinitionError

DEFAULT: Final = ("source", "stateful", "sink", "standby")
"""What is killed if nothing is asked for, one after the other."""

_TASKS: Final = {
    "source": ("lines[0]",),
    "stateful": ("count[0]",),
    "service": ("filter[0]",),
    "sink": ("sink[0]",),
    "neighbours": ("filter[0]", "count[0]"),
}
KINDS: Final = (*_TASKS, "standby", "executor")


@dataclass(frozen=True)
class Kill:
    """One kill: what was meant, which processes, when (s, monotonic)."""

    kind: str
    pids: tuple[int, ...]
    tasks: tuple[str, ...]
    at_s: float


@dataclass
class Killer:
    """Kills one after the other, each when the job has been quiet for a while.

    Parameters
    ----------
    kinds
        Of :data:`KINDS`.
    pause_s
        Every task must have been live for so long.
    """

    job: clonos.RunningJob
    kinds: Sequence[str]
    pause_s: float = 3.0
    on_kill: Callable[[Kill], None] | None = None
    done: list[Kill] = field(default_factory=list)
    _quiet_since: float | None = None

    def look(self) -> None:
        """Called often: kill the next one if it is time."""
        if len(self.done) == len(self.kinds):
            return
        now = time.monotonic()
        if not self._is_quiet():
            self._quiet_since = None
            return
        self._quiet_since = self._quiet_since or now
        if now - self._quiet_since >= self.pause_s:
            self._quiet_since = None
            self._kill(self.kinds[len(self.done)])

    def _is_quiet(self) -> bool:
        tasks_live = all(task.phase == "live" for task in self.job.tasks())
        return tasks_live and self._standbys_ready()

    def _standbys_ready(self) -> bool:
        wanted = self.job.options.standbys
        kept = [name for slot in self.job.slots() for name in slot.keeps]
        return all(kept.count(task.name) >= wanted for task in self.job.tasks())

    def _kill(self, kind: str) -> None:
        pids, tasks = self._victims(kind)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        kill = Kill(kind, pids, tasks, time.monotonic())
        self.done.append(kill)
        if self.on_kill is not None:
            self.on_kill(kill)

    def _victims(self, kind: str) -> tuple[tuple[int, ...], tuple[str, ...]]:
        slots = self.job.slots()
        if kind == "standby":
            kept = [slot for slot in slots if slot.keeps and not slot.runs]
            if not kept:
                raise DefinitionError("there is no standby to kill", remedy="use --standbys 1")
            return (kept[0].pid,), tuple(f"standby of {name}" for name in kept[0].keeps)
        if kind == "executor":
            slot = next(slot for slot in slots if "count[0]" in slot.runs)
            if slot.executor == "driver":
                raise DefinitionError(
                    "with a local master the only executor is the driver itself",
                    remedy="use --master 'local-cluster[2,10,2048]'",
                )
            here = [s for s in slots if s.executor_pid == slot.executor_pid]
            return (slot.executor_pid,), tuple(name for s in here for name in s.runs)
        hit = [slot for slot in slots if not set(slot.runs).isdisjoint(_TASKS[kind])]
        return tuple(s.pid for s in hit), tuple(name for s in hit for name in s.runs)
