"""What is in the table, and on the bill, against the orders and the service's journal."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from examples.enrich.service import price

Row = tuple[int, str, str, float]
"""Of the table: id, text, receipt, cents."""


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
        return self.wanted is None or bool(self.found == self.wanted)


class Request(NamedTuple):
    """One request for an order; `answer` is None if there was none, or it was turned away."""

    number: int
    life: int
    came_at: float
    answer: dict[str, Any] | None
    is_turned_away: bool


def read(journal: Path, kills: Sequence[Kill]) -> dict[int, list[Request]]:
    """The requests for each order, in the order of the lives that made them."""
    asked, ends = [], {}
    for text in journal.read_text().splitlines():
        entry = json.loads(text)
        if entry["kind"] == "asked":
            asked.append(entry)
        else:
            ends[entry["number"]] = entry
    # A process that was killed may be heard late.
    lives = {pid: life for life, kill in reversed([*enumerate(kills)]) for pid in kill.pids}
    found: dict[int, list[Request]] = defaultdict(list)
    for entry in asked:
        end = ends.get(entry["number"], {"kind": ""})
        answer = end if end["kind"] == "answered" else None
        life = lives.get(entry["asker"], len(kills))
        is_turned_away = end["kind"] == "turned away"
        request = Request(entry["number"], life, entry["at"], answer, is_turned_away)
        found[entry["id"]].append(request)
    return {n: sorted(each, key=lambda one: (one.life, one.number)) for n, each in found.items()}


def judge(
    journal: Path,
    kills: Sequence[Kill],
    orders: Mapping[int, str],
    table: Sequence[Row],
    bill: Mapping[str, Any],
) -> list[Line]:
    """Every line of the verdict.

    Parameters
    ----------
    orders
        What went into the stream: text by id.
    bill
        What the job says that it has asked and spent: ``calls`` and ``cents``.
    """
    requests = read(journal, kills)
    newest = {n: each[-1].answer for n, each in requests.items()}
    told = sum((newest.get(n) or {}).get("receipt") == receipt for n, _, receipt, _ in table)
    pairs = [(one, then) for each in requests.values() for one, then in pairwise(each)]
    again = [(one, then) for one, then in pairs if not one.is_turned_away]
    excused = [one for one, then in again if one.life < min(then.life, len(kills))]
    unheard = [_answered_before_s(one, kills) for one in excused]
    on_the_way = [seconds for seconds in unheard if seconds >= 0]
    charged = sum(one.answer["cents"] for each in requests.values() for one in each if one.answer)
    in_vain = sum(one.answer["cents"] for one, _ in again if one.answer)
    free = sum(map(price, orders.values()))
    return [
        Line("kills", ", ".join(kill.what for kill in kills)),
        Line("orders in the stream", len(orders)),
        Line("rows in the table", len(table), len(orders)),
        Line("... each order once", {n: text for n, text, _, _ in table} == dict(orders), True),
        Line("... with what the service answered last", told, len(orders)),
        Line("requests turned away, and repeated", len(pairs) - len(again)),
        Line("asked again, though not killed", len(again) - len(excused), 0),
        Line("asked again, open at a kill", len(unheard) - len(on_the_way)),
        Line("asked again, answer on its way at a kill", len(on_the_way)),
        Line("... sent at most so many ms before", round(1000 * max(on_the_way, default=0))),
        Line("calls on the job's bill", bill["calls"], len(orders)),
        Line("cents without any failure", round(free, 2)),
        Line("cents on the job's bill", round(bill["cents"], 2), round(free, 2)),
        Line("cents that the service charged", round(charged, 2), round(free + in_vain, 2)),
        Line("... for what was asked again", round(in_vain, 2)),
    ]


def _answered_before_s(request: Request, kills: Sequence[Kill]) -> float:
    """How long before its asker died: negative, if the request was still open then."""
    if request.answer is None:
        return -1.0
    return float(kills[request.life].at - request.answer["at"])


def rich_table(lines: Sequence[Line]) -> Table:
    """For the terminal."""
    made = Table("what", "found", "must be", "")
    for line in lines:
        judged = ("", "") if line.wanted is None else (line.wanted, "ok" if line.ok else "FAULT")
        made.add_row(line.what, str(line.found), *map(str, judged))
    return made
