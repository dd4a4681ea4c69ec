"""What is in the table, and on the bill, against the orders and the service's journal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from examples.enrich.service import price
from examples.judging import Kill, Line, asked_again, entries, lives

Row = tuple[int, str, str, float]
"""Of the table: id, text, receipt, cents."""


class Request(NamedTuple):
    """One request for an order; `answer` is None if there was none, or it was turned away."""

    number: int
    life: int
    answer: dict[str, Any] | None
    is_turned_away: bool


def read(journal: Path, kills: Sequence[Kill]) -> dict[int, list[Request]]:
    """The requests for each order, in the order of the lives that made them."""
    noted, died_of = entries(journal), lives(kills)
    answers = {entry["number"]: entry for entry in noted["answered"]}
    turned_away = {entry["number"] for entry in noted["turned away"]}
    found: dict[int, list[Request]] = defaultdict(list)
    for entry in noted["asked"]:
        number, life = entry["number"], died_of.get(entry["asker"], len(kills))
        request = Request(number, life, answers.get(number), number in turned_away)
        found[entry["id"]].append(request)
    # A process that was killed may be heard late.
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
        *asked_again(unheard),
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
