"""What a run looks like while it runs, and what a recovery was made of.

Plain dataclasses in, rich renderables out; where standard output is no terminal (a log, a pipe),
lines of text instead.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from rich.console import Console, ConsoleRenderable, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

PHASES: Final = ("detected", "fenced", "restored", "log fetched", "replayed", "live")
"""The parts of a recovery, in order: each ends with what its name says."""

_COLOURS: Final = ("red", "dark_orange", "yellow", "cyan", "blue", "green")
_BAR_CELLS: Final = 40
_PLAIN_SECONDS: Final = 2.0
_RECOVERIES_SHOWN: Final = 3


class Phase(NamedTuple):
    """One part of a recovery and how long it took."""

    name: str
    ms: float


@dataclass(frozen=True)
class Recovery:
    """One recovery of one task.

    Attributes
    ----------
    task
        Such as ``"count[3]"``.
    cause
        What befell it: ``"killed"``, ``"hung"``, ...
    incarnation
        The life that begins with this recovery, such as ``"1.2"``.
    phases
        Consecutive, usually :data:`PHASES`; a phase that is still open is not in it yet.
    """

    task: str
    cause: str
    incarnation: str
    phases: tuple[Phase, ...]

    @property
    def total_ms(self) -> float:
        return sum(phase.ms for phase in self.phases)


@dataclass(frozen=True)
class TaskLine:
    """How a task is doing."""

    name: str
    phase: str
    incarnation: str
    rows_per_s: float
    latency_ms: float | None
    slot: str


@dataclass(frozen=True)
class StandbyLine:
    """A standby: of which task, where, and the newest epoch it holds."""

    name: str
    slot: str
    epoch: int


@dataclass(frozen=True)
class Progress:
    """A moment of a running job."""

    tasks: Sequence[TaskLine]
    standbys: Sequence[StandbyLine] = ()
    recoveries: Sequence[Recovery] = ()
    title: str = "clonos"


def render_recovery(recovery: Recovery) -> ConsoleRenderable:
    """Return a recovery as a bar of its phases with a legend.

    Examples
    --------
    >>> from rich.console import Console
    >>> phases = (Phase("detected", 5.0), Phase("replayed", 12.0), Phase("live", 3.0))
    >>> Console(width=60).print(render_recovery(Recovery("count[3]", "killed", "1.2", phases)))
    count[3] killed, live again as 1.2 after 20.0 ms
    ████████████████████████████████████████
    detected 5.0  replayed 12.0  live 3.0 ms
    """
    title = Text.assemble((recovery.task, "bold"), f" {_headline(recovery)}")
    bar, legend = Text(), Text()
    for index, phase in enumerate(recovery.phases):
        colour = _colour(phase.name, index)
        share = phase.ms / recovery.total_ms if recovery.total_ms else 0.0
        bar.append("█" * max(1, round(share * _BAR_CELLS)), colour)
        legend.append(f"{phase.name} {phase.ms:.1f}", colour)
        legend.append(" ms" if index == len(recovery.phases) - 1 else "  ")
    return Group(title, bar, legend)


def render_progress(progress: Progress) -> ConsoleRenderable:
    """Return a moment of the job as a panel: tasks, standbys, the last recoveries."""
    table = Table(expand=True, box=None, pad_edge=False)
    for header in ("task", "phase", "life", "slot"):
        table.add_column(header)
    table.add_column("rows/s", justify="right")
    table.add_column("latency", justify="right")
    for task in progress.tasks:
        style = "" if task.phase == "live" else "bold yellow"
        table.add_row(
            task.name,
            task.phase,
            task.incarnation,
            task.slot,
            f"{task.rows_per_s:,.0f}",
            _latency(task),
            style=style,
        )
    parts: list[ConsoleRenderable] = [table]
    if progress.standbys:
        held = ", ".join(f"{s.name} in {s.slot} (epoch {s.epoch})" for s in progress.standbys)
        parts.append(Text(f"standbys: {held}", style="dim"))
    parts.extend(render_recovery(r) for r in progress.recoveries[-_RECOVERIES_SHOWN:])
    return Panel(Group(*parts), title=progress.title, title_align="left")


def plain_recovery(recovery: Recovery) -> str:
    """Return a recovery as one line."""
    phases = ", ".join(f"{phase.name} {phase.ms:.1f}" for phase in recovery.phases)
    return f"{recovery.task} {_headline(recovery)} ({phases})"


def plain_progress(progress: Progress) -> str:
    """Return a moment of the job as one line."""
    rows = max((task.rows_per_s for task in progress.tasks), default=0.0)
    latencies = [task.latency_ms for task in progress.tasks if task.latency_ms is not None]
    latency = f", latency {max(latencies):.1f} ms" if latencies else ""
    busy = [f"{task.name} {task.phase}" for task in progress.tasks if task.phase != "live"]
    live = f"{len(progress.tasks) - len(busy)}/{len(progress.tasks)} tasks live"
    others = f" ({', '.join(busy)})" if busy else ""
    return f"{live}{others}, {len(progress.standbys)} standbys, {rows:,.0f} rows/s{latency}"


class ProgressView:
    """Shows the newest :class:`Progress` for the length of a ``with`` block.

    On a terminal, a panel that changes in place; elsewhere a line every two seconds, at once when
    a task changes its phase, and one line for each recovery.

    Examples
    --------
    >>> task = TaskLine("count[0]", "live", "1.0", 12_000.0, 3.5, "slot-1")
    >>> with ProgressView(Console(force_terminal=False, width=100)) as view:
    ...     view.update(Progress([task]))
    1/1 tasks live, 0 standbys, 12,000 rows/s, latency 3.5 ms
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console()
        self._live = Live(console=self._console, auto_refresh=False, transient=False)
        self._phases: list[tuple[str, str]] = []
        self._printed = 0
        self._next_line = 0.0

    def update(self, progress: Progress) -> None:
        """Show `progress`."""
        if self._console.is_terminal:
            self._live.update(render_progress(progress), refresh=True)
            return
        for line in self._new_lines(progress):
            # soft_wrap: a line of a log stays a line.
            self._console.print(line, soft_wrap=True, markup=False, highlight=False)

    def _new_lines(self, progress: Progress) -> Iterator[str]:
        for recovery in progress.recoveries[self._printed :]:
            yield plain_recovery(recovery)
        self._printed = len(progress.recoveries)
        phases = [(task.name, task.phase) for task in progress.tasks]
        now = time.monotonic()
        if phases != self._phases or now >= self._next_line:
            self._phases, self._next_line = phases, now + _PLAIN_SECONDS
            yield plain_progress(progress)

    def __enter__(self) -> ProgressView:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._live.stop()


def _headline(recovery: Recovery) -> str:
    return (
        f"{recovery.cause}, live again as {recovery.incarnation} after {recovery.total_ms:.1f} ms"
    )


def _colour(name: str, index: int) -> str:
    known = PHASES.index(name) if name in PHASES else index
    return _COLOURS[known % len(_COLOURS)]


def _latency(task: TaskLine) -> str:
    return "" if task.latency_ms is None else f"{task.latency_ms:.1f} ms"
