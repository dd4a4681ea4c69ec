"""Every error that clonos raises to its users. Each says what happened, where, and what to do.

``docs/errors.md`` lists them. Errors that other modules define reach users only as the cause of one
of these. This module imports nothing else of clonos.
"""

from __future__ import annotations

from typing import Any

from clonos.errors.base import ClonosError as ClonosError
from clonos.errors.base import Fenced as Fenced
from clonos.errors.base import masked as masked
from clonos.errors.causal import BelowFloor as BelowFloor
from clonos.errors.causal import CausalError as CausalError
from clonos.errors.causal import LogBroken as LogBroken
from clonos.errors.causal import LogFull as LogFull
from clonos.errors.causal import LogUnreachable as LogUnreachable
from clonos.errors.causal import NotConnected as NotConnected
from clonos.errors.causal import NotIdempotent as NotIdempotent
from clonos.errors.causal import OnDriver as OnDriver
from clonos.errors.causal import OperatorUsedTwice as OperatorUsedTwice
from clonos.errors.causal import OtherRows as OtherRows
from clonos.errors.causal import OutsideTask as OutsideTask
from clonos.errors.causal import ServiceTooSlow as ServiceTooSlow
from clonos.errors.causal import UnsupportedQuery as UnsupportedQuery
from clonos.errors.causal import UnsupportedSession as UnsupportedSession


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
    """A function, or something it uses, cannot be sent to the slots, or cannot be made anew there;
    raised when the job starts."""


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
    """A checkpoint was written by a job with another graph, or its job went back while a process
    waited for it."""


class CannotUpgrade(ClonosError):
    """A checkpoint cannot be continued with this graph: something that it keeps would be lost."""


class CannotRewind(ClonosError):
    """A job cannot go back to a point of its past."""


class CannotReplace(ClonosError):
    """A replacement does not fit in the place of the code that it replaces."""


class CannotRedact(ClonosError):
    """Values cannot be replaced in a bundle, so there is no bundle."""


class NotSettled(ClonosError):
    """A job was asked to settle and has not done so in time; it goes on as it was."""


class NotEnded(ClonosError, TimeoutError):
    """A job, a query or a canary is not as far as somebody waits for, and time is over."""


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
    """A column expression has no value for a row; the error names the condition in Spark."""


class BrokenLine(ClonosError):
    """A line of input that cannot be read: bad UTF-8, too long, not JSON, not CSV."""

    usual_remedy = "correct it where it comes from"


class SourceError(ClonosError):
    """A source cannot be reached, or no longer has rows that are needed again."""


class StateMismatch(ClonosError):
    """A stored state was written by other operators than those that read it."""


class UnencodableValue(ClonosError):
    """A value cannot be kept in state or in the log."""

    usual_remedy = (
        "keep plain values instead: None, bool, int, float, str, bytes, list, tuple, dict, set, "
        "datetime, date, time, timedelta, Decimal or UUID"
    )


class EffectUnknown(ClonosError):
    """An effect may have been made, but nobody can tell; or its answer cannot be kept."""

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


