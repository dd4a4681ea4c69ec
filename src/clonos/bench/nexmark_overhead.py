"""Nexmark: what protection costs, query by query, against the same engine without it.

Every query is run in all *variants*, in one Spark session, round after round; within a round
queries and variants come in random order, all variants of a query one after the other. Ratios are
of pairs of one round. A run is measured from when its sources are let go until its last output is
delivered (:mod:`clonos.bench.gates`), over as many events as the query without protection takes
``--run-seconds`` for, which is tried out first (but at most three million per source task).

off
    At least once: no causal log is kept or shared, no checkpoint is taken, no standby is kept,
    the house-keeper's journal is not flushed to disk. What cannot be switched off are the in-flight
    logs: they are the output queues, and without checkpoints they are never cut.
checkpoints
    The same with checkpoints (and a flushed journal): where other engines begin.
1, full
    Exactly once, logs travel one hop, or all the way.
keeper
    Exactly once with sharing depth 0: logs go to the house-keeper only.
...+standby
    The same with a standby per task.
"""

from __future__ import annotations

import argparse
import math
import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import pyarrow as pa

import clonos
from clonos.bench import jobs, plots, run
from clonos.bench.gates import Timed, gated, timed
from clonos.bench.report import Report
from clonos.bench.statistics import Interval, paired_ratio
from clonos.nexmark import events
from clonos.nexmark.queries import Auctions

Query = Callable[[Auctions], clonos.Stream]
Depth = int | Literal["full"]


@dataclass(frozen=True)
class Variant:
    """How a job is protected. ``depth`` None: without causal log."""

    depth: Depth | None
    standbys: int = 0
    checkpoints: bool = True

    def job(self, name: str, parallelism: int, checkpoint_ms: int) -> clonos.Job:
        """A job without operators."""
        causal = self.depth is not None
        return clonos.Job(
            name,
            parallelism=parallelism,
            standbys=self.standbys,
            sharing_depth=0 if self.depth is None else self.depth,
            checkpoint_interval=f"{checkpoint_ms} ms" if self.checkpoints else "1 day",
            guarantee="exactly_once" if causal else "at_least_once",
            on_orphan="consistency" if causal else "availability",
        )

    @property
    def options(self) -> dict[str, Any]:
        """Of the running job."""
        return {"durability": "fsync" if self.checkpoints else "process"}


BASE: Final = "off"
VARIANTS: Final[Mapping[str, Variant]] = {
    BASE: Variant(None, checkpoints=False),
    "checkpoints": Variant(None),
    "1": Variant(1),
    "full": Variant("full"),
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
(parallelism 25, without standbys); the paper's text says 5.3 on average and at worst 16 with a
sharing depth of 1, 6.7 and 26 with full."""

_TRIAL_EVENTS: Final = 1_000_000
_FEWEST_EVENTS: Final = 100_000
_MOST_EVENTS: Final = 3_000_000
"""Per source task: without checkpoints its in-flight log is never cut, and has to stay below the
half gigabyte at which sources are throttled until it is."""
_BY_THE_CLOCK: Final = "12"
"""How many rows this query gives depends on when it runs."""
_SEED: Final = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the parts that compare variants."""
    add = parser.add_argument
    add("--rounds", type=int, default=3, help="of all variants (overhead, growth)")
    add("--run-seconds", type=float, default=2.0, help="of a run without protection (overhead)")
    known = ",".join(VARIANTS)
    add("--variants", default=known, help=f"out of {known} (overhead)")
    add("--checkpoint-ms", type=int, default=1000, help="time between checkpoints")


Runs = dict[str, list[Timed]]


def measure(chosen: Mapping[str, Query], arguments: argparse.Namespace, out: Path) -> Report:
    """All rounds, and what follows from them."""
    names = [BASE, *(name for name in arguments.variants.split(",") if name != BASE)]
    unknown = [name for name in names if name not in VARIANTS]
    if unknown:
        raise clonos.ClonosError(
            f"there is no variant {', '.join(unknown)}", remedy=f"use {', '.join(VARIANTS)}"
        )
    done, sizes = _rounds(chosen, {name: VARIANTS[name] for name in names}, arguments)
    report = compare(done, sizes, out)
    report.notes.append(
        f"{arguments.rounds} rounds in random order; {arguments.parallelism} tasks per operator; "
        f"checkpoints every {arguments.checkpoint_ms} ms; [95 % intervals of paired ratios]"
    )
    return report


def compare(done: Mapping[str, Runs], sizes: Mapping[str, int], out: Path) -> Report:
    """Throughput and CPU time of every variant against :data:`BASE`, in one table and a picture.

    Parameters
    ----------
    done
        Query -> variant -> its runs, of as many rounds for each.
    sizes
        Events of each query's runs.
    """
    names = list(next(iter(done.values())))
    report = Report("overhead", "Nexmark: what protection costs", ["", BASE, *names[1:]])
    lost = {q: _ratios(runs, _wall, _lost) for q, runs in done.items()}
    added = {q: _ratios(runs, _cpu, _added) for q, runs in done.items()}
    rates = {q: _mean([sizes[q] / t.wall_s for t in runs[BASE]]) for q, runs in done.items()}
    costs = {q: _mean([t.cpu_s / sizes[q] for t in runs[BASE]]) for q, runs in done.items()}
    thousands = {q: f"{rate / 1e3:,.0f}" for q, rate in rates.items()}
    _rows(report, "throughput lost (%)", lost, names, thousands)
    _paper(report, names)
    per_million = {q: f"{cost * 1e6:.2f}" for q, cost in costs.items()}
    _rows(report, "CPU time added (%)", added, names, per_million)
    for base in (BASE, "checkpoints"):
        if base in names:
            _means(report, done, base, names)
    report.notes.append(
        "off: at least once, no causal log, no checkpoints, no standbys, journal not flushed "
        "(in-flight logs are the output queues and stay); its columns: thousand events/s, "
        "and CPU s of slots and driver per million events"
    )
    for query, runs in done.items():
        counts = {each.rows_out for of_variant in runs.values() for each in of_variant}
        if len(counts) > 1 and query != _BY_THE_CLOCK:
            report.ok = False
            report.notes.append(f"q{query} gave {' or '.join(map(str, sorted(counts)))} rows")
    report.data = {
        "runs": done, "events": sizes, "throughput_lost": lost, "cpu_added": added, "paper": PAPER
    }  # fmt: skip
    for name, unit, found, sign in (
        ("overhead", "throughput relative to off", lost, -1),
        ("overhead-cpu", "CPU time relative to off", added, 1),
    ):
        drawn = {n: {q: 1 + sign * found[q][n].value / 100 for q in found} for n in names[1:]}
        plots.grouped(out / f"{name}.png", drawn, unit, report.title)
    return report


def _rounds(
    chosen: Mapping[str, Query], variants: Mapping[str, Variant], arguments: Any
) -> tuple[dict[str, Runs], dict[str, int]]:
    dice = random.Random(_SEED)
    done: dict[str, Runs] = {q: {name: [] for name in variants} for q in chosen}
    sizes: dict[str, int] = {}
    slots = max(
        run.slots_of(_job(query, variant, 1, Path(), arguments))
        for query in chosen.values()
        for variant in variants.values()
    )
    with (
        tempfile.TemporaryDirectory(prefix="clonos-bench-") as scratch,
        run.session(f"local[{slots}]") as spark,
    ):
        gate = Path(scratch) / "go"

        def once(query: Query, variant: Variant, size: int) -> Timed:
            job = _job(query, variant, size, gate, arguments)
            return timed(job, spark, gate, **variant.options)

        for name, query in chosen.items():
            tried = once(query, variants[BASE], _TRIAL_EVENTS)
            rate = _TRIAL_EVENTS / tried.wall_s
            most = _MOST_EVENTS * arguments.parallelism
            sizes[name] = int(min(max(_FEWEST_EVENTS, rate * arguments.run_seconds), most))
        for _ in range(arguments.rounds):
            for name in dice.sample(list(chosen), len(chosen)):
                for which in dice.sample(list(variants), len(variants)):
                    found = once(chosen[name], variants[which], sizes[name])
                    done[name][which].append(found)
    return done, sizes


def _job(query: Query, variant: Variant, size: int, gate: Path, arguments: Any) -> clonos.Job:
    job = variant.job("nexmark", arguments.parallelism, arguments.checkpoint_ms)
    count_results(query(Auctions(job, size, source=lambda kind: gated(events(kind, size), gate))))
    return job


def count_results(rows: clonos.Stream) -> None:
    """What a query gives is counted where it comes out; only that leaves the job."""
    counts = rows.union(name="result").map_batches(_count, "key long, rows long", name="counted")
    counts.sink(clonos.sinks.callback(jobs.nothing), name="sink")


def _count(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([0]), pa.array([batch.num_rows])], ["key", "rows"])


