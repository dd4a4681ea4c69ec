"""What a measurement leaves: a table on the terminal, a JSON file, and pictures."""

from __future__ import annotations

import json
import math
import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import clonos
from clonos_bench.statistics import Interval, Summary


@dataclass(frozen=True)
class Aim:
    """What a number should at most (or at least) be.

    Examples
    --------
    >>> Aim(50.0).judge(60.0), Aim(3e6, at_least=True).judge(4e6), Aim(5.0).judge(math.nan)
    ('missed', 'met', 'unknown')
    """

    limit: float
    at_least: bool = False

    def judge(self, value: float) -> str:
        if math.isnan(value):
            return "unknown"
        return (
            "met" if (value >= self.limit if self.at_least else value <= self.limit) else "missed"
        )

    def __str__(self) -> str:
        return f"{'>=' if self.at_least else '<='} {self.limit:,g}"


@dataclass
class Report:
    """One measurement's results.

    Parameters
    ----------
    name
        Of the measurement; its files are in a folder of this name.
    columns
        Of the table, the first being what a line is about.
    ok
        False if the output was wrong; a target that is missed is no error.
    parts
        Further reports of the same measurement.
    """

    name: str
    title: str
    columns: Sequence[str]
    lines: list[Sequence[str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)
    ok: bool = True
    parts: list[Report] = field(default_factory=list)

    def add(self, *cells: str) -> None:
        self.lines.append(cells)

    def summary(self, what: str, summary: Summary, **aims: Aim) -> None:
        """A line of percentiles; `aims` by the percentile that they are for."""
        values = asdict(summary)
        judged = [f"{k} {aim}: {aim.judge(values[k])}" for k, aim in aims.items()]
        numbers = [f"{values[k]:,.1f}" for k in ("p50", "p90", "p99", "max")]
        self.add(what, str(summary.count), *numbers, ", ".join(judged))

    def ratio(self, what: str, ratio: Interval, aim: Aim | None) -> None:
        """A line for a ratio, in percent on top; `aim` is for them."""
        more = ratio.percent_more()
        judged = f"{aim}: {aim.judge(more.value)}" if aim else ""
        self.add(what, *(f"{x:+.1f}" for x in (more.value, more.low, more.high)), judged)

    def show(self, console: Console) -> None:
        table = Table(title=self.title, title_justify="left")
        for i, column in enumerate(self.columns):
            numeric = i > 0 and column != "target"
            table.add_column(column, justify="right" if numeric else "left")
        for line in self.lines:
            table.add_row(*map(escape, line))
        console.print(table)
        for note in self.notes:
            console.print(note, highlight=False, markup=False)

    def markdown(self) -> str:
        r"""The table and the notes, ready to be pasted into a document.

        Examples
        --------
        >>> report = Report("x", "title", ["", "n"], notes=["so it was"])
        >>> report.add("a|b", "1")
        >>> print(report.markdown())
        **title**
        <BLANKLINE>
        | | n |
        | --- | ---: |
        | a\|b | 1 |
        <BLANKLINE>
        so it was
        """
        rules = ["---"] + ["---:"] * (len(self.columns) - 1)
        rows = [self.columns, rules, *self.lines]
        lines = [
            "|" + "|".join(f" {cell} " if cell else " " for cell in map(_escaped, row)) + "|"
            for row in rows
        ]
        return "\n".join([f"**{self.title}**", "", *lines, *(f"\n{note}" for note in self.notes)])

    def save(self, out: Path, settings: Mapping[str, Any]) -> Path:
        """Write ``report.json`` (results, settings, the machine) and ``report.md``."""
        (out / "report.md").write_text(self.markdown() + "\n", "utf-8")
        path = out / "report.json"
        content = {
            "name": self.name,
            "ok": self.ok,
            "table": [dict(zip(self.columns, line, strict=True)) for line in self.lines],
            "notes": self.notes,
            "settings": dict(settings),
            "machine": machine(),
            **self.data,
        }
        path.write_text(json.dumps(_plain(content), indent=1) + "\n", "utf-8")
        return path


PERCENTILES = ("", "n", "p50", "p90", "p99", "max", "target")
"""Columns of a table of summaries."""


def machine() -> dict[str, Any]:
    """Where the numbers are from. ``load``: average of the last minute, at the end."""
    return {
        "at": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
        "system": platform.platform(),
        "python": platform.python_version(),
        "pyarrow": pa.__version__,
        "pyspark": pyspark.__version__,
        "clonos": clonos.__version__,
    }


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|")


def _plain(value: Any) -> Any:
    """As JSON knows it; what is not a finite number becomes null."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return str(value)
