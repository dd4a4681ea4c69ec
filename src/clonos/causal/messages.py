"""What a task and the house-keeper of its job say to each other: one request, one reply."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from clonos.core.codec import Codec


class Place(NamedTuple):
    """Whose log it is: one operator in one partition of one batch.

    ``scope`` is the id of a streaming query, or the name of a batch job's run.
    ``partition`` is -1 for the driver.
    """

    scope: str
    batch: int
    operator: str
    partition: int

    def __str__(self) -> str:
        where = "driver" if self.partition < 0 else self.partition
        return f"{self.operator}[{where}] of batch {self.batch} of {self.scope}"


@dataclass(frozen=True, slots=True)
class Open:
    """An attempt of a task begins: fence whoever is gone, say how much is held."""

    place: Place
    attempt: str
    process: str
    execution: str
    take_over: bool


@dataclass(frozen=True, slots=True)
class Append:
    """Entries for a log; answered when they are durable."""

    place: Place
    execution: str
    chunk: bytes


@dataclass(frozen=True, slots=True)
class Read:
    """The chunks from number `since` on; if there are none, wait so long for one."""

    place: Place
    since: int
    wait_ms: int


@dataclass(frozen=True, slots=True)
class Lookup:
    """The `rank`-th answer to a question in other partitions, by earlier executions."""

    place: Place
    execution: str
    digest: bytes
    rank: int


@dataclass(frozen=True, slots=True)
class Close:
    """An attempt has ended."""

    place: Place


@dataclass(frozen=True, slots=True)
class Beat:
    """The process that asks lives."""


@dataclass(frozen=True, slots=True)
class Truncate:
    """Everything of `scope` below a batch is committed (all of it: `below` is None)."""

    scope: str
    below: int | None


@dataclass(frozen=True, slots=True)
class Opened:
    """`owner`: only this attempt may append. `shared`: a Lookup may find something."""

    owner: bool
    length: int
    seed: bytes
    shared: bool


@dataclass(frozen=True, slots=True)
class Chunks:
    """What was read. `is_free`: nobody owns the log (any more)."""

    chunks: tuple[bytes, ...]
    is_free: bool


@dataclass(frozen=True, slots=True)
class Found:
    """A chunk of one entry, or nothing."""

    chunk: bytes | None


@dataclass(frozen=True, slots=True)
class Done:
    """It is so, and durable."""


@dataclass(frozen=True, slots=True)
class Refused:
    """It cannot be: the name of an error class of :mod:`clonos.causal.errors`, and why."""

    error: str
    what: str


WIRE: Final = Codec(
    {
        1: Open,
        2: Append,
        3: Read,
        4: Lookup,
        5: Close,
        6: Beat,
        7: Truncate,
        32: Opened,
        33: Chunks,
        34: Found,
        35: Done,
        36: Refused,
    }
)
