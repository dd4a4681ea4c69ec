"""Which layers fit together, without anybody's consent: against all vectors that there are."""

from __future__ import annotations

from itertools import product
from random import Random
from typing import Any

import pytest

from clonos.core.floors import newest_fitting
from clonos.core.levels import LayerRef
from clonos.core.messages import Dependency, LayerAck
from clonos.core.plan import HOUSE_KEEPER, ChannelSpec, Incarnation, Plan, TaskSpec

LIFE = Incarnation(1, 0)


class Graph:
    """Tasks that take items of each other, and seal now and then: what is true, and what is told.

    Feedback may close loops, behind a source: what a layer has sent there it carries itself.
    """

    def __init__(self, seed: int, *, has_loops: bool = False) -> None:
        random = self.random = Random(seed)
        count = random.randint(3, 4) if has_loops else random.randint(2, 4)
        pairs = [(a, b) for a in range(count) for b in range(count) if a < b]
        channels = [pair for pair in pairs if random.random() < 0.7] or [(0, 1)]
        if has_loops:
            channels = sorted({*channels, (0, 1), (1, 2)})
            channels += [(b, a) for a, b in channels if a and (b == 2 or random.random() < 0.7)]
        specs = [ChannelSpec(n, a, b, is_feedback=a > b) for n, (a, b) in enumerate(channels)]
        specs.append(ChannelSpec(len(specs), count - 1, HOUSE_KEEPER))
        tasks = [
            TaskSpec(
                id=task, name=f"t{task}", operator="t", index=0,
                inputs=tuple(c.id for c in specs if c.receiver == task),
                outputs=tuple(c.id for c in specs if c.sender == task),
            )
            for task in range(count)
        ]  # fmt: skip
        self.plan = Plan(tuple(tasks), tuple(specs), has_markers=False)
        self.position = dict.fromkeys(range(count), 0)
        self.taken = dict.fromkeys(range(len(specs)), 0)
        self.sent: dict[int, list[dict[int, int]]] = {c.id: [] for c in specs}  # what each rests on
        self.dep: dict[int, dict[int, int]] = {task: {} for task in range(count)}
        self.positions = dict.fromkeys(range(count), 0)
        self.needs = dict.fromkeys(range(len(specs)), 0)
        self.stable = dict.fromkeys(range(count), 0)
        self.sealed: dict[int, list[LayerAck]] = {task: [] for task in range(count)}

    def step(self, task: TaskSpec | None = None) -> None:
        task = task or self.random.choice(self.plan.tasks)
        ready = [c for c in task.inputs if self.taken[c] < len(self.sent[c])]
        if task.inputs and ready:
            channel = self.random.choice(ready)
            rests_on = self.sent[channel][self.taken[channel]]
            self.taken[channel] += 1
            for other, position in rests_on.items():
                known = self.dep[task.id].get(other, 0)
                self.dep[task.id][other] = max(known, position)
        elif task.inputs and self.random.random() < 0.9:
            return
        self.position[task.id] += 1
        self.dep[task.id][task.id] = self.position[task.id]
        for channel in task.outputs:
            if self.random.random() < 0.6:
                self.sent[channel].append(dict(self.dep[task.id]))

    def seal(self, task: TaskSpec | None = None) -> None:
        task = task or self.random.choice(self.plan.tasks)
        layers = self.sealed[task.id]
        newest = layers[-1].ref.position if layers else self.positions[task.id]
        if self.position[task.id] > newest and len(layers) < 4:
            number = len(layers) + 1
            ref = LayerRef(task.id, number, LIFE, self.position[task.id], "", 0, 0)
            ins = {c: self.taken[c] for c in task.inputs}
            outs = {c: len(self.sent[c]) for c in task.outputs}
            dep = {t: Dependency(LIFE, p) for t, p in self.dep[task.id].items()}
            layers.append(LayerAck(task.id, LIFE, ref, ins, outs, dep))

    def fits(self, vector: dict[int, LayerAck | None]) -> bool:
        """As the definition says it."""

        def need(channel: int) -> int:
            layer = vector[self.plan.channels[channel].receiver]
            return self.needs[channel] if layer is None else layer.ins[channel]

        def floor(task: int) -> int:
            layer = vector[task]
            return self.positions[task] if layer is None else layer.ref.position

        for layer in vector.values():
            for channel, sent in layer.outs.items() if layer is not None else ():
                spec = self.plan.channels[channel]
                if spec.receiver == HOUSE_KEEPER or spec.is_feedback:
                    continue
                if sent > need(channel):
                    return False
            for task, entry in layer.dep.items() if layer is not None else ():
                if entry.position > max(self.stable[task], floor(task)):
                    return False
        return True

    def best(self) -> dict[int, int]:
        """The greatest of all vectors that fit."""
        choices = [[None, *self.sealed[t.id]] for t in self.plan.tasks]
        fitting = []
        for chosen in product(*choices):
            vector: Any = dict(enumerate(chosen))
            if self.fits(vector):
                fitting.append({t: a.ref.position if a else 0 for t, a in vector.items()})
        return {t.id: max(v[t.id] for v in fitting) for t in self.plan.tasks}

    def found(self) -> dict[int, LayerAck]:
        return newest_fitting(self.plan, self.sealed, self.positions, self.needs, self.stable)

    def advance(self) -> None:
        for task, layer in self.found().items():
            passed = self.sealed[task].index(layer) + 1
            self.sealed[task] = self.sealed[task][passed:]
            self.positions[task] = layer.ref.position
            self.needs.update(layer.ins)


@pytest.mark.parametrize("has_loops", [False, True])
def test_the_greatest_vector_that_fits_is_found(has_loops):
    moved = 0
    for seed in range(300):
        graph = Graph(seed, has_loops=has_loops)
        for _ in range(4):
            for _ in range(30):
                graph.step()
                if graph.random.random() < 0.3:
                    graph.seal()
            task = graph.random.choice(graph.plan.tasks).id
            graph.stable[task] = graph.random.randint(graph.stable[task], graph.position[task])
            found, best = graph.found(), graph.best()
            assert {t: a.ref.position for t, a in found.items()} == {
                t: p for t, p in best.items() if p
            }, seed
            moved += len(found)
            graph.advance()
    assert moved > 500


def test_floors_come_to_the_ends_once_everybody_has_sealed():
    """Whatever was sealed before, and though no entry is stable: together they are safe."""
    for seed in range(200):
        graph = Graph(seed)
        for _ in range(120):
            graph.step()
            if graph.random.random() < 0.1:
                graph.seal(graph.random.choice(graph.plan.tasks))
        for task in graph.plan.tasks:  # channels lead to tasks with higher numbers
            while any(graph.taken[c] < len(graph.sent[c]) for c in task.inputs):
                graph.step(task)
        for task in graph.plan.tasks:
            graph.sealed[task.id] = graph.sealed[task.id][:3]
            graph.seal(task)
        graph.advance()
        assert graph.positions == graph.position, seed
