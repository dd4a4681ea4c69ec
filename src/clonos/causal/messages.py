"""Messages between a task and the log of its job: each request has one reply, matched by ticket."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from clonos.transport.events import WIRE


class AnswerKey(NamedTuple):
    """Identifies a log: one operator in one partition of one batch.

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
    """An attempt of a task begins: fence an attempt that is gone, and report the log's length."""

    key: AnswerKey
    attempt: str
    process: str
    execution: str
    take_over: bool
    ticket: int


@dataclass(frozen=True, slots=True)
class Append:
    """Append entries; answered when they are durable."""

    key: AnswerKey
    execution: str
    chunk: bytes
    ticket: int


@dataclass(frozen=True, slots=True)
class Read:
    """Read the chunks from number `since` on; if there are none, wait up to `wait_s` for one."""

    key: AnswerKey
    since: int
    wait_ms: int
    ticket: int


@dataclass(frozen=True, slots=True)
class Lookup:
    """The `rank`-th answer to a question in other partitions, by earlier executions."""

    key: AnswerKey
    execution: str
    digest: bytes
    rank: int
    ticket: int


@dataclass(frozen=True, slots=True)
class Close:
    """An attempt has ended."""

    key: AnswerKey
    ticket: int


@dataclass(frozen=True, slots=True)
class Beat:
    """A heartbeat of the client."""

    ticket: int


@dataclass(frozen=True, slots=True)
class Forget:
    """Everything of `scope` is committed."""

    scope: str
    ticket: int


@dataclass(frozen=True, slots=True)
class Opened:
    """`owner`: only this attempt may append. `shared`: a Lookup may find something."""

    owner: bool
    length: int
    seed: bytes
    shared: bool
    ticket: int = 0


@dataclass(frozen=True, slots=True)
class Chunks:
    """The chunks read. `is_free`: the log has no owner (any more)."""

    chunks: tuple[bytes, ...]
    is_free: bool
    ticket: int = 0


@dataclass(frozen=True, slots=True)
class Found:
    """A chunk of one entry, or nothing."""

    chunk: bytes | None
    ticket: int


@dataclass(frozen=True, slots=True)
class Done:
    """The request was carried out, durably."""

    ticket: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The request failed, with this error class of :mod:`clonos.causal.errors` and its parts."""

    error: str
    what: str
    remedy: str
    ticket: int


ANSWERS: Final = WIRE.extended(
    {
        128: Open,
        129: Append,
        130: Read,
        131: Lookup,
        132: Close,
        133: Beat,
        134: Forget,
        160: Opened,
        161: Chunks,
        162: Found,
        163: Done,
        164: Failed,
    }
)
"""All messages between clients and the log. Causal services use the numbers from 128 on."""
