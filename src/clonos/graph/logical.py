"""The logical graph: one vertex per operator that the user wrote."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from clonos.columns.keys import KEY_GROUPS
from clonos.core.content import STATE_MEMORY
from clonos.core.history import Keep
from clonos.core.levels import STORE, strictest
from clonos.core.throttle import INFLIGHT_BYTES, LOG_BYTES
from clonos.errors import BadGraph, WrongType
from clonos.operators.base import OnBadRecord
from clonos.operators.columns import Projection
from clonos.operators.operations import Operation, Project
from clonos.operators.router import Routing
from clonos.sinks.spec import SinkSpec
from clonos.sources.spec import SourceSpec

BUNDLE_BYTES: Final = 64 << 20
"""A bundle of what led to an error has no more of state and log."""


@dataclass(frozen=True, eq=False)
class Vertex:
    """An operation, and where its rows come from.

    ``is_named``: the name was chosen by the user. A union has several edges; its inputs are told
    apart by port, the position of the edge. ``reads``: the columns that it looks at, if that is
    known; ``passes_on``: it gives the rows that it is given, all columns. ``has_effects``: it makes
    calls that change something. ``takes_bad_records``: its rows are those that other operators
    could not handle.
    """

    id: int
    name: str
    is_named: bool
    schema: pa.Schema
    parallelism: int
    operation: Operation
    edges: tuple[Edge, ...] = ()
    source: SourceSpec | None = None
    sink: SinkSpec | None = None
    reads: tuple[str, ...] | None = None
    passes_on: bool = False
    has_effects: bool = False
    takes_bad_records: bool = False

    @property
    def projection(self) -> Projection | None:
        """The columns that it makes, if it does nothing else."""
        return self.operation.projection if isinstance(self.operation, Project) else None


@dataclass(frozen=True)
class Edge:
    """How the rows of a vertex reach the next, which may run in the same task if `is_chained`.

    ``group``: of slots, in which the next one and what follows it run; None: as `vertex`.
    """

    vertex: Vertex
    routing: Routing = Routing.FORWARD
    keys: tuple[str, ...] = ()
    is_chained: bool = True
    group: str | None = None


@dataclass(frozen=True)
class JobOptions:
    """Settings of a job that are not part of its graph; times in ms."""

    standbys: int = 1
    checkpoints: str = "marked"
    checkpoint_interval_ms: int = 1000
    checkpoint_dir: str | None = None
    guarantee: str = "exactly_once"
    on_orphan: str = "consistency"
    lineage: str | None = None
    keep: Keep | None = None
    inflight: str = "spill"
    inflight_bytes: int = INFLIGHT_BYTES
    log_bytes: int = LOG_BYTES
    speculation: bool = False
    log: str = "everything"
    state_memory: int = STATE_MEMORY
    bundle_bytes: int = BUNDLE_BYTES
    bundle_redact: Any = None
    persistence: str = STORE
    local_dir: str | None = None


@dataclass
class LogicalGraph:
    """All vertices of a job, every vertex after those it reads from.

    ``feedback``: of each vertex that only stands for rows which come round, by its id, what feeds
    it; None as long as nothing does. No task runs it: its readers read what feeds it. ``levels``:
    how safe the state of a vertex is kept, by its id, where that was said.
    """

    name: str
    sharing_depth: int = 1
    seed: int = 0
    on_bad_record: OnBadRecord = "fail"
    options: JobOptions = field(default_factory=JobOptions)
    vertices: list[Vertex] = field(default_factory=list)
    feedback: dict[int, Edge | None] = field(default_factory=dict)
    parallelism: int = 1
    levels: dict[int, str] = field(default_factory=dict)

    def add(
        self,
        kind: str,
        name: str | None,
        *,
        schema: pa.Schema,
        parallelism: int | None,
        operation: Operation,
        edges: tuple[Edge, ...] = (),
        **known: Any,
    ) -> Vertex:
        """Add an operator. `known`: other fields of its vertex.

        Without a parallelism it has that of what it reads first, or the job's.
        """
        taken = {vertex.name for vertex in self.vertices}
        if name is not None and name in taken:
            raise BadGraph(f"two operators are called {name!r}", remedy="rename one of them")
        chosen, number = name or kind, 2
        while chosen in taken:
            chosen, number = f"{kind}_{number}", number + 1
        if parallelism is None:
            parallelism = edges[0].vertex.parallelism if edges else self.parallelism
        if type(parallelism) is not int or not 1 <= parallelism <= KEY_GROUPS:
            raise WrongType(
                f"parallelism={parallelism!r}", remedy=f"give a whole number from 1 to {KEY_GROUPS}"
            )
        vertex = Vertex(
            id=len(self.vertices),
            name=chosen,
            is_named=name is not None,
            schema=schema,
            parallelism=parallelism,
            operation=operation,
            edges=edges,
            **known,
        )
        self.vertices.append(vertex)
        return vertex

    def level_of(self, vertices: Iterable[Vertex]) -> str:
        """How safe the state of a chain is kept: as the strictest of its operators that say so."""
        said = [self.levels[v.id] for v in vertices if v.id in self.levels]
        return strictest(said) if said else self.options.persistence
