"""The shape of a job: tasks, channels and operators, from a checkpoint's description."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from clonos.core.plan import HOUSE_KEEPER, ChannelSpec, Plan, TaskSpec
from clonos.graph.compile import CompiledJob
from clonos.graph.description import describe, names_of, reads_of
from clonos.upgrade.names import NOTHING_RENAMED, Renamed, operators_in, states_in

_HOUSE_KEEPER: Final = "house-keeper"


class Shape:
    """A graph, from its description by :func:`~clonos.graph.description.describe`.

    Parameters
    ----------
    renamed
        What has another name here than in the description.

    Attributes
    ----------
    plan
        Its tasks and channels.
    chains
        By task, the names of its operators.
    homes
        By operator, its tasks in order.
    operators
        By name, kind and settings.
    keeps
        By name, the schemas of the rows that the operator keeps.
    sources, sinks
        By operator, their descriptions; of sources without what they read.
    reads
        By source, what it reads; None: that is not known.
    had
        The names of its operators in the description.
    states
        By operator, the states that have another name now.

    Examples
    --------
    >>> import clonos
    >>> job = clonos.Job(parallelism=2)
    >>> rows = job.source(clonos.sources.from_batches([], "n long"), name="numbers")
    >>> rows.key_by("n").deduplicate(name="once").sink(clonos.sinks.collect(), name="out")
    >>> shape = Shape.of(job.compile())
    >>> shape.homes["once"], shape.chains[2], shape.before("once", 0)
    ([2, 3], ('once', 'out'), [('numbers', 0), ('numbers', 1)])
    """

    def __init__(self, description: Mapping[str, Any], renamed: Renamed = NOTHING_RENAMED) -> None:
        tasks = description["tasks"]
        self.had = names_of(description)
        names, states = operators_in(renamed), states_in(renamed)
        self.renamed = {name: now for name, now in names.items() if name != now}
        self.states = {names.get(name, name): now for name, now in states.items()}
        self.plan = _plan(description)
        self._origins: dict[tuple[str, int], frozenset[tuple[str, int]]] = {}
        self.chains: dict[int, tuple[str, ...]] = {}
        self.homes: dict[str, list[int]] = {}
        self.operators: dict[str, list[Any]] = {}
        self.keeps: dict[str, list[str]] = {}
        self.sources: dict[str, Any] = {}
        self.reads: dict[str, list[str] | None] = {}
        self.sinks: dict[str, Any] = {}
        for spec, about in zip(self.plan.tasks, tasks.values(), strict=True):
            chain = tuple(names.get(name, name) for name, *_ in about["operators"])
            self.chains[spec.id] = chain
            self.keeps.update((names.get(name, name), of) for name, of in about["keeps"].items())
            for name, (_, *operation) in zip(chain, about["operators"], strict=True):
                self.homes.setdefault(name, []).append(spec.id)
                self.operators[name] = operation
            if about["source"] is not None:
                self.reads[chain[0]] = reads_of(about["source"])
                self.sources[chain[0]] = [x for x in about["source"] if not isinstance(x, dict)]
            if about["sink"] is not None:
                self.sinks[chain[-1]] = about["sink"]

    @classmethod
    def of(cls, compiled: CompiledJob, renamed: Renamed = NOTHING_RENAMED) -> Shape:
        """The shape of a compiled job."""
        return cls(json.loads(json.dumps(describe(compiled))), renamed)

    def place(self, operator: str, index: int) -> tuple[int, int]:
        """The `index`-th task of an operator, and the operator's place in its chain."""
        task = self.homes[operator][index]
        return task, self.chains[task].index(operator)

    def senders(self, task: int) -> list[int]:
        """The tasks that send to a task."""
        return [self.plan.channels[c].sender for c in self.plan.tasks[task].inputs]

    def before(self, operator: str, index: int) -> list[tuple[str, int]]:
        """The operators (and indices of their tasks) that feed an operator's `index`-th task."""
        task, place = self.place(operator, index)
        if place:
            return [(self.chains[task][place - 1], index)]
        senders = self.senders(task)
        return [(self.chains[sender][-1], self.plan.tasks[sender].index) for sender in senders]

    def origins(self, operator: str, index: int) -> frozenset[tuple[str, int]]:
        """The source tasks whose rows may come to the `index`-th task of an operator."""
        if (operator, index) not in self._origins:
            before = self.before(operator, index)
            of_those = (self.origins(*one) for one in before)
            found = frozenset().union(*of_those) if before else frozenset({(operator, index)})
            self._origins[operator, index] = found
        return self._origins[operator, index]

    def is_shuffled(self, operator: str) -> bool:
        """Whether all tasks of the operator's chain receive from the same tasks."""
        heard = [frozenset(self.senders(task)) for task in self.homes[operator]]
        return bool(heard[0]) and len(set(heard)) == 1


def _plan(description: Mapping[str, Any]) -> Plan:
    numbers = {name: number for number, name in enumerate(description["tasks"])}
    tasks = [_task(number, name, description["tasks"][name]) for name, number in numbers.items()]
    numbers[_HOUSE_KEEPER] = HOUSE_KEEPER
    channels = [
        ChannelSpec(number, numbers[sender], numbers[receiver], port, is_feedback=bool(more))
        for number, (sender, receiver, port, *more) in enumerate(description["channels"])
    ]
    return Plan(
        tasks=tuple(tasks),
        channels=tuple(channels),
        sharing_depth=description["sharing_depth"],
        causal_log=description["causal_log"],
        job_seed=description["seed"],
        has_markers=description["has_markers"],
    )


def _task(number: int, name: str, about: Mapping[str, Any]) -> TaskSpec:
    operator, _, index = name.removesuffix("]").rpartition("[")
    flags: Sequence[bool] = about["flags"]
    is_source, is_sink, is_gated, writes_itself, has_effects = flags
    return TaskSpec(
        id=number,
        name=name,
        operator=operator,
        index=int(index),
        inputs=tuple(about["inputs"]),
        outputs=tuple(about["outputs"]),
        is_source=is_source,
        sink=about["operators"][-1][0] if is_sink else None,
        is_gated=is_gated,
        writes_itself=writes_itself,
        has_effects=has_effects,
        is_implied=about.get("implied", False),
    )
