"""Rows that go round in a loop: what that costs, and what a kill in the loop does.

*cost*: every row passes the same keyed operator several times, with a shuffle before each time. In
one job it goes round in a loop; in the other the operator is there several times, in a row, and
nothing goes back. Both have the same number of tasks per operator and share the same processes.
They run in turn, as fast as they can, and then at a pace, for the latency.

*kills*: reachability in a graph that grows. An edge is a row; what it makes reachable goes round.
The graph is made of many small ones, some of which grow at the same time. Processes of the loop are
killed, one or all at once. Measured are the longest pause in the output of the tasks that were hit,
less the usual one, and how soon the job ends when the last row is through. What came out is
compared with a search in plain Python: each pair of nodes once, and no other.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import clonos
from clonos.cluster.driver import RunningJob
from clonos_bench import jobs, plots, run
from clonos_bench.kills import PATIENCE_S, Kill, ends_of, kill_repeatedly, kill_workers
from clonos_bench.report import PERCENTILES, Aim, Report
from clonos_bench.statistics import gap_before, mean, paired_ratio, percentile, summarize
from clonos_bench.watch import Watch

GAP: Final = Aim(60.0)
"""Median gap of a kill in the loop."""
END: Final = Aim(200.0)
"""From the last output to the end of all tasks."""
KINDS: Final = ("in a loop", "in a row")
RUN_S: Final = 600.0
ROUNDS: Final = "key long, id long, round long"
ROWS: Final = "node long, kind string, other long"
NODES: Final = 50
"""Of each of the small graphs ..."""
EDGES: Final = 64
"""... which has so many edges, ..."""
TOGETHER: Final = 16
"""... and so many of them grow at the same time."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``clonos-bench loops``."""
    run.common_arguments(parser)
    add = parser.add_argument
    add("--parts", nargs="+", choices=("cost", "kills"), default=("cost", "kills"))
    add("--rounds", type=int, default=4, help="how often a row passes the operator")
    add("--rows", type=int, default=1_000_000, help="per run at full speed")
    add("--pairs", type=int, default=5, help="runs of each kind")
    add("--rate", type=float, default=5_000.0, help="rows per second, for the latency")
    add("--seconds", type=float, default=10.0, help="of each run for the latency")
    add("--edges", type=float, default=300.0, help="edges per second, while processes are killed")
    add("--kills", type=int, default=10, help="of one process, and as many of all")
    add("--checkpoint-ms", type=int, default=0, help="time between checkpoints; 0: auto")
    add("--pause", type=float, default=2.0, help="seconds of normal work before each kill")
    add(
        "--checkpoints",
        nargs="+",
        choices=("marked", "uncoordinated"),
        default=("marked", "uncoordinated"),
    )


def measure(arguments: argparse.Namespace) -> Report:
    """The cost, then the kills."""
    report = Report("loops", "rows that go round", PERCENTILES)
    if "cost" in arguments.parts:
        report.parts += [_cost(arguments), _latency(arguments)]
    if "kills" in arguments.parts:
        report.parts.append(_kills(arguments))
    return report


# --- the cost -------------------------------------------------------------------------------------


