"""Compiles the logical graph to a plan and the code of each task.

Neighbouring operators of the same parallelism with no shuffle between them are fused into one
chain, which may reach from a source to a sink. A chain ends where rows are shuffled, where a stream
is used twice, before a union, and where the user says so. If bad records are kept, it also ends
before a sink, because a task that can find bad records must not be a sink's.

Chains share slots: a *cell* has task i of every chain of one group.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Final

import pyarrow as pa

from clonos.core.plan import HOUSE_KEEPER, ChannelSpec, Plan, TaskSpec
from clonos.errors import BadGraph
from clonos.graph.code import TaskCode
from clonos.graph.cycles import feedback_of
from clonos.graph.early import with_early_parts
from clonos.graph.implied import is_implied
from clonos.graph.logical import Edge, JobOptions, LogicalGraph, Vertex
from clonos.graph.prune import without_unread_columns
from clonos.operators.base import OnBadRecord
from clonos.operators.router import Router, Routing
from clonos.sinks.spec import SinkSpec

DEFAULT_GROUP: Final = "default"
"""The slot group of sources, and of vertices that read from several groups."""


@dataclass(frozen=True)
class CompiledJob:
    """A job that is ready to run: ``codes[i]`` belongs to task i of the plan."""

    name: str
    plan: Plan
    codes: tuple[TaskCode, ...]
    options: JobOptions

    @cached_property
    def schemas(self) -> dict[int, pa.Schema]:
        """The schema of each channel."""
        return {c: schema for code in self.codes for c, schema in code.schemas.items()}

    @cached_property
    def sinks(self) -> dict[str, tuple[SinkSpec, pa.Schema]]:
        """The sinks by name, each with the schema of its rows."""
        return {
            code.task.sink: (code.sink, code.schemas[code.task.outputs[-1]])
            for code in self.codes
            if code.task.sink is not None and code.sink is not None
        }


@dataclass(frozen=True, eq=False)
class Chain:
    """Fused vertices, first to last."""

    vertices: tuple[Vertex, ...]

    @property
    def head(self) -> Vertex:
        return self.vertices[0]

    @property
    def tail(self) -> Vertex:
        return self.vertices[-1]

    @property
    def parallelism(self) -> int:
        return self.head.parallelism

    @property
    def name(self) -> str:
        """The name of the first operator that the user has named, else of the first vertex."""
        named = (vertex.name for vertex in self.vertices if vertex.is_named and vertex.sink is None)
        return next(named, self.head.name)


def compile_graph(graph: LogicalGraph, *, is_fused: bool = True) -> CompiledJob:
    """Make chains, tasks and channels.

    Only operators that lead to a sink are run.

    Parameters
    ----------
    is_fused
        False: each operator gets its own tasks, so that it can be examined alone.

    Raises
    ------
    BadGraph
        There is no sink, or two sinks write to the same folder.
    """
    vertices = _needed(graph)
    if not vertices:
        raise BadGraph(
            f"job {graph.name!r} has no sink, so it would do nothing",
            remedy="end a stream with .sink(...)",
        )
    _require_effects_can_be_made(graph, vertices)
    _require_fixed_beginnings(graph)
    feedback = feedback_of(graph, vertices)
    if not feedback:
        vertices = with_early_parts(vertices)
    behind = _behind_bad_records(graph, vertices)
    vertices.sort(key=lambda vertex: vertex.id in behind)  # last
    _require_own_places(vertices)
    _warn_of_upserts(vertices)
    groups = slot_groups(vertices)
    if not behind and not feedback:  # kept bad records need all columns
        vertices = without_unread_columns(vertices)
    if is_fused:
        chains = fuse(vertices, groups, behind, feedback)
    else:
        chains = [Chain((vertex,)) for vertex in vertices if vertex.id not in feedback]
    return _Wiring(graph, chains, cells(chains, groups), behind, feedback).compile()


def slot_groups(vertices: Sequence[Vertex]) -> dict[int, str]:
    """The slot group of each vertex: that of its inputs, if they agree."""
    groups: dict[int, str] = {}
    for vertex in vertices:
        inherited = {edge.group or groups[edge.vertex.id] for edge in vertex.edges}
        groups[vertex.id] = inherited.pop() if len(inherited) == 1 else DEFAULT_GROUP
    return groups


def cells(chains: Sequence[Chain], groups: Mapping[int, str]) -> dict[Chain, int]:
    """The number of the cell of each chain's first task; the other tasks' cells follow.

    Spark delivers the rows of a DataFrame's partition to one slot, so a group can have only one
    such source; any further one gets its own slots.
    """
    sizes: dict[tuple[str, int], int] = {}
    places: dict[Chain, tuple[str, int]] = {}
    bound: set[str] = set()
    for chain in chains:
        group, source = groups[chain.head.id], chain.head.source
        is_second = source is not None and source.is_bound and group in bound
        if source is not None and source.is_bound:
            bound.add(group)
        place = places[chain] = (group, chain.head.id if is_second else -1)
        sizes[place] = max(sizes.get(place, 0), chain.parallelism)
    first, count = {}, 0
    for place, size in sizes.items():
        first[place] = count
        count += size
    return {chain: first[place] for chain, place in places.items()}


def fuse(
    vertices: Sequence[Vertex],
    groups: Mapping[int, str],
    behind_bad_records: Collection[int] = (),
    feedback: Mapping[int, Edge] | None = None,
) -> list[Chain]:
    """Group vertices into chains, in the order of the vertices.

    If bad records are kept, sinks are chains of their own, except the sinks of the bad records.
    """
    back = feedback or {}
    readers = Counter(edge.vertex.id for vertex in vertices for edge in vertex.edges)
    readers.update(edge.vertex.id for edge in back.values())
    chains: dict[int, list[Vertex]] = {}  # by the id of the chain's last vertex
    for vertex in (vertex for vertex in vertices if vertex.id not in back):
        upstream = vertex.edges[0].vertex if len(vertex.edges) == 1 else None
        if (
            upstream is not None
            and upstream.id not in back
            and vertex.edges[0].routing is Routing.FORWARD
            and vertex.edges[0].is_chained
            and upstream.parallelism == vertex.parallelism
            and readers[upstream.id] == 1
            and groups[upstream.id] == groups[vertex.id]
            and (vertex.sink is None or not behind_bad_records or vertex.id in behind_bad_records)
        ):
            chains[vertex.id] = [*chains.pop(upstream.id), vertex]
        else:
            chains[vertex.id] = [vertex]
    order = {vertex.id: number for number, vertex in enumerate(vertices)}
    made = (Chain(tuple(chain)) for chain in chains.values())
    return sorted(made, key=lambda chain: order[chain.head.id])


def _needed(graph: LogicalGraph) -> list[Vertex]:
    """The vertices that lead to a sink."""
    needed: set[int] = set()
    ahead = [vertex for vertex in graph.vertices if vertex.sink is not None]
    while ahead:
        vertex = ahead.pop()
        if vertex.id not in needed:
            needed.add(vertex.id)
            back = graph.feedback.get(vertex.id)
            edges = vertex.edges if back is None else (back,)
            ahead += [edge.vertex for edge in edges]
    return [vertex for vertex in graph.vertices if vertex.id in needed]


def _behind_bad_records(graph: LogicalGraph, needed: Sequence[Vertex]) -> set[int]:
    """The operator that receives bad records, and all downstream of it; empty if not kept."""
    if graph.on_bad_record != "keep":
        return set()
    found = next((vertex for vertex in needed if vertex.takes_bad_records), None)
    if found is None:
        raise BadGraph(
            "bad records are kept, but no sink takes them",
            remedy="end their stream with a sink: job.bad_records.sink(...)",
        )
    reached = {found.id}
    for vertex in needed:
        reached |= {vertex.id for edge in vertex.edges if edge.vertex.id in reached}
    if len(reached) == len(needed):
        raise BadGraph(
            "only bad records lead to a sink, and no operator can find any",
            remedy="end the other streams with a sink, too",
        )
    return reached


def _require_own_places(vertices: Sequence[Vertex]) -> None:
    """Require different places: outputs of two sinks in one folder or table would collide."""
    names: dict[str, str] = {}
    for vertex in vertices:
        sink = vertex.sink
        if sink is None or not sink.writes_itself:
            continue
        if sink.store is not None:
            if sink.store.place is None:
                continue
            place = what = sink.store.place
        else:
            path = (sink.path or "").rstrip("/")
            place = path if "://" in path else Path(path).absolute().as_uri()
            what = f"the same folder {path}"
        if names.setdefault(place, vertex.name) != vertex.name:
            raise BadGraph(
                f"sinks {names[place]!r} and {vertex.name!r} write to {what}",
                where=vertex.name,
                remedy="give each its own; to have the rows of both in one place, unite the "
                "streams first: a.union(b).sink(...)",
            )


def _is_recognised(vertex: Vertex) -> bool:
    """Whether services recognise its effects when they are made again. Which ones a process makes
    is known only when it runs."""
    policy = getattr(vertex.operation, "policy", None)
    effect = None if policy is None else policy.effect
    return effect.idempotent if effect is not None else not vertex.has_effects


def _require_effects_can_be_made(graph: LogicalGraph, needed: Sequence[Vertex]) -> None:
    """Check that no effect would be silently omitted, or made twice."""
    for vertex in graph.vertices:
        if not vertex.has_effects:
            continue
        if vertex not in needed:
            raise BadGraph(
                "its effects would never be made: it leads to no sink",
                where=vertex.name,
                remedy="end the stream with .sink(...), clonos.sinks.collect() for instance",
            )
        if (graph.options.guarantee, graph.options.on_orphan) != ("exactly_once", "consistency"):
            raise BadGraph(
                "an effect needs guarantee='exactly_once' and on_orphan='consistency': otherwise "
                "rows may be counted twice after a failure, and their effects made twice",
                where=vertex.name,
                remedy="leave both at their defaults, or make it a plain call",
            )


def _require_fixed_beginnings(graph: LogicalGraph) -> None:
    """Check that a source which dies before the first checkpoint begins where it began."""
    for vertex in graph.vertices:
        begins_now = vertex.source is not None and vertex.source.begins_now
        if begins_now and graph.options.guarantee == "at_least_once":
            raise BadGraph(
                "start='latest' loses rows with guarantee='at_least_once': without a log, a task "
                "that dies before the first checkpoint begins with what is the latest then",
                where=vertex.name,
                remedy="give a time, such as start=datetime.now(timezone.utc)",
            )


def _warn_of_upserts(vertices: Sequence[Vertex]) -> None:
    """Warn if rows of one key may come from several tasks: then the last one need not win."""
    for vertex in vertices:
        upsert = vertex.sink.upsert if vertex.sink is not None else ()
        if upsert and vertex.parallelism > 1 and not _is_keyed_by(vertex, upsert):
            warnings.warn(
                f"sink {vertex.name!r} replaces rows by {', '.join(upsert)}, but its stream is not "
                "keyed by that: if two tasks have rows with the same values, either may win. "
                f"Put key_by({', '.join(map(repr, upsert))}) before it, or say parallelism=1",
                stacklevel=2,
            )


def _is_keyed_by(vertex: Vertex, columns: Sequence[str]) -> bool:
    """Whether only these columns decide which task a row goes to, also further upstream."""
    while len(vertex.edges) == 1:
        (edge,) = vertex.edges
        same = edge.vertex.parallelism == vertex.parallelism
        if edge.routing is Routing.FORWARD and not same and not edge.keys:
            return False  # batches are dealt out in turn
        if edge.keys or edge.routing is not Routing.FORWARD:
            return bool(edge.keys) and set(edge.keys) <= set(columns)
        vertex = edge.vertex
    return False


class _Wiring:
    """Numbers tasks and channels, chain by chain."""

    def __init__(
        self,
        graph: LogicalGraph,
        chains: Sequence[Chain],
        cells: Mapping[Chain, int],
        behind_bad_records: Collection[int],
        feedback: Mapping[int, Edge],
    ) -> None:
        self._graph = graph
        self._feedback = feedback
        self._chains = chains
        self._cells = cells
        self._behind = behind_bad_records
        self._bad_records: dict[int, Router] = {}
        self._first_task: dict[Chain, int] = {}
        count = 0
        for chain in chains:
            self._first_task[chain] = count
            count += chain.parallelism
        self._channels: list[ChannelSpec] = []
        self._inputs: dict[int, list[int]] = {task: [] for task in range(count)}
        self._routers: dict[int, list[Router]] = {task: [] for task in range(count)}
        self._schemas: dict[int, pa.Schema] = {}

    def compile(self) -> CompiledJob:
        for sender in self._chains:
            for receiver in self._chains:
                for port, edge in enumerate(receiver.head.edges):
                    back = self._feedback.get(edge.vertex.id)
                    if (back or edge).vertex is sender.tail:
                        way = back if back and edge.routing is Routing.FORWARD else edge
                        ends = sender, receiver, port, way, sender.tail.schema
                        for task, router in self._connect(*ends, is_feedback=back is not None):
                            self._routers[task].append(router)
                if receiver.head.takes_bad_records and self._keeps(sender):
                    edge, schema = Edge(sender.tail, Routing.ROUND_ROBIN), receiver.head.schema
                    self._bad_records.update(self._connect(sender, receiver, 0, edge, schema))
        tasks = [task for chain in self._chains for task in self._tasks(chain)]
        plan = self._with_house_keeper(self._plan(tasks))
        codes = [
            self._code(chain, plan.tasks[self._first_task[chain] + i])
            for chain in self._chains
            for i in range(chain.parallelism)
        ]
        return CompiledJob(self._graph.name, plan, tuple(codes), self._graph.options)

    def _connect(
        self,
        sender: Chain,
        receiver: Chain,
        port: int,
        edge: Edge,
        schema: pa.Schema,
        *,
        is_feedback: bool = False,
    ) -> Iterator[tuple[int, Router]]:
        """The channels between two chains, with the router of each sending task."""
        routing = edge.routing
        same = sender.parallelism == receiver.parallelism
        if routing is Routing.FORWARD and not same:
            routing = Routing.HASH if edge.keys else Routing.ROUND_ROBIN
        for i in range(sender.parallelism):
            receivers = [i] if routing is Routing.FORWARD else range(receiver.parallelism)
            task = self._first_task[sender] + i
            channels = tuple(
                self._channel(
                    task, self._first_task[receiver] + j, port, schema, is_feedback=is_feedback
                )
                for j in receivers
            )
            yield task, Router(routing, channels, edge.keys)

    def _keeps(self, chain: Chain) -> bool:
        """Whether it passes on bad records; those downstream of bad records do not."""
        return bool(self._behind) and chain.head.id not in self._behind and chain.tail.sink is None

    def _channel(
        self,
        sender: int,
        receiver: int,
        port: int,
        schema: pa.Schema,
        *,
        is_feedback: bool = False,
    ) -> int:
        number = len(self._channels)
        self._channels.append(ChannelSpec(number, sender, receiver, port, is_feedback))
        self._schemas[number] = schema
        if receiver != HOUSE_KEEPER:
            self._inputs[receiver].append(number)
        return number

    def _tasks(self, chain: Chain) -> list[TaskSpec]:
        source, sink = chain.head.source, chain.tail.sink
        specs = []
        for i in range(chain.parallelism):
            number = self._first_task[chain] + i
            routers = [*self._routers[number]]
            if number in self._bad_records:
                routers.append(self._bad_records[number])
            implied = not self._feedback and is_implied(
                self._graph, chain.vertices, len(self._inputs[number])
            )
            specs.append(
                TaskSpec(
                    id=number,
                    name=f"{chain.name}[{i}]",
                    operator=chain.name,
                    index=i,
                    inputs=tuple(self._inputs[number]),
                    outputs=tuple(c for router in routers for c in router.channels),
                    is_source=source is not None,
                    sink=None if sink is None else chain.tail.name,
                    is_gated=source is not None and not source.replayable,
                    has_effects=any(vertex.has_effects for vertex in chain.vertices),
                    is_recognised=all(map(_is_recognised, chain.vertices)),
                    writes_itself=sink is not None and sink.writes_itself,
                    cell=self._cells[chain] + i,
                    level=self._graph.level_of(chain.vertices),
                    is_implied=implied,
                    # Which rows it has left out, only its log says, and that is shared with nobody.
                    leaves_out=not implied and self._on_bad_record(number) != "fail",
                    waits_for_time=any(v.operation.waits_for_time for v in chain.vertices),
                )
            )
        return specs

    def _plan(self, tasks: Sequence[TaskSpec]) -> Plan:
        graph = self._graph
        return Plan(
            tasks=tuple(tasks),
            channels=tuple(self._channels),
            sharing_depth=graph.sharing_depth,
            causal_log=graph.options.guarantee == "exactly_once",
            job_seed=graph.seed,
            has_markers=graph.options.checkpoints == "marked",
            leaves_gaps=graph.options.guarantee == "at_most_once",
        )

    def _with_house_keeper(self, plan: Plan) -> Plan:
        """Add, as last output, a channel to the house-keeper if logs or rows go there."""
        tasks = []
        for chain in self._chains:
            for i in range(chain.parallelism):
                task = plan.tasks[self._first_task[chain] + i]
                probe = ChannelSpec(-1, task.id, HOUSE_KEEPER)
                if task.is_sink or plan.forwarded_logs(probe):
                    number = self._channel(task.id, HOUSE_KEEPER, 0, chain.tail.schema)
                    task = replace(task, outputs=(*task.outputs, number))
                tasks.append(task)
        return self._plan(tasks)

    def _on_bad_record(self, task: int) -> OnBadRecord:
        """What a task does with a bad record."""
        how = self._graph.on_bad_record
        return "fail" if how == "keep" and task not in self._bad_records else how

    def _code(self, chain: Chain, task: TaskSpec) -> TaskCode:
        routers = tuple(self._routers[task.id])
        sink = chain.tail.sink
        if sink is not None:
            routers = (Router(Routing.FORWARD, (task.outputs[-1],)),)
        channels = (*task.inputs, *task.outputs)
        bad_records = self._bad_records.get(task.id)
        on_bad_record = self._on_bad_record(task.id)
        return TaskCode(
            task=task,
            job=self._graph.name,
            parallelism=chain.parallelism,
            seed=self._graph.seed,
            on_bad_record=on_bad_record,
            operators=tuple((vertex.name, vertex.operation) for vertex in chain.vertices),
            routers=routers,
            schemas={channel: self._schemas[channel] for channel in channels},
            source=chain.head.source,
            sink=sink,
            ports={c: self._channels[c].port for c in task.inputs if self._channels[c].port},
            digests=self._graph.options.guarantee == "exactly_once",
            bad_records=bad_records,
            feedback=tuple(c for c in task.inputs if self._channels[c].is_feedback),
        )
