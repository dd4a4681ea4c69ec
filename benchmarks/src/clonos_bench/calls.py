"""Calls that take a while: what one costs, how late rows are, what a kill repeats, who waits.

The service is a coroutine in the same process, so that its own cost is next to nothing: a real one
adds that of its client. It writes down what it was asked and what it has answered, in a file per
process, from which the repeated calls are counted.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import struct
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

import clonos
from clonos_bench import call_steps, jobs, run
from clonos_bench.kills import kill_repeatedly, kill_workers
from clonos_bench.report import PERCENTILES, Aim, Report
from clonos_bench.run import FILL_S
from clonos_bench.statistics import mean, paired_ratio, summarize

COST: Final = Aim(40.0)
"""Microseconds of CPU per call."""
LOG: Final = Aim(5.0)
"""Percent on top of the same job without a log."""
LATE: Final = {"p50": Aim(8.0), "p99": Aim(25.0)}
"""Milliseconds beyond the call."""
REPEATED: Final = Aim(2.0)
"""Percent of the calls that were open: answered ones that are asked again."""
FENCE: Final = Aim(20.0)
"""Milliseconds until everybody has answered, while all calls hang."""
CHECKPOINT: Final = Aim(200.0)
"""Milliseconds beyond the interval, while all calls hang."""
RUN_S: Final = 600.0
HANG_S: Final = 30.0
_EVENT: Final = struct.Struct("<qd?").pack


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``clonos-bench calls``."""
    run.common_arguments(parser)
    add = parser.add_argument
    names = ("steps", "cost", "latency", "kills", "effects", "hanging")
    add("--parts", nargs="+", choices=names, default=names, help="all by default")
    add("--step-calls", type=int, default=2000, help="in each round beside a step per call")
    add("--rows", type=int, default=200_000, help="per run, where the cost is measured")
    add("--pairs", type=int, default=5, help="runs of each kind there")
    add("--rate", type=float, default=1000.0, help="rows per second, where latency is measured")
    add("--call-ms", type=float, default=200.0, help="how long a call takes there")
    add("--seconds", type=float, default=30.0, help="how long is measured")
    add("--kills", type=int, default=5, help="workers to kill")
    add("--kill-rate", type=float, default=2500.0, help="rows per second meanwhile")


def measure(arguments: argparse.Namespace) -> Report:
    """Cost, latency, kills, and a service that hangs."""
    report = Report("calls", "calls that take a while", PERCENTILES)
    parts = {
        "steps": call_steps.measure,
        "cost": _cost,
        "latency": _latency,
        "kills": _kills,
        "effects": _effects,
        "hanging": _hanging,
    }
    report.parts = [parts[name](arguments) for name in arguments.parts]
    return report


# --- the job --------------------------------------------------------------------------------------


async def at_once(key: int) -> int:  # noqa: ARG001 - what is asked
    """Answers without waiting."""
    return 1


def plain(key: int) -> int:  # noqa: ARG001
    """The same without a call."""
    return 1


async def slow(folder: str, seconds: float, key: int) -> int:
    """Answers after a while, and keeps books."""
    books = _book(folder)
    os.write(books, _EVENT(key, time.time(), False))
    await asyncio.sleep(seconds)
    os.write(books, _EVENT(key, time.time(), True))
    return 1


_books: dict[int, int] = {}


def _book(folder: str) -> int:
    pid = os.getpid()
    if pid not in _books:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        _books[pid] = os.open(f"{folder}/{pid}.calls", flags)
    return _books[pid]


def _events(folder: str) -> dict[int, np.ndarray[Any, Any]]:
    """By process, what was asked and answered."""
    kind = np.dtype([("key", "<i8"), ("at", "<f8"), ("answered", "?")])
    return {int(p.stem): np.fromfile(p, kind) for p in Path(folder).glob("*.calls")}


