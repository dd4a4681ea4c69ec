"""The record of a step: its cause, then what it asked of the world, in order.

A record is one log entry, the entry of one step. It is a flat msgpack array of kinds, each
followed by its fields (:data:`ARITY` says how many), a few bytes for the usual
"one batch of channel c".
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import msgpack

from clonos.core.calls import Outcome
from clonos.core.plan import Incarnation
from clonos.errors import ProtocolError


class Cause(IntEnum):
    """Kinds of determinants: those in :data:`CAUSES` begin a record, the others follow."""

    SOURCE = 0
    SOURCE_END = 1
    ORDER = 2
    TIMER = 3
    MARKER = 4
    CLOCK = 5
    CALL = 6
    OUTCOMES = 7
    SOURCE_CUT = 8
    LEFT_OUT = 9


class Source(NamedTuple):
    """A batch was cut here: number and digest of its rows; their content if they cannot be read
    again."""

    rows: int
    digest: int
    content: bytes | None


class SourceEnd(NamedTuple):
    """The source has ended."""


class Order(NamedTuple):
    """`taken` items of `channel` were taken; the last was made by its sender's step `position`."""

    channel: int
    taken: int
    position: int
    term: int
    n: int

    @property
    def incarnation(self) -> Incarnation:
        return Incarnation(self.term, self.n)


class Timer(NamedTuple):
    """The wake-up came; processing time was `now_ms`."""

    now_ms: int


class Marker(NamedTuple):
    """A marker for `epoch` entered here."""

    epoch: int


class Clock(NamedTuple):
    """The step read the clock."""

    now_ms: int


class Call(NamedTuple):
    """A function outside the automaton was called and gave `answer` (an error if not `ok`)."""

    arguments: int
    ok: bool
    answer: bytes


class Outcomes(NamedTuple):
    """Calls that were asked in earlier steps came to an end, in this order.

    At most :data:`~clonos.core.calls.OUTCOMES_MAX`.
    """

    outcomes: Sequence[Outcome]


class SourceCut(NamedTuple):
    """Like :class:`Source`, where a number of rows does not say which rows: `cut` is the reader's
    own position for them. Without rows, it says where the reader begins."""

    rows: int
    digest: int
    cut: bytes


class LeftOut(NamedTuple):
    """These of the rows that the step takes, by number from 0, are not handled: they kill the
    process. The second entry of a record, if there is one."""

    rows: Sequence[int]


Determinant = (
    Source | SourceEnd | Order | Timer | Marker | Clock | Call | Outcomes | SourceCut | LeftOut
)

KINDS: tuple[type[Any], ...] = (
    Source,
    SourceEnd,
    Order,
    Timer,
    Marker,
    Clock,
    Call,
    Outcomes,
    SourceCut,
    LeftOut,
)
ARITY = tuple(len(kind._fields) for kind in KINDS)
NUMBER: dict[type[Any], int] = {kind: number for number, kind in enumerate(KINDS)}
CAUSES = frozenset({*range(Cause.MARKER + 1), Cause.OUTCOMES, Cause.SOURCE_CUT})


def encode_record(determinants: Sequence[Determinant]) -> bytes:
    """The log entry of one step.

    Examples
    --------
    >>> len(encode_record([Order(3, 1, 70, 1, 0)]))
    7
    """
    flat: list[Any] = []
    for determinant in determinants:
        flat.append(NUMBER[type(determinant)])
        flat.extend(determinant)
    packed: bytes = msgpack.packb(flat)
    return packed


def in_parts(
    record: Sequence[Determinant],
) -> tuple[Determinant, Sequence[int], Sequence[Determinant]]:
    """The cause of a step, the rows that it leaves out, and what it has asked.

    Examples
    --------
    >>> in_parts([Timer(7), Clock(7)])
    (Timer(now_ms=7), (), [Clock(now_ms=7)])
    >>> in_parts([Order(3, 1, 70, 1, 0), LeftOut([5])])
    (Order(channel=3, taken=1, position=70, term=1, n=0), [5], [])
    """
    cause, *asked = record
    if asked and isinstance(asked[0], LeftOut):
        return cause, asked[0].rows, asked[1:]
    return cause, (), asked


def decode_record(record: bytes) -> list[Determinant]:
    """Inverse of :func:`encode_record`; anything else raises `ProtocolError`."""
    try:
        flat = msgpack.unpackb(record)
        result: list[Determinant] = []
        i = 0
        while i < len(flat):
            number = flat[i]
            end = i + 1 + ARITY[number]
            result.append(KINDS[number](*flat[i + 1 : end]))
            i = end
        if result and isinstance(result[0], Outcomes):
            result[0] = Outcomes(tuple(Outcome(*fields) for fields in result[0].outcomes))
    except (ValueError, TypeError, IndexError, msgpack.UnpackException) as error:
        raise ProtocolError(f"unreadable log entry: {error}") from error
    if not result or NUMBER[type(result[0])] not in CAUSES:
        raise ProtocolError("a log entry does not begin with the cause of its step")
    return result
