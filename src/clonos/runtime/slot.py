"""The body of a slot: what its Spark task runs for the life of the job."""

from __future__ import annotations

import cProfile
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import pyarrow as pa

from clonos.errors import UnusableStore
from clonos.runtime.interpreter import low_latency
from clonos.runtime.loop import SlotLoop
from clonos.runtime.shipment import Shipment
from clonos.runtime.versions import installed
from clonos.transport.events import Register


class Where(Protocol):
    """Which process a slot is (see :class:`clonos.spark.identity.SlotInfo`)."""

    slot: int
    host: str
    node: str
    executor: str
    jvm_pid: int
    pid: int
    attempt: int
    nonce: str


def body(shipment: Shipment) -> Callable[[Any, Iterator[pa.RecordBatch] | None], None]:
    """The function that a slot's Spark task runs."""

    def run(info: Where, batches: Iterator[pa.RecordBatch] | None) -> None:
        try:
            loop = SlotLoop(shipment, info.slot, info.host, batches)
        except UnusableStore as error:  # Spark tells the driver
            raise UnusableStore(error.what, where=info.node, remedy=error.remedy) from None
        register = Register(
            slot=info.slot,
            attempt=info.attempt,
            nonce=info.nonce,
            host=info.node,
            executor=info.executor,
            jvm_pid=info.jvm_pid,
            pid=info.pid,
            address=loop.address,
            versions=installed(),
            disk=loop.disk,
        )
        with low_latency():  # Spark reuses the process
            _serve(loop, register, shipment.profile_dir)

    return run


def _serve(loop: SlotLoop, register: Register, profile_dir: str) -> None:
    if not profile_dir:
        loop.run(register)
        return
    # CPU seconds of the loop's thread: waiting, and other threads, do not count.
    profile = cProfile.Profile(time.thread_time)
    try:
        profile.runcall(loop.run, register)
    finally:
        profile.dump_stats(f"{profile_dir}/slot-{register.slot}-{register.pid}.prof")
