"""The names of all invariants, and what is raised when one does not hold."""

from __future__ import annotations

import sys
import traceback
from types import FrameType
from typing import Protocol

INVARIANTS = {
    "log before effect": "what anybody depends on is in a log that survives, or below a floor",
    "no orphans": "nobody goes on who depends on what was lost",
    "stable log": "what was called stable is never cut, and no log says what nobody wrote",
    "stable output": "(generation, task, seq) names one content for ever",
    "written once": "what a sink that writes itself delivered is in the store, and nothing else",
    "gap-free FIFO": "items 1, 2, 3, ... of a channel, once each",
    "order per key": "rows of a key keep their order while they wait, and so many of them ask",
    "fencing": "at most one life of a task affects anybody",
    "no early truncation": "what a recovery may ask for is kept",
    "consistent floor": "the layers of a floor, sealed at markers, are of one instant",
    "carried feedback": "what goes round is in the floor of who sent it, and nothing twice",
    "restored as told": "what is said of where a task's state came from is so",
    "safe enough": "input is given up when enough have what has become of it",
    "copies stay": "nobody gives up a layer that is not as safe with others",
    "stored before it counts": "where levels are chosen, input is given up for what is stored",
    "lost for a reason": "state is lost when more have died than its level survives, not before",
    "fitting floors": "what one floor has sent, the next has taken, though nobody agreed on when",
    "durable": "what was acknowledged is in the journal",
    "kept past": "from every point that is kept, all that came then can be done again",
    "one driver": "what two drivers of one checkpoint let out is in one journal",
    "no litter": "after quiet floors the store holds what the journal refers to, and little else",
    "divergence": "a task that does something else on replay is found out",
    "same again": "a task whose log is left out does the same in each life",
    "equivalence": "what was delivered is what a failure-free run with the same logs delivers",
    "conservation": "rows in are rows out",
    "at most once": "without logs, a row is lost only by a failure, and none comes twice",
    "kept state": "what tasks have kept goes on, once, when there are others",
    "one plan": "the old plan goes on or the new one, whoever dies while it is replaced",
    "rewind": "who goes back gives nothing a name that there was",
    "section": "who goes back takes all along that has heard of it, and nobody else",
    "rows again": "a job goes back if, and only if, its sources have the rows that came since",
    "canary": "changed code that follows a job says what a branch says, and leaves no trace",
    "calls": "no call is made again whose answer was used",
    "settled calls": "who has settled in time waits for no answer",
    "planned moves": "who moves without a failure asks nothing again",
    "rivals": "who is overtaken goes on where its rival is",
    "effects": "an effect is made once, and by a history that stays",
    "monotonic clock": "the time that a task sees never goes back",
    "bounded memory": "who is far ahead of a live receiver waits",
    "open flow": "who replays or aligns holds up nobody",
    "placement": "a task runs where it can",
    "poison": "a record that kills its readers kills few",
    "blame": "a job fails only for what is wrong with it",
    "sound state": "what a machine knows of itself agrees, after each event",
    "faithful wire": "what a stream delivers is what was sent on it, bit by bit, without a gap",
    "no strangers": "whoever does not hold the job's secret is never heard",
    "liveness": "when faults have healed, the job gets done",
}
"""All invariants. Each check names the one that it stands for."""


class Violation(BaseException):  # nothing between the check and the verdict may take it for its own
    """An invariant does not hold. ``check``: the function that has found it."""

    def __init__(self, invariant: str, what: str, check: str = "") -> None:
        super().__init__(f"{invariant}: {what}")
        assert invariant in INVARIANTS, invariant
        self.invariant = invariant
        self.check = check or sys._getframe(1).f_code.co_name  # noqa: SLF001 - as loggers do


def require(condition: object, invariant: str, what: str) -> None:
    """Raise a `Violation` unless `condition` holds."""
    if not condition:
        raise Violation(invariant, what, sys._getframe(1).f_code.co_name)  # noqa: SLF001


class Checked(Protocol):
    """What says of itself whether its state is sound."""

    def check(self) -> None: ...


def check_state(machine: Checked) -> None:
    """Turn an assertion that fails into a violation by the part that it is about."""
    try:
        machine.check()
    except AssertionError as error:
        frames = list(traceback.walk_tb(error.__traceback__))
        (*_, failed) = [frame for frame, _ in frames if frame.f_code.co_name == "check"]
        (*_, line) = traceback.extract_tb(error.__traceback__)
        raise Violation("sound state", f"{line.line}", _class_of(failed)) from error


def _class_of(frame: FrameType) -> str:
    """Whose ``check`` it is."""
    classes = type(frame.f_locals["self"]).__mro__
    owner = next(
        c for c in classes if getattr(c.__dict__.get("check"), "__code__", 0) is frame.f_code
    )
    return f"{owner.__name__}.check"