# --- what follows from the runs -------------------------------------------------------------------


def _wall(run_: Timed) -> float:
    return run_.wall_s


def _cpu(run_: Timed) -> float:
    return run_.cpu_s


def _lost(ratio: float) -> float:
    return 100 * (1 - 1 / ratio)


def _added(ratio: float) -> float:
    return 100 * (ratio - 1)


def _ratios(
    runs: Runs, of: Callable[[Timed], float], unit: Callable[[float], float]
) -> dict[str, Interval]:
    return {
        name: _in(unit, paired_ratio(_pairs(runs, name, BASE, of))) for name in runs if name != BASE
    }


def _pairs(
    runs: Runs, name: str, base: str, of: Callable[[Timed], float]
) -> list[tuple[float, float]]:
    return [(of(a), of(b)) for a, b in zip(runs[name], runs[base], strict=True)]


def _in(unit: Callable[[float], float], ratio: Interval) -> Interval:
    return Interval(unit(ratio.value), unit(ratio.low), unit(ratio.high))


def _cell(interval: Interval) -> str:
    return f"{interval.value:+.1f} [{interval.low:+.1f}, {interval.high:+.1f}]"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


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
    worst = []
    for name in names[1:]:
        query = max(found, key=lambda q: found[q][name].value)
        worst.append(f"{found[query][name].value:+.1f} (q{query})")
    report.add("worst", "", *worst)


def _means(report: Report, done: Mapping[str, Runs], base: str, names: Sequence[str]) -> None:
    """Over all queries: the geometric mean of all pairs' ratios."""
    for what, of, unit in (
        ("throughput lost", _wall, _lost),
        ("CPU added", _cpu, _added),
    ):
        cells = []
        for name in names[1:]:
            pairs = [pair for runs in done.values() for pair in _pairs(runs, name, base, of)]
            cells.append("" if name == base else _cell(_in(unit, paired_ratio(pairs))))
        report.add(f"mean {what} against {base} (%)", "", *cells)


def _paper(report: Report, names: Sequence[str]) -> None:
    means, worst = [], []
    for name in names[1:]:
        of = PAPER.get(name, {})
        means.append(f"{_mean(list(of.values())):+.1f}" if of else "")
        query = max(of, key=lambda q: of[q], default="")
        worst.append(f"{of[query]:+.1f} (q{query})" if of else "")
    report.add("Clonos on Flink (paper), mean", "", *means)
    report.add("Clonos on Flink (paper), worst", "", *worst)
