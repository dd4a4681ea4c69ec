"""Where the state of a killed task comes from, and what that costs.

The job is that of ``clonos-bench failures``, with one partition. The process with the state is
killed again and again, and the state comes

* from the memory of a standby, with all state in the checkpoint store, too (standby; auto: unless
  the store is too slow), or in no other place (memory): then the next standby gets it from the one
  that took over;
* or, without a standby, from the local disk (local), or from the checkpoint store (store).

Measured per kill:

level
    One of these; if the job tells another one, the run has failed. (A standby may lack the newest
    layer. That is counted in `not in memory`.)
restore
    From when a slot was told to go on until state and log were there, in ms.
gap
    The longest pause in the output, less the usual pause, in ms.

The store is a folder on the local disk, too, so the time to read it is that of this machine. The
same run checks that every row is delivered once, and that state has counted every key right.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from typing import Final

from clonos.nodes.views import Recovery
from clonos_bench import jobs, run
from clonos_bench.kills import PATIENCE_S, gaps_of, kill_repeatedly, kill_workers
from clonos_bench.report import Report
from clonos_bench.statistics import percentile, spread

LEVELS: Final = {
    "memory": ("memory", 1, "standby"),
    "standby": ("store", 1, "standby"),
    "auto": ("auto", 1, "standby"),
    "local": ("local", 0, "local"),
    "store": ("store", 0, "store"),
}
"""Where state is kept, how many standbys there are, and where a killed task has its state from."""
TASK: Final = "state[0]"
_COLUMNS: Final = (
    "level", "state (MB)", "kills", "restore p50 [low, high]", "gap p50 [low, high]",
    "not in memory (MB, most)",
)  # fmt: skip
_SHARE: Final = 0.05
"""A standby that reads more of the state from the store than this was not one."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``clonos-bench levels``."""
    run.report_arguments(parser)
    add = parser.add_argument
    add("--levels", nargs="+", choices=tuple(LEVELS), default=tuple(LEVELS))
    add("--mb", type=float, nargs="+", default=[10.0, 100.0], help="sizes of the state")
    add("--value-bytes", type=int, default=1000, help="state per key")
    add("--rate", type=float, default=1000.0, help="rows per second, when the state is there")
    add("--kills", type=int, default=10, help="of each case")
    add("--checkpoint-ms", type=int, default=500, help="time between checkpoints; 0: auto")
    add("--pause", type=float, default=2.0, help="seconds of normal work before each kill")
    add("--spare", type=int, help="slots beyond one per task; by default those for standbys")


def measure(arguments: argparse.Namespace) -> Report:
    """All levels, for each size of the state."""
    report = Report("levels", f"recovery by level, {arguments.rate:,.0f} rows/s", _COLUMNS)
    for megabytes in arguments.mb:
        for level in arguments.levels:
            _measure(report, arguments, megabytes, level)
    return report


def _measure(report: Report, arguments: argparse.Namespace, megabytes: float, level: str) -> None:
    keys = max(1, round(megabytes * 1e6 / arguments.value_bytes))
    with run.paced(arguments.rate, keys) as schedule:
        job = jobs.stateful(
            jobs.paced(schedule),
            keys=keys,
            value_bytes=arguments.value_bytes,
            parallelism=1,
            standbys=LEVELS[level][1],
            persistence=LEVELS[level][0],
            checkpoint_ms=arguments.checkpoint_ms,
            is_apart=True,
        )
        with (
            run.session(f"local[{job.cores(arguments.spare)}]") as spark,
            run.running(job, spark, schedule, standby_slots=arguments.spare) as (started, watch),
        ):
            filled = lambda: watch.ledger.rows >= keys + arguments.rate  # noqa: E731
            run.until(started, watch, filled, run.FILL_S, "the state is filled")
            floor = started.observer.look().floor
            stored = lambda: started.observer.look().floor > floor + 1  # noqa: E731
            run.until(started, watch, stored, run.FILL_S, "the state is in a checkpoint")
            blows = [partial(kill_workers, started, [TASK])] * arguments.kills
            kills = kill_repeatedly(started, watch, blows, arguments.pause)
            stopped_s = time.monotonic()
            recoveries = [r for r in started.observer.recoveries if r.finished and r.name == TASK]
            schedule.stop.touch()
            ended = lambda: not started.is_running  # noqa: E731
            run.until(started, watch, ended, PATIENCE_S, "the job has ended")
            started.wait(0)
    faults = watch.ledger.faults(1) + _elsewhere(recoveries, level, len(kills))
    verdict = "; ".join(faults) or "every row delivered once, every key counted right"
    report.notes.append(f"{level}, {megabytes:g} MB: {verdict}")
    report.ok &= not faults
    restores = [_restore_ms(recovery) for recovery in recoveries]
    gaps = gaps_of(watch, kills, stopped_s)
    state = percentile([recovery.state_bytes / 1e6 for recovery in recoveries], 50)
    read = max((recovery.store_bytes / 1e6 for recovery in recoveries), default=0.0)
    report.add(
        level, f"{state:,.1f}", str(len(kills)), spread(restores), spread(gaps), f"{read:,.1f}"
    )
    report.data[f"{level}, {megabytes:g} MB"] = {"restore": restores, "gaps": gaps}


def _elsewhere(recoveries: list[Recovery], level: str, kills: int) -> list[str]:
    """What contradicts that each kill led to one recovery from this level."""
    found = []
    if len(recoveries) != kills:
        found.append(f"{kills} kills, but {len(recoveries)} recoveries")
    for recovery in recoveries:
        share = recovery.store_bytes / recovery.state_bytes if recovery.state_bytes else 1.0
        due = LEVELS[level][2]
        if (share > _SHARE) if due == "standby" else (recovery.level != due or share < 1):
            found.append(f"a recovery read {share:.0%} of its state from {recovery.level}")
    return found


def _restore_ms(recovery: Recovery) -> float:
    begin, end = recovery.parts()["restore"]
    return (end - begin) * 1000
