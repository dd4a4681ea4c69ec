"""What can go wrong with causal services in a Spark job; each says what to do."""

from __future__ import annotations

from clonos.errors import ClonosError


class CausalError(ClonosError):
    """Base of what the causal services of plain Spark jobs raise."""


class OutsideTask(CausalError):
    """A causal service was asked where no Spark task runs."""


class OnDriver(OutsideTask):
    """A causal service was asked on the driver, outside ``foreachBatch``."""


class NotConnected(CausalError):
    """The process has not been told which log to use."""


class LogUnreachable(CausalError):
    """The log does not answer, so nothing can be asked: the answer could not be kept."""


class LogFull(CausalError):
    """The log holds as many bytes as it may."""


class LogBroken(CausalError):
    """The log could not be written; what is on its disk is unknown until it is opened again."""


class Fenced(CausalError):
    """Another attempt of this task has taken over its log."""


class BelowFloor(CausalError):
    """The batch has been committed, and its answers are gone."""


class OperatorUsedTwice(CausalError):
    """Two operators of one stage have the same name: their answers could not be told apart."""


class ServiceTooSlow(CausalError, TimeoutError):
    """A call did not end within its time."""


class UnsupportedSession(CausalError):
    """The log cannot be kept beside the driver of such a session."""


class UnsupportedQuery(CausalError):
    """A streaming query is set up so that what was promised about its answers cannot be kept."""


class OtherRows(CausalError):
    """An attempt of a batch has other rows than the one before it had."""
