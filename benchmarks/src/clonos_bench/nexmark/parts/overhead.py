"""Nexmark: what protection costs, query by query, against the same engine without it.

Every query is run in all *variants*, in one Spark session, round after round; within a round
queries and variants come in random order, all variants of a query one after the other. Ratios are
of pairs of one round. A run is measured from when its sources are let go until its last output is
delivered (:mod:`clonos_bench.gates`), over as many events as the query takes ``--run-seconds`` for
when it is *off*, which is tried out first. What a query gives is counted where it is given.

off
    The causal log is: at least once, no digests, nothing is shared, no standby. Checkpoints are
    taken and the house-keeper's journal is flushed to disk, as in other engines.
bare
    Without checkpoints, too, and a journal that is not flushed. In-flight logs, which are the
    output queues, are then never cut: fewer events, so that they fit.
1, full
    Exactly once, logs travel one hop, or all the way.
keeper
    Exactly once with sharing depth 0: logs go to the house-keeper only.
...+standby
    The same with a standby per task.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import pyarrow as pa

import clonos
from clonos_bench import jobs, plots, run
from clonos_bench.gates import Timed, gated, timed, tried_out
from clonos_bench.nexmark import events
from clonos_bench.nexmark.queries import Auctions
from clonos_bench.report import Aim, Report
from clonos_bench.statistics import Interval, mean_ratio, paired_ratio, percentile

Query = Callable[[Auctions], clonos.Stream]
Depth = int | Literal["full"]


@dataclass(frozen=True)
class Variant:
    """How a job is protected. ``depth`` None: without causal log; ``is_marked``: its checkpoints
    have markers, as they have without log."""

    depth: Depth | None
    standbys: int = 0
    checkpoints: bool = True
    is_marked: bool = False

    def job(self, name: str, parallelism: int, checkpoint_ms: int) -> clonos.Job:
        """A job without operators."""
        causal = self.depth is not None
        return clonos.Job(
            name,
            parallelism=parallelism,
            standbys=self.standbys,
            sharing_depth=0 if self.depth is None else self.depth,
            checkpoints="marked" if self.is_marked else "auto",
            checkpoint_interval=jobs.interval(checkpoint_ms if self.checkpoints else None),
            guarantee="exactly_once" if causal else "at_least_once",
            on_orphan="consistency" if causal else "availability",
        )

    @property
    def options(self) -> dict[str, Any]:
        """Of the running job."""
        return {"durability": "fsync" if self.checkpoints else "process"}


BASE: Final = "off"
VARIANTS: Final[Mapping[str, Variant]] = {
    BASE: Variant(None),
    "bare": Variant(None, checkpoints=False),
    "1": Variant(1),
    "full": Variant("full"),
    "marked": Variant("full", is_marked=True),
    "keeper": Variant(0),
    "1+standby": Variant(1, 1),
    "full+standby": Variant("full", 1),
    "keeper+standby": Variant(0, 1),
}

PAPER: Final[Mapping[str, Mapping[str, float]]] = {
    "1": {
        "1": 8.5, "2": -4.0, "3": 4.2, "4": 0.2, "5": 16.1, "6": -1.4, "7": 15.5, "8": 7.7,
        "9": 0.9, "11": 0.8, "12": 4.7, "13": 9.2, "14": 0.6,
    },
    "full": {
        "1": 5.7, "2": -4.2, "3": 3.8, "4": 2.7, "5": 22.1, "6": 3.8, "7": 26.3, "8": 7.4,
        "9": 1.9, "11": -1.3, "12": 6.1, "13": 4.4, "14": 3.1,
    },
}  # fmt: skip
"""Throughput that Clonos lost against Flink (%), from the figures published with its paper
(parallelism 25, without standbys)."""

PAPER_SAYS: Final[Mapping[str, tuple[float, float]]] = {"1": (5.3, 16.0), "full": (6.7, 26.0)}
"""On average and at worst, in its text."""

AIMS: Final[Mapping[str, tuple[Aim, Aim]]] = {
    "1": (Aim(2.0), Aim(5.0)),
    "full": (Aim(3.0), Aim(8.0)),
}
"""For the mean and the worst query."""

_MOST_BARE: Final = 3_000_000
"""Per source task: without checkpoints its in-flight log is never cut, and has to stay below the
half gigabyte at which sources are throttled until it is."""
_FEWEST_CHECKPOINTS: Final = 3
_BY_THE_CLOCK: Final = "12"
"""How many rows this query gives depends on when it runs."""
_SEED: Final = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the parts that compare variants."""
    add = parser.add_argument
    add("--rounds", type=int, default=3, help="of all variants (overhead, growth)")
    add(
        "--run-seconds",
        type=float,
        default=5.0,
        help="of a run, about, by choice of how many events",
    )
    known = ",".join(VARIANTS)
    add("--variants", default="off,1,full", help=f"out of {known} (overhead)")
    add("--checkpoint-ms", type=int, default=1000, help="time between checkpoints; 0: auto")


