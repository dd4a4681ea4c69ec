"""What failures do to the output of a job with state: how long it stands still, and is late.

The job is four tasks deep (source, map, keyed state, sink), each in a process of its own, and
delivers every row. One kind of failure after the other strikes it, each time after the job has been
normal for a while, without standbys, with one and with two. A row is due at a moment that no
failure changes; what was due meanwhile is late. Measured per failure, in ms:

detected
    From the blow until the driver knew of the last of the lost tasks.
live
    Until the last of them was live again.
gap
    The longest pause in the delivered output of a partition that may be due to the blow (it ends
    after the blow and begins before the tasks are live again), less the median pause of the two
    seconds before (:func:`clonos_bench.statistics.output_gap`). Partitions that do not depend on
    a lost task are not looked at; of several, the worst counts.
late
    How late rows were at worst until the next failure.
normal
    Until latency is back within 10 % of the usual one, by the rule for all systems
    (:meth:`clonos_bench.timelines.Timeline.effects`).

Both are of the partition that is most behind at each moment: a partition that delivers nothing is
as late as the row that it owes.

The same run checks that every row is delivered once, and that state has counted every key right.
"""

from __future__ import annotations

import argparse
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, Final

import numpy as np

from clonos.cluster.driver import RunningJob
from clonos.errors import ClonosError
from clonos.nodes.views import Recovery
from clonos_bench import jobs, plots, run, takeover
from clonos_bench.kills import (
    PATIENCE_S,
    Kill,
    ends_of,
    freeze_worker,
    kill_executors,
    kill_repeatedly,
    kill_workers,
    stages_of,
)
from clonos_bench.report import Aim, Report
from clonos_bench.statistics import (
    Series,
    output_gap,
    percentile,
    spread,
)
from clonos_bench.timelines import Timeline
from clonos_bench.watch import Watch

WORKER_GAP: Final = Aim(50.0)
"""Median gap of one killed worker with a standby."""
WORKER_GAP_P99: Final = Aim(150.0)
EXECUTOR_NORMAL: Final = Aim(1000.0)
"""Median time until normal after Spark's new executor is there, with a standby."""
CONNECTED: Final = Aim(1000.0)
"""Median time until three connected tasks are live again, with a standby."""

IN_TIME_MS: Final = 200.0
"""No blow before every partition's newest output is at most so late."""
_LOOK_S: Final = 0.05
_COLUMNS: Final = (
    "failure", "standbys", "n", "detected", "live", "gap", "late", "normal", "target",
)  # fmt: skip
_DEEP: Final = ("map", "state", "sink")

LOCAL: Final = ("one worker", "three at once", "three in turn", "frozen")
CLUSTER: Final = ("one executor", "all executors")
DRIVER: Final = "driver"
KINDS: Final = (*LOCAL, *CLUSTER, DRIVER)


