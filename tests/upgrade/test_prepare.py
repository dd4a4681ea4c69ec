"""Values that are shared out while a job runs, against those of a job that was stopped first."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

import clonos
from clonos.columns.keys import KEY_GROUPS
from clonos.core.content import chunks_of
from clonos.core.layer import merge_layers
from clonos.core.levels import LayerRef
from clonos.core.plan import Incarnation
from clonos.core.sealed import Layer
from clonos.errors import CannotUpgrade
from clonos.graph.compile import CompiledJob
from clonos.operators.process.process import prefix_of
from clonos.state.deltas import CHAIN, Values, encode_delta, merge_deltas
from clonos.state.kept import fact_changes, kept_of
from clonos.state.timers import place_of
from clonos.storage.layers import LayerStore, get_layers, put_whole
from clonos.upgrade.layers import Redistribution
from clonos.upgrade.prepare import NOTHING, Prepared, layers_since, prepare
from clonos.upgrade.sealed import Sealed, beginning
from clonos.upgrade.shape import Shape

LIFE = Incarnation(1, 0)


class Seen(clonos.Process):
    def on_row(self, row: Any, ctx: Any) -> Any:
        yield row.n


def job(parallelism: int) -> CompiledJob:
    found = clonos.Job("seen", parallelism=parallelism)
    rows = found.source(clonos.sources.from_batches([], "n long"), name="rows", parallelism=1)
    seen = rows.key_by("n").process(Seen(), "n long", name="seen")
    seen.sink(clonos.sinks.collect(), name="out")
    return found.compile()


class Working:
    """A job that sets and forgets values, and whose layers are merged now and then."""

    def __init__(self, folder: Path, parallelism: int, random: Random) -> None:
        self.compiled, self.random = job(parallelism), random
        self.shape = Shape.of(self.compiled)
        self.store = LayerStore(folder, "process")
        self.epoch, self.chains = 0, {t.id: list[LayerRef]() for t in self.compiled.plan.tasks}
        self.homes = self.shape.homes["seen"]

    def work(self, idle: Collection[int] = ()) -> None:
        """Another floor, to which tasks that have nothing to do add nothing."""
        self.epoch += 1
        for task in self.compiled.plan.tasks:
            if task.id in idle:
                continue
            delta = self._delta(task.id) if task.id in self.homes else self._facts(task.id)
            where: Any = {"incarnation": LIFE, "epoch": self.epoch, "position": self.epoch}
            layer = replace(beginning(task), **where, delta=delta)
            self.chains[task.id].append(put_whole(self.store, layer))

    def _delta(self, task: int) -> bytes:
        owners = len(self.homes)
        mine = [g for g in range(KEY_GROUPS) if g * owners // KEY_GROUPS == self.homes.index(task)]
        groups = self.random.sample(mine, min(len(mine), 6))
        values = {
            prefix_of("ab"[group % 2]) + bytes([group % 256, self.random.randrange(3)]): (
                self.random.choice((None, f"{self.epoch}".encode() * self.random.randint(1, 40)))
            )
            for group in groups
        }
        names = self.shape.chains[task]
        kept = Values(values, groups, place_of)
        return encode_delta(names, [(names.index("seen"), lambda: [kept])])

    def _facts(self, task: int) -> bytes:
        return encode_delta(self.shape.chains[task], [(CHAIN, fact_changes({"n": self.epoch}))])

    def merge(self, *, first: bool) -> None:
        """Some layers of each task become one."""
        for task, chain in self.chains.items():
            start = 0 if first else 1
            if len(chain) - start > 2:
                end = self.random.randint(start + 2, len(chain))
                layers = get_layers(self.store, chain[start:end])
                merged = merge_layers(layers, merge_deltas, is_base=first)
                path = f"{task}/merged-{self.epoch}-{self.random.random()}"
                chain[start:end] = [put_whole(self.store, merged, path)]

    def has_both(self) -> bool:
        """Whether both states have values."""
        kept = [key for rows in state(self.whole()).values() for of in rows for key, _ in of]
        return all(any(key.startswith(prefix_of(name)) for key in kept) for name in "ab")

    def whole(self) -> dict[int, Layer]:
        """All that there is."""
        return {
            task: merge_layers(get_layers(self.store, chain), merge_deltas, is_base=True)
            if chain
            else beginning(self.compiled.plan.tasks[task])
            for task, chain in self.chains.items()
        }


def state(layers: Mapping[int, Layer]) -> dict[int, Any]:
    found = {}
    for task, layer in layers.items():
        rows = (kept.rows() for kept in kept_of(layer.delta).values())
        found[task] = [
            sorted(zip(values.keys.to_pylist(), values.values.to_pylist(), strict=True))
            for _, values in rows
        ]
    return found


SWAP = {("seen", "a"): "b", ("seen", "b"): "a"}
"""Both states of the process get other names."""


@pytest.mark.parametrize("renamed", [{}, SWAP], ids=["", "renamed"])
@pytest.mark.parametrize("seed", range(60))
def test_what_is_shared_out_before_is_what_is_shared_out_after(seed, renamed, tmp_path):
    random = Random(seed)
    before = Working(tmp_path, random.choice((1, 2, 3)), random)
    before.shape = Shape.of(before.compiled, renamed)
    now = job(random.choice((1, 2, 3, 4)))
    prepared: Prepared = NOTHING
    idle, wakes = random.sample(sorted(before.chains), random.randint(0, 2)), random.randint(3, 9)
    while before.epoch < 6 or random.random() < 0.8:
        before.work(idle if before.epoch < wakes else ())
        if random.random() < 0.3:
            before.merge(first=random.random() < 0.3)
        if before.epoch > 2 and random.random() < 0.5 and (not renamed or before.has_both()):
            how: Any = (before.store, Incarnation(2, 1 << 30), (), prepared)
            prepared = prepare(before.shape, Shape.of(now), before.chains, *how) or prepared
    if renamed and not before.has_both():
        return  # a state without values cannot have another name
    due = Redistribution(before.shape, before.whole(), now, Sealed(LIFE, 99, 1)).layers()
    if not prepared.fits(before.chains, before.store):
        return  # the switch does all of it, as it did before
    last = layers_since(before.shape, before.chains, before.store, prepared)
    rest: Any = ((), None, prepared.operators)
    light = Redistribution(before.shape, last, now, Sealed(LIFE, 99, 1), *rest).layers()
    got = {
        task: merge_layers(
            (*get_layers(before.store, prepared.below(task)), layer), merge_deltas, is_base=True
        )
        for task, layer in light.items()
    }
    assert state(got) == state(due)


def test_the_switch_reads_only_what_was_sealed_since(tmp_path):
    """All else that tasks have kept was made one layer each, and that is at hand."""
    before = Working(tmp_path, 2, Random(1))
    prepared: Prepared = NOTHING
    for _ in range(2):
        for _ in range(3):
            before.work()
        how: Any = (before.store, Incarnation(2, 1 << 30), (), prepared)
        prepared = prepare(before.shape, Shape.of(job(3)), before.chains, *how) or prepared
    before.work()
    since = before.shape, before.chains, before.store
    due = read(layers_since(*since, replace(prepared, basis={})))
    before.store.delete([ref.path for chain in before.chains.values() for ref in chain[:-1]])
    assert read(layers_since(*since, prepared)) == due


def test_a_task_that_has_done_nothing_does_not_keep_others_from_being_shared_out(tmp_path):
    """It has no layer: perhaps no row ever comes to it, or the job is young."""
    before = Working(tmp_path, 2, Random(1))
    source, *_ = before.chains
    before.work(idle=[source])
    shapes, maker = (before.shape, Shape.of(job(3))), Incarnation(2, 1 << 30)
    made = prepare(*shapes, before.chains, before.store, maker)
    assert made is not None
    assert made.layers
    assert made.fits(before.chains, before.store)
    last = layers_since(before.shape, before.chains, before.store, made)
    assert last[source].epoch == 0
    before.work()  # now it has one
    assert made.fits(before.chains, before.store)
    more = prepare(*shapes, before.chains, before.store, maker, (), made)
    assert more is not None
    assert source in more.basis


def test_a_state_that_is_not_there_cannot_have_another_name(tmp_path):
    before = Working(tmp_path, 2, Random(1))
    before.work()
    shape, maker = Shape.of(before.compiled, {("seen", "c"): "d"}), Incarnation(2, 1 << 30)
    with pytest.raises(CannotUpgrade, match="its state 'c', and no key has a value"):
        prepare(shape, Shape.of(job(3)), before.chains, before.store, maker)


@pytest.mark.parametrize(("renamed", "known"), [({}, ["a", "c"]), (SWAP, ["b", "c"])])
def test_slots_that_copy_values_see_what_the_states_are_called(renamed, known, tmp_path):
    before = Working(tmp_path, 2, Random(1))
    for _ in range(5):
        before.work()
    for task, name in zip(before.homes, "ac", strict=True):
        names = before.shape.chains[task]
        more = encode_delta(names, [(names.index("seen"), fact_changes({"states": [name]}))])
        (layer,) = get_layers(before.store, before.chains[task][-1:])
        delta = merge_deltas([layer.delta, more], is_base=False)
        layer = replace(layer, delta=delta)
        before.chains[task][-1] = put_whole(before.store, layer, f"{task}/states")
    shapes = Shape.of(before.compiled, renamed), Shape.of(job(3))
    made = prepare(*shapes, before.chains, before.store, Incarnation(2, 1 << 30))
    assert made is not None
    found = [
        kept_of(layer.delta)[shapes[1].chains[task].index("seen")].facts
        for task in shapes[1].homes["seen"]
        for layer in get_layers(before.store, made.below(task))
    ]
    assert found == [{"states": known}] * 3


def test_what_is_not_in_the_journal_is_not_gone_on_from(tmp_path):
    """A floor that was shared out may have been lost with a write that failed."""
    before = Working(tmp_path, 2, Random(1))
    before.work()
    before.work()
    shapes = before.shape, Shape.of(job(3))
    made = prepare(*shapes, before.chains, before.store, Incarnation(2, 1 << 30))
    assert made is not None
    before.chains[before.homes[0]].pop()
    assert not made.fits(before.chains, before.store)


def read(layers: Mapping[int, Layer]) -> dict[int, Layer]:
    """The same layers, with their deltas in memory."""
    return {
        task: replace(layer, delta=bytes(chunks_of(layer.delta))) for task, layer in layers.items()
    }


@pytest.mark.parametrize("basis_bytes", [0, 1 << 20])
def test_what_is_large_is_no_basis(basis_bytes, tmp_path, monkeypatch):
    monkeypatch.setattr("clonos.upgrade.prepare.BASIS_BYTES", basis_bytes)
    before = Working(tmp_path, 2, Random(1))
    before.work()
    prepared = prepare(
        before.shape, Shape.of(job(3)), before.chains, before.store, Incarnation(2, 1 << 30)
    )
    assert prepared is not None
    # Values by key do not count: they are shared out.
    assert set(prepared.basis) == set(before.chains if basis_bytes else before.homes)
    kept = prepare(
        before.shape,
        Shape.of(job(3)),
        before.chains,
        before.store,
        Incarnation(2, 1 << 30),
        drop_state=["seen"],
    )
    assert kept is not None
    assert set(kept.basis) == (set(before.chains) if basis_bytes else set()), "they are not"


def test_what_was_merged_with_later_layers_is_not_gone_on_from(tmp_path):
    """Such a layer does not say any more what was forgotten since."""
    before = Working(tmp_path, 2, Random(1))
    for _ in range(3):
        before.work()
    shapes = before.shape, Shape.of(job(3))
    made = prepare(*shapes, before.chains, before.store, Incarnation(2, 1 << 30))
    assert made is not None
    assert made.fits(before.chains, before.store)
    before.work()
    assert made.fits(before.chains, before.store)
    for chain in before.chains.values():
        layers = get_layers(before.store, chain)
        merged = merge_layers(layers, merge_deltas, is_base=True)
        chain[:] = [put_whole(before.store, merged, f"{merged.task}/all")]
    assert not made.fits(before.chains, before.store)
    again = prepare(*shapes, before.chains, before.store, Incarnation(2, 1 << 30), (), made)
    assert again is None


def test_what_is_not_there_any_more_is_not_gone_on_from(tmp_path):
    before = Working(tmp_path, 2, Random(1))
    before.work()
    shapes = before.shape, Shape.of(job(3))
    made = prepare(*shapes, before.chains, before.store, Incarnation(2, 1 << 30))
    assert made is not None
    before.store.delete([made.layers[task][0].path for task in list(made.layers)[:1]])
    assert not made.fits(before.chains, before.store)
