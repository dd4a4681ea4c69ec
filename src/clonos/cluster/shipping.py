"""Makes the shipment for slots from a compiled job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from clonos.core.dial import LATE_S, QUIET_S, ladder
from clonos.graph.code import reader_of
from clonos.graph.compile import CompiledJob
from clonos.nodes.seal_times import SealSettings, as_soon_as_cheap
from clonos.runtime.shipment import Shipment
from clonos.sinks.lanes import Lane, OutputWriter
from clonos.sinks.writers import writer_of
from clonos.sources.readers import Reader
from clonos.storage.files import Durability
from clonos.storage.objects.stores import REMOTE
from clonos.transport.secret import JobSecret


def ship(
    compiled: CompiledJob,
    job_id: str,
    secret: JobSecret,
    coordinator: str,
    layers_uri: str,
    *,
    layers_durability: Durability,
    lineage: str,
    run: str,
    began: Mapping[tuple[str, int], int],
    **settings: Any,
) -> Shipment:
    """Everything that a slot needs, whichever task it will run.

    Parameters
    ----------
    lineage, run
        See :class:`~clonos.operators.base.OperatorInfo`; sinks write under the name of the run.
    began
        See :class:`~clonos.sinks.lanes.Lane`; by sink, and the index of its task.
    """
    readers: dict[int, Callable[[Any], Reader]] = {}
    writers: dict[int, Callable[[int], OutputWriter]] = {}
    rates: dict[int, float] = {}
    for code in compiled.codes:
        if code.source is not None:
            readers[code.task.id] = partial(reader_of, code)
            if code.source.rows_per_second is not None:
                rates[code.task.id] = code.source.rows_per_second / code.parallelism
        if code.sink is not None and code.task.sink is not None:
            name, index = code.task.sink, code.task.index
            lane = Lane(run, name, index, began=began.get((name, index), 0))
            if make := writer_of(code.sink, layers_durability, lane):
                writers[code.task.id] = make
    return Shipment(
        job_id=job_id,
        name=compiled.name,
        secret=secret,
        plan=compiled.plan,
        schemas=compiled.schemas,
        programs={code.task.id: partial(code.program, lineage, run) for code in compiled.codes},
        readers=readers,
        writers=writers,
        rates=rates,
        coordinator=coordinator,
        layers_uri=layers_uri,
        layers_durability=layers_durability,
        seals=seals_of(compiled, layers_uri),
        levels=ladder(compiled.options.standbys),
        late_s=LATE_S,
        quiet_s=QUIET_S,
        inflight_bytes=compiled.options.inflight_bytes,
        log_bytes=compiled.options.log_bytes,
        state_memory=compiled.options.state_memory,
        local_dir=compiled.options.local_dir,
        spills=compiled.options.inflight == "spill",
        **settings,
    )


def seals_of(compiled: CompiledJob, layers_uri: str) -> SealSettings:
    """How often the tasks of a job seal. Stores of objects charge for each of them, so layers come
    there no sooner than usual."""
    interval_ms = compiled.options.checkpoint_interval_ms
    if interval_ms is not None:
        return SealSettings(interval_ms / 1000)
    if layers_uri.partition("://")[0] in REMOTE:
        return SealSettings()
    return as_soon_as_cheap(len(compiled.plan.tasks))