def begin(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows that have passed the operator no time yet."""
    ids = batch.column(0).to_numpy()
    return _numbered(ids, np.zeros_like(ids))


def turn(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Once more, and on to a key of the next round."""
    return _numbered(batch.column(1).to_numpy(), batch.column(2).to_numpy() + 1)


def _numbered(ids: Any, rounds: Any) -> pa.RecordBatch:
    keys = ((ids + rounds).astype(np.uint64) * jobs.SPREAD) >> np.uint64(20)
    columns = [pa.array(each) for each in (keys.astype(np.int64), ids, rounds)]
    return pa.RecordBatch.from_arrays(columns, ["key", "id", "round"])


def going(rounds: int, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows that have not passed it often enough."""
    return batch.filter(pc.less(batch.column(2), rounds))


def through(rounds: int, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Those that have; each is the first of its key."""
    ids = batch.filter(pc.equal(batch.column(2), rounds)).column(1)
    ones = pa.array(np.ones(len(ids), np.int64))
    return pa.RecordBatch.from_arrays([ids, ids, ones], ["key", "id", "seen"])


def rounds_of(source: Any, kind: str, rounds: int, parallelism: int) -> clonos.Job:
    """The job in which rows pass an operator `rounds` times, in a loop or in a row."""
    job = clonos.Job("rounds", parallelism=parallelism)
    stream = job.source(source, name="source").map_batches(begin, ROUNDS, name="begin")
    if kind == "in a loop":
        again = job.feedback(ROUNDS, name="again")
        entered = stream.union(again, name="enter")
        stream = entered.key_by("key").map_batches(turn, ROUNDS, name="turn")
        again.feed(stream.map_batches(partial(going, rounds), ROUNDS, name="go round"))
    else:
        for number in range(rounds):
            stream = stream.key_by("key").map_batches(turn, ROUNDS, name=f"turn {number}")
    done = stream.map_batches(
        partial(through, rounds), "key long, id long, seen long", name="through"
    )
    done.sink(clonos.sinks.callback(jobs.nothing), name="sink")
    return job


def _cost(arguments: argparse.Namespace) -> Report:
    columns = ("what", *KINDS, "loop, of row")
    report = Report("cost", f"{arguments.rounds} rounds, as fast as they go", columns)
    define = partial(
        rounds_of,
        jobs.at_once(arguments.rows),
        rounds=arguments.rounds,
        parallelism=arguments.parallelism,
    )
    used: dict[str, list[run.Used]] = {kind: [] for kind in KINDS}
    with run.session(f"local[{define(kind=KINDS[0]).cores()}]") as spark:
        for pair in range(arguments.pairs):
            for kind in KINDS if pair % 2 else reversed(KINDS):
                with run.running(define(kind=kind), spark) as (job, watch):
                    delivered = lambda watch=watch: watch.ledger.rows  # noqa: E731
                    used[kind].append(run.time_all(job, watch, delivered, arguments.rows, RUN_S))
                watch.require_right(arguments.parallelism)
    measures: dict[str, Callable[[run.Used], float]] = {
        "rows/s": lambda each: arguments.rows / each.wall_s,
        "CPU of the slots, s per million rows": lambda each: each.cpu_s / arguments.rows * 1e6,
    }
    for what, of in measures.items():
        values = {kind: [of(each) for each in used[kind]] for kind in KINDS}
        ratio = paired_ratio(list(zip(*values.values(), strict=True)))
        middles = [f"{mean(values[kind]).value:,.1f}" for kind in KINDS]
        report.add(what, *middles, f"{ratio.value:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]")
        report.data[what] = values
    rates = {kind: mean(report.data["rows/s"][kind]).value for kind in KINDS}
    out = run.folder(arguments, "loops/cost")
    plots.bars(out / "rates.png", rates, "rows per second", report.title)
    report.notes.append(
        f"{arguments.pairs} runs of each kind in turn, {arguments.rows:,} rows each, every one "
        "delivered once; means, and the ratio of pairs with its 95 % interval"
    )
    return report


def _latency(arguments: argparse.Namespace) -> Report:
    title = f"{arguments.rounds} rounds, {arguments.rate:,.0f} rows/s: latency, ms"
    report = Report("latency", title, PERCENTILES)
    late: dict[str, list[Any]] = {kind: [] for kind in KINDS}
    for pair in range(arguments.pairs):
        for kind in KINDS if pair % 2 else reversed(KINDS):
            late[kind].append(_paced(arguments, kind))
    for kind in KINDS:
        report.summary(kind, summarize(np.concatenate(late[kind])))
    report.notes.append(
        f"{arguments.pairs} runs of each kind in turn, {arguments.seconds:g} s each; from when the "
        "oldest row of an output was due to its durable delivery"
    )
    return report


def _paced(arguments: argparse.Namespace, kind: str) -> Any:
    with run.paced(arguments.rate) as schedule:
        job = rounds_of(jobs.paced(schedule), kind, arguments.rounds, arguments.parallelism)
        with (
            run.session(f"local[{job.cores()}]") as spark,
            run.running(job, spark, schedule) as (started, watch),
        ):
            steady = lambda: watch.ledger.rows >= 2 * arguments.rate  # noqa: E731
            run.until(started, watch, steady, run.FILL_S, "rows are through")
            began_s = time.monotonic()
            over = lambda: time.monotonic() >= began_s + arguments.seconds  # noqa: E731
            run.until(started, watch, over, arguments.seconds + 10, "measuring")
            schedule.stop.touch()
            started.wait(PATIENCE_S)
            watch.drain()
        watch.require_right(arguments.parallelism)
        series = [watch.series(task) for task in watch.tasks()]
    until_s = began_s + arguments.seconds
    return np.concatenate([ms[(at >= began_s) & (at < until_s)] for at, ms in series])


# --- kills ----------------------------------------------------------------------------------------


def edges_of(ids: Any) -> tuple[Any, Any]:
    """The edge of each row number: from which node to which."""
    mixed = (ids.astype(np.uint64) * jobs.SPREAD) >> np.uint64(20)
    group, place = np.divmod(ids, TOGETHER * EDGES)
    first = (group * TOGETHER + place % TOGETHER) * NODES
    near, far = mixed % np.uint64(NODES), mixed // np.uint64(NODES) % np.uint64(NODES)
    return first + near.astype(np.int64), first + far.astype(np.int64)


def as_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Edges as the loop takes them."""
    node, other = edges_of(batch.column(0).to_numpy())
    kinds = pa.array(["edge"] * len(batch))
    return pa.RecordBatch.from_arrays(
        [pa.array(node), kinds, pa.array(other)], ["node", "kind", "other"]
    )


class Node(clonos.Process):
    """Knows the next nodes, and from where it is reached; tells the next ones of what is new."""

    def open(self, ctx: Any) -> None:
        self._next, self._origins = ctx.state("next"), ctx.state("origins")

    def on_row(self, row: Any, ctx: Any) -> Iterator[tuple[int, str, int]]:
        del ctx
        after, origins = self._next.get([]), self._origins.get([])
        if row.kind == "edge" and row.other not in after:
            self._next.set([*after, row.other])
            for origin in (row.node, *origins):
                yield row.other, "reached", origin
        elif row.kind == "reached" and row.other not in origins:
            self._origins.set([*origins, row.other])
            yield row.node, "found", row.other
            for node in after:
                yield node, "reached", row.other


def reachability(source: Any, parallelism: int, **settings: Any) -> clonos.Job:
    """All tasks of an index share a slot; the one source is in that of the first."""
    job = clonos.Job("reachability", parallelism=parallelism, **settings)
    edges = job.source(source, name="source", parallelism=1).map_batches(as_rows, ROWS, name="edge")
    again = job.feedback(ROWS, name="again")
    entered = edges.rebalance().union(again, name="enter", parallelism=parallelism)
    told = entered.key_by("node").process(Node(), ROWS, name="node")
    again.feed(told.filter(lambda row: row.kind == "reached", name="go round"))
    found = told.filter(lambda row: row.kind == "found", name="found")
    found.sink(clonos.sinks.collect(), name="pairs")
    return job


def reachable(count: int) -> Counter[tuple[int, int]]:
    """(origin, node) of the first `count` edges: what can be reached in one step or more."""
    after: dict[int, set[int]] = {}
    for node, other in zip(*(ends.tolist() for ends in edges_of(np.arange(count))), strict=True):
        after.setdefault(node, set()).add(other)
    found = set()
    for origin in after:
        ahead = [origin]
        while ahead:
            for node in after.get(ahead.pop(), ()):
                if (origin, node) not in found:
                    found.add((origin, node))
                    ahead.append(node)
    return Counter(found)


def _kills(arguments: argparse.Namespace) -> Report:
    title = f"processes of a loop are killed: gap in ms, {arguments.edges:,.0f} edges/s"
    report = Report("kills", title, PERCENTILES)
    for checkpoints in arguments.checkpoints:
        _killed(report, arguments, checkpoints)
    return report


def _killed(report: Report, arguments: argparse.Namespace, checkpoints: str) -> None:
    tasks = [f"node[{index}]" for index in range(arguments.parallelism)]
    with run.paced(arguments.edges) as schedule:
        job = reachability(
            jobs.paced(schedule),
            arguments.parallelism,
            checkpoints=checkpoints,
            checkpoint_interval=jobs.interval(arguments.checkpoint_ms),
        )
        with (
            run.session(f"local[{job.cores(arguments.parallelism)}]") as spark,
            run.running(job, spark, standby_slots=arguments.parallelism) as (started, watch),
        ):
            begun = lambda: len(watch.tasks()) == arguments.parallelism  # noqa: E731
            run.until(started, watch, begun, run.FILL_S, "pairs are found")
            blows: list[Callable[[], Kill]] = []
            for number in range(arguments.kills):
                one = [tasks[number % len(tasks)]]
                blows += [partial(kill_workers, started, victims) for victims in (one, tasks)]
            kills = kill_repeatedly(started, watch, blows, arguments.pause)
            schedule.stop.touch()
            over = lambda: all(task.phase == "finished" for task in started.tasks())  # noqa: E731
            run.until(started, watch, over, PATIENCE_S, "all tasks have ended")
            ended_s = time.monotonic()
            result = started.wait(PATIENCE_S)
            watch.drain()
    end_ms = 1000 * (ended_s - max(float(watch.series(task)[0][-1]) for task in watch.tasks()))
    progress = started.last_progress
    assert progress is not None
    edges = next(each.rows_in for each in progress.operators if each.name == "edge")
    right = verdict(result.table(), edges)
    report.ok &= right.startswith("right")
    until_s = ends_of(kills, ended_s)
    all_gaps = [_gap(started, watch, *each) for each in zip(kills, until_s, strict=True)]
    for kind, what in (("worker", "one process"), ("workers", "all processes")):
        gaps = [gap for kill, gap in zip(kills, all_gaps, strict=True) if kill.kind == kind]
        report.summary(f"{checkpoints}: {what} of the loop", summarize(gaps), p50=GAP)
        report.data[f"{checkpoints}, {what}"] = gaps
    report.notes.append(
        f"{checkpoints}: {right}; all tasks had ended {end_ms:,.0f} ms after the last output "
        f"({END}: {END.judge(end_ms)})"
    )
    report.data[f"{checkpoints}, end"] = end_ms


def verdict(table: Any, edges: int) -> str:
    """What came out, beside what a search finds."""
    found = Counter(zip(table["other"].to_pylist(), table["node"].to_pylist(), strict=True))
    expected = reachable(edges)
    missing, extra = (expected - found).total(), (found - expected).total()
    if missing or extra:
        return f"WRONG: {missing:,} pairs are missing, {extra:,} are wrong or came twice"
    return f"right: {edges:,} edges, {found.total():,} pairs, each once"


def _gap(job: RunningJob, watch: Watch, kill: Kill, until_s: float) -> float:
    """The longest gap in a partition that was hit, before the next kill."""
    lost = {name.partition("[")[2] for name in kill.tasks}
    gaps = []
    for task in watch.tasks():
        if job.plan.tasks[task].name.partition("[")[2] in lost:
            times, _ = watch.series(task)
            gaps.append(gap_before(times, kill.at_s, until_s))
    return percentile(gaps, 100)
