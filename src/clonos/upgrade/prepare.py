"""Most of the state of another plan, while the job still runs: values by key are shared out before.

State may be large, and what changes of it within a second is not. So the values of a floor are
written for the tasks of the next plan while the present ones work; then those that have changed
meanwhile, and so on. (Those who move virtual machines call it pre-copy.) The switch adds only what
has changed since the last round. Values are absolute, and who applies layers in order keeps the
last: what comes twice, since layers have been merged meanwhile, does no harm.

A task may have many small layers. Their other content is merged into one layer, too, unless it is
large. The switch then reads this layer and those that were sealed since.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import numpy as np

from clonos.core.layer import merge_layers
from clonos.core.levels import LayerRef
from clonos.core.messages import Layer
from clonos.core.plan import Incarnation
from clonos.operators.shares import Heir
from clonos.state.deltas import Opened, merge_deltas, of_runs, open_delta
from clonos.state.runs import Index, Rows, Run, RunWriter, merge_runs
from clonos.storage.layers import LayerStore, get_layers, put_whole
from clonos.storage.opened import ScratchFile
from clonos.upgrade.flow import Flow
from clonos.upgrade.layers import owned
from clonos.upgrade.sealed import beginning
from clonos.upgrade.shape import Shape

Chains = Mapping[int, Sequence[LayerRef]]


@dataclass(frozen=True)
class Prepared:
    """Values of a job that runs, shared out to the tasks of the next plan.

    Attributes
    ----------
    upto
        By task of the job: the number of its newest layer that is in them.
    operators
        Whose values they are.
    layers
        By task of the next plan, of one round after the other.
    rounds
        How many there were.
    basis
        By task of the job: all its other state by then, as one layer. A task is missing if that
        was too much.
    """

    upto: Mapping[int, int]
    operators: frozenset[str]
    layers: Mapping[int, tuple[LayerRef, ...]]
    rounds: int
    basis: Mapping[int, Layer] = field(default_factory=dict)

    def fits(self, chains: Chains, store: LayerStore) -> bool:
        """Whether the layers that a job has by now go on from them: the first of them has not been
        merged with later ones, which would not say any more what is gone."""
        return all(
            chain and chain[0].epoch <= self.upto.get(task, -1) for task, chain in chains.items()
        ) and all(store.has(ref.path) for chain in self.layers.values() for ref in chain)

    def below(self, task: int) -> tuple[LayerRef, ...]:
        """Of a task of the next plan: what lies below its first layer."""
        return self.layers.get(task, ())


ROUNDS: Final = 4
"""At most. What is changed faster than it is written stays for the switch."""
BASIS_BYTES: Final = 32 << 20
"""Of all tasks together; more than this is not made one layer before the switch."""
NOTHING: Final = Prepared({}, frozenset(), {}, 0)


def prepare(
    before: Shape,
    now: Shape,
    chains: Chains,
    store: LayerStore,
    maker: Incarnation,
    drop_state: Collection[str] = (),
    so_far: Prepared = NOTHING,
) -> Prepared | None:
    """Share out the values of a floor, or what has changed of them since an earlier one. None: that
    cannot be done.

    Parameters
    ----------
    before, now
        The job as it is, and as it is to be.
    chains
        By task of the job: the layers of its floor.
    maker
        In the names of what is stored: nobody else has it.
    so_far
        What was shared out before.
    """
    if not all(chains.values()) or (so_far.rounds and not so_far.fits(chains, store)):
        return None
    since = {
        task: [ref for ref in chain if ref.epoch > so_far.upto.get(task, 0)]
        for task, chain in chains.items()
    }
    values = _Values(before, now, since, store)
    names = {
        name
        for name in values.operators - frozenset(drop_state)
        if name in now.homes
        and before.operators[name][:1] == now.operators[name][:1]
        and not before.keeps[name]  # rows have numbers of their task
    }
    made: dict[int, _Made] = {spec.id: _Made() for spec in now.plan.tasks}
    for name in sorted(names):
        # Below an operator that has values for the first time now, there are none.
        values.share_out(name, made, is_base=not so_far.rounds)
    rounds, layers = so_far.rounds + 1, dict(so_far.layers)
    for task, one in made.items():
        if one.runs:
            # Others lie upon it, which say where the task stands.
            first = beginning(now.plan.tasks[task])
            delta = one.delta(now.chains[task])
            layer = replace(first, incarnation=maker, epoch=rounds, delta=delta)
            layers[task] = (*so_far.below(task), put_whole(store, layer))
    upto = {task: chain[-1].epoch for task, chain in chains.items()}
    operators = so_far.operators | names
    basis = _basis(before, since, store, operators, so_far)
    return Prepared(upto, operators, layers, rounds, basis)


def _basis(
    before: Shape, since: Chains, store: LayerStore, operators: Collection[str], so_far: Prepared
) -> dict[int, Layer]:
    found, left = {}, BASIS_BYTES
    for task, refs in since.items():
        known = so_far.basis.get(task)
        if so_far.rounds and known is None:
            continue
        layers = (*((known,) if known is not None else ()), *get_layers(store, refs))
        others = {n for n, name in enumerate(before.chains[task]) if name not in operators}
        nbytes = sum(_nbytes(open_delta(layer.delta), others) for layer in layers)
        if nbytes <= left:
            found[task] = _as_one(before, task, layers, operators, len(layers))
            left -= nbytes
    return found


def _nbytes(delta: Opened, others: Collection[int]) -> int:
    """Of all but the runs of operators whose values are shared out."""
    return len(delta.table) + sum(run.nbytes for number, run in delta.runs if number in others)


def _as_one(
    before: Shape, task: int, layers: Sequence[Layer], operators: Collection[str], old: int
) -> Layer:
    """All that these layers of a task say; of values of these operators what the first `old` of
    them say is left out."""
    names = enumerate(before.chains[task])
    below = {number: old for number, name in names if name in operators}
    return merge_layers(layers, partial(merge_deltas, below=below), is_base=True)


class _Made:
    """The runs of one task of the next plan."""

    def __init__(self) -> None:
        self.runs: list[tuple[int, Index]] = []
        self.scratch = ScratchFile()

    def delta(self, names: Sequence[str]) -> Any:
        return of_runs(names, self.runs, self.scratch)


class _Owner:
    """Takes rows, and writes those of one task's key groups."""

    def __init__(self, rows_max: int, made: _Made, owns: Callable[[Any], Any]) -> None:
        self._writer, self._owns = RunWriter(rows_max, made.scratch.write), owns
        self._made = made

    def add(self, rows: Rows) -> None:
        self._writer.add(rows.chosen(self._owns(rows.groups)))

    def end(self, operator: int) -> None:
        if (index := self._writer.index()).rows:
            self._made.runs.append((operator, index))


