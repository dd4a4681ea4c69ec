"""Errors that the log reports, and those that need more words."""

from __future__ import annotations

from clonos.errors import causal
from clonos.errors.causal import BelowFloor, CausalError, Fenced, LogFull, OperatorUsedTwice


def named(name: str) -> type[CausalError]:
    """Return the class of an error that the log reported by name."""
    kind = getattr(causal, name, None)
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
        f"two processes of one task attempt both ask as {key}",
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
