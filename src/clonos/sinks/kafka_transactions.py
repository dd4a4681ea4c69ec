"""Each row once into a topic: the transactions behind ``sinks.kafka``.

Each lane has a transactional id. When a producer takes the id, brokers abort the transactions of
older producers and refuse their later ones. A transaction has the rows of a group, and the lane's
*mark* as one more message, to a compacted topic. So a new life first takes the id, and then reads
the mark.

Brokers know in which order producers have taken an id, but not which life is newer: a frozen old
life may wake up and take it back. Therefore the mark includes the incarnation, and is written when
a life begins. A life that finds a higher incarnation is fenced. A life that is refused opens the
session again, and finds out.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import pyarrow as pa

from clonos.errors import Fenced
from clonos.sinks.kafka_messages import Format, Message
from clonos.sinks.lanes import Lane, OutputKey
from clonos.sinks.transactions import mark_lost

MARKS: Final = "clonos-marks"
"""The compacted topic of marks, by the lane's name."""


class Session(Protocol):
    """One producer of a transactional id.

    All its exceptions are :class:`~clonos.errors.ClonosError`. ``StoreAway`` means that the outcome
    of a transaction is unknown, or that another producer has taken the id; opening again shows
    which.
    """

    def take(self) -> None:
        """Take the id: older producers' transactions are aborted, and they can begin no more."""

    def last_mark(self) -> bytes | None:
        """The newest committed mark of the lane."""

    def begin(self) -> None:
        """Begin a transaction."""

    def send(self, message: Message) -> None:
        """Send a row in the transaction."""

    def send_mark(self, mark: bytes) -> None:
        """Send the lane's mark in the transaction."""

    def commit(self) -> None:
        """Commit. If this raises, the outcome is unknown."""

    def close(self) -> None:
        """Close the producer, whatever its state."""


@dataclass(frozen=True)
class Mark:
    """How far a lane has written, and by which of its lives.

    Examples
    --------
    >>> Mark.decode(Mark(7, OutputKey(0, 4711)).encode()).last
    OutputKey(generation=0, seq=4711)
    """

    incarnation: int
    last: OutputKey | None

    def encode(self) -> bytes:
        """The message's value: JSON, so that people can read it."""
        return json.dumps({"incarnation": self.incarnation, "last": self.last}).encode()

    @classmethod
    def decode(cls, value: bytes) -> Mark:
        """Inverse of :meth:`encode`; raises `ValueError` for anything else."""
        try:
            found = json.loads(value)
            last = found["last"]
            return cls(int(found["incarnation"]), None if last is None else OutputKey(*last))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not a mark: {value!r}") from error


@dataclass
class Opened:
    """A session that owns the lane's id, and the lane's mark."""

    session: Session
    last: OutputKey | None


@dataclass(frozen=True)
class KafkaTransactions:
    """The :class:`~clonos.sinks.transactions.Transactions` of a topic.

    Parameters
    ----------
    connect
        Makes a lane's session.
    format
        How rows become messages.
    """

    connect: Callable[[Lane], Session]
    format: Format

    def open(self, lane: Lane) -> Opened:
        session = self.connect(lane)
        try:
            session.take()
            found = self._found(session, lane)
            if found.incarnation > lane.incarnation:
                raise Fenced(
                    "a later life of the task writes to the topic",
                    where=lane.task,
                    remedy="nothing, if the job goes on elsewhere; otherwise check that no second "
                    "driver has the same checkpoint_dir",
                )
            session.begin()
            session.send_mark(Mark(lane.incarnation, found.last).encode())
            session.commit()
        except BaseException:
            session.close()
            raise
        return Opened(session, found.last)

    def _found(self, session: Session, lane: Lane) -> Mark:
        value = session.last_mark()
        if value is None:
            return Mark(0, None)
        try:
            return Mark.decode(value)
        except ValueError as error:
            raise mark_lost(lane, str(error)) from None

    def last_key(self, db: Opened, lane: Lane) -> tuple[int, int] | None:
        return db.last

    def write(
        self,
        db: Opened,
        lane: Lane,
        outputs: list[pa.RecordBatch],
        before: OutputKey | None,
        last: OutputKey,
    ) -> None:
        # The mark is still `before`: another producer could move it only after taking the id.
        db.session.begin()
        for batch in outputs:
            for message in self.format.messages(batch):
                db.session.send(message)
        db.session.send_mark(Mark(lane.incarnation, last).encode())
        db.session.commit()
        db.last = last

    def close(self, db: Opened) -> None:
        with contextlib.suppress(Exception):
            db.session.close()

    def is_away(self, error: Exception) -> bool:
        return False  # sessions translate their errors
