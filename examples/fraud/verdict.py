"""What the job has delivered and paid, against the payments and the journal of the world."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from examples.fraud import pipeline
from examples.fraud.payments import Payment
from examples.judging import Kill, Line, entries

Rows = Sequence[Mapping[str, Any]]


class Request(NamedTuple):
    """Something that the world was asked; `answer` is None if the asker was gone by then."""

    number: int
    path: str
    body: dict[str, Any]
    asker: int
    key: str
    at: float
    answer: dict[str, Any] | None


class Paid(NamedTuple):
    """What the job and the branch say that they have asked and spent."""

    calls: int
    cents: float
    effects: int
    branch_calls: int
    branch_cents: float


class Journal:
    """What the world outside has seen."""

    def __init__(self, path: Path) -> None:
        noted = entries(path)
        self.blocked = noted["blocked"]
        answers = {entry["number"]: entry["answer"] for entry in noted["answered"]}
        self.requests = [
            Request(**one, answer=answers.get(one["number"])) for one in noted["asked"]
        ]

    def scores(self) -> dict[int, Request]:
        """What the model was asked, by number."""
        return {one.number: one for one in self.requests if one.path == "/score"}


def recomputed(payments: Sequence[Payment]) -> dict[int, tuple[str, int, int]]:
    """What is known of each payment's card, without a job, and without failures."""
    cards: dict[str, pipeline.Card] = {}
    found = {}
    for one in payments:
        at = datetime.fromisoformat(str(one.row()["at"]).replace("Z", "+00:00"))
        found[one.id], cards[one.card] = pipeline.seen(
            cards.get(one.card, {}), at, one.cents, one.country
        )
    return found


def judge(
    journal: Journal,
    payments: Sequence[Payment],
    rows: Rows,
    kills: Sequence[Kill],
    branched_by: int,
    paid: Paid,
) -> list[Line]:
    """Every line of the verdict.

    Parameters
    ----------
    branched_by
        The process in which the branch asked the model.
    """
    scores = journal.scores()
    used = [scores.get(row["request"]) for row in rows]
    known = recomputed(payments)
    same = sum(known[row["id"]] == (row["home"], row["usual"], row["lately"]) for row in rows)
    told = sum(
        one is not None
        and (one.body["prompt"], (one.answer or {}).get("score")) == (row["prompt"], row["score"])
        for row, one in zip(rows, used, strict=True)
    )
    branch = [one for one in scores.values() if one.asker == branched_by]
    spare = scores.keys() - {row["request"] for row in rows} - {one.number for one in branch}
    killed = {pid for kill in kills for pid in kill.pids}
    excused = [scores[number] for number in spare if scores[number].asker in killed]
    answers = [one.answer for one in used if one is not None and one.answer is not None]
    cents = sum(map(pipeline.price, answers))
    in_vain = sum(pipeline.price(one.answer) for one in excused if one.answer is not None)
    charged = sum(pipeline.price(one.answer) for one in scores.values() if one.answer is not None)
    return [
        Line("killed with kill -9", ", ".join(kill.what for kill in kills)),
        Line("payments sent", len(payments)),
        Line("payments scored, each once", _once(row["id"] for row in rows), len(payments)),
        Line("... with what is known of the card, as recomputed", same, len(payments)),
        Line("... with what the model answered to this prompt", told, len(payments)),
        Line("prompts: one before the adoption, the other behind it", _is_one_cut(rows), True),
        Line("calls on the job's bill", paid.calls, len(payments)),
        Line("cents on the job's bill", round(paid.cents, 2), round(cents, 2)),
        Line("calls of the branch", paid.branch_calls, len(branch)),
        Line("asked again, though nothing was killed", len(spare) - len(excused), 0),
        Line("asked again, open or just answered at a kill", len(excused)),
        Line(
            "cents that the model charged: job, branch, and what was asked again",
            round(charged, 2),
            round(cents + paid.branch_cents + in_vain, 2),
        ),
        *_effects(journal, rows, paid, branched_by),
    ]


def _effects(journal: Journal, rows: Rows, paid: Paid, branched_by: int) -> list[Line]:
    alerts = sorted(row["id"] for row in rows if row["score"] > pipeline.SURE)
    asked = [one for one in journal.requests if one.path == "/block"]
    keys = {one.key: one.body["id"] for one in asked}
    return [
        Line("alerts, and cards blocked for them", _ids(journal.blocked), alerts),
        Line("... by one name each", sorted(keys.values()), alerts),
        Line("... asked for once more, under the same name", len(asked) - len(keys)),
        Line("... asked for by the branch", sum(one.asker == branched_by for one in asked), 0),
        Line("effects on the job's bill", paid.effects, len(alerts)),
    ]


def _ids(blocked: Rows) -> list[int]:
    return sorted(entry["id"] for entry in blocked)


def _once(ids: Any) -> int:
    return sum(count == 1 for count in Counter(ids).values())


def _is_one_cut(rows: Rows) -> bool:
    """Whether there is one payment from which on the new prompt was used."""
    before, behind = [-1], list[int]()
    for row in rows:
        facts = [row[name] for name in ("cents", "country", "home", "usual", "lately")]
        old, new = pipeline.brief(*facts), pipeline.careful(*facts)
        if row["prompt"] not in {old, new}:
            return False
        if old != new:
            (before if row["prompt"] == old else behind).append(row["id"])
    return bool(behind) and max(before) < min(behind)


def quality(rows: Rows, payments: Sequence[Payment]) -> tuple[int, int, int]:
    """Thefts among the payments of some rows; how many of them were alerts; and false alarms."""
    frauds = {one.id for one in payments if one.fraud}
    alerts = {row["id"] for row in rows if row["score"] > pipeline.SURE}
    here = frauds & {row["id"] for row in rows}
    return len(here), len(here & alerts), len(alerts - frauds)


def short(what: Any) -> str:
    """As the terminal shows it."""
    return f"{len(what)} cards" if isinstance(what, list) else str(what)
