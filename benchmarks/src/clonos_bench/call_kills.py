"""``kill -9`` of all processes that ask, while hundreds of calls are open.

What is asked again, what is done twice, and of what nobody knows whether it was done.

Once for each kind of service: one that is only read; and effects of a service that knows names, of
one that can be asked what it has done, and of one that is neither.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np

import clonos
from clonos.cluster.driver import RunningJob
from clonos_bench import call_jobs, jobs, run
from clonos_bench.kills import kill_workers
from clonos_bench.report import Aim, Report
from clonos_bench.run import FILL_S
from clonos_bench.watch import Watch

REPEATED: Final = Aim(2.0)
"""Percent of the calls that were open: answered ones that are asked again."""
TIMEOUT: Final = "2 seconds"
AHEAD: Final = 2.0
"""So much more comes than can be asked, so that as many calls are open as may be."""
END_S: Final = 120.0

Blow = tuple[float, tuple[int, ...]]
"""When, and which processes."""


def measure(arguments: argparse.Namespace) -> Report:
    """All kinds of services, each in a job of its own."""
    found = {name: _kind(arguments, made) for name, made in KINDS.items()}
    report = Report("kills", f"kill -9 while {arguments.open} calls are open", ("", *found))

    def line(what: str, cell: Callable[[Found], str]) -> None:
        report.add(what, *map(cell, found.values()))

    line("kills of all processes that ask, at once", lambda f: f"{f.kills}")
    line("calls that were open then", lambda f: f"{f.open:,}")
    line("... asked again", lambda f: f"{f.open_again:,}")
    line(
        f"answered, and asked again (target {REPEATED} % of these)",
        lambda f: f"{f.answered_again} ({REPEATED.judge(f.share)})",
    )
    line("done twice", lambda f: _or_none(f.twice))
    line("questions what had been done", lambda f: _or_none(f.questions))
    line("unknown in the bill", lambda f: f"{f.unknown:,}")
    line("... of which were done", lambda f: _or_none(f.unknown_done))
    line("until tasks were live again (ms)", lambda f: _times(f.live_ms))
    line("until the first row of these calls was out (ms)", lambda f: _times(f.first_ms))
    line("until the last was (ms)", lambda f: _times(f.last_ms))
    report.notes.append(
        f"a call takes {arguments.call_ms:g} ms, and an effect is given up after {TIMEOUT}; "
        "no row was lost or delivered twice, or there would be no report: all are checked"
    )
    report.ok = not any(f.twice for name, f in found.items() if name != "an effect, neither")
    report.data = {name: vars(f) for name, f in found.items()}
    return report


def _or_none(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _times(ms: list[float]) -> str:
    return f"{min(ms):,.0f} to {max(ms):,.0f}" if ms else "nobody"


# --- kinds of services ----------------------------------------------------------------------------


def _reading(folder: str, call_s: float) -> Any:
    return partial(call_jobs.slow, folder, call_s)


def _with_keys(folder: str, call_s: float) -> Any:
    return clonos.effect(partial(call_jobs.with_keys, folder, call_s), idempotent=True)


def _with_check(folder: str, call_s: float) -> Any:
    check = partial(call_jobs.was_made, folder)
    return clonos.effect(partial(call_jobs.with_keys, folder, call_s), check=check)


def _with_neither(folder: str, call_s: float) -> Any:
    return clonos.effect(partial(call_jobs.with_keys, folder, call_s), on_unknown="on_error")


KINDS: Final[dict[str, Callable[[str, float], Any]]] = {
    "a read": _reading,
    "an effect, by name": _with_keys,
    "an effect, with a check": _with_check,
    "an effect, neither": _with_neither,
}


def go_on_without(key: int, error: Exception) -> int:  # noqa: ARG001 - what was asked
    """The row's answer if nobody knows whether its effect was made."""
    return 1


# --- one kind -------------------------------------------------------------------------------------


@dataclass
class Found:
    """What came of all kills. ``twice``, ``unknown_done``: None where nothing is done."""

    kills: int = 0
    open: int = 0
    open_again: int = 0
    answered_again: int = 0
    twice: int | None = None
    questions: int | None = None
    unknown: int = 0
    unknown_done: int | None = None
    live_ms: list[float] = field(default_factory=list)
    first_ms: list[float] = field(default_factory=list)
    last_ms: list[float] = field(default_factory=list)

    @property
    def share(self) -> float:
        return 100 * self.answered_again / max(self.open, 1)


