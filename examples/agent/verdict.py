"""What the agents have delivered and spent, against the journal of the world outside."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise, starmap
from pathlib import Path
from typing import Any, Final, NamedTuple

from examples.agent.agent import LARGE_CENTS, price
from examples.judging import Kill, Line, asked_again, entries, lives

TOLD: Final = ("model", "tool", "bank")
"""Whose answers are part of a conversation."""


class Call(NamedTuple):
    """What was asked, whoever asked it, and however often."""

    path: str
    body: str


def call(path: str, body: dict[str, Any]) -> Call:
    """... with its body as text, which two equal ones share."""
    return Call(path, json.dumps(body, sort_keys=True))


class Journal:
    """What the world outside has seen.

    Parameters
    ----------
    kills
        In their order.
    """

    def __init__(self, path: Path, kills: Sequence[Kill]) -> None:
        self._kills, self.lives = kills, lives(kills)
        noted = entries(path)
        self.asked: dict[Call, list[dict[str, Any]]] = defaultdict(list)
        for entry in noted["asked"]:
            self.asked[call(entry["path"], entry["body"])].append(entry)
        self.answers = {entry["number"]: entry for entry in noted["answered"]}
        self.made = Counter(call(entry["path"], entry["body"]) for entry in noted["made"])
        self.decided = {(entry["request"], entry["text"]) for entry in noted["decided"]}
        for requests in self.asked.values():  # a killed process may be heard late
            requests.sort(key=lambda entry: (self._life(entry), entry["number"]))

    def _life(self, asked: dict[str, Any]) -> int:
        return self.lives.get(asked["agent"], len(self._kills))

    def newest(self, made: Call) -> int | None:
        """The number of the last request of a call."""
        requests = self.asked.get(made)
        return requests[-1]["number"] if requests else None

    def again(self) -> list[dict[str, Any]]:
        """Requests that were made once more by a later one."""
        return [asked for requests in self.asked.values() for asked in requests[:-1]]

    def unheard_s(self, asked: dict[str, Any]) -> float:
        """How long before its asker was killed a request was answered: negative, if it was still
        open then."""
        answered = self.answers.get(asked["number"])
        killed_at = self._kills[self.lives[asked["agent"]]].at
        return -1.0 if answered is None else float(killed_at - answered["at"])

    def is_unexcused(self, asked: dict[str, Any], newer: dict[str, Any]) -> bool:
        """It was made again, and not because its process was killed in between."""
        return asked["agent"] not in self.lives or self._life(newer) == self._life(asked)

    def cents(self, requests: Iterable[dict[str, Any]]) -> float:
        """What the model charges for those it has answered."""
        answers = (self.answers.get(entry["number"]) for entry in requests)
        thoughts = (found["answer"] for found in answers if found is not None)
        return sum(price(thought) for thought in thoughts if "tokens" in thought)


def calls_of(talk_id: int, talk: Sequence[dict[str, Any]]) -> Iterator[tuple[Call, dict[str, Any]]]:
    """The calls that a conversation consists of, each with the message that came of it."""
    thought: dict[str, Any] = {}
    for index, message in enumerate(talk):
        request = thought.get("request")
        if message["who"] == "model":
            thought = message
            yield call("/model", {"id": talk_id, "talk": talk[:index]}), message
        elif message["who"] == "tool":
            yield call(f"/{message['what']}", {"id": talk_id, "request": request}), message
        elif message["who"] != "customer":
            path = "/refund" if message["who"] == "bank" else "/desk"
            body = {"id": talk_id, "request": request, "cents": thought["cents"]}
            yield call(path, body), message


def unapproved(talk: Sequence[dict[str, Any]]) -> int:
    """Refunds that were neither small nor approved just before."""
    before = [said for said, then in pairwise(talk) if then["who"] == "bank"]
    return sum(
        said["cents"] > LARGE_CENTS if said["who"] == "model" else said["text"] != "approved"
        for said in before
    )


def is_told_truly(journal: Journal, made: Call, message: dict[str, Any]) -> bool:
    """A message is what was answered to the newest request of this call."""
    newest = journal.newest(made)
    if newest is None:
        return False
    if message["who"] == "human":
        return (json.loads(made.body)["request"], message["text"]) in journal.decided
    if message["who"] not in TOLD:
        return True  # the clock
    answered = journal.answers.get(newest)
    return answered is not None and message == {"who": message["who"], **answered["answer"]}


def judge(
    path: Path, kills: Sequence[Kill], talks: int, rows: Sequence[dict[str, Any]], bill: Any
) -> list[Line]:
    """Every line of the verdict.

    Parameters
    ----------
    rows
        What was delivered.
    bill
        What the job says that it has spent.
    """
    journal = Journal(path, kills)
    talks_told = {row["id"]: json.loads(row["talk"]) for row in rows}
    told = {talk_id: list(calls_of(talk_id, talk)) for talk_id, talk in talks_told.items()}
    calls = list(chain(*told.values()))
    unknown = journal.asked.keys() - {made for made, _ in calls}
    true = sum(all(is_told_truly(journal, *each) for each in said) for said in told.values())
    used = [(made, said["request"]) for made, said in calls if said["who"] in TOLD]
    stale = sum(journal.newest(made) != request for made, request in used)
    again = journal.again()
    pairs = chain(*(pairwise(requests) for requests in journal.asked.values()))
    unheard = [journal.unheard_s(asked) for asked in again if asked["agent"] in journal.lives]
    charged, in_vain = journal.cents(chain(*journal.asked.values())), journal.cents(again)
    whos = Counter(said["who"] for _, said in calls)
    made = Counter(each.path for each in journal.made.elements())
    return [
        Line("processes killed", len(kills)),
        Line("conversations delivered", len(rows), talks),
        Line("... each question with one result", len(told), talks),
        Line("... as the journal has them, word for word", true, talks),
        Line("calls made", len(journal.asked)),
        Line("... that no conversation knows of", len(unknown), 0),
        Line("asked again, though the answer was used", stale, 0),
        Line("asked again, though not killed", sum(starmap(journal.is_unexcused, pairs)), 0),
        *asked_again(unheard),
        Line("calls on the job's bill", bill.calls, len(journal.asked)),
        Line("cents that the model charged", round(charged, 3)),
        Line("... for calls asked again", round(in_vain, 3)),
        Line("cents on the job's bill", round(bill.cost, 3), round(charged - in_vain, 3)),
        Line("humans asked", made["/desk"], whos["human"] + whos["clock"]),
        Line("... who did not decide in time", whos["clock"]),
        Line("refunds made", made["/refund"], whos["bank"]),
        Line("... large ones without approval", sum(map(unapproved, talks_told.values())), 0),
        Line("effects made twice", sum(n > 1 for n in journal.made.values()), 0),
        Line("effects asked for again, by the same key", sum(bool(a["key"]) for a in again)),
    ]
