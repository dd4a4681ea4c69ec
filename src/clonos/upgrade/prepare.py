"""Redistributes most of the state for another plan while the job still runs: values by key.

State may be large, but little of it changes within a second. So the values of a floor are written
for the tasks of the next plan while the present tasks work; then the values that have changed in
the meantime, and so on. (When virtual machines are moved, this is called pre-copy.) The switch adds
only what has changed since the last round. Values are absolute, and layers are applied in order, so
a value that is written twice, because layers were merged meanwhile, does no harm.

A task may have many small layers. Their other content is merged into one layer, too, unless it is
large. The switch then reads this layer and those that were sealed since.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from clonos.core.content import Content
from clonos.core.layer import merge_layers
from clonos.core.levels import LayerRef
from clonos.core.plan import Incarnation
from clonos.core.sealed import Layer
from clonos.operators.process.declared import IN_USE
from clonos.operators.shares import Heir
from clonos.state.deltas import (
    Changes,
    Delta,
    Frozen,
    Opened,
    merge_deltas,
    merge_into,
    open_delta,
)
from clonos.state.kept import fact_changes
from clonos.state.runs import Run
from clonos.storage.layers import LayerStore, get_layers, put_whole
from clonos.storage.opened import ScratchFile
from clonos.upgrade.flow import Flow
from clonos.upgrade.owners import Owns, all_of_them, owned, share_out
from clonos.upgrade.sealed import beginning
from clonos.upgrade.shape import Shape
from clonos.upgrade.states import state_names, states_in_use

Chains = Mapping[int, Sequence[LayerRef]]


@dataclass(frozen=True)
class Prepared:
    """Values of a running job, redistributed to the tasks of the next plan.

    Attributes
    ----------
    upto
        By task of the job, the number of the newest layer included; 0: the task had none.
    operators
        The operators whose values are included.
    layers
        By task of the next plan, the layers of all rounds, in order.
    rounds
        The number of rounds.
    basis
        By task of the job, all its other state up to there, as one layer. A task is missing if this
        would be too large.
    """

    upto: Mapping[int, int]
    operators: frozenset[str]
    layers: Mapping[int, tuple[LayerRef, ...]]
    rounds: int
    basis: Mapping[int, Layer] = field(default_factory=dict)

    def fits(self, chains: Chains, store: LayerStore) -> bool:
        """Whether the job's present layers continue from here: they reach as far, and none of the
        included layers was merged with later ones, as the merged layer would no longer show what
        was deleted."""
        if not self.rounds:
            return False
        return all(
            upto == 0 or (chains[task] and chains[task][0].epoch <= upto <= chains[task][-1].epoch)
            for task, upto in self.upto.items()
        ) and all(store.has(ref.path) for chain in self.layers.values() for ref in chain)

    def since(self, chains: Chains) -> dict[int, list[LayerRef]]:
        """The layers that are not included yet, by task of the job."""
        return {
            task: [ref for ref in chain if ref.epoch > self.upto.get(task, 0)]
            for task, chain in chains.items()
        }

    def below(self, task: int) -> tuple[LayerRef, ...]:
        """The layers below the first layer of a task of the next plan."""
        return self.layers.get(task, ())


ROUNDS: Final = 8
"""The largest number of rounds; data that still changes afterwards is left to the switch."""
LAST_ROUNDS: Final = 3
"""So many of them are kept for when the slots of the next plan are ready, which may take long."""
BASIS_BYTES: Final = 32 << 20
"""The largest size, of all tasks together, to be merged into one layer before the switch."""
NOTHING: Final = Prepared({}, frozenset(), {}, 0)


def prepare(
    before: Shape,
    now: Shape,
    chains: Chains,
    store: LayerStore,
    maker: Incarnation,
    drop_state: Collection[Any] = (),
    so_far: Prepared = NOTHING,
) -> Prepared | None:
    """Redistribute the values of a floor, or those that have changed since an earlier one. None:
    that cannot be done.

    Parameters
    ----------
    before, now
        The present job and the next one.
    chains
        By task of the job, the layers of its floor.
    maker
        A unique incarnation, used in the names of the layers.
    so_far
        The result of earlier rounds.

    Raises
    ------
    CannotUpgrade
        A state cannot have another name.
    """
    if so_far.rounds and not so_far.fits(chains, store):
        return None
    since = so_far.since(chains)
    values = _Values(before, now, since, store)
    if not so_far.rounds:
        for renamed in values.renamed.values():
            renamed.require_found()
    names = {
        name
        for name in values.operators - frozenset(drop_state)
        if name in now.homes
        and before.operators[name][:1] == now.operators[name][:1]
        and not before.keeps[name]  # rows are numbered by task
    }
    made: dict[int, _Made] = {spec.id: _Made() for spec in now.plan.tasks}
    for name in sorted(names):
        # If an operator has values for the first time now, there are none below.
        values.share_out(name, made, is_base=not so_far.rounds)
    rounds, layers = so_far.rounds + 1, dict(so_far.layers)
    for task, one in made.items():
        if one.runs:
            # Later layers, applied on top, have the task's positions.
            first = beginning(now.plan.tasks[task])
            delta = Delta(now.chains[task], one.runs).encoded()
            layer = replace(first, incarnation=maker, epoch=rounds, delta=delta)
            layers[task] = (*so_far.below(task), put_whole(store, layer))
    upto = {task: chain[-1].epoch if chain else 0 for task, chain in chains.items()}
    operators = so_far.operators | names
    basis = _basis(before, since, store, operators, so_far)
    return Prepared(upto, operators, layers, rounds, basis)


def _basis(
    before: Shape, since: Chains, store: LayerStore, operators: Collection[str], so_far: Prepared
) -> dict[int, Layer]:
    found, left = {}, BASIS_BYTES
    for task, refs in since.items():
        known = so_far.basis.get(task)
        if known is None and (not refs or so_far.upto.get(task)):
            continue  # it has no layers yet, or its basis was too large
        layers = (*((known,) if known is not None else ()), *get_layers(store, refs))
        others = {n for n, name in enumerate(before.chains[task]) if name not in operators}
        nbytes = sum(_nbytes(open_delta(layer.delta), others) for layer in layers)
        if nbytes <= left:
            found[task] = _as_one(before, task, layers, operators, len(layers))
            left -= nbytes
    return found


def _nbytes(delta: Opened, others: Collection[int]) -> int:
    """The size of everything except the runs of operators whose values are redistributed."""
    return len(delta.table) + sum(run.nbytes for number, run in delta.runs if number in others)


def _as_one(
    before: Shape,
    task: int,
    layers: Sequence[Layer],
    operators: Collection[str],
    old: int,
    merge: Callable[..., bytes | Content] = merge_deltas,
) -> Layer:
    """Merge these layers of a task, without the values of `operators` in the first `old` layers."""
    names = enumerate(before.chains[task])
    below = {number: old for number, name in names if name in operators}
    return merge_layers(layers, partial(merge, below=below), is_base=True)


class _Made:
    """The runs of one task of the next plan."""

    def __init__(self) -> None:
        self.runs: list[tuple[int, Changes | Frozen]] = []
        self.scratch = ScratchFile()

    def add(self, operator: int, run: Run, in_use: Collection[str]) -> None:
        if len(run):
            if in_use:
                self.runs.append((operator, fact_changes({IN_USE: sorted(in_use)})))
            self.runs.append((operator, lambda: [run]))


_Heir = tuple[int, Owns]


class _Values:
    """The runs of a job's floor."""

    def __init__(self, before: Shape, now: Shape, chains: Chains, store: LayerStore) -> None:
        self._now = now
        self._flow = Flow(before, {}, {}, now)
        self.renamed, scratch = state_names(before), ScratchFile()
        self._runs: dict[tuple[str, int], list[Run]] = {}
        # By operator, its states: slots that copy its values see at once whether they have them.
        self._in_use: dict[str, set[str]] = {}
        for task, chain in chains.items():
            for layer in get_layers(store, chain):
                delta = open_delta(layer.delta)
                for operator, in_use in states_in_use(delta):
                    name = before.chains[task][operator]
                    names = self.renamed.get(name)
                    mine = in_use if names is None else names.called(in_use)
                    self._in_use.setdefault(name, set()).update(mine)
                for operator, run in delta.runs:
                    name = before.chains[task][operator]
                    names = self.renamed.get(name)
                    run_now = run if names is None else names.run(run, scratch)
                    self._runs.setdefault((name, task), []).append(run_now)

    @property
    def operators(self) -> set[str]:
        """The operators that have values."""
        return {name for name, _ in self._runs}

    def share_out(self, name: str, made: Mapping[int, _Made], *, is_base: bool) -> None:
        """Write the values of an operator for each of its next tasks."""
        for former, heirs in self._heirs(name):
            runs = [run for task in former for run in self._runs.get((name, task), ())]
            to = [(made[task].scratch, owns) for task, owns in heirs]
            for (task, _), run in zip(heirs, share_out(runs, to, is_base=is_base), strict=True):
                number = self._now.chains[task].index(name)
                made[task].add(number, run, self._in_use.get(name, ()))

    def _heirs(self, name: str) -> Iterator[tuple[Sequence[int], list[_Heir]]]:
        """Former tasks, with the new tasks that continue their state."""
        homes, shared = self._now.homes[name], list[_Heir]()
        for index, task in enumerate(homes):
            if self._flow.predecessor(name, index) is not None:
                yield self._flow.former(name, index), [(task, all_of_them)]
            else:
                shared.append((task, partial(owned, heir=Heir(index, len(homes)))))
        if shared:
            yield self._flow.all_former(name), shared


def layers_since(
    before: Shape, chains: Chains, store: LayerStore, prepared: Prepared
) -> dict[int, Layer]:
    """The state of each task; of prepared values only the changes since, including deletions.

    Its runs are on the local disk.
    """
    found, scratch = {}, ScratchFile()
    for task, chain in chains.items():
        basis, upto = prepared.basis.get(task), prepared.upto[task]
        if basis is not None:
            newer = get_layers(store, [ref for ref in chain if ref.epoch > upto])
            layers: tuple[Layer, ...] = (basis, *newer)
        else:
            layers = get_layers(store, chain) or (beginning(before.plan.tasks[task]),)
        old = sum(layer.epoch <= upto for layer in layers)
        to = partial(merge_into, scratch)
        found[task] = _as_one(before, task, layers, prepared.operators, old, to)
    scratch.finish()
    return found