@dataclass
class Measured:
    """One failure; ms. Infinite: not before the next one."""

    kind: str
    tasks: tuple[str, ...]
    gap_ms: float
    pause_ms: float
    usual_pause_ms: float
    late_ms: float = math.nan
    normal_ms: float = math.nan
    stages: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """All failures of one kind in one job. ``back_ms``: when Spark's executors were there again."""

    kills: Sequence[Kill]
    measured: Sequence[Measured]
    timeline: Timeline
    back_ms: Sequence[float] = ()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``clonos-bench failures``."""
    run.common_arguments(parser)
    run.state_arguments(parser, state_mb=100.0)
    add = parser.add_argument
    add("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="what happens")
    add("--rate", type=float, default=20_000.0, help="rows per second")
    add("--rounds", type=int, default=10, help="failures of each kind")
    add("--pause", type=float, default=2.5, help="seconds of normal work before each failure")
    add("--apart", type=float, default=1.0, help="seconds between the three in turn")
    add("--standbys", nargs="+", type=int, default=[0, 1, 2])
    add("--executors", type=int, default=3)
    add("--checkpoints", choices=("auto", "marked", "uncoordinated"), default="auto")


def measure(arguments: argparse.Namespace) -> Report:
    """All kinds of failures, with each number of standbys."""
    out = run.folder(arguments, "failures")
    title = f"failures: {arguments.state_mb:g} MB of state, {arguments.rate:,.0f} rows/s; ms"
    report = Report("failures", title, _COLUMNS)
    with run.profiled(arguments, out):
        for standbys in arguments.standbys:
            found: dict[str, Run] = {}
            for family in (LOCAL, CLUSTER):
                if kinds := [kind for kind in family if kind in arguments.kinds]:
                    found |= _run(report, arguments, kinds, standbys)
            for kind, done in found.items():
                _report(report, kind, standbys, done)
                done.timeline.save(out, f"{kind}-{standbys}".replace(" ", "-"))
            if found:
                lines = [done.timeline for done in found.values()]
                of = {0: "without a standby", 1: "with a standby"}
                name = of.get(standbys, f"with {standbys} standbys")
                plots.systems(out / f"failures-{standbys}.png", lines, f"Failures, {name}")
    if DRIVER in arguments.kinds:
        _drivers(report, arguments.rounds)
    report.notes.append("median [least, greatest] of n failures; what each column means: --help")
    return report


def kill_one_worker(arguments: argparse.Namespace, state_mb: float, rounds: int) -> Run:
    """Workers of tasks with state are killed with one standby, for other measurements."""
    options = argparse.ArgumentParser()
    add_arguments(options)
    wanted = ["--state-mb", str(state_mb), "--parallelism", str(arguments.parallelism)]
    given = options.parse_args([*wanted, "--rounds", str(rounds)])
    report = Report("failures", "", _COLUMNS)
    done = _run(report, given, ["one worker"], 1)["one worker"]
    if not report.ok:
        raise ClonosError("; ".join(report.notes))
    return done


# --- one job, and what strikes it -----------------------------------------------------------------


def _run(
    report: Report, arguments: argparse.Namespace, kinds: Sequence[str], standbys: int
) -> dict[str, Run]:
    keys = run.keys_of(arguments)
    is_cluster = kinds[0] in CLUSTER
    with run.paced(arguments.rate, keys) as schedule:
        job = jobs.stateful(
            jobs.paced(schedule),
            keys=keys,
            value_bytes=arguments.value_bytes,
            parallelism=arguments.parallelism,
            standbys=standbys,
            checkpoint_ms=arguments.checkpoint_ms,
            checkpoints=arguments.checkpoints,
            is_apart=True,
        )
        # Every task that goes with an executor needs a place at once.
        spare = len(job.compile().plan.tasks) if is_cluster else None
        slots, executors = job.cores(spare), arguments.executors
        master = f"local-cluster[{executors},{-(-slots // executors)},2048]"
        options = {"linger_ms": arguments.linger_ms, "standby_slots": spare}
        with (
            run.session(master if is_cluster else f"local[{slots}]") as spark,
            run.running(job, spark, schedule, **options) as (started, watch),
        ):
            filled = lambda: watch.ledger.rows >= keys + arguments.rate  # noqa: E731
            run.until(started, watch, filled, run.FILL_S, "the state is filled")

            def is_whole() -> bool:
                # With fewer slots a standby may have to be where its task is.
                return len(started.slots()) >= slots and watch.latest_ms() <= IN_TIME_MS

            with Arrivals(spark) as arrivals:
                kills = {
                    kind: kill_repeatedly(
                        started,
                        watch,
                        _blows(started, watch, kind, arguments),
                        arguments.pause,
                        is_whole,
                    )
                    for kind in kinds
                }
            schedule.stop.touch()
            ended = lambda: not started.is_running  # noqa: E731
            run.until(started, watch, ended, PATIENCE_S, "the job has ended")
            started.wait(0)
    faults = watch.ledger.faults(arguments.parallelism)
    verdict = "; ".join(faults) or "every row delivered once, every key counted right"
    which = f"{', '.join(kinds)}; standbys: {standbys}"
    report.notes.append(f"{which}: {watch.ledger.rows:,} rows: {verdict}")
    report.ok = report.ok and not faults
    series = {started.plan.tasks[t].name: watch.series(t) for t in watch.tasks()}
    return _blocks(series, kills, started.observer.recoveries, arrivals, arguments)


def _blows(
    job: RunningJob, watch: Watch, kind: str, arguments: argparse.Namespace
) -> list[Callable[[], Kill]]:
    parts = arguments.parallelism
    blows: list[Callable[[], Kill]] = []
    for number in range(arguments.rounds):
        index = number % parts
        three = [f"{name}[{index}]" for name in _DEEP]
        # Whoever was given up for silence has more time the next time: so all tasks in turn.
        frozen = f"{_DEEP[number // parts % len(_DEEP)]}[{index}]"
        blow: dict[str, Callable[[], Kill]] = {
            "one worker": partial(kill_workers, job, [f"state[{index}]"]),
            "three at once": partial(kill_workers, job, three),
            "three in turn": partial(kill_workers, job, three, arguments.apart),
            "frozen": partial(freeze_worker, job, watch, frozen),
            "one executor": partial(kill_executors, job, f"state[{index}]"),
            "all executors": partial(kill_executors, job),
        }
        blows.append(blow[kind])
    return blows


class Arrivals:
    """When Spark's executors came, as Spark itself tells."""

    def __init__(self, spark: Any) -> None:
        self._tracker = spark.sparkContext._jsc.sc().statusTracker()  # noqa: SLF001 - only Java has it
        self._over = threading.Event()
        self._seen: dict[str, float] = {}
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Arrivals:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(_LOOK_S):
            for each in self._tracker.getExecutorInfos():
                self._seen.setdefault(f"{each.host()}:{each.port()}", time.monotonic())

    def after(self, kills: Sequence[Kill], end_s: float) -> list[float]:
        """Per kill, when the last executor came before the next kill (ms after the kill)."""
        result = []
        for kill, next_s in pairwise([*[k.at_s for k in kills], end_s]):
            came = [at_s for at_s in self._seen.values() if kill < at_s < next_s]
            result += [1000 * (max(came) - kill)] if came else []
        return result


