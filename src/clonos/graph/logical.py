"""The logical graph: one vertex per operator that the user wrote."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import pyarrow as pa

from clonos.columns.keys import KEY_GROUPS
from clonos.core.content import STATE_MEMORY
from clonos.core.history import Keep
from clonos.core.inflight import INFLIGHT_BYTES
from clonos.core.levels import STORE, strictest
from clonos.core.log import LOG_BYTES
from clonos.errors import BadGraph, WrongType
from clonos.operators.base import OnBadRecord
from clonos.operators.operations import Operation, Project
from clonos.operators.router import Routing
from clonos.operators.stateless.columns import Projection
from clonos.sinks.spec import SinkSpec
from clonos.sources.spec import SourceSpec

BUNDLE_BYTES: Final = 64 << 20
"""The largest size of state and log in the bundle of an error."""


@dataclass(frozen=True, eq=False)
class Vertex:
    """An operation, and where its rows come from.

    ``is_named``: whether the user chose the name. A union has several edges; its inputs are
    distinguished by port, the position of the edge. ``reads``: the columns that it reads, if known;
    ``passes_on``: whether it passes rows on with all columns; ``has_effects``: whether it makes
    effects; ``takes_bad_records``: whether its rows are the bad records of other operators.
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
        """Its projection, if it does nothing else."""
        return self.operation.projection if isinstance(self.operation, Project) else None


@dataclass(frozen=True)
class Edge:
    """How the rows of a vertex reach the next, which may run in the same task if `is_chained`.

    ``group``: the slot group of the next vertex and those after it; None: that of `vertex`.
    """

    vertex: Vertex
    routing: Routing = Routing.FORWARD
    keys: tuple[str, ...] = ()
    is_chained: bool = True
    group: str | None = None


@dataclass(frozen=True)
class JobOptions:
    """Settings of a job that are not part of its graph; times in ms.

    ``checkpoint_interval_ms``: None: as the engine chooses.
    """

    standbys: int = 1
    checkpoints: Literal["marked", "uncoordinated"] = "uncoordinated"
    checkpoint_interval_ms: int | None = None
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

    ``feedback``: by id of each feedback vertex, the edge that feeds it (None as long as there is
    none). No task runs such a vertex: its readers read from the vertex that feeds it. ``levels``:
    by id, the level of persistence of a vertex, where the user has set it.
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

        Without a parallelism it gets that of its first input, or the job's.
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
        """The level of persistence of a chain: the strictest that is set for its operators."""
        said = [self.levels[v.id] for v in vertices if v.id in self.levels]
        return strictest(said) if said else self.options.persistence
