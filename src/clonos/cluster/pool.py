"""The job's slots: how many, launched on Spark, relaunched when they end, known by their streams.

A *place* is a slot that the job wants to have; when its process dies it is launched again and
registers as a new slot (its control stream's number is its name from then on).
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from clonos.core import coordinator as co
from clonos.core import messages as msg
from clonos.errors import ClonosError
from clonos.graph.compile import CompiledJob
from clonos.runtime.shipment import Shipment
from clonos.runtime.slot import body
from clonos.transport.events import ControlOpened
from clonos.transport.streams import Incoming

RELAUNCH_S: Final = 0.5
"""A place that fails again at once is launched again only after this time, doubled each time."""
RELAUNCH_MAX: Final = 8
"""... and so often in a row without ever registering."""


@dataclass
class Seat:
    """A registered slot."""

    place: int
    pid: int
    executor: str
    executor_pid: int
    incoming: Incoming


class SlotPool:
    """Launches and knows the slots of one job.

    Parameters
    ----------
    standby_slots
        Slots beyond one per task, for the standbys of tasks that any slot can run; the standbys
        of tasks that read a DataFrame need slots of their own. Default: enough for each such
        task's copies, two to a slot.
    """

    def __init__(
        self,
        spark: Any,
        compiled: CompiledJob,
        shipment: Shipment,
        inbox: queue.SimpleQueue[Any],
        standby_slots: int | None,
    ) -> None:
        from clonos.spark.slots import SlotLauncher

        self._compiled = compiled
        self._shipment = shipment
        self._inbox = inbox
        self._launcher = SlotLauncher(spark, compiled.name, self._on_end)
        self._places = places(compiled, standby_slots)
        self._seats: dict[int, Seat] = {}
        self._failures: dict[int, int] = {}
        self._closing = False
        self._handles: dict[int, Any] = {}
        self._lock = threading.Lock()
        self.bound = frozenset(task for task in self._places if task is not None)

    @staticmethod
    def count(compiled: CompiledJob, standby_slots: int | None = None) -> int:
        """How many slots, and so cores of Spark, a job needs."""
        return len(places(compiled, standby_slots))

    # --- Spark ----------------------------------------------------------------------------------

    def require(self) -> None:
        """Raise NotEnoughSlots unless Spark can run them all."""
        self._launcher.require(len(self._places))

    def launch_all(self) -> None:
        for place in range(len(self._places)):
            self._launch(place)

    def _launch(self, place: int) -> None:
        task = self._places[place]
        with self._lock:
            if self._closing:
                return
            if task is None:
                handle = self._launcher.launch(
                    place, body(self._shipment), description="standby or task"
                )
            else:
                code = self._compiled.codes[task]
                assert code.source is not None
                handle = self._launcher.launch(
                    place,
                    body(self._shipment),
                    dataframe=_partitioned(code.source.dataframe, code.parallelism),
                    partition=code.task.index,
                    description=code.task.name,
                )
            self._handles[place] = handle

    def _on_end(self, place: int, error: ClonosError | None) -> None:
        """A slot's Spark job is over (called from a thread of the launcher)."""
        if self._closing:
            return
        failures = self._failures[place] = self._failures.get(place, 0) + 1
        if failures > RELAUNCH_MAX:
            self._inbox.put(
                error or ClonosError("a slot ends again and again", where=f"slot {place}")
            )
            return
        if failures > 1:
            time.sleep(min(RELAUNCH_S * 2 ** (failures - 2), 10.0))
        self._launch(place)

    def shutdown(self, patience_s: float = 5.0) -> None:
        """Wait for the slots to leave; cancel those that do not."""
        with self._lock:
            self._closing = True
        until = time.monotonic() + patience_s
        for handle in self._handles.values():
            if not handle.join(max(0.0, until - time.monotonic())):
                handle.cancel()
        for handle in self._handles.values():
            handle.join(patience_s)

    # --- registered slots -----------------------------------------------------------------------

    def registered(self, event: ControlOpened) -> co.SlotReady:
        """A slot has come.

        Raises
        ------
        ClonosError
            It runs other versions than the driver.
        """
        register = event.register
        mine = sys.version_info[:2]
        theirs = tuple(int(part) for part in register.python.split(".")[:2])
        if theirs != mine or register.pyarrow != pa.__version__:
            raise ClonosError(
                f"the executor runs Python {register.python} and PyArrow {register.pyarrow}, the "
                f"driver {'.'.join(map(str, mine))} and {pa.__version__}",
                where=f"slot {register.slot} on {register.host}",
                remedy="make both the same (spark.pyspark.python): a replay has to be bit-exact",
            )
        self._failures[register.slot] = 0
        group = f"{register.host}/{register.jvm_pid}"
        self._seats[event.conn_id] = Seat(
            register.slot, register.pid, register.executor, register.jvm_pid, event.incoming
        )
        return co.SlotReady(event.conn_id, register.address, group, self._places[register.slot])

    def lost(self, slot: int) -> None:
        self._seats.pop(slot, None)

    def expel(self, slot: int) -> None:
        """Cut off a slot that does not answer: it leaves when it sees its stream end."""
        seat = self._seats.pop(slot, None)
        if seat is not None:
            seat.incoming.close()

    def command(self, slot: int, command: msg.Command) -> None:
        seat = self._seats.get(slot)
        if seat is not None:
            seat.incoming.reply(command)

    def view(self, slot: int | None) -> Seat | None:
        return self._seats.get(slot) if slot is not None else None


def places(compiled: CompiledJob, standby_slots: int | None) -> list[int | None]:
    """One entry per slot that the job wants: the only task it can run, or None for any."""
    copies = compiled.options.standbys
    bound = [c.task.id for c in compiled.codes if c.source and c.source.dataframe is not None]
    free = len(compiled.codes) - len(bound)
    if standby_slots is None:
        standby_slots = max(copies, -(-free * copies // 2)) if copies else 0
    return [*([None] * free), *([None] * standby_slots), *(bound * (1 + copies))]


def _partitioned(frame: Any, parallelism: int) -> Any:
    """A DataFrame with one partition per task."""
    if frame.rdd.getNumPartitions() == parallelism:
        return frame
    return (
        frame.coalesce(parallelism)
        if _has_more(frame, parallelism)
        else frame.repartition(parallelism)
    )


def _has_more(frame: Any, parallelism: int) -> bool:
    return bool(frame.rdd.getNumPartitions() > parallelism)