def add_key(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Every row is its own key."""
    return pa.RecordBatch.from_arrays([batch.column(0), batch.column(0)], ["key", "id"])


def _job(
    arguments: argparse.Namespace, source: Any, fn: Any, *, protected: bool = True, **how: Any
) -> clonos.Job:
    job = clonos.Job(
        "calls",
        parallelism=arguments.parallelism,
        standbys=1 if protected else 0,
        checkpoint_interval="500 ms",
        guarantee="exactly_once" if protected else "at_least_once",
    )
    rows = job.source(source, name="source").start_new_chain().slot_group("calls")
    keyed = rows.map_batches(add_key, "key long, id long", name="key")
    if fn is plain:
        asked = keyed.with_column("seen long", fn, "key", name="ask")
    else:
        asked = keyed.with_column_async("seen long", fn, "key", name="ask", **how)
    asked.sink(clonos.sinks.callback(jobs.nothing), name="sink")
    return job


# --- measurements ---------------------------------------------------------------------------------


def _cost(arguments: argparse.Namespace) -> Report:
    columns = ("", "value", "low", "high", "aim")
    report = Report("cost", "CPU of a call that is answered at once", columns)
    kinds = {
        "calls": (at_once, True),
        "no log": (at_once, False),
        "no calls": (plain, True),
        "effects": (clonos.effect(at_once), True),
    }
    used: dict[str, list[float]] = {kind: [] for kind in kinds}
    cores = _paced_job(arguments, at_once).cores()
    with run.session(f"local[{cores}]") as spark:
        for _ in range(arguments.pairs):
            for kind, (fn, protected) in kinds.items():
                used[kind].append(_cpu_s(arguments, spark, fn, protected=protected))
    for kind, what in (("calls", "a call"), ("effects", "an effect")):
        each = np.array(used[kind]) - np.array(used["no calls"])
        cost = mean((each / arguments.rows * 1e6).tolist())
        aim = f"{COST}: {COST.judge(cost.value)}" if kind == "calls" else ""
        cells = (f"{micros:.1f}" for micros in (cost.value, cost.low, cost.high))
        report.add(f"{what}, beside the same job without (us)", *cells, aim)
    ratio = paired_ratio(list(zip(used["calls"], used["no log"], strict=True)))
    report.ratio("log, standby (% of the slots' CPU)", ratio, LOG)
    report.notes.append(
        f"{arguments.pairs} runs of each kind in turn, {arguments.rows:,} rows each"
    )
    report.data = {"cpu_s": used}
    return report


def _paced_job(arguments: argparse.Namespace, fn: Any, *, protected: bool = True) -> clonos.Job:
    rows = arguments.rows
    source = jobs.at_once(rows)
    how = {} if fn is plain else {"in_flight": 400, "ordered": False}
    return _job(arguments, source, fn, protected=protected, **how)


def _cpu_s(arguments: argparse.Namespace, spark: Any, fn: Any, *, protected: bool) -> float:
    job = _paced_job(arguments, fn, protected=protected)
    with run.running(job, spark) as (started, watch):
        used = run.time_all(started, watch, lambda: watch.ledger.rows, arguments.rows, RUN_S)
    watch.require_right(arguments.parallelism)
    return used.cpu_s


def _latency(arguments: argparse.Namespace) -> Report:
    title = f"calls of {arguments.call_ms:g} ms at {arguments.rate:,.0f} rows/s"
    report = Report("latency", title, PERCENTILES)
    kinds: dict[str, tuple[Callable[[Any], Any], bool]] = {
        "as they come": (lambda fn: fn, False),
        "in order": (lambda fn: fn, True),
        "effects": (clonos.effect, False),
    }
    for kind, (made, ordered) in kinds.items():
        late = _late_ms(arguments, made, ordered=ordered)
        report.summary(f"beyond the call, {kind} (ms)", summarize(late - arguments.call_ms), **LATE)
    report.notes.append("from when the oldest row of an output was due to its durable delivery")
    return report


def _late_ms(
    arguments: argparse.Namespace, made: Callable[[Any], Any], *, ordered: bool
) -> np.ndarray[Any, Any]:
    """One run: how long after they were due the outputs came."""
    with run.paced(arguments.rate) as schedule:
        fn = made(partial(slow, schedule.folder, arguments.call_ms / 1000))
        job = _job(arguments, jobs.paced(schedule), fn, in_flight=400, ordered=ordered)
        with (
            run.session(f"local[{job.cores()}]") as spark,
            run.running(job, spark, schedule) as (started, watch),
        ):
            begun = lambda: watch.ledger.rows >= 5 * arguments.rate  # noqa: E731
            run.until(started, watch, begun, FILL_S, "five seconds of rows are through")
            began = time.monotonic()
            over = lambda: time.monotonic() >= began + arguments.seconds  # noqa: E731
            run.until(started, watch, over, arguments.seconds + 10, "measuring")
            ended = time.monotonic()
            schedule.stop.touch()
            started.wait(60)
            watch.drain()
    watch.require_right(arguments.parallelism)
    series = [watch.series(task) for task in watch.tasks()]
    return np.concatenate([ms[(times >= began) & (times < ended)] for times, ms in series])


def _kills(arguments: argparse.Namespace) -> Report:
    columns = ("", "value", "aim")
    report = Report("kills", f"kill -9 at {arguments.kill_rate:,.0f} calls/s", columns)
    with run.paced(arguments.kill_rate) as schedule:
        source = jobs.paced(schedule)
        fn = partial(slow, schedule.folder, arguments.call_ms / 1000)
        job = _job(arguments, source, fn, in_flight=1000, ordered=False)
        with (
            run.session(f"local[{job.cores()}]") as spark,
            run.running(job, spark) as (started, watch),
        ):
            begun = lambda: watch.ledger.rows >= 2 * arguments.kill_rate  # noqa: E731
            run.until(started, watch, begun, FILL_S, "two seconds of rows are through")
            victims = [task.name for task in started.plan.tasks if not task.is_source]
            turns = [victims[i % len(victims)] for i in range(arguments.kills)]
            blows = [partial(kill_workers, started, [name]) for name in turns]
            done = kill_repeatedly(started, watch, blows, 2.0)
            schedule.stop.touch()
            started.wait(120)
            watch.drain()
            gaps = [r.milliseconds()["live"] for r in started.observer.recoveries if r.finished]
        watch.require_right(arguments.parallelism)
        asked, unanswered, again = _repeated(_events(schedule.folder), [kill.pid for kill in done])
    report.add("calls asked", f"{asked:,}", "")
    report.add("open at the kills", f"{unanswered:,}", "")
    share = 100 * again / max(unanswered, 1)
    report.add(
        "answered, and asked again",
        f"{again:,} ({share:.1f} %)",
        f"{REPEATED} %: {REPEATED.judge(share)}",
    )
    report.add("until the task was live again (ms)", ", ".join(f"{gap:.0f}" for gap in gaps), "")
    report.add("rows lost, or delivered twice", "0", "")  # else the report would have ended here
    report.notes.append(f"{len(done)} kills; the outputs are checked row by row")
    report.data = {"asked": asked, "unanswered": unanswered, "again": again, "live_ms": gaps}
    return report


def _repeated(events: dict[int, np.ndarray[Any, Any]], killed: list[int]) -> tuple[int, int, int]:
    """Calls asked in all; open when their process was killed; asked after they were answered."""
    unanswered = 0
    for pid in killed:
        answered = events[pid]["answered"] if pid in events else np.empty(0, bool)
        unanswered += int((~answered).sum() - answered.sum())
    of_all = np.sort(np.concatenate(list(events.values())), order=["key", "at"])
    keys, answered = of_all["key"], of_all["answered"]
    again = (keys[1:] == keys[:-1]) & answered[:-1] & ~answered[1:]
    return int((~answered).sum()), unanswered, int(again.sum())


def _effects(arguments: argparse.Namespace) -> Report:
    """A service that does not deduplicate, and can be asked what it has done."""
    columns = ("", "value", "aim")
    report = Report("effects", f"kill -9 at {arguments.rate:,.0f} effects/s", columns)
    with run.paced(arguments.rate) as schedule:
        folder = schedule.folder
        pay = clonos.effect(
            partial(slow, folder, arguments.call_ms / 1000), check=partial(was_made, folder)
        )
        how: dict[str, Any] = {"in_flight": 1000, "ordered": False, "timeout": "2 seconds"}
        job = _job(arguments, jobs.paced(schedule), pay, **how)
        with (
            run.session(f"local[{job.cores()}]") as spark,
            run.running(job, spark) as (started, watch),
        ):
            begun = lambda: watch.ledger.rows >= 2 * arguments.rate  # noqa: E731
            run.until(started, watch, begun, FILL_S, "two seconds of rows are through")
            asks = next(task.name for task in started.plan.tasks if task.has_effects)
            blows = [partial(kill_workers, started, [asks])] * 2
            kill_repeatedly(started, watch, blows, 5.0)
            schedule.stop.touch()
            started.wait(120)
            watch.drain()
        watch.require_right(arguments.parallelism)
        events = _events(folder)
        of_all = np.concatenate(list(events.values()))
        keys, times = np.unique(of_all["key"][of_all["answered"]], return_counts=True)
        checked = sum(len(path.read_bytes()) for path in Path(folder).glob("*.checks"))
    twice = int((times > 1).sum())
    report.add("effects made", f"{len(keys):,}", "")
    report.add("... twice", f"{twice:,}", f"<= 0: {'met' if not twice else 'missed'}")
    report.add("questions what had been done", f"{checked:,}", "")
    report.notes.append("2 kills; the outputs are checked row by row")
    report.ok = not twice
    report.data = {"made": len(keys), "twice": twice, "checked": checked}
    return report


async def was_made(folder: str, key: int) -> Any:
    """The service looks into its books; each question is written down, too."""
    checks = os.open(f"{folder}/{os.getpid()}.checks", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(checks, b"?")
    os.close(checks)
    found = any(((e["key"] == key) & e["answered"]).any() for e in _events(folder).values())
    return clonos.Made(1) if found else clonos.NotMade()


def _hanging(arguments: argparse.Namespace) -> Report:
    columns = ("", "value", "aim")
    report = Report("hanging", f"while every call takes {HANG_S:g} s", columns)
    with run.paced(100.0) as schedule:
        source = jobs.paced(schedule)
        fn = partial(slow, schedule.folder, HANG_S)
        job = _job(arguments, source, fn, in_flight=100, ordered=False)
        with (
            run.session(f"local[{job.cores()}]") as spark,
            run.running(job, spark) as (started, watch),
        ):
            full = lambda: len(_events(schedule.folder)) >= arguments.parallelism  # noqa: E731
            run.until(started, watch, full, FILL_S, "all tasks ask")
            time.sleep(5.0)  # more rows come than may ask
            times = [time.monotonic()]
            floor = started.observer.floors
            while time.monotonic() < times[0] + 15:
                if started.observer.floors > floor:
                    floor = started.observer.floors
                    times.append(time.monotonic())
                time.sleep(0.005)
            blows = [partial(kill_workers, started, ["source[0]"])] * arguments.kills
            kill_repeatedly(started, watch, blows, 1.0)
            done = [r for r in started.observer.recoveries if r.finished]
            live_ms = [r.milliseconds()["live"] for r in done]
            fences = (r.parts()["fence"] for r in done)
            fence_ms = [1000 * (end - begin) for begin, end in fences]
            started.stop()  # it would take long to answer all that has come meanwhile
    beyond = 1000 * np.diff(times)[1:] - 500
    worst = float(beyond.max())
    report.add("checkpoints in 15 s, every 500 ms", f"{len(times) - 1}", "")
    report.add(
        "longest beyond the interval (ms)",
        f"{worst:.0f}",
        f"{CHECKPOINT}: {CHECKPOINT.judge(worst)}",
    )
    worst = max(fence_ms)
    told = ", ".join(f"{ms:.0f}" for ms in fence_ms)
    report.add(
        "a neighbour killed: fences answered after (ms)", told, f"{FENCE}: {FENCE.judge(worst)}"
    )
    told = ", ".join(f"{ms:.0f}" for ms in live_ms)
    report.add("... and it is live again after (ms)", told, "")
    report.data = {"beyond_ms": beyond.tolist(), "fence_ms": fence_ms, "live_ms": live_ms}
    return report
