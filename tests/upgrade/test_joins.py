"""Joins go on in more or fewer tasks: every row, and whether it has met a partner, goes along."""

from __future__ import annotations

from typing import Any

import pytest

import clonos
from clonos.columns.keys import DistinctKeys, distinct_keys, owner_of_group
from clonos.core.messages import Dependency
from clonos.core.plan import Incarnation
from clonos.core.sealed import Layer
from clonos.operators.by_key.outer_join import HOWS
from clonos.testing import StepHarness, rows
from clonos.testing.harness import _batch
from clonos.upgrade.layers import Redistribution
from clonos.upgrade.sealed import Sealed
from clonos.upgrade.shape import Shape

LEFT, RIGHT = "k long, a long", "j long, b long"
SIDES: tuple[list[Any], list[Any]] = (
    [(k % 7, k) for k in range(20)] + [(None, 99)],
    [(k % 9, 100 + k) for k in range(18)],
)
LATER: tuple[list[Any], list[Any]] = ([(3, 200), (12, 201)], [(4, 300), (12, 301), (12, 302)])


def job(how: str, parallelism: int) -> Any:
    made = clonos.Job("job")
    left = made.source(clonos.sources.from_batches([], LEFT), name="left", parallelism=1)
    right = made.source(clonos.sources.from_batches([], RIGHT), name="right", parallelism=1)
    both = left.key_by("k").join(right.key_by("j"), how=how, name="op", parallelism=parallelism)
    both.sink(clonos.sinks.collect(), name="out")
    return made.compile()


class Tasks:
    """All tasks of the join."""

    def __init__(self, compiled: Any) -> None:
        self.codes = [code for code in compiled.codes if code.operators[0][0] == "op"]
        self.programs = [code.program() for code in self.codes]
        self.harnesses = [StepHarness(program) for program in self.programs]
        self.made: list[Any] = []

    def _take(self, *outputs: Any) -> None:
        self.made += [row for o in outputs for b in o.batches.values() for row in rows(b)]

    def feed(self, port: int, given: list[Any]) -> None:
        batch = _batch(given, (LEFT, RIGHT)[port])
        distinct: DistinctKeys = distinct_keys(batch, batch.schema.names[:1])
        owners = [owner_of_group(distinct.groups[c], len(self.codes)) for c in distinct.codes]
        for index, harness in enumerate(self.harnesses):
            mine = [row for row, owner in zip(given, owners, strict=True) if owner == index]
            if mine:
                channel = self.codes[index].task.inputs[port]
                self._take(harness.input(channel, mine, (LEFT, RIGHT)[port]))

    def end(self) -> None:
        for code, harness in zip(self.codes, self.harnesses, strict=True):
            self._take(*[harness.end(channel) for channel in code.task.inputs])


def expected(how: str) -> list[Any]:
    left, right = ([*SIDES[port], *LATER[port]] for port in (0, 1))
    pairs = [(a, b) for a in left for b in right if a[0] == b[0]]
    met = [{a for a, _ in pairs}, {b for _, b in pairs}]
    if how == "semi":
        return sorted(met[0], key=repr)
    alone = [[row for row in (left, right)[port] if row not in met[port]] for port in (0, 1)]
    if how == "anti":
        return sorted(alone[0], key=repr)
    found = [(*a, *b) for a, b in pairs]
    found += [(*a, None, None) for a in alone[0]] if how in ("left", "full") else []
    found += [(None, None, *b) for b in alone[1]] if how in ("right", "full") else []
    return sorted(found, key=repr)


def layers_of(before: Any, tasks: Tasks) -> dict[int, Layer]:
    deltas = {c.task.id: bytes(p.delta()) for c, p in zip(tasks.codes, tasks.programs, strict=True)}
    life = Incarnation(1, 0)
    return {
        task.id: Layer(
            task=task.id,
            incarnation=life,
            epoch=7,
            position=10,
            ins=dict.fromkeys(task.inputs, (3, 33)),
            outs=dict.fromkeys(task.outputs, (3, 33)),
            ended=(),
            dep={task.id: Dependency(life, 10)},
            clock_ms=100,
            wake_ms=None,
            source_rows=0,
            source_ended=False,
            delta=deltas.get(task.id, b""),
        )
        for task in before.plan.tasks
    }


@pytest.mark.parametrize("becomes", [1, 3])
@pytest.mark.parametrize("how", HOWS)
def test_a_join_goes_on_in_more_or_fewer_tasks(how, becomes):
    before, after = job(how, 2), job(how, becomes)
    first = Tasks(before)
    for port in (0, 1):
        first.feed(port, SIDES[port])
    layers = Redistribution(
        Shape.of(before), layers_of(before, first), after, Sealed(Incarnation(2, 0), 8, 1)
    ).layers()
    then = Tasks(after)
    for code, program in zip(then.codes, then.programs, strict=True):
        program.apply(layers[code.task.id].delta)
    for port in (0, 1):
        then.feed(port, LATER[port])
    then.end()
    assert sorted(first.made + then.made, key=repr) == expected(how)


@pytest.mark.parametrize("kinds", [("inner", "left"), ("left", "full"), ("anti", "semi")])
def test_what_one_join_keeps_is_nothing_to_another(kinds):
    before, after = (job(how, 2) for how in kinds)
    tasks = Tasks(before)
    tasks.feed(0, SIDES[0])
    layers = layers_of(before, tasks)
    with pytest.raises(clonos.errors.CannotUpgrade, match="kind and settings have changed"):
        Redistribution(Shape.of(before), layers, after, Sealed(Incarnation(2, 0), 8, 1)).layers()
