"""Every error that clonos raises on purpose. Each says what happened, where, and what to do."""

from __future__ import annotations

import re
from typing import Any, ClassVar, Final

_KEY: Final = re.compile(r"(?<=//)[^@\s]*:[^@\s]*@")
"""A secret may contain an unescaped slash; a user name without a secret is not masked."""


def masked(text: str) -> str:
    """Return a text without the keys and user names in its URIs.

    Examples
    --------
    >>> masked("cannot read s3://KEY:SEC/RET@bucket/job")
    'cannot read s3://***@bucket/job'
    >>> masked("abfss://container@account/job and tls://slot-3@10.0.0.1:4000")
    'abfss://container@account/job and tls://slot-3@10.0.0.1:4000'
    """
    return _KEY.sub("***@", text)


class ClonosError(Exception):
    """Base of all errors raised by clonos.

    Parameters
    ----------
    what
        What happened, in one sentence.
    where
        The operator or task, such as ``"count[3]"``; empty if the whole job is meant.
    remedy
        What the reader can do about it.
    trace
        The user's own lines that led to it, if it happened in another process (see
        :func:`clonos.blame.users_traceback`). It comes first in the error's text.

    Keys in URIs are left out of all four.
    """

    usual_remedy: ClassVar[str] = ""
    """What to do about errors of this class, unless one says otherwise."""

    def __init__(self, what: str, *, where: str = "", remedy: str = "", trace: str = "") -> None:
        self.what, self.where, self.trace = masked(what), masked(where), masked(trace)
        self.remedy = masked(remedy or self.usual_remedy)
        super().__init__(self.what, self.where, self.remedy)

    def __str__(self) -> str:
        trace = f"\n{self.trace}\n" if self.trace else ""
        place = f"{self.where}: " if self.where else ""
        said = f"{self.sentence} To do: {self.remedy}" if self.remedy else self.what
        return f"{trace}{place}{said}"

    @property
    def sentence(self) -> str:
        """What happened, with a full stop, so that another sentence may follow."""
        return self.what if self.what.endswith((".", "?", "!")) else f"{self.what}."

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.what, self.where, self.remedy, self.trace)


def _rebuild(cls: type[ClonosError], what: str, where: str, remedy: str, trace: str) -> ClonosError:
    return cls(what, where=where, remedy=remedy, trace=trace)


class StepTooLarge(ClonosError):
    """A step's log entry, or a batch that it makes, is too large to be sent."""


class AnswerTooLarge(ClonosError):
    """A service's answer is larger than what is kept in logs."""

    usual_remedy = "keep large values in a store and answer with their names"


class WrongLength(ClonosError):
    """A call for several rows did not return one answer for each of them."""

    usual_remedy = "return a list with one answer for each row, in their order"


class ProtocolError(ClonosError):
    """A peer or clonos itself broke the protocol: a bug in clonos, never in user code.

    ``stories``: the last transitions of the state machines it concerns.
    """

    stories: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join([super().__str__(), *(f"  story: {story}" for story in self.stories)])

    def __reduce__(self) -> tuple[Any, ...]:
        return (*super().__reduce__(), {"stories": self.stories})


class Divergence(ClonosError):
    """A replay did something other than the log says: user code is nondeterministic outside
    ``ctx``."""


class MalformedMessage(ProtocolError):
    """Bytes from another process or from a store are not a message."""


class DefinitionError(ClonosError):
    """The job is defined incorrectly; raised where it is defined, before anything runs."""


class UnknownColumn(DefinitionError):
    """The stream has no column of this name."""


class WrongType(DefinitionError):
    """A value or column has a type that cannot be used there."""


class NotPicklable(DefinitionError):
    """A function, or what it uses, cannot be sent to the slots; raised when the job starts."""


class BadSchema(DefinitionError):
    """A DDL string or schema object cannot be understood."""


class BadDuration(DefinitionError):
    """Not a duration such as ``"5 seconds"``."""


class BadSize(DefinitionError):
    """Not a size such as ``"50 GB"``."""


class BadGraph(DefinitionError):
    """Streams do not form a job that can run: no sink, a name used twice, ..."""


class NotInTasks(DefinitionError):
    """A column expression has a part that tasks do not compute exactly as Spark does."""