_Heir = tuple[int, Callable[[Any], Any]]
"""A task, and which of some key groups it owns."""


class _Owners:
    """A writer that gives each owner what is its."""

    def __init__(self, owners: Sequence[_Owner]) -> None:
        self._owners = owners

    def add(self, rows: Rows) -> None:
        for owner in self._owners:
            owner.add(rows)


class _Values:
    """The runs of a job's floor."""

    def __init__(self, before: Shape, now: Shape, chains: Chains, store: LayerStore) -> None:
        self._now = now
        self._flow = Flow(before, {}, {}, now)
        self._runs: dict[tuple[str, int], list[Run]] = {}
        for task, chain in chains.items():
            for layer in get_layers(store, chain):
                for operator, run in open_delta(layer.delta).runs:
                    self._runs.setdefault((before.chains[task][operator], task), []).append(run)

    @property
    def operators(self) -> set[str]:
        """Who has values."""
        return {name for name, _ in self._runs}

    def share_out(self, name: str, made: Mapping[int, _Made], *, is_base: bool) -> None:
        """Write the values of an operator for each of its next tasks."""
        for former, heirs in self._heirs(name):
            runs = [run for task in former for run in self._runs.get((name, task), ())]
            rows = sum(map(len, runs))
            owners = [_Owner(rows, made[task], owns) for task, owns in heirs]
            merge_runs(runs, _Owners(owners), is_base=is_base)
            for (task, _), owner in zip(heirs, owners, strict=True):
                owner.end(self._now.chains[task].index(name))

    def _heirs(self, name: str) -> Iterator[tuple[Sequence[int], list[_Heir]]]:
        """Former tasks, and who goes on with their state."""
        homes, shared = self._now.homes[name], list[_Heir]()
        for index, task in enumerate(homes):
            if self._flow.predecessor(name, index) is not None:
                yield self._flow.former(name, index), [(task, _all)]
            else:
                shared.append((task, partial(owned, heir=Heir(index, len(homes)))))
        if shared:
            yield self._flow.all_former(name), shared


def _all(groups: Any) -> Any:
    return np.ones(len(groups), np.bool_)


def layers_since(
    before: Shape, chains: Chains, store: LayerStore, prepared: Prepared
) -> dict[int, Layer]:
    """Of each task all that it has kept, but of values that are prepared only what has changed
    since; what is gone since is in it, too."""
    found = {}
    for task, chain in chains.items():
        basis, upto = prepared.basis.get(task), prepared.upto[task]
        if basis is not None:
            newer = get_layers(store, [ref for ref in chain if ref.epoch > upto])
            layers: tuple[Layer, ...] = (basis, *newer)
        else:
            layers = get_layers(store, chain)
        old = sum(layer.epoch <= upto for layer in layers)
        found[task] = _as_one(before, task, layers, prepared.operators, old)
    return found