class OtherArguments(ClonosError):
    """An effect was not made, because another one with the same ``identity=`` waits for its answer,
    and has other arguments."""

    usual_remedy = (
        "name in identity= everything that says what the effect is about, or leave out of its "
        "arguments what does not; or give on_error="
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


class OrphanedOutput(ClonosError):
    """Delivered output depends on log entries that no process holds any more."""


# --- definitions and commands ---------------------------------------------------------------------


class NotFound(DefinitionError):
    """Nothing has this name, or it is a name of something else."""


class BadDirectory(DefinitionError):
    """A job's folders are missing, not local, or cannot be written."""


class CannotSimulate(DefinitionError):
    """A job cannot be simulated as given: it needs a stand-in for Spark or a network."""


class SimulationFailed(ClonosError):
    """The simulator has found a fault in a job.

    Attributes
    ----------
    seed
        The seed of the simulation; it fails again each time.
    verdict
        "divergence", "check", "rows", the name of the error that ended the job, or of an invariant
        of the protocol.
    """

    seed = -1
    verdict = ""
    advice = ""

    def repeat_with(self, how: str) -> None:
        """Add to the remedy how to run this seed again."""
        self.remedy = "; ".join(filter(None, [self.advice, f"repeat it with {how}"]))


class NotDeterministic(ClonosError):
    """Operators of a job are not deterministic.

    Attributes
    ----------
    findings
        The first finding of each operator.
    """

    findings: tuple[Any, ...] = ()


class PortTaken(ClonosError):
    """The port of the page is taken."""


class NothingToWatch(ClonosError):
    """There is no page of a running job to watch."""


# --- Spark, slots and their streams ---------------------------------------------------------------


class SparkSetup(ClonosError):
    """Slots cannot run with the configuration of this Spark session."""


class NotEnoughSlots(SparkSetup):
    """The application has fewer free cores than the job needs slots."""


class SparkStopped(ClonosError):
    """The Spark application has ended while a job ran in it."""


class JobCancelled(ClonosError):
    """Somebody has cancelled Spark jobs of a Clonos job: in Spark's UI, by group, tag or number,
    or all of them."""


class SlotsLost(ClonosError):
    """A slot ended repeatedly before it registered."""


class SlotBroken(ClonosError):
    """The loop of a slot raised (and not the user's code in it): a bug in clonos."""


class OtherVersion(ClonosError):
    """An executor's versions differ from the driver's: a replay might not be bit-exact."""


class AuthenticationFailed(ClonosError):
    """A peer does not hold the job's secret, or replays another peer's greeting."""


class PlaintextRefused(ClonosError):
    """The address is not a loopback address, and plaintext was not requested."""


class TlsUnavailable(ClonosError):
    """Streams must be encrypted, but their certificates cannot be made."""


class PeerUnreachable(ClonosError):
    """A stream could not be opened, or broke: the peer, or the network to it, is gone."""


class CannotConnect(PeerUnreachable):
    """No reply comes from that address: the peer, or something in between, drops packets."""

    usual_remedy = (
        "let the machines of the job's executors and driver connect to one another on any port "
        "above 1023 (net.ipv4.ip_local_port_range): see docs/deploy.md"
    )


class AsideFailed(ClonosError):
    """A process beside the driver has ended before it was done."""


# --- sources and sinks ----------------------------------------------------------------------------


class FeedFailed(ClonosError):
    """The streaming query that feeds a source has failed."""


class TableFailed(ClonosError):
    """A ``look_up`` table is too large or cannot be read."""


class OutputExists(ClonosError):
    """A new job would write into a folder or table that has another job's output."""


class SinkFailed(ClonosError):
    """A sink could not write its rows."""


class MarkLost(SinkFailed):
    """The store no longer knows how far a sink has written: rows could be lost, or written
    twice."""


class RowRefused(SinkFailed):
    """The store refuses a row, and would refuse it again: a constraint, a value out of range."""


class NameConflict(SinkFailed):
    """A service has reported a conflict for a request's name for too long; whether it has the rows
    is unknown."""


class UnreadableOutput(ClonosError):
    """A file of delivered output is damaged."""


class StoreAway(ClonosError):
    """A store cannot be reached, or takes nothing, for the moment. It may be tried again.

    ``after_s``: only after this many seconds, if the store has said so.
    """

    after_s: float = 0.0


# --- what is on disk ------------------------------------------------------------------------------


class UnusableStore(ClonosError):
    """The URI of a store is wrong or its filesystem out of reach."""


class OtherContent(ClonosError):
    """Another file has the name of a file to be written."""


class UnreadableCheckpoint(ClonosError):
    """A checkpoint's description of its job cannot be read."""


class UnreadableLayer(ClonosError):
    """A stored layer is missing, damaged or of another version."""


class UnreadableJournal(ClonosError):
    """A journal's file is damaged before its end, or of another version."""


class JournalInUse(ClonosError):
    """Another process (or this one, twice) writes this journal."""


class JournalBroken(ClonosError):
    """A write failed: nothing can be committed until a rotation has succeeded."""


class UnreadableObjects(ClonosError):
    """Objects of a journal are damaged or missing."""


class UnreadableTerm(ClonosError):
    """It is not known to which driver a checkpoint belongs."""


class OtherJournal(ClonosError):
    """A checkpoint has been continued with another journal, or with a later state of this one."""


class Superseded(ClonosError):
    """Another driver has begun a later term."""


class CannotFence(ClonosError):
    """A file system cannot refuse one of two drivers that start at once."""


class NoTable(ClonosError):
    """There is no table at the given path."""


class RowsRemoved(ClonosError):
    """Rows that a reader has not read yet have been removed."""


class OtherTable(ClonosError):
    """A reader's offset belongs to another table than the one that is there now."""


class UnreadableTable(ClonosError):
    """A file of a table is damaged or cannot be reached."""


class OtherQuery(ClonosError):
    """Rows were taken from another streaming query, or this one has forgotten what it handed over,
    so nobody can tell which rows are new."""


# --- the past of a job ----------------------------------------------------------------------------


class UnreadableHistory(ClonosError):
    """A segment is of another version, or log entries are missing between two segments."""


class NothingKept(ClonosError):
    """A job keeps nothing of its past that another process could read."""


class NothingToReplay(ClonosError):
    """There is no checkpoint, or this process cannot read the rows of its sources."""


class UnreadableBundle(ClonosError):
    """A bundle is damaged, or has a format that this clonos cannot read."""


class BundleTooLarge(ClonosError):
    """A bundle would exceed its size limit."""


class Unanswered(ClonosError):
    """A function of a branch asks a question that neither the log nor a stand-in can answer."""
