"""The names of all invariants, and the exception raised when one does not hold."""

from __future__ import annotations

import sys
import traceback
from types import FrameType
from typing import Protocol

INVARIANTS = {
    "log before effect": "every entry that anything depends on is in a surviving log or a floor",
    "no orphans": "no task goes on that depends on lost log entries",
    "stable log": "stable entries are never cut, and every entry was written by some life",
    "stable output": "(generation, task, seq) names one content for ever",
    "written once": "the store of a sink that writes itself has all delivered rows, nothing else",
    "gap-free FIFO": "items 1, 2, 3, ... of a channel, once each",
    "order per key": "rows of a key keep their order while they wait, and few enough of them ask",
    "fencing": "at most one life of a task affects anybody",
    "no early truncation": "everything that a recovery may ask for is kept",
    "consistent floor": "the layers of a floor, sealed at markers, are of one instant",
    "carried feedback": "items on feedback channels are in their sender's layer, once each",
    "restored as told": "a restored task reports correctly where its state came from",
    "as sealed": "restored state is that which was sealed, whatever layers it is made of",
    "safe enough": "input is given up only when enough slots have the layers made of it",
    "copies stay": "no slot gives up a layer before enough others have it",
    "stored before it counts": "with a dial, input is given up only for layers in the store",
    "hard again": "when faults have healed, floors in use become hard",
    "few layers": "a task's layers in the store are merged when they are too many",
    "kept no longer": "when faults have healed, no slot has a layer that nobody wants there",
    "copies apart": "some copy is on another disk than its task, if there is room",
    "lost for a reason": "state counts as lost only after more deaths than its level survives",
    "fitting floors": "a receiver's floor has taken all that its sender's floor has sent",
    "durable": "everything acknowledged is in the journal",
    "kept past": "everything that came after a kept point can be replayed from it",
    "one driver": "two drivers of one checkpoint release only output of one journal",
    "no litter": "after quiet floors the store has what the journal refers to, and little else",
    "divergence": "a task that does something else on replay is detected",
    "same again": "an implied task does the same in each life",
    "equivalence": "a failure-free run with the same logs delivers the same output",
    "conservation": "rows in are rows out",
    "at most once": "without logs, a row is lost only by a failure, and none comes twice",
    "kept state": "after an upgrade the new tasks have all state of the old ones, once",
    "rounds": "a switch goes on from what was shared out before it",
    "one plan": "a death during a switch leaves the old plan or the new one, complete",
    "rewind": "after a rewind, no output gets a name that was used before",
    "section": "a section that goes back has every task that heard from it, and no other",
    "rows again": "a job goes back if, and only if, its sources have the rows since the point",
    "canary": "a canary reports what a branch reports, and leaves no trace",
    "calls": "no call is made again whose answer was used",
    "settled calls": "a task that has settled in time has no open calls",
    "settled steps": "a source that has settled in time has taken nothing beyond its floor",
    "planned moves": "a move without a failure repeats no call",
    "rivals": "a task that is overtaken goes on where its rival is",
    "effects": "an effect is made once, and by a history that survives",
    "monotonic clock": "the time that a task sees never goes back",
    "bounded memory": "a task that is far ahead of a live receiver waits",
    "open flow": "a task that replays or aligns holds up no sender",
    "placement": "a task runs only in a slot that can run it",
    "poison": "a poison record kills few processes",
    "blame": "a job fails only for a real fault of its own",
    "sound state": "the state of a machine is consistent after each event",
    "faithful wire": "a stream delivers exactly the bytes that were sent on it, without a gap",
    "no strangers": "a process without the job's secret is never heard",
    "liveness": "when faults have healed, the job finishes",
}
"""All invariants. Each check names the one that it enforces."""


class Violation(BaseException):  # no handler between the check and the verdict may catch it
    """An invariant does not hold. ``check``: the function that found this."""

    def __init__(self, invariant: str, what: str, check: str = "") -> None:
        super().__init__(f"{invariant}: {what}")
        assert invariant in INVARIANTS, invariant
        self.invariant = invariant
        self.check = check or sys._getframe(1).f_code.co_name  # noqa: SLF001 - as loggers do


def require(condition: object, invariant: str, what: str) -> None:
    """Raise a `Violation` unless `condition` holds.

    `what` is put together in any case. Frequent checks raise themselves.
    """
    if not condition:
        raise Violation(invariant, what, sys._getframe(1).f_code.co_name)  # noqa: SLF001


class Checked(Protocol):
    """An object that can check the soundness of its own state."""

    def check(self) -> None: ...


def check_state(machine: Checked) -> None:
    """Turn a failed assertion into a violation that names the part which failed it."""
    try:
        machine.check()
    except AssertionError as error:
        frames = list(traceback.walk_tb(error.__traceback__))
        (*_, failed) = [frame for frame, _ in frames if frame.f_code.co_name == "check"]
        (*_, line) = traceback.extract_tb(error.__traceback__)
        raise Violation("sound state", f"{line.line}", _class_of(failed)) from error


def _class_of(frame: FrameType) -> str:
    """The class whose ``check`` failed."""
    classes = type(frame.f_locals["self"]).__mro__
    owner = next(
        c for c in classes if getattr(c.__dict__.get("check"), "__code__", 0) is frame.f_code
    )
    return f"{owner.__name__}.check"