class NotInSpark(DefinitionError):
    """Spark has no plan for an operation or option that gives the rows that tasks give."""


class OtherExecution(ClonosError):
    """A checkpoint belongs to another execution: tasks, or Spark's streaming queries."""


class OtherJob(ClonosError):
    """A checkpoint was written by a job with another graph."""


class CannotUpgrade(ClonosError):
    """A checkpoint cannot be continued with this graph: something that it keeps would be lost."""


class CannotRewind(ClonosError):
    """A job cannot go back to a point of its past."""


class CannotReplace(ClonosError):
    """A replacement does not fit in the place of what it replaces."""


class CannotRedact(ClonosError):
    """Values cannot be replaced in what a bundle would have; there is no bundle."""


class NotSettled(ClonosError):
    """A job was asked to settle and has not done so in time; it goes on as it was."""


class NeedsSpark(DefinitionError):
    """A column expression is given, but there is no Spark session that could read it."""


class Unbounded(DefinitionError):
    """All rows of a stream are requested, but the stream may never end."""


class UnknownTask(DefinitionError):
    """A job has no task of this name."""


class CannotMove(ClonosError):
    """A task cannot go on in another slot, or not in time. It goes on where it is."""

    usual_remedy = (
        "try again: a move needs a free slot (standby_slots), waits while anything recovers, and "
        "is given up if a step, call or write under way takes longer than a second"
    )


class OperatorError(ClonosError):
    """A user function raised, or its result does not fit the schema."""


class ExpressionFailed(OperatorError):
    """A column expression has no value for a row; Spark would raise the condition it names."""


class BrokenLine(ClonosError):
    """A line of input that cannot be read: bad UTF-8, too long, not JSON, not CSV."""


class SourceError(ClonosError):
    """A source cannot be reached, or no longer has rows that are needed again."""


class StateMismatch(ClonosError):
    """A stored state was written by operators other than those that read it."""


class UnencodableValue(ClonosError):
    """A value cannot be kept in state or in the log."""

    usual_remedy = (
        "keep plain values instead: None, bool, int, float, str, bytes, list, tuple, dict, set, "
        "datetime, date, time, timedelta, Decimal or UUID"
    )


class EffectUnknown(ClonosError):
    """An effect may have been made, and nobody can tell; or its answer cannot be kept."""

    usual_remedy = (
        "find out by its key or its arguments whether it was made; give check=, a function that "
        "does so, or idempotent=True if the service deduplicates by key"
    )


class BudgetSpent(ClonosError):
    """A call was not made, because the budget of its service is used up."""

    usual_remedy = (
        "raise budget= and start again: answers in the log are not paid for twice; or give "
        "on_error=, which returns something in place of the answers that are missing"
    )


class CallError(ClonosError):
    """Stands for an exception raised in ``ctx.call`` that cannot itself be kept in the log.

    Parameters
    ----------
    type_name
        The qualified name of the exception's class, such as ``"requests.ReadTimeout"``.
    message
        Its text.
    """

    def __init__(self, type_name: str, message: str) -> None:
        super().__init__(f"{type_name}: {message}")
        self.type_name = type_name
        self.message = message

    def __reduce__(self) -> tuple[Any, ...]:
        return CallError, (self.type_name, self.message)


class TaskFailed(ClonosError):
    """A task cannot go on, for a reason that has no error type of its own."""


class LoopIsOver(ClonosError):
    """An operator in a loop returns rows at the end of its input, when no task takes them."""


class StateLost(ClonosError):
    """All copies of a task's state are gone, and its input was given up: nobody can make it again.
    What was delivered before is right; nothing comes after it."""

    usual_remedy = (
        "start the job in another checkpoint_dir, so that its sources are read from the beginning "
        "(what was delivered is delivered again); or give it a level that survives this, with "
        "persistence='local' or 'store', or more standbys"
    )


class PoisonRecord(ClonosError):
    """A record kills every process that takes it; the job stops before every standby is lost."""


class Fenced(ClonosError):
    """A later life of the task has taken over: what this one still tried to do was refused, and is
    not needed."""


class OrphanedOutput(ClonosError):
    """Delivered output depends on log entries that no process holds any more."""
