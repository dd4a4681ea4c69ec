"""How the cost of protection grows: parallelism, depth, keys, state, and how far logs travel.

The job is a chain of shuffled stages over prebuilt batches ``(key, value)``, a source that costs
nothing: what is seen is channels, logs and checkpoints. One thing grows at a time:

parallelism
    Two stages, every task sends to every task of the next.
depth
    Stages, of one task each.
keys
    Two stages and a count per key; all counts are in every task's layers.
sharing
    Four stages; logs travel 0, 1, 2 hops, or all the way.
state
    The job of ``clonos-bench overhead``, whose rows replace values of 1,000 bytes, and what a kill
    of its stateful task's worker does (``clonos-bench recovery``).

Per point: rows/s and CPU relative to the same job without protection (pairs of the same round),
bytes of determinants per row, bytes of logs that travel with an item of a channel (batch, marker,
watermark), and the memory of all slots.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import clonos
from clonos.sources.spec import SourceSpec
from clonos_bench import failures, jobs, plots, run
from clonos_bench.gates import Timed, gated, timed
from clonos_bench.nexmark.parts.overhead import BASE, VARIANTS, Variant, count_results
from clonos_bench.report import Report
from clonos_bench.statistics import paired_ratio, percentile

AXES: Final = ("parallelism", "depth", "keys", "sharing", "state")
_POINTS: Final[Mapping[str, tuple[int, ...]]] = {
    "parallelism": (1, 2, 4, 8),
    "depth": (1, 2, 4, 8),
    "keys": (100, 10_000, 1_000_000),
    "state": (1, 10, 100),
}
_SHARING: Final = {0: Variant(0), 1: Variant(1), 2: Variant(2), 4: Variant("full")}
"""In a chain of five tasks, the source included, "full" is four hops."""
_COMPARED: Final = ("1", "full")
_BATCH_ROWS: Final = 8192
_VALUE_BYTES: Final = 1000
_STATE_ROWS: Final = 200_000
_SEED: Final = 1

Build = Callable[[Variant, Path], clonos.Job]


@dataclass(frozen=True)
class Shape:
    """Of a chain of shuffled stages, each with slots of its own: a log is shared with other slots.

    ``is_counted``: with a count per key behind them.
    """

    parallelism: int = 2
    depth: int = 2
    keys: int = 10_000
    is_counted: bool = False


@dataclass
class Point:
    """One place on an axis: what is run there, how many rows, and what came of it."""

    axis: str
    at: int
    rows: int
    builds: Mapping[str, Callable[[Path], clonos.Job]]
    runs: dict[str, list[Timed]] = field(default_factory=dict)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the part."""
    add = parser.add_argument
    add("--axes", default=",".join(AXES), help=f"out of {','.join(AXES)} (growth)")
    add("--rows", type=int, default=4_000_000, help="per run (growth)")
    add("--points", type=int, default=4, help="at most so many of each axis (growth)")
    add("--state-kills", type=int, default=4, help="per size of state (growth)")


def measure(chosen: object, arguments: argparse.Namespace, out: Path) -> Report:
    """All points, round after round in random order; a table and one picture."""
    del chosen
    columns = ("", "rows/s", "of off", "CPU of off", "determinant B/row", "log B/item", "MB")
    report = Report("growth", "How the cost of protection grows", columns)
    points = [p for axis in arguments.axes.split(",") for p in _points(axis, arguments)]
    _run_all(points, arguments)
    for point in points:
        for name, runs in point.runs.items():
            report.add(f"{point.axis} {point.at:,}, {name}", *_cells(point, runs))
    gaps: dict[int, failures.Run] = {}
    if "state" in arguments.axes.split(",") and arguments.state_kills:
        for size in _POINTS["state"][: arguments.points]:
            gaps[size] = failures.kill_one_worker(arguments, size, arguments.state_kills)
    for size, done in gaps.items():
        gap, normal = (percentile([of(m) for m in done.measured], 50) for of in (_gap, _normal))
        report.notes.append(
            f"state {size} MB: {len(done.kills)} kills: gap p50 {gap:.0f} ms, normal p50 "
            f"{normal:.0f} ms; every row once"
        )
    report.notes.append(
        f"{arguments.rounds} rounds in random order; B/row and B/item: bytes written and sent; "
        "MB: resident memory of all slots together at its highest"
    )
    report.data = {
        "points": [
            {"axis": p.axis, "at": p.at, "rows": p.rows, "runs": p.runs} for p in points
        ],
        "recovery": {str(size): list(done.measured) for size, done in gaps.items()},
    }  # fmt: skip
    _draw(points, gaps, out / "growth.png", report.title)
    return report


# --- what is run ----------------------------------------------------------------------------------


def _points(axis: str, arguments: Any) -> list[Point]:
    if axis not in AXES:
        raise clonos.ClonosError(f"there is no axis {axis}", remedy=f"use {', '.join(AXES)}")
    rows: int = arguments.rows
    variants = {name: VARIANTS[name] for name in (BASE, *_COMPARED)}

    def point(at: int, build: Build, rows: int = rows) -> Point:
        return Point(axis, at, rows, {n: partial(build, v) for n, v in variants.items()})

    def chain(shape: Shape) -> Build:
        return partial(_chain, shape=shape, rows=rows, checkpoint_ms=arguments.checkpoint_ms)

    if axis == "sharing":
        build, off = chain(Shape(depth=4)), VARIANTS[BASE]
        made = {at: {BASE: partial(build, off), "shared": partial(build, v)}
                for at, v in _SHARING.items()}  # fmt: skip
        return [Point(axis, at, rows, builds) for at, builds in made.items()]
    values = _POINTS[axis][: arguments.points]
    if axis == "parallelism":
        return [point(at, chain(Shape(parallelism=at))) for at in values]
    if axis == "depth":
        return [point(at, chain(Shape(parallelism=1, depth=at))) for at in values]
    if axis == "keys":
        return [point(at, chain(Shape(keys=at, is_counted=True))) for at in values]
    return [point(at, partial(_stateful, at), _STATE_ROWS) for at in values]


