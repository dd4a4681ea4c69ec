"""Errors of causal services in a Spark job; each says what to do."""

from __future__ import annotations

from clonos.errors import ClonosError
from clonos.errors import Fenced as AnyFenced


class CausalError(ClonosError):
    """Base of the errors of causal services."""


class OutsideTask(CausalError):
    """A causal service was called where no Spark task runs."""


class OnDriver(OutsideTask):
    """A causal service was called on the driver, outside ``foreachBatch``."""


class NotConnected(CausalError):
    """The process has not been told which log to use."""


class LogUnreachable(CausalError):
    """The log does not answer, so no call is made, because its answer could not be kept."""


class LogFull(CausalError):
    """The log has reached its limit of bytes."""


class LogBroken(CausalError):
    """The log could not be written; what is on its disk is unknown until it is opened again."""


class Fenced(CausalError, AnyFenced):
    """Another attempt of this task has taken over its log."""


class BelowFloor(CausalError):
    """The batch was committed, and its answers were deleted."""


class OperatorUsedTwice(CausalError):
    """Two operators of one stage have the same name, so their answers cannot be told apart."""


class ServiceTooSlow(CausalError, TimeoutError):
    """A call did not end within its time limit."""


class NotIdempotent(CausalError):
    """An effect is not idempotent, so a retried task might make it twice."""


class UnsupportedSession(CausalError):
    """With this kind of session, the log cannot be kept beside the driver."""


class UnsupportedQuery(CausalError):
    """A streaming query has options with which answers cannot be guaranteed."""


class OtherRows(CausalError):
    """An attempt of a batch has other rows than the previous attempt."""


def named(name: str) -> type[CausalError]:
    """Return the class of an error that the log reported by name."""
    kind = globals().get(name)
    return kind if isinstance(kind, type) and issubclass(kind, CausalError) else CausalError


def fenced(key: object) -> Fenced:
    """The error of an attempt whose log another attempt has taken over."""
    return Fenced(
        f"another attempt has taken over {key}",
        remedy="nothing: this attempt ends, the other one goes on with the same answers",
    )


def below_floor(key: object, newest: int) -> BelowFloor:
    """The error of an attempt whose batch is older than the `newest` one."""
    return BelowFloor(
        f"{key} asks, but batch {newest} has begun: this one was committed",
        remedy="if it is a leftover of a lost executor, nothing; if you have reset the query's "
        "checkpoint, tell the log: log.forget(query_id)",
    )


def used_twice(key: object) -> OperatorUsedTwice:
    """The error of an attempt whose log belongs to another process of the same attempt."""
    return OperatorUsedTwice(
        f"two processes of one task attempt ask as {key}",
        remedy="give one of the two functions that you hand to Spark another name: "
        'causal.operator(fn, name="...")',
    )


def full(key: object, more: int, used: int, bytes_max: int) -> LogFull:
    """The error of an answer for which there is no room."""
    return LogFull(
        f"{key} has {more} bytes more, and {used} of {bytes_max} bytes are in use",
        remedy="make batches smaller, end finished runs (log.done()), raise the limit "
        "(causal.start(bytes_max=...)) or use a PostgreSQL store",
    )
