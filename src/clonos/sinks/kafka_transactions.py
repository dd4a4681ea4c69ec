"""Rows into a topic, each once: what stands behind ``sinks.kafka``.

Each lane has a transactional id. Who begins to use it has every older user's transactions aborted
and its later ones refused. A transaction has the rows of a group, and the lane's *mark* as one more
message, to a compacted topic. So a new life takes the id first, and reads the mark then.

Brokers know an order of those who have taken an id, not which life is the younger one: a life that
wakes up late may take it back. Therefore the mark has the incarnation, too, and is written when a
life begins. Who finds a higher one there is fenced; who is refused opens again, and finds out.
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
    """One user of a transactional id.

    Whatever it raises is a :class:`~clonos.errors.ClonosError`. ``StoreAway``: what came of a
    transaction is open, or another one uses the id now; whoever opens again finds out.
    """

    def take(self) -> None:
        """Use the id: transactions of older users are over, and they can make no more."""

    def last_mark(self) -> bytes | None:
        """The newest mark of the lane that is committed."""

    def begin(self) -> None:
        """Begin a transaction."""

    def send(self, message: Message) -> None:
        """Send a row with it."""

    def send_mark(self, mark: bytes) -> None:
        """Send the lane's mark with it."""

    def commit(self) -> None:
        """All of it is there, or (when this raises) perhaps nothing."""

    def close(self) -> None:
        """Let go, whatever the state."""


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
        """The message's value: JSON, for people who look."""
        return json.dumps({"incarnation": self.incarnation, "last": self.last}).encode()

    @classmethod
    def decode(cls, value: bytes) -> Mark:
        """Inverse of :meth:`encode`; `ValueError` for anything else."""
        try:
            found = json.loads(value)
            last = found["last"]
            return cls(int(found["incarnation"]), None if last is None else OutputKey(*last))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not a mark: {value!r}") from error


@dataclass
class Opened:
    """A session whose id is ours, and what the topic has of the lane."""

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
        # Nobody else has moved the mark from `before`: the id would not be ours.
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
        return False  # what sessions raise is translated