Runs = dict[str, list[Timed]]


def measure(chosen: Mapping[str, Query], arguments: argparse.Namespace, out: Path) -> Report:
    """All rounds, and what follows from them."""
    names = [BASE, *(name for name in arguments.variants.split(",") if name != BASE)]
    unknown = [name for name in names if name not in VARIANTS]
    if unknown:
        raise clonos.ClonosError(
            f"there is no variant {', '.join(unknown)}", remedy=f"use {', '.join(VARIANTS)}"
        )
    done = _rounds(chosen, {name: VARIANTS[name] for name in names}, arguments)
    report = compare(done, out)
    report.notes.append(
        f"{arguments.rounds} rounds in random order; {arguments.parallelism} tasks per operator; "
        f"checkpoints every {arguments.checkpoint_ms} ms; [95 % intervals of paired ratios]"
    )
    return report


def compare(done: Mapping[str, Runs], out: Path) -> Report:
    """Throughput and CPU time of every variant against :data:`BASE`, in one table and a picture.

    Parameters
    ----------
    done
        Query -> variant -> its runs, of as many rounds for each.
    """
    names = list(next(iter(done.values())))
    report = Report("overhead", "Nexmark: what protection costs", ["", BASE, *names[1:]])
    lost = {q: _ratios(runs, _wall, _lost) for q, runs in done.items()}
    added = {q: _ratios(runs, _cpu, _added) for q, runs in done.items()}
    rates = {q: f"{1e-3 / _median(runs[BASE], _wall):,.0f}" for q, runs in done.items()}
    _rows(report, "throughput lost (%)", lost, names, rates)
    _means(report, "mean", done, _wall, _lost, names)
    _judged(report, lost, done, names)
    costs = {q: f"{1e6 * _median(runs[BASE], _cpu):.2f}" for q, runs in done.items()}
    _rows(report, "CPU time added (%)", added, names, costs)
    _means(report, "mean", done, _cpu, _added, names)
    report.add("determinants, bytes per event; MB of all slots", *("" for _ in names))
    for query, runs in done.items():
        report.add(f"q{query}", *(_size(runs[name]) for name in names))
    report.notes.append(
        f"{BASE}: at least once, no causal log; its columns: thousand events/s, and CPU s of the "
        "whole machine per million events"
    )
    _check(report, done)
    report.data = {
        "runs": done, "throughput_lost": lost, "cpu_added": added, "paper": PAPER
    }  # fmt: skip
    for name, unit, found, sign in (
        ("overhead", f"throughput relative to {BASE}", lost, -1),
        ("overhead-cpu", f"CPU time relative to {BASE}", added, 1),
    ):
        drawn = {n: {q: 1 + sign * found[q][n].value / 100 for q in found} for n in names[1:]}
        plots.grouped(out / f"{name}.png", drawn, unit, report.title)
    return report


def _check(report: Report, done: Mapping[str, Runs]) -> None:
    """The same events give as many rows in every variant, and runs have seen checkpoints."""
    for query, runs in done.items():
        of_size: dict[int, set[int]] = {}
        for each in (each for of_variant in runs.values() for each in of_variant):
            of_size.setdefault(each.events, set()).add(each.rows_out)
        for counts in of_size.values():
            if len(counts) > 1 and query != _BY_THE_CLOCK:
                report.ok = False
                report.notes.append(f"q{query} gave {' or '.join(map(str, sorted(counts)))} rows")
    of_query = {
        query: min(
            each.checkpoints for name, runs_ in runs.items() if name != "bare" for each in runs_
        )
        for query, runs in done.items()
    }
    few = ", ".join(f"q{q} {n}" for q, n in of_query.items() if n < _FEWEST_CHECKPOINTS)
    fewest = min(of_query.values())
    report.notes.append(
        f"each run has seen {fewest} checkpoints or more" + (f" (few: {few})" if few else "")
    )