def _chain(
    variant: Variant,
    gate: Path,
    *,
    shape: Shape,
    rows: int,
    checkpoint_ms: int,
) -> clonos.Job:
    job = variant.job("growth", shape.parallelism, checkpoint_ms)
    factory = partial(jobs.RepeatReader, rows, _BATCH_ROWS, shape.keys)
    source = SourceSpec("repeat", jobs.RepeatReader.schema, factory, True, jobs.RepeatReader.schema)
    stream = job.source(gated(source, gate), name="source")
    for number in range(shape.depth):
        keyed = stream.slot_group(f"stage{number}").key_by("key")
        stream = keyed.map_batches(jobs.rekey, "key long, value long", name=f"stage{number}")
    if shape.is_counted:
        # A window that stays open: its counts are what every checkpoint is about.
        keyed = stream.slot_group("count").key_by("key")
        counts = keyed.window(clonos.tumbling("1 day")).agg(n=clonos.count())
        count_results(counts)
    else:
        count_results(stream)
    return job


def _stateful(size_mb: int, variant: Variant, gate: Path) -> clonos.Job:
    keys = size_mb * 1_000_000 // _VALUE_BYTES
    source = jobs.at_once(_STATE_ROWS)
    job = variant.job("growth", 2, 1000)
    return jobs.stateful(
        gated(source, gate), keys=keys, value_bytes=_VALUE_BYTES, is_apart=True, job=job
    )


def _run_all(points: list[Point], arguments: Any) -> None:
    dice = random.Random(_SEED)
    with tempfile.TemporaryDirectory(prefix="clonos-bench-") as scratch:
        gate = Path(scratch) / "go"
        slots = max((build(gate).cores() for p in points for build in p.builds.values()), default=1)
        with run.session(f"local[{slots}]") as spark:
            for _ in range(arguments.rounds):
                for point in dice.sample(points, len(points)):
                    for name in dice.sample(list(point.builds), len(point.builds)):
                        options = VARIANTS[name].options if name in VARIANTS else {}
                        done = timed(point.builds[name](gate), spark, gate, **options)
                        point.runs.setdefault(name, []).append(done)
    for point in points:
        point.runs = {name: point.runs[name] for name in point.builds}


# --- what comes out -------------------------------------------------------------------------------


def _ratio(point: Point, name: str, of: Callable[[Timed], float]) -> float:
    pairs = zip(map(of, point.runs[name]), map(of, point.runs[BASE]), strict=True)
    return paired_ratio(list(pairs)).value


_MEASURES: Final[Mapping[str, Callable[[Point, str], float]]] = {
    "throughput relative to off": lambda p, name: 1 / _ratio(p, name, lambda t: t.wall_s),
    "CPU relative to off": lambda p, name: _ratio(p, name, lambda t: t.cpu_s),
    "determinants, bytes/row": lambda p, name: _median(
        p, name, lambda t: t.total("entry_bytes") / p.rows
    ),
    "logs, bytes/item": lambda p, name: _median(
        p, name, lambda t: t.total("shared_bytes") / max(1, t.total("items_out"))
    ),
    "memory of slots, MB": lambda p, name: _median(p, name, lambda t: t.memory_bytes / 1e6),
}


def _median(point: Point, name: str, of: Callable[[Timed], float]) -> float:
    return percentile([of(each) for each in point.runs[name]], 50)


def _cells(point: Point, runs: list[Timed]) -> list[str]:
    name = next(name for name, each in point.runs.items() if each is runs)
    rate = percentile([point.rows / each.wall_s for each in runs], 50)
    speed, cpu, written, sent, memory = (of(point, name) for of in _MEASURES.values())
    cells = [f"{rate:,.0f}", f"{speed:.2f}", f"{cpu:.2f}", f"{written:.3f}", f"{sent:,.1f}"]
    return [*cells, f"{memory:,.0f}"]


def _draw(points: list[Point], gaps: Mapping[int, failures.Run], path: Path, title: str) -> None:
    """A row per measure, a column per axis."""
    axes = list(dict.fromkeys(point.axis for point in points))
    rows: list[list[tuple[str, plots.Lines]]] = []
    for measure_name, of in _MEASURES.items():
        row: list[tuple[str, plots.Lines]] = []
        for axis in axes:
            lines: dict[str, list[tuple[float, float]]] = {}
            for point in points:
                for name in point.runs if point.axis == axis else ():
                    lines.setdefault(name, []).append((point.at, of(point, name)))
            row.append((f"{axis}: {measure_name}", lines))
        rows.append(row)
    if gaps:
        found = {"output gap": _medians(gaps, _gap), "normal after": _medians(gaps, _normal)}
        empty: tuple[str, plots.Lines] = ("", {})
        last = [empty] * len(axes)
        last[axes.index("state")] = ("state (MB): after a kill, median ms", found)
        rows.append(last)
    plots.multiples(path, rows, title)


def _medians(
    gaps: Mapping[int, failures.Run], of: Callable[[failures.Measured], float]
) -> list[tuple[float, float]]:
    return [(size, percentile([of(m) for m in done.measured], 50)) for size, done in gaps.items()]


def _gap(measured: failures.Measured) -> float:
    return measured.gap_ms


def _normal(measured: failures.Measured) -> float:
    return measured.normal_ms
