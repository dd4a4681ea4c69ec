"""Pictures of the measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from clonos_bench.statistics import TOLERANCE, Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from clonos_bench.timelines import Timeline

_INK: Final = "#1f5a93"
_KILL: Final = "#c0152f"
_AIM: Final = "#3f8f4f"
_DECADE: Final = 10.0
_POINTS: Final = 2000
"""A line of more points is drawn by the worst of each of so many steps."""


def _figure(rows: int, height: float, *, one_time: bool = False) -> tuple[Figure, Sequence[Axes]]:
    # Figure without pyplot: no display, no global state, and nothing to close.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, 1, squeeze=False, sharex=one_time)[:, 0]
    for each in axes:
        each.grid(visible=True, color="#e5e7eb", linewidth=0.6)
        each.set_axisbelow(True)
        each.spines[["top", "right"]].set_visible(False)
    return figure, list(axes)


def timeline(
    path: Path, series: Mapping[str, tuple[Series, Series]], kills: Sequence[float], title: str
) -> None:
    """Latency over time, a panel per partition; kills are lines. Logarithmic if it varies much.

    Parameters
    ----------
    series
        Name -> (moments in s, latencies in ms).
    kills
        Moments in s.
    """
    figure, panels = _figure(len(series), 1.0 + 2.2 * len(series), one_time=True)
    starts = [float(times[0]) for times, _ in series.values() if len(times)]
    start = min(starts, default=0.0)
    every = np.concatenate([latencies for _, latencies in series.values()])
    is_wide = len(every) > 0 and float(every.max()) > _DECADE * max(float(every.min()), 1e-9)
    for axes, (name, (times, latencies)) in zip(panels, series.items(), strict=True):
        seconds, worst = worst_of_steps(times - start, latencies)
        axes.plot(seconds, worst, color=_INK, linewidth=0.9)
        for kill in kills:
            axes.axvline(kill - start, color=_KILL, linewidth=0.7, linestyle=(0, (4, 2)))
        if is_wide:
            axes.set_yscale("log")
        elif len(every):
            axes.set_ylim(0.0, 1.1 * float(every.max()))  # one scale: panels can be compared
        axes.set_ylabel(f"{name}\nlatency (ms)")
    panels[-1].set_xlabel("seconds")
    figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
    figure.savefig(path, dpi=130)


def systems(path: Path, timelines: Sequence[Timeline], title: str) -> None:
    """Latency around the kills of several systems: a row each, a line per kill, until the next.

    Left the first second, right until most of the slowest system's kills are over; one scale.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = [(each, [effect.normal_ms / 1000 for effect in each.effects()]) for each in timelines]
    ends = [1.5 * float(np.median(found)) for _, found in rows if found]
    end_s = min(_LONGEST_S, max([_SHORTEST_S, *filter(np.isfinite, ends)]))
    figure = Figure(figsize=(11, 1.0 + 1.7 * max(1, len(rows))), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(
        max(1, len(rows)), 2, squeeze=False, sharex="col", sharey=True, width_ratios=(2, 3)
    )
    for (each, normals_s), axes_of_row in zip(rows, grid, strict=False):
        for axes, span in zip(axes_of_row, ((-0.25, 1.0), (-0.25 * end_s, end_s)), strict=True):
            _around_kills(axes, each, span)
        axes_of_row[0].set_title(each.system, fontsize=9, loc="left")
        axes_of_row[1].set_title(_normal(normals_s), fontsize=9, loc="right")
        axes_of_row[0].set_ylabel("latency (ms)", fontsize=8)
    tops = [float(np.max(late)) for _, late in (each.series for each in timelines) if len(late)]
    grid[0, 0].set_ylim(1.0, 2 * max(tops, default=1.0))
    grid[-1, 0].set_xlabel("seconds after the kill: the first one")
    grid[-1, 1].set_xlabel("seconds after the kill (a line ends at the next one)")
    figure.suptitle(
        f"{title}: a line per kill; dashed: usual latency (p95) and 10 %",
        x=0.01,
        ha="left",
        fontweight="bold",
    )
    figure.savefig(path, dpi=130)


_SHORTEST_S: Final = 4.0
_LONGEST_S: Final = 60.0


def _normal(normals_s: Sequence[float]) -> str:
    if not normals_s:
        return "no kill"
    middle, worst = np.median(normals_s), max(normals_s)
    shown = [
        f"{s:.2f} s" if np.isfinite(s) else "not before the next kill" for s in (middle, worst)
    ]
    return f"{len(normals_s)} kills, normal after {shown[0]} (median), {shown[1]} (worst)"


def _around_kills(axes: Axes, each: Timeline, span: tuple[float, float]) -> None:
    times, latencies = each.series
    edges = zip([-np.inf, *each.kills], [*each.kills[1:], np.inf], strict=False)
    for kill, (begin, end) in zip(each.kills, edges, strict=False):
        low, high = np.searchsorted(times, [kill + span[0], min(end, kill + span[1])])
        # One delivery more to either side: the line goes on to the panel's edges.
        shown = slice(max(int(low) - 1, int(np.searchsorted(times, begin))), int(high) + 1)
        if len(times[shown]):
            seconds, worst = worst_of_steps(times[shown] - kill, latencies[shown])
            # Nothing is delivered in a pause: no slope that looks as if something were.
            axes.step(seconds, worst, where="post", color=_INK, linewidth=0.9, alpha=0.6)
    axes.axvline(0, color=_KILL, linewidth=0.9)
    limit_ms = each.usual_ms * (1 + TOLERANCE)
    if np.isfinite(limit_ms):
        axes.axhline(limit_ms, color=_AIM, linewidth=0.9, linestyle=(0, (4, 2)))
    axes.set_xlim(*span)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.grid(visible=True, color="#e5e7eb", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)


def worst_of_steps(times: Series, values: Series) -> tuple[Series, Series]:
    """The largest value in each of at most :data:`_POINTS` equal steps of time."""
    if len(times) <= _POINTS:
        return times, values
    edges = np.linspace(times[0], times[-1], _POINTS + 1)
    starts = np.unique(np.searchsorted(times, edges[:-1]))
    return times[starts], np.maximum.reduceat(values, starts)


def histograms(
    path: Path, measures: Mapping[str, tuple[Sequence[float], Sequence[float]]], title: str
) -> None:
    """One histogram per measure: name -> (values, targets drawn as lines)."""
    figure, panels = _figure(len(measures), 1.0 + 2.4 * len(measures))
    for axes, (name, (values, aims)) in zip(panels, measures.items(), strict=True):
        finite = [v for v in values if np.isfinite(v)]
        if finite:
            axes.hist(finite, bins=min(60, 5 + len(finite)), color=_INK, alpha=0.85)
        for aim in aims:
            axes.axvline(aim, color=_AIM, linewidth=1.2)
            axes.text(aim, axes.get_ylim()[1], f" target {aim:g}", color=_AIM, va="top", fontsize=8)
        axes.set_xlabel(name)
        axes.set_ylabel("count")
    figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
    figure.savefig(path, dpi=130)


_COLOURS: Final = ("#9db4c8", "#1f5a93", "#3f8f4f", "#d08a2e", "#6b4fa0", "#c0152f", "#7a7a7a")


def grouped(path: Path, values: Mapping[str, Mapping[str, float]], unit: str, title: str) -> None:
    """Bars side by side: ``values[series][group]``; a line at 1."""
    figure, (axes,) = _figure(1, 4.2)
    groups = list(next(iter(values.values()), {}))
    width = 0.8 / max(1, len(values))
    for i, (name, of_name) in enumerate(values.items()):
        places = np.arange(len(groups)) - 0.4 + (i + 0.5) * width
        heights = [of_name[group] for group in groups]
        axes.bar(places, heights, width * 0.92, label=name, color=_COLOURS[i % len(_COLOURS)])
    axes.axhline(1.0, color=_KILL, linewidth=0.8)
    axes.set_xticks(range(len(groups)), [f"q{group}" for group in groups])
    axes.set_ylabel(unit)
    figure.legend(ncols=len(values), fontsize=8, loc="outside lower center")
    figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
    figure.savefig(path, dpi=130)


Lines = Mapping[str, Sequence[tuple[float, float]]]
"""Series -> (x, y) in order."""


def multiples(path: Path, panels: Sequence[Sequence[tuple[str, Lines]]], title: str) -> None:
    """Small multiples: rows of panels with a title and lines; one without lines is left out.

    x is logarithmic above 1, y begins at 0.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = max((len(row) for row in panels), default=1)
    figure = Figure(figsize=(3.1 * columns, 2.5 * len(panels) + 0.6), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(panels), columns, squeeze=False)
    for row, axes_of_row in zip(panels, grid, strict=True):
        nothing: tuple[str, Lines] = ("", {})
        padded = [*row, *[nothing] * (columns - len(row))]
        for axes, (name, lines) in zip(axes_of_row, padded, strict=True):
            if lines:
                _panel(axes, name, lines)
            else:
                axes.set_visible(False)
    figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
    figure.savefig(path, dpi=130)


def _panel(axes: Axes, name: str, lines: Lines) -> None:
    for i, (series, points) in enumerate(lines.items()):
        xs, ys = [x for x, _ in points], [y for _, y in points]
        colour = _COLOURS[i % len(_COLOURS)]
        axes.plot(xs, ys, "o-", color=colour, markersize=3, linewidth=1, label=series)
    axes.set_xscale("symlog", linthresh=1)
    axes.set_xticks(sorted({x for points in lines.values() for x, _ in points}))
    axes.xaxis.set_major_formatter("{x:,.10g}")
    axes.set_ylim(bottom=0)
    axes.set_title(name, fontsize=8, loc="left")
    axes.tick_params(labelsize=7)
    axes.grid(visible=True, color="#e5e7eb", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=6)


def bars(path: Path, values: Mapping[str, float], unit: str, title: str) -> None:
    """Horizontal bars."""
    figure, panels = _figure(1, 1.2 + 0.35 * len(values))
    names = list(values)[::-1]
    drawn: Any = panels[0].barh(names, [values[name] for name in names], color=_INK)
    panels[0].bar_label(drawn, fmt="{:,.2f}", padding=3, fontsize=8)
    panels[0].set_xlabel(unit)
    figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
    figure.savefig(path, dpi=130)


def soak(
    path: Path,
    output: tuple[Sequence[float], Sequence[int], Sequence[float]],
    memory: Mapping[str, Sequence[tuple[float, float]]],
    faults: Mapping[str, Sequence[float]],
    title: str,
) -> None:
    """What was delivered, the share of tasks that are live, memory, and what was struck when.

    Parameters
    ----------
    output
        Moments (s), the output delivered so far, and the share of tasks that are live.
    memory
        By whose it is: moments (s) and MB.
    """
    figure, (top, middle, weight, bottom) = _figure(4, 10.0, one_time=True)
    times, bills, live = output
    top.plot(times, bills, color=_INK, linewidth=1.0)
    top.set_ylabel("bills delivered")
    middle.fill_between(times, live, step="post", color=_INK, alpha=0.35, linewidth=0)
    middle.set_ylim(0.0, 1.05)
    middle.set_ylabel("share of tasks live")
    for (name, points), color in zip(memory.items(), (_INK, _AIM), strict=True):
        moments_s, mb = zip(*points, strict=True) if points else ((), ())
        weight.plot(moments_s, mb, color=color, linewidth=1.0, label=name)
    weight.set_ylim(bottom=0.0)
    weight.set_ylabel("memory (MB)")
    weight.legend(frameon=False, loc="lower right", ncols=2)
    right = bottom.get_yaxis_transform()  # x: of the panel; y: of the data
    for line, (kind, moments) in enumerate(sorted(faults.items(), reverse=True)):
        bottom.plot(moments, [line] * len(moments), "|", color=_KILL, markersize=11)
        bottom.text(1.005, line, f"{kind} ({len(moments)})", transform=right, va="center")
    bottom.set_yticks([])
    bottom.set_ylim(-0.6, max(len(faults), 1) - 0.4)
    bottom.set_ylabel("faults")
    bottom.set_xlabel("seconds")
    figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
    figure.savefig(path, dpi=130)