# --- what came of it ------------------------------------------------------------------------------


def _blocks(
    series: Mapping[str, tuple[Series, Series]],
    kills: Mapping[str, Sequence[Kill]],
    recoveries: Sequence[Recovery],
    arrivals: Arrivals,
    arguments: argparse.Namespace,
) -> dict[str, Run]:
    """Kind by kind, each with the deliveries from its first blow's pause to the next kind's."""
    starts = [done[0].at_s - arguments.pause for done in kills.values()]
    spans = pairwise([*starts, math.inf])
    result = {}
    for (kind, done), (start, end) in zip(kills.items(), spans, strict=True):
        mine = {
            name: (times[(times >= start) & (times < end)], late[(times >= start) & (times < end)])
            for name, (times, late) in series.items()
        }
        measured = analyse(done, mine, recoveries, arguments.pause, end)
        times, late = most_behind(list(mine.values()))
        moments = [kill.at_s for kill in done]
        settings = {"rate": arguments.rate, "state_mb": arguments.state_mb}
        points = list(zip(times.tolist(), late.tolist(), strict=True))
        timeline = Timeline(kind, "", arguments.rate, points, moments, settings)
        nexts = [*moments[1:], math.inf]
        for one, effect, at_s, next_s in zip(
            measured, timeline.effects(), moments, nexts, strict=True
        ):
            one.normal_ms = effect.normal_ms
            one.late_ms = float(late[(times >= at_s) & (times < next_s)].max(initial=0.0))
        result[kind] = Run(done, measured, timeline, arrivals.after(done, end))
    return result


def most_behind(partitions: Sequence[tuple[Series, Series]]) -> tuple[Series, Series]:
    """At each delivery, how late (ms) the partition is that is most behind.

    Examples
    --------
    >>> one = np.array([1.0, 2.0]), np.array([5.0, 5.0])
    >>> other = np.array([1.0, 3.0]), np.array([5.0, 1005.0])
    >>> times, late = most_behind([one, other])
    >>> times.tolist(), late.tolist()
    ([1.0, 1.0, 2.0, 3.0], [5.0, 5.0, 1005.0, 1005.0])
    """
    moments = np.sort(np.concatenate([times for times, _ in partitions]))
    worst = np.zeros(len(moments))
    for times, late in partitions:
        if len(times):
            last = np.maximum(np.searchsorted(times, moments, "right") - 1, 0)
            since_ms = 1000 * np.maximum(moments - times[last], 0.0)
            worst = np.maximum(worst, late[last] + since_ms)
    return moments, worst


