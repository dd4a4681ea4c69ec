"""What the verdicts of the examples share: who was killed, a journal, and lines that judge."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table


class Kill(NamedTuple):
    """Processes that died together, and when (s since the epoch)."""

    what: str
    pids: frozenset[int]
    at: float


class Line(NamedTuple):
    """A line of the verdict. Without `wanted` it is a measurement, and judges nothing."""

    what: str
    found: Any
    wanted: Any = None

    @property
    def ok(self) -> bool:
        """Whether it is as it must be."""
        return self.wanted is None or bool(self.found == self.wanted)


def lives(kills: Sequence[Kill]) -> dict[int, int]:
    """Which kill each process died of, the first being 0; all others live in the last life."""
    return {pid: life for life, kill in reversed([*enumerate(kills)]) for pid in kill.pids}


def entries(journal: Path) -> dict[str, list[dict[str, Any]]]:
    """What a service has written down, by kind, in its order."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in journal.read_text().splitlines():
        entry = json.loads(line)
        found[entry.pop("kind")].append(entry)
    return found


def asked_again(unheard_s: Sequence[float]) -> list[Line]:
    """Of requests that were made again because of a kill: how long before it each was answered;
    negative, if it was still open then."""
    on_the_way = [seconds for seconds in unheard_s if seconds >= 0]
    return [
        Line("asked again, open at a kill", len(unheard_s) - len(on_the_way)),
        Line("asked again, answer on its way at a kill", len(on_the_way)),
        Line("... sent at most so many ms before", round(1000 * max(on_the_way, default=0))),
    ]


def table(lines: Sequence[Line], shown: Callable[[Any], str] = str) -> Table:
    """For the terminal."""
    made = Table("what", "found", "must be", "")
    for line in lines:
        judged = ("", "") if line.wanted is None else (line.wanted, "ok" if line.ok else "FAULT")
        made.add_row(line.what, *map(shown, (line.found, *judged)))
    return made
