"""The process of a slot: the adapters behind the ports of its node in production.

One thread turns the node and sleeps on its connections; while that thread runs user code, another
one does so (:mod:`clonos.runtime.relief`). Other threads read and write layers and output, and only
put the outcomes into the inbox.
"""

from __future__ import annotations

import threading
import time
import traceback
from pathlib import Path
from typing import Any

import pyarrow as pa

from clonos.blame import users_lines
from clonos.core.dial import Dial
from clonos.core.levels import SHELF
from clonos.core.plan import Incarnation
from clonos.core.program import Program
from clonos.errors import SlotBroken
from clonos.nodes.events import RowsReady
from clonos.nodes.ports import SlotPorts
from clonos.nodes.slot import DISK_BYTES, SlotNode
from clonos.operators.chain import ChainProgram
from clonos.runtime.calls import CallRunner
from clonos.runtime.layers import Layers
from clonos.runtime.memory_left import MemoryLeft
from clonos.runtime.relief import MainTrack, serve
from clonos.runtime.scratch import LocalScratch
from clonos.runtime.shelf import LocalShelf
from clonos.runtime.shipment import Shipment
from clonos.runtime.ticks import ticks_s
from clonos.runtime.world import RealWorld
from clonos.runtime.writers import Writers
from clonos.sources.prefetch import PrefetchThread
from clonos.transport.events import STUCK_MS, Register
from clonos.transport.inbox import Inbox
from clonos.transport.plane import Plane


class Ticks:
    """The clock of this process."""

    ticks_s = staticmethod(ticks_s)


class Sources:
    """The :class:`~clonos.nodes.ports.Sources` of a slot: a thread per reader.

    Parameters
    ----------
    batches
        Rows of the DataFrame partition that Spark reads for this slot, if there is one.
    """

    def __init__(self, shipment: Shipment, batches: Any, inbox: Inbox) -> None:
        self._shipment, self._batches, self._inbox = shipment, batches, inbox
        self.can_reopen = batches is None

    def open(self, task: int) -> PrefetchThread:
        shipment = self._shipment
        return PrefetchThread(
            shipment.readers[task](self._batches),
            lambda: self._inbox.put(RowsReady()),
            batch_rows_max=shipment.batch_rows_max,
            linger_s=shipment.linger_ms / 1000,
            rows_per_s=shipment.rates.get(task, 0.0),
            digests=shipment.plan.causal_log,
        )


class SlotLoop:
    """One slot, from registration to the end of the job.

    Parameters
    ----------
    shipment
        The job.
    slot
        Which one.
    host
        Address of the interface to listen on.
    batches
        See :class:`Sources`.
    """

    def __init__(self, shipment: Shipment, slot: int, host: str, batches: Any = None) -> None:
        self._shipment = shipment
        inbox = Inbox()
        self._plane = Plane(
            host,
            shipment.secret,
            shipment.job_id,
            inbox,
            identity=shipment.identities.get(slot),
            allow_plaintext=shipment.allow_plaintext,
        )
        for channel, schema in shipment.schemas.items():
            self._plane.pin(channel, schema)
        self._plane.pin(SHELF, pa.schema([]))
        self._track = MainTrack(inbox.ring)
        self._world = RealWorld()
        self._layers = Layers(
            shipment.layers_uri,
            shipment.layers_durability,
            inbox,
            [task.level for task in shipment.plan.tasks],
            shipment.local_dir,
        )
        self._writers = Writers(shipment, inbox)
        self._calls = CallRunner(inbox.put)
        self._shelf = LocalShelf()
        self._scratch = LocalScratch(inbox.put, digests=shipment.plan.causal_log)
        ports = SlotPorts(
            network=self._plane,
            clock=Ticks(),
            track=self._track,
            store=self._layers,
            sources=Sources(shipment, batches, inbox),
            programs=self._program_of,
            worlds=self._world_of,
            writers=self._writers.of,
            calls=self._calls,
            scratch=self._scratch,
            memory=MemoryLeft(),
        )
        self._node = SlotNode(
            shipment.plan,
            ports,
            share_s=shipment.share_ms / 1000,
            seals=shipment.seals,
            unreachable_s=shipment.unreachable_s,
            memory_bytes=shipment.inflight_bytes,
            disk_bytes=DISK_BYTES if shipment.spills else 0,
            log_bytes=shipment.log_bytes,
            dials=lambda: Dial(shipment.levels, shipment.late_s, shipment.quiet_s),
        )

    def _program_of(self, task: int) -> Program:
        """The program of a task. Tasks of a slot share its memory, and so do copies: they may run
        next."""
        shipment = self._shipment
        program = shipment.programs[task]()
        if isinstance(program, ChainProgram):
            program.use(self._shelf, shipment.state_memory // len(shipment.plan.cell_of[task]))
        return program

    def _world_of(self, task: int, incarnation: Incarnation) -> RealWorld:
        return self._world

    @property
    def address(self) -> str:
        """The address of this slot's plane."""
        return self._plane.address

    @property
    def disk(self) -> str:
        """The name of the disk on which it keeps layers; empty if on none."""
        return self._layers.disk

    def run(self, register: Register) -> None:
        """Serve the job until it stops or the coordinator is gone.

        Raises
        ------
        ClonosError
            The slot never reached the driver, so Spark has to tell the driver why.
        SlotBroken
            The loop itself has raised.
        """
        node, plane = self._node, self._plane
        self._thread = threading.get_ident()
        try:
            node.join(plane.control(self._shipment.coordinator, register, self._progress))
            serve(node, plane.poll, self._track, plane.shutdown)
        except Exception as error:  # noqa: BLE001 - any error here ends the slot
            traceback.print_exc()  # in the executor's log; Spark tells the driver the first lines
            frame = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(frame.filename).name}:{frame.lineno}"
            raise SlotBroken(f"{type(error).__name__}: {error} ({where})") from None
        finally:
            self._layers.close()
            self._writers.close()
            self._calls.close()
            self._scratch.close()
            self._shelf.close()
            plane.shutdown()
        if node.lost is not None:
            raise node.lost

    def _progress(self) -> tuple[int, int, str, str]:
        track, life = self._track, None
        since_s = track.turns_since_s
        if (long := track.long) is not None:
            life, since_s = long
        long_ms = 0 if since_s is None else int((time.monotonic() - since_s) * 1000)
        if life is None and long_ms < STUCK_MS:
            return self._node.progress, 0, "", ""
        lines = users_lines(self._thread) if long_ms >= STUCK_MS else ""
        name = "" if life is None else self._node.name_of(life)
        return self._node.progress, long_ms, name, lines