def analyse(
    kills: Sequence[Kill],
    series: Mapping[str, tuple[Series, Series]],
    recoveries: Sequence[Recovery],
    pause_s: float,
    end_s: float = math.inf,
) -> list[Measured]:
    """What every kill did to the partitions' outputs: their gaps.

    Parameters
    ----------
    series
        By the sink task's name, such as ``"sink[1]"``.
    pause_s
        What came after the last kill.
    end_s
        What came later than this (s, monotonic) is due to something else.
    """
    result = []
    for kill, next_s in zip(kills, ends_of(kills, end_s), strict=True):
        stages = stages_of(recoveries, kill, next_s)
        live_s = kill.at_s + stages.get("live", pause_s * 1000) / 1000
        places = {name.partition("[")[2] for name in kill.tasks}
        # What comes before the state feeds all partitions.
        is_apart = all(name.startswith(("state", "sink")) for name in kill.tasks)
        partitions = [s for n, s in series.items() if not is_apart or n.partition("[")[2] in places]
        each = [_effect(kill, times, live_s, stages) for times, _ in partitions]
        result.append(max(each, key=lambda m: m.gap_ms))
    return result


def _effect(kill: Kill, times: Series, live_s: float, stages: dict[str, float]) -> Measured:
    found = output_gap(times, kill.at_s, live_s)
    if found is None:
        return Measured(kill.kind, kill.tasks, math.inf, math.inf, math.nan, stages=stages)
    gap, _ = found
    return Measured(kill.kind, kill.tasks, gap.gap_ms, gap.pause_ms, gap.usual_ms, stages=stages)


def _report(report: Report, kind: str, standbys: int, done: Run) -> None:
    measured = done.measured

    def stage(name: str) -> list[float]:
        return [m.stages[name] for m in measured if name in m.stages]

    gaps, normals = [m.gap_ms for m in measured], [m.normal_ms for m in measured]
    aim = ""
    if standbys == 1 and kind == "one worker":
        p50, p99 = (percentile(gaps, q) for q in (50, 99))
        aim = (
            f"gap p50 {WORKER_GAP}: {WORKER_GAP.judge(p50)}; "
            f"p99 {p99:,.0f} {WORKER_GAP_P99}: {WORKER_GAP_P99.judge(p99)}"
        )
    if standbys == 1 and kind == "three at once":
        aim = f"live {CONNECTED}: {CONNECTED.judge(percentile(stage('live'), 50))}"
    if standbys == 1 and kind == "one executor" and len(done.back_ms) == len(normals):
        after = [n - back for n, back in zip(normals, done.back_ms, strict=True)]
        judged = EXECUTOR_NORMAL.judge(percentile(after, 50))
        aim = f"normal {EXECUTOR_NORMAL} after Spark's executor ({spread(after)}): {judged}"
    latest = [m.late_ms for m in measured]
    columns = (stage("detected"), stage("live"), gaps, latest, normals)
    report.add(kind, str(standbys), str(len(measured)), *map(spread, columns), aim)
    late = sum(not math.isfinite(n) for n in normals)
    if late:
        report.notes.append(f"{kind}: after {late} of them latency was not normal before the next")
    report.data[f"{kind}, {standbys}"] = {"measured": list(measured), "back_ms": done.back_ms}


def _drivers(report: Report, rounds: int) -> None:
    """A driver is killed: until new output, by a standby driver, and by the same command again."""
    for name, is_standby in (("a standby driver", True), ("the same command again", False)):
        times = [takeover.kill_driver("", is_standby=is_standby) for _ in range(rounds)]
        lives, rows = ([1000 * x for x in column] for column in zip(*times, strict=True))
        report.add(f"driver; {name}", "1", str(rounds), "", spread(lives), spread(rows), "", "", "")
