"""The house-keeper with its journal: group commit, delivery, rotation, restart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from clonos.columns.batches import from_bytes, to_bytes
from clonos.core import events as ev
from clonos.core import messages as msg
from clonos.core.housekeeper import Deliver, HouseKeeper
from clonos.core.messages import Kind
from clonos.core.plan import Plan
from clonos.core.program import Batch
from clonos.sinks.delivered import DeliveredStore
from clonos.storage.files import Durability
from clonos.storage.journal import Journal
from clonos.transport.events import ChannelClosed, ChannelOpened, Connection

ROTATE_BYTES: Final = 64 << 20
"""A journal segment is replaced by a snapshot at the next floor after it has grown so large."""


def _encode(batch: Batch) -> bytes:
    return to_bytes(batch.payload) if batch.rows else b""


def _decode(content: bytes) -> pa.RecordBatch | None:
    return from_bytes(content) if content else None


class KeeperHost:
    """Gives the sans-I/O :class:`~clonos.core.housekeeper.HouseKeeper` its disk and its streams.

    Parameters
    ----------
    directory
        Of the job: journal and delivered output live there. One process at a time.
    deliver
        Called with every output once it is durable, in order per sink task.
    """

    def __init__(
        self,
        plan: Plan,
        directory: Path,
        durability: Durability,
        deliver: Callable[[Deliver], None],
    ) -> None:
        self.keeper = HouseKeeper(plan, _encode, _decode)
        self.delivered = DeliveredStore(directory / "delivered", durability)
        self._plan = plan
        self._deliver = deliver
        self._journal = Journal(directory / "journal", durability)
        self._open: dict[int, tuple[int, Connection]] = {}
        self._fresh: dict[tuple[int, int], list[Deliver]] = {}
        try:
            self._recovered = self.keeper.recover(self._journal.replay())
        except BaseException:
            self.close()
            raise

    def redeliver(self) -> None:
        """Hand over again what is still in the journal: nobody knows how far it came before."""
        recovered, self._recovered = self._recovered, []
        for output in recovered:
            self._take(output)

    # --- streams ------------------------------------------------------------------------------

    def opened(self, event: ChannelOpened) -> None:
        self._open[event.conn_id] = (event.channel, event.incoming)
        self.keeper.handle(ev.Opened(event.channel, event.conn_id, event.sender_incarnation))

    def closed(self, event: ChannelClosed) -> None:
        if self._open.pop(event.conn_id, None) is not None:
            self.keeper.handle(ev.InputClosed(event.channel, event.conn_id))

    def heard(self, conn: int, message: Any) -> None:
        known = self._open.get(conn)
        if known is not None and isinstance(message, (msg.Data, msg.Welcome)):
            self.keeper.handle(ev.Received(known[0], conn, message))

    # --- the journal --------------------------------------------------------------------------

    def commit(self) -> None:
        """Make everything so far durable, then answer for it and let it out."""
        records = self.keeper.take_records()
        if records:
            self._journal.append(records)
            self._journal.commit()
        actions, delivered = self.keeper.committed()
        for action in actions:
            self._perform(action)
        for output in delivered:
            self._take(output)

    def _perform(self, action: ev.Action) -> None:
        if isinstance(action, ev.Reply):
            known = self._open.get(action.conn)
            if known is not None:
                known[1].send(action.message)
        elif isinstance(action, ev.Refuse):
            known = self._open.pop(action.conn, None)
            if known is not None:
                known[1].close()

    def _take(self, output: Deliver) -> None:
        batch = output.item.batch
        if output.item.kind is Kind.BATCH and batch is not None and batch.payload is not None:
            self._fresh.setdefault((output.channel, output.generation), []).append(output)
        self._deliver(output)

    def rotate_if_large(self) -> None:
        """At a floor: replace the journal by a snapshot, delivered output by files."""
        if self._journal.nbytes >= ROTATE_BYTES:
            self.rotate()

    def rotate(self) -> None:
        self.commit()
        self.flush()
        self._journal.rotate(self.keeper.snapshot())

    def flush(self) -> None:
        """Put what was delivered since the last time into files."""
        for (channel, generation), outputs in self._fresh.items():
            task = self._plan.tasks[self._plan.channels[channel].sender]
            numbers = [output.item.seq for output in outputs]
            assert task.sink is not None
            self.delivered.write(
                task.sink,
                task.index,
                generation,
                numbers[0],
                numbers[-1],
                [o.item.batch.payload for o in outputs if o.item.batch is not None],
                seqs=numbers,
            )
        self._fresh.clear()

    def close(self) -> None:
        self._journal.close()
