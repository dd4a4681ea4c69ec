"""Draws the graph of a job and the curve of its rate as SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

from clonos.watch.phases import kind_of
from clonos.watch.snapshot import Chain, Snapshot
from clonos.watch.words import count

WIDTH: Final = 216
GAP_X: Final = 64
GAP_Y: Final = 20
PAD: Final = 14
TILE: Final = 15
TILES_PER_ROW: Final = 11
OPERATORS_MAX: Final = 4
LINE: Final = 17
NAME_MAX: Final = 25
TREND: Final = (120, 18)


def trend(values: Sequence[float]) -> str:
    """A curve of the newest values; flat if there are none."""
    width, height = TREND
    top = max(values, default=0.0) or 1.0
    step = width / max(len(values) - 1, 1)
    points = " ".join(
        f"{i * step:.1f},{height - 1 - (height - 2) * value / top:.1f}"
        for i, value in enumerate(values)
    )
    return (
        f'<svg width="{width}" height="{height}" aria-hidden="true">'
        f'<polyline class="trend" points="{points}"/></svg>'
    )


def drawing(job: Snapshot) -> str:
    """Chains from left to right, each with its operators and a tile for each task."""
    tasks = {task["name"]: task for task in job["tasks"]}
    phases = {name: task["phase"] for name, task in tasks.items()}
    rates = {
        chain["name"]: sum(tasks[name]["rows_per_s"] for name in chain["tasks"] if name in tasks)
        for chain in job["chains"]
    }
    places = _places(job["chains"])
    edges = "".join(
        _edge(places[before], places[chain["name"]])
        for chain in job["chains"]
        for before in chain["reads"]
    )
    boxes = "".join(
        _box(chain, places[chain["name"]], phases, rates[chain["name"]]) for chain in job["chains"]
    )
    width = max((x + WIDTH for x, _, _ in places.values()), default=0) + 2
    height = max((y + h for _, y, h in places.values()), default=0) + 2
    return (
        f'<svg width="{width}" height="{height}" viewBox="-1 -1 {width} {height}" '
        f'role="img" aria-label="graph of the job">{edges}{boxes}</svg>'
    )


Place = tuple[int, int, int]
"""x, y, height."""


def _places(chains: Sequence[Chain]) -> dict[str, Place]:
    """Arrange chains in columns by depth, vertically centred."""
    columns: dict[int, list[Chain]] = {}
    for chain in chains:
        columns.setdefault(chain["depth"], []).append(chain)
    heights = {c: sum(_height(one) + GAP_Y for one in found) for c, found in columns.items()}
    tallest = max(heights.values(), default=0)
    places: dict[str, Place] = {}
    for depth, found in columns.items():
        y = (tallest - heights[depth]) // 2
        for chain in found:
            places[chain["name"]] = depth * (WIDTH + GAP_X), y, _height(chain)
            y += _height(chain) + GAP_Y
    return places


def _lines(chain: Chain) -> list[str]:
    """The chain's further operators, as far as there is room."""
    names = [name for name in chain["operators"] if name != chain["name"]]
    if len(names) <= OPERATORS_MAX:
        return names
    return [*names[: OPERATORS_MAX - 1], f"and {len(names) - OPERATORS_MAX + 1} more"]


def _height(chain: Chain) -> int:
    rows = -(-len(chain["tasks"]) // TILES_PER_ROW)
    return 2 * PAD + LINE + LINE * len(_lines(chain)) + 6 + (TILE + 3) * rows


def _edge(one: Place, other: Place) -> str:
    x, y = one[0] + WIDTH, one[1] + one[2] // 2
    to_x, to_y = other[0], other[1] + other[2] // 2
    if to_x <= x:  # a feedback edge, drawn below the boxes in between
        low = max(one[1] + one[2], other[1] + other[2]) + GAP_Y
        return f'<path class="edge" d="M{x} {y} C{x + 60} {low} {to_x - 60} {low} {to_x} {to_y}"/>'
    bend = (to_x - x) // 2
    return (
        f'<path class="edge" d="M{x} {y} C{x + bend} {y} {to_x - bend} {to_y} {to_x} {to_y}"/>'
        f'<circle class="finished" cx="{to_x}" cy="{to_y}" r="3.5"/>'
    )


def _box(chain: Chain, place: Place, phases: Mapping[str, str], rate: float) -> str:
    x, y, height = place
    at = y + PAD + 11
    parts = [
        f'<rect class="box" x="{x}" y="{y}" width="{WIDTH}" height="{height}" rx="8"/>',
        f'<text x="{x + PAD}" y="{at}" font-weight="600">{_short(chain["name"])}</text>',
    ]
    for line in _lines(chain):
        at += LINE
        parts.append(
            f'<text class="soft" font-size="12.5" x="{x + PAD}" y="{at}">{_short(line)}</text>'
        )
    parts.append(
        f'<text class="soft" font-size="12.5" text-anchor="end" x="{x + WIDTH - PAD}" '
        f'y="{y + PAD + 11}">{count(rate)}/s</text>'
    )
    for number, task in enumerate(chain["tasks"]):
        row, column = divmod(number, TILES_PER_ROW)
        phase = phases.get(task, "")
        said = f"<title>{escape(f'{task}: {phase}')}</title>"
        tile_x, tile_y = x + PAD + column * (TILE + 2), at + 12 + row * (TILE + 3)
        parts.append(
            f'<rect class="{kind_of(phase)}" x="{tile_x}" y="{tile_y}" width="{TILE}" '
            f'height="{TILE}" rx="3">{said}</rect>'
        )
    return "".join(parts)


def _short(name: str) -> str:
    """A name shortened to fit a box, with the full name as a tooltip."""
    if len(name) <= NAME_MAX:
        return escape(name)
    return f"{escape(name[: NAME_MAX - 1])}…<title>{escape(name)}</title>"
