"""Errors of causal services in a Spark job; each says what to do."""

from __future__ import annotations

from clonos.errors.base import ClonosError
from clonos.errors.base import Fenced as AnyFenced


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