def _kind(arguments: argparse.Namespace, made: Callable[[str, float], Any]) -> Found:
    call_s = arguments.call_ms / 1000
    with run.paced(AHEAD * arguments.open / call_s) as schedule:
        folder = schedule.folder
        each = -(-arguments.open // arguments.parallelism)
        fn = made(folder, call_s)
        how: dict[str, Any] = {"in_flight": each, "ordered": False, "timeout": TIMEOUT}
        if made is _with_neither:
            how["on_error"] = go_on_without
        job = call_jobs.define(arguments, jobs.paced(schedule), fn, **how)
        with (
            run.session(f"local[{job.cores()}]") as spark,
            run.running(job, spark) as (started, watch),
        ):
            outs = call_jobs.Outs()
            started.consumers.watch(outs.delivered)
            blows: list[Blow] = []
            for n in range(arguments.kills):
                # Calls that were asked together are answered together: not always between them.
                pause_s = call_s * (1 + (n + 0.5) / arguments.kills)
                blows.append(_strike(started, watch, folder, arguments.open, blows, pause_s))
            run.until(started, watch, lambda: run.all_live(started), FILL_S, "all is live")
            time.sleep(call_s)
            schedule.stop.touch()
            result = started.wait(END_S)
            watch.drain()
            live_ms = [r.milliseconds()["live"] for r in started.observer.recoveries if r.finished]
        watch.require_right(arguments.parallelism)
        found = Found(len(blows), live_ms=live_ms, unknown=result.bill["ask"].unknown)
        count_calls(found, folder, blows, outs)
        if made is not _reading:
            count_effects(found, folder, outs, is_known=made is _with_keys)
        if made is _with_check:
            found.questions = call_jobs.questions(folder)
        return found


def _strike(
    job: RunningJob,
    watch: Watch,
    folder: str,
    wanted: int,
    before: list[Blow],
    pause_s: float,
) -> Blow:
    """Kill all processes that ask, so long after others do and enough calls are open."""
    tasks = [task.name for task in job.plan.tasks if not task.is_source]

    def pids() -> tuple[int, ...]:
        return tuple({slot.pid for slot in job.slots() if set(slot.runs) & set(tasks)})

    def full() -> bool:
        now = pids()
        if any(set(now) & set(victims) for _, victims in before) or not run.all_live(job):
            return False
        return len(_open(call_jobs.events(folder), now)) >= wanted

    run.until(job, watch, full, FILL_S, f"{wanted} calls are open")
    time.sleep(pause_s)
    victims = pids()
    kill_workers(job, tasks)
    return time.time(), victims


def _open(events: dict[int, Any], pids: tuple[int, ...]) -> call_jobs.Keys:
    """What these processes have asked and not been answered."""
    found = [np.empty(0, np.int64)]
    for pid in pids:
        if (mine := events.get(pid)) is not None:
            answered = mine["answered"]
            found.append(np.setdiff1d(mine["key"][~answered], mine["key"][answered]))
    return np.concatenate(found)


def count_calls(found: Found, folder: str, blows: list[Blow], outs: call_jobs.Outs) -> None:
    """What was open at the kills, and what was asked again."""
    events = call_jobs.events(folder)
    for at_s, pids in blows:
        keys = _open(events, pids)
        found.open += len(keys)
        after_ms = outs.after_ms(keys, at_s)
        found.first_ms.append(float(after_ms.min()))
        found.last_ms.append(float(after_ms.max()))
    of_all = np.sort(np.concatenate(list(events.values())), order=["key", "at"])
    keys, answered = of_all["key"], of_all["answered"]
    again = (keys[1:] == keys[:-1]) & ~answered[1:]
    found.answered_again = int((again & answered[:-1]).sum())
    found.open_again = int((again & ~answered[:-1]).sum())


def count_effects(found: Found, folder: str, outs: call_jobs.Outs, *, is_known: bool) -> None:
    """A service that knows names does what it is told under a new name; others, whatever."""
    told = call_jobs.names(folder)
    done = np.unique(told) if is_known else told
    _, times = np.unique(done["key"], return_counts=True)
    found.twice = int((times > 1).sum())
    if found.unknown:  # every other row's effect was made
        found.unknown_done = found.unknown - len(np.setdiff1d(outs.ids, done["key"]))
