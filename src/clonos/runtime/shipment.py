"""What a slot needs to serve a job; shipped once, inside Spark's task closure."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from clonos.core.content import STATE_MEMORY
from clonos.core.dial import LATE_S, QUIET_S
from clonos.core.levels import STORE
from clonos.core.plan import Plan
from clonos.core.program import Program
from clonos.core.throttle import INFLIGHT_BYTES, LOG_BYTES
from clonos.sinks.lanes import OutputWriter
from clonos.sources.readers import Reader
from clonos.storage.files import Durability
from clonos.transport.secret import JobSecret
from clonos.transport.tls import Identity

PROFILE_VARIABLE: Final = "CLONOS_PROFILE_DIR"
"""If the driver has this environment variable, slots write a profile of themselves there."""


@dataclass(frozen=True)
class Shipment:
    """One job, as its slots see it.

    Attributes
    ----------
    schemas
        What each channel carries.
    programs, readers, writers
        Per task, how to make them; only sources have readers, only sinks that write themselves
        have writers. A source that reads a DataFrame's partition makes its reader of the
        partition's batches, which are its argument (None for other sources). A writer is made for
        a life, whose incarnation is its argument.
    rates
        Rows per second that a source task may admit; tasks without an entry are not limited.
    batch_rows_max, linger_ms
        Most rows that a source puts into a batch (see
        :class:`~clonos.sources.prefetch.BatchSize`), or waits no longer for more of them.
    identities
        The certificate of each slot, if streams are encrypted.
    unreachable_s
        How long a task tries to connect to a peer that the coordinator believes to be alive.
    share_ms
        Log entries that no batch has carried for this long travel by themselves.
    seal_ms
        Without markers: how often a task that has done something seals a layer.
    inflight_bytes, spills
        What a slot may keep in memory for receivers, and whether it writes more to its disk.
    log_bytes
        What it may hold of logs.
    state_memory
        What values, timers and rows by key may take of its memory.
    local_dir
        Where on its disk it keeps layers, if any; by default with temporary files.
    levels, late_s, quiet_s
        For tasks that choose their levels: the levels, strongest first; after how long a wait a
        level is behind; and after how quiet a time it is asked again (:mod:`clonos.core.dial`).
    """

    job_id: str
    name: str
    secret: JobSecret
    plan: Plan
    schemas: Mapping[int, pa.Schema]
    programs: Mapping[int, Callable[[], Program]]
    readers: Mapping[int, Callable[[Any], Reader]]
    writers: Mapping[int, Callable[[int], OutputWriter]]
    rates: Mapping[int, float]
    coordinator: str
    layers_uri: str
    layers_durability: Durability = "process"
    identities: Mapping[int, Identity] = field(default_factory=dict)
    allow_plaintext: bool = False
    unreachable_s: float = 1.5
    batch_rows_max: int = 32_768
    linger_ms: float = 10.0
    share_ms: float = 50.0
    seal_ms: float = 1000.0
    inflight_bytes: int = INFLIGHT_BYTES
    spills: bool = True
    log_bytes: int = LOG_BYTES
    local_dir: str | None = None
    levels: tuple[str, ...] = (STORE,)
    late_s: float = LATE_S
    quiet_s: float = QUIET_S
    state_memory: int = STATE_MEMORY
    profile_dir: str = field(default_factory=lambda: os.environ.get(PROFILE_VARIABLE, ""))
