"""What a slot needs to serve a job; shipped once, inside Spark's task closure."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from clonos.core.content import STATE_MEMORY
from clonos.core.dial import LATE_S, QUIET_S
from clonos.core.inflight import INFLIGHT_BYTES
from clonos.core.levels import STORE
from clonos.core.log import LOG_BYTES
from clonos.core.plan import Plan
from clonos.core.program import Program
from clonos.nodes.seal_times import SealSettings
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
        Per task, how to make them. Only sources have readers, and only sinks that write themselves
        have writers. The argument for a reader is the batches of the DataFrame partition that it
        reads (None for other sources); the argument for a writer is the incarnation of its life.
    rates
        Rows per second that a source task may admit; tasks without an entry are not limited.
    batch_rows_max, linger_ms
        The maximum of rows that a source puts into a batch (see
        :class:`~clonos.sources.prefetch.BatchSize`), and how long it waits for more rows.
    identities
        The certificate of each slot, if streams are encrypted.
    unreachable_s
        How long a task tries to connect to a peer that the coordinator believes to be alive.
    share_ms
        Log entries that no batch has carried for this long travel by themselves.
    seals
        Without markers: how often a task that has done something seals a layer.
    inflight_bytes, spills
        How many bytes of items a slot may keep in memory, and whether it spills more to its disk.
    log_bytes
        How many bytes of logs it may hold.
    state_memory
        How much memory its values, timers, rows by key and pieces of windows may take.
    local_dir
        The folder on its disk for layers, if it keeps any; by default among temporary files.
    levels, late_s, quiet_s
        For tasks with the level "auto": the levels, strongest first; how long a layer may wait
        until a level is behind; and after how quiet a time that level is used again
        (:mod:`clonos.core.dial`).
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
    seals: SealSettings = field(default_factory=SealSettings)
    inflight_bytes: int = INFLIGHT_BYTES
    spills: bool = True
    log_bytes: int = LOG_BYTES
    local_dir: str | None = None
    levels: tuple[str, ...] = (STORE,)
    late_s: float = LATE_S
    quiet_s: float = QUIET_S
    state_memory: int = STATE_MEMORY
    profile_dir: str = field(default_factory=lambda: os.environ.get(PROFILE_VARIABLE, ""))
