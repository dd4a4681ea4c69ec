"""The writers of a slot's sinks: a thread for each life of a task, which writes groups.

A group is all output that was released while the group before was written: one output if there is
time, and many if there is not. So rows are visible as soon as possible, and a backlog costs few
transactions.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from clonos.blame import in_short, users_traceback
from clonos.core import events as ev
from clonos.core.plan import Incarnation
from clonos.errors import SinkFailed
from clonos.nodes.events import WorkFailed, Wrote
from clonos.runtime.shipment import Shipment
from clonos.sinks.lanes import Output, OutputKey, OutputWriter, incarnation_number
from clonos.storage.retry import Retry
from clonos.transport.inbox import Inbox

GROUP_ROWS: Final = 100_000
"""A group takes no further output once it has this many rows, ..."""
GROUP_BYTES: Final = 16 << 20
"""... or bytes: so transactions are short, and little is written again if a group fails."""


class Writers:
    """The writers of sinks that write themselves. The output of each is written in order.

    If a sink's store is away or full, writing is retried as long as that life of the task is in the
    slot.
    """

    def __init__(self, shipment: Shipment, inbox: Inbox) -> None:
        self._shipment, self._inbox = shipment, inbox
        self._newest: dict[int, TaskWriter] = {}  # by task

    def of(self, task: int, incarnation: Incarnation) -> TaskWriter | None:
        """The writer of a new life of a task; output that its last life has not written is given
        up."""
        make = self._shipment.writers.get(task)
        if make is None:
            return None
        if task in self._newest:
            self._newest[task].close()
        writer = make(incarnation_number(incarnation.term, incarnation.n))
        name = self._shipment.plan.tasks[task].name
        made = self._newest[task] = TaskWriter(writer, self._inbox, f"output of {name}")
        return made

    def close(self) -> None:
        for writer in self._newest.values():
            writer.close()


class TaskWriter:
    """A :class:`~clonos.nodes.ports.Writer` for one life of a task.

    After a failure it writes nothing more: a sink that keeps a mark would take the missing output
    as written.

    Parameters
    ----------
    what
        For the warning while the store is away.
    """

    def __init__(self, writer: OutputWriter, inbox: Inbox, what: str) -> None:
        self._writer, self._inbox = writer, inbox
        self._is_over = threading.Event()
        self._retry = Retry(what, self._is_over.wait)
        self._waiting: deque[ev.Release] = deque()  # filled by the loop, emptied by the thread
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="clonos-write")
        self._since_s: float | None = None  # when the group under way was first tried

    @property
    def away_s(self) -> float:
        since_s = self._since_s  # a store that is frozen says nothing
        return 0.0 if since_s is None else time.monotonic() - since_s

    def write(self, life: int, output: ev.Release) -> None:
        self._waiting.append(output)
        self._pool.submit(self._write_group, life)

    def close(self) -> None:
        """The life is over: the group under way is the last."""
        self._is_over.set()
        self._pool.submit(self._writer.close)
        self._pool.shutdown(wait=False)

    def _write_group(self, life: int) -> None:
        if self._is_over.is_set() or not self._waiting:
            return  # earlier groups have taken the output for which this was called
        channel, outputs = self._take()
        self._since_s = time.monotonic()
        try:
            self._retry(lambda: self._writer.write(outputs))
        except BaseException as error:  # noqa: BLE001 - the node decides what it means
            self._is_over.set()
            if not isinstance(error, Exception):  # a panic of a library, say
                error = SinkFailed(in_short(error), trace=users_traceback(error))
            self._inbox.put(WorkFailed(life, error))
        else:
            self._since_s = None
            self._inbox.put(Wrote(life, channel, outputs[-1].key.seq))

    def _take(self) -> tuple[int, list[Output]]:
        """Take a group. Return its channel and its outputs."""
        outputs: list[Output] = []
        channel = self._waiting[0].channel
        rows = nbytes = 0
        while self._waiting and rows < GROUP_ROWS and nbytes < GROUP_BYTES:
            release = self._waiting.popleft()
            batch = release.item.batch
            assert batch is not None
            outputs.append(Output(OutputKey(release.generation, release.item.seq), batch.payload))
            rows, nbytes = rows + batch.rows, nbytes + batch.nbytes
        return channel, outputs
