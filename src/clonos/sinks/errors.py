"""Errors of sinks whose tasks write themselves."""

from __future__ import annotations

from typing import Final

from clonos.errors import ClonosError

NO_FORMAT: Final = (
    "see Spark's error; a format of another package needs its jars: spark.jars.packages"
)
"""What to do if Spark does not begin to write."""


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