def _rounds(
    chosen: Mapping[str, Query], variants: Mapping[str, Variant], arguments: Any
) -> dict[str, Runs]:
    dice = random.Random(_SEED)
    done: dict[str, Runs] = {q: {name: [] for name in variants} for q in chosen}
    slots = max(
        _job(query, variant, 1, Path(), arguments).cores()
        for query in chosen.values()
        for variant in variants.values()
    )
    with (
        tempfile.TemporaryDirectory(prefix="clonos-bench-") as scratch,
        run.session(f"local[{slots}]") as spark,
    ):
        gate = Path(scratch) / "go"

        def once(query: Query, variant: Variant, size: int) -> Timed:
            if not variant.checkpoints:
                size = min(size, _MOST_BARE * arguments.parallelism)
            job = _job(query, variant, size, gate, arguments)
            return timed(job, spark, gate, events=size, **variant.options)

        sizes = {
            name: tried_out(partial(once, query, variants[BASE]), arguments.run_seconds)[0]
            for name, query in chosen.items()
        }
        for _ in range(arguments.rounds):
            for name in dice.sample(list(chosen), len(chosen)):
                for which in dice.sample(list(variants), len(variants)):
                    found = once(chosen[name], variants[which], sizes[name])
                    done[name][which].append(found)
    return done


def _job(query: Query, variant: Variant, size: int, gate: Path, arguments: Any) -> clonos.Job:
    job = variant.job("nexmark", arguments.parallelism, arguments.checkpoint_ms)
    count_results(query(Auctions(job, size, source=lambda kind: gated(events(kind, size), gate))))
    return job


def count_results(rows: clonos.Stream) -> None:
    """What a query gives is counted by the tasks that give it; how much it is leaves the job."""
    counts = rows.union(name="result").map_batches(_count, "key long, rows long", name="counted")
    counts.sink(clonos.sinks.callback(jobs.nothing), name="sink")


def _count(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([0]), pa.array([batch.num_rows])], ["key", "rows"])


# --- what follows from the runs -------------------------------------------------------------------


def _wall(run_: Timed) -> float:
    return run_.wall_s / run_.events


def _cpu(run_: Timed) -> float:
    return run_.cpu_s / run_.events


def _lost(ratio: float) -> float:
    return 100 * (1 - 1 / ratio)


def _added(ratio: float) -> float:
    return 100 * (ratio - 1)


def _median(runs: Sequence[Timed], of: Callable[[Timed], float]) -> float:
    return percentile([of(each) for each in runs], 50)


def _ratios(
    runs: Runs, of: Callable[[Timed], float], unit: Callable[[float], float]
) -> dict[str, Interval]:
    return {n: _in(unit, paired_ratio(_pairs(runs, n, of))) for n in runs if n != BASE}


def _pairs(runs: Runs, name: str, of: Callable[[Timed], float]) -> list[tuple[float, float]]:
    return [(of(a), of(b)) for a, b in zip(runs[name], runs[BASE], strict=True)]


def _in(unit: Callable[[float], float], ratio: Interval) -> Interval:
    return Interval(unit(ratio.value), unit(ratio.low), unit(ratio.high))


def _cell(interval: Interval) -> str:
    return f"{interval.value:+.1f} [{interval.low:+.1f}, {interval.high:+.1f}]"


def _size(runs: Sequence[Timed]) -> str:
    written = _median(runs, lambda t: t.total("entry_bytes") / t.events)
    return f"{written:.3f}; {_median(runs, lambda t: t.memory_bytes / 1e6):,.0f}"


def _rows(
    report: Report,
    what: str,
    found: Mapping[str, Mapping[str, Interval]],
    names: Sequence[str],
    base: Mapping[str, str],
) -> None:
    report.add(what, *("" for _ in names))
    for query, of_query in found.items():
        report.add(f"q{query}", base[query], *(_cell(of_query[name]) for name in names[1:]))


def _means(
    report: Report,
    what: str,
    done: Mapping[str, Runs],
    of: Callable[[Timed], float],
    unit: Callable[[float], float],
    names: Sequence[str],
) -> None:
    """Over all queries: the geometric mean of ratios, each query counting as much."""
    means = (mean_ratio([_pairs(runs, n, of) for runs in done.values()]) for n in names[1:])
    report.add(what, "", *(_cell(_in(unit, mean)) for mean in means))


def _judged(
    report: Report,
    lost: Mapping[str, Mapping[str, Interval]],
    done: Mapping[str, Runs],
    names: Sequence[str],
) -> None:
    """The worst query; the targets; what was published of Clonos on Flink."""
    worst, aims, paper = [], [], []
    for name in names[1:]:
        query = max(lost, key=lambda q: lost[q][name].value)
        most = lost[query][name].value
        worst.append(f"{most:+.1f} (q{query})")
        mean = _lost(mean_ratio([_pairs(runs, name, _wall) for runs in done.values()]).value)
        judged = zip(AIMS.get(name, ()), (mean, most), strict=False)
        aims.append(", ".join(f"{aim}: {aim.judge(value)}" for aim, value in judged))
        paper.append("{:+.1f}, {:+.1f}".format(*PAPER_SAYS[name]) if name in PAPER_SAYS else "")
    report.add("worst", "", *worst)
    report.add("target for mean, worst", "", *aims)
    report.add("Clonos on Flink (paper): mean, worst", "", *paper)
