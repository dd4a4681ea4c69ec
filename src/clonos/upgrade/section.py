"""The rewind of a section of a job: an operator, and all tasks downstream of it.

The rest of the job stays where it is, and sends the section again what it has sent since the point:
the first layers of the senders carry these items, as layers carry the items of feedback channels.
So upstream no call is repeated and no row is read again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from clonos.core.digest import chain
from clonos.core.messages import Dependency, Item, Kind
from clonos.core.plan import Plan, TaskSpec
from clonos.core.sealed import Layer
from clonos.errors import CannotRewind
from clonos.graph.code import TaskCode
from clonos.graph.compile import CompiledJob
from clonos.operators.make import make_operator
from clonos.operators.shares import REWOUND
from clonos.state.deltas import Changes, Delta, Frozen
from clonos.state.kept import Kept, kept_of, nothing_kept
from clonos.upgrade.sealed import Sealed

CONTENT: Final = {Kind.BATCH, Kind.WATERMARK, Kind.END}
"""The kinds of items that are sent again; old markers and probes are not."""


def section_of(compiled: CompiledJob, operator: str) -> frozenset[int]:
    """The tasks of an operator, and all tasks downstream.

    Raises
    ------
    CannotRewind
        There is no such operator, or others come before it in its tasks and would go back, too.

    Examples
    --------
    >>> import clonos
    >>> job = clonos.Job(parallelism=2)
    >>> rows = job.source(clonos.sources.from_batches([], "n long"), name="numbers")
    >>> rows.key_by("n").deduplicate(name="once").sink(clonos.sinks.collect(), name="out")
    >>> sorted(section_of(job.compile(), "once"))
    [2, 3]
    """
    chains = {code.task.id: [name for name, _ in code.operators] for code in compiled.codes}
    heads = [task for task, names in chains.items() if names[0] == operator]
    if not heads:
        within = next((names for names in chains.values() if operator in names), None)
        firsts = ", ".join(dict.fromkeys(names[0] for names in chains.values()))
        if within is None:
            raise CannotRewind(
                f"there is no operator {operator!r}", remedy=f"a section begins with {firsts}"
            )
        raise CannotRewind(
            f"it is in the same tasks as {within[0]!r}, which would go back, too",
            where=operator,
            remedy=f"a section begins with {firsts}; start_new_chain() gives an operator tasks of "
            "its own, from the next job on",
        )
    return downstream(compiled.plan, heads)


def downstream(plan: Plan, tasks: Collection[int]) -> frozenset[int]:
    """These tasks, and all that receive from them, directly or not."""
    origins = plan.distances
    return frozenset(task for task in origins if not origins[task].keys().isdisjoint(tasks))


def borders(plan: Plan, section: Collection[int]) -> list[int]:
    """The channels by which the rest of the job sends to a section."""
    return [c.id for c in plan.channels if c.receiver in section and c.sender not in section]


def with_section_back(
    compiled: CompiledJob,
    layers: Mapping[int, Layer],
    section: Collection[int],
    sent: Mapping[int, Sequence[Item]],
    sealed: Sealed,
) -> dict[int, Layer]:
    """The first layer of each task.

    Parameters
    ----------
    layers
        For tasks in the section, those of the point; for others, the newest.
    sent
        By channel into the section, the items sent since the point.
    """
    made = _Made(compiled.plan, layers, sealed)
    found = {}
    for code in compiled.codes:
        layer = layers[code.task.id]
        if code.task.id in section:
            layer = _renamed(code, layer, sealed.generation)
        found[code.task.id] = made.layer(code.task, layer, sent)
    return found


class _Made:
    """Layers with new names, whose channels begin anew."""

    def __init__(self, plan: Plan, layers: Mapping[int, Layer], sealed: Sealed) -> None:
        assert sealed.discarded is not None
        self._plan, self._sealed, self._discarded = plan, sealed, sealed.discarded
        self._clock_ms = max(layer.clock_ms for layer in layers.values())

    def layer(self, task: TaskSpec, layer: Layer, sent: Mapping[int, Sequence[Item]]) -> Layer:
        carried = {c: (0, self._items(c, sent[c])) for c in task.outputs if c in sent}
        outs = dict.fromkeys(task.outputs, (0, 0))
        outs |= {c: lane for c, lane in self._discarded.lanes.items() if c in outs}
        outs |= {c: (len(items), items[-1].chain) for c, (_, items) in carried.items() if items}
        return replace(
            layer,
            incarnation=self._sealed.maker,
            epoch=self._sealed.epoch,
            position=self._discarded.position,
            ins=dict.fromkeys(task.inputs, (0, 0)),
            outs=outs,
            dep=dict([self._step(task.id)]),
            clock_ms=self._clock_ms,
            generation=self._sealed.generation,
            carried=carried,
        )

    def _step(self, task: int) -> tuple[int, Dependency]:
        """The position at which the logs of all tasks continue."""
        return task, Dependency(self._sealed.maker, self._discarded.position)

    def _items(self, channel: int, sent: Sequence[Item]) -> tuple[Item, ...]:
        """The same content under new numbers, below everything that is logged from now on."""
        found: list[Item] = []
        dep, digest = dict([self._step(self._plan.makers[channel])]), 0
        for item in sent:
            if item.kind in CONTENT:
                content = item.batch.digest if item.batch else 0
                digest = chain(digest, item.kind, item.value, content, item.watermark)
                number, epoch = len(found) + 1, self._sealed.epoch
                again = replace(item, seq=number, epoch=epoch, dep=dep, chain=digest)
                found.append(replace(again, born_ms=0))  # when its rows were read is unknown
        return tuple(found)


def _renamed(code: TaskCode, layer: Layer, generation: int) -> Layer:
    """The same state, but later calls get other names than those made since the point."""
    asks = {n for n, (_, made) in enumerate(code.operators) if "asked" in make_operator(made).joins}
    if not asks:
        return layer
    kept = kept_of(layer.delta, reads_runs=False)
    names = [name for name, _ in code.operators]
    changes: list[tuple[int, Changes | Frozen]] = []
    for number in sorted(kept.keys() | asks):
        of_operator = kept.get(number, nothing_kept())
        if number in asks:
            of_operator = gone_back(of_operator, generation)
        changes += [(number, change) for change in of_operator.changes()]
    return replace(layer, delta=Delta(names, changes).encoded())


def gone_back(kept: Kept, generation: int) -> Kept:
    """Record the number from which on the names of calls contain this generation."""
    since = [kept.facts.get("asked", 0), generation]
    return kept._replace(facts={**kept.facts, REWOUND: [*kept.facts.get(REWOUND, ()), since]})
