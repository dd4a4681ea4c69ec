"""The picture of a run: throughput and latency over time, and what the kills did to them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_THROUGHPUT: Final = "#1f5a93"
_LATENCY: Final = "#b45309"
_KILL: Final = "#c0152f"
_LABELS_MAX: Final = 12
_LABEL_ROWS: Final = 3
_LABEL_WIDTH: Final = 0.09


class Sample(NamedTuple):
    """What was seen at `t` seconds: rows per second, and latency if a row arrived."""

    t: float
    rows_per_s: float
    latency_ms: float | None


class Kill(NamedTuple):
    """What was killed, when, and when it was live again (None: never), in seconds."""

    t_kill: float
    kind: str
    t_live: float | None


def plot(
    samples: Sequence[Sample], kills: Sequence[Kill], path: str | Path, title: str = ""
) -> tuple[Path, Path]:
    """Write the picture as PNG and SVG and return both paths.

    Parameters
    ----------
    samples
        In the order of time.
    path
        Without the ending.

    Examples
    --------
    >>> import tempfile
    >>> samples = [Sample(t / 10, 1000.0, 4.0) for t in range(100)]
    >>> png, svg = plot(samples, [Kill(5.0, "worker", 5.04)], tempfile.mkdtemp() + "/run")
    >>> png.name, svg.name
    ('run.png', 'run.svg')
    """
    # Figure without pyplot: no display, no global state, and nothing to close.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5.5), layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    _draw_throughput(above, samples)
    _draw_latency(below, samples)
    for axes in (above, below):
        _draw_kills(axes, kills)
        axes.grid(visible=True, color="#e5e7eb", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    _label_kills(above, kills)
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold")
    stem = Path(path)
    written = (stem.with_name(f"{stem.name}.png"), stem.with_name(f"{stem.name}.svg"))
    for file in written:
        figure.savefig(file, dpi=130)
    return written


def _draw_throughput(axes: Axes, samples: Sequence[Sample]) -> None:
    from matplotlib.ticker import EngFormatter

    times = [sample.t for sample in samples]
    rows = [sample.rows_per_s for sample in samples]
    axes.fill_between(times, rows, color=_THROUGHPUT, alpha=0.15, linewidth=0)
    axes.plot(times, rows, color=_THROUGHPUT, linewidth=1.3)
    axes.set_ylabel("rows per second", color=_THROUGHPUT)
    axes.set_ylim(0, 1.5 * max(rows, default=1.0) or 1.0)
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))


def _draw_latency(axes: Axes, samples: Sequence[Sample]) -> None:
    from matplotlib.ticker import FuncFormatter

    # A gap in the line where nothing arrived: that is what it means.
    latencies = [float("nan") if s.latency_ms is None else s.latency_ms for s in samples]
    axes.plot([s.t for s in samples], latencies, color=_LATENCY, linewidth=1.3)
    positive = [s.latency_ms for s in samples if s.latency_ms is not None and s.latency_ms > 0]
    if positive and max(positive) > 20 * min(positive):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        axes.set_ylim(bottom=0)
    axes.set_ylabel("latency (ms)", color=_LATENCY)
    axes.set_xlabel("seconds")


def _draw_kills(axes: Axes, kills: Sequence[Kill]) -> None:
    for kill in kills:
        if kill.t_live is not None:
            axes.axvspan(kill.t_kill, kill.t_live, color=_KILL, alpha=0.18, linewidth=0)
        axes.axvline(kill.t_kill, color=_KILL, linewidth=0.9, linestyle=(0, (4, 2)))


def _label_kills(axes: Axes, kills: Sequence[Kill]) -> None:
    """Say what was killed, in rows so that neighbours do not overlap; too many are only counted."""
    if len(kills) > _LABELS_MAX:
        recovered = [k.t_live - k.t_kill for k in kills if k.t_live is not None]
        slowest = f", slowest recovery {1000 * max(recovered):,.0f} ms" if recovered else ""
        _label(axes, 0.01, 0, f"{len(kills)} kills, {len(recovered)} recovered{slowest}")
        return
    left, right = axes.get_xlim()
    ends = [-1.0] * _LABEL_ROWS
    for kill in sorted(kills):
        at = (kill.t_kill - left) / (right - left)
        row = next((r for r, end in enumerate(ends) if end <= at), ends.index(min(ends)))
        ends[row] = at + _LABEL_WIDTH * max(1.0, len(kill.kind) / 9)
        _label(axes, at + 0.003, row, f"{kill.kind}\n{_recovery(kill)}")


def _recovery(kill: Kill) -> str:
    return "not live" if kill.t_live is None else f"{1000 * (kill.t_live - kill.t_kill):,.0f} ms"


def _label(axes: Axes, x: float, row: int, text: str) -> None:
    axes.text(
        x,
        0.99 - 0.11 * row,
        text,
        transform=axes.transAxes,
        va="top",
        fontsize=7.5,
        color=_KILL,
        linespacing=1.05,
        bbox={"facecolor": "white", "alpha": 0.8, "linewidth": 0, "pad": 0.8},
    )
