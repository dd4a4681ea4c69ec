"""The switch to another plan: one new segment of the journal, before which nothing has changed.

::

    values by key are redistributed       while the job still runs (clonos.upgrade.prepare)
    layers of the new tasks are stored    nothing refers to them yet
    the new graph is recorded             beside the old one: the journal says which is in force
    the journal begins anew               <- from here on the new plan is in force
    the old graph is deleted              when the job is claimed, as at every start

If the process dies in between, it has either done nothing, except for files that the next driver
deletes, or everything.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import pyarrow.acero  # noqa: F401 - else Arrow imports it when layers are merged, in the pause

from clonos.core.housekeeper import Deliver, HouseKeeper
from clonos.core.layer import merge_layers
from clonos.core.levels import STORE, LayerRef
from clonos.core.plan import Incarnation, Plan, TaskSpec
from clonos.core.sealed import Layer
from clonos.errors import CannotUpgrade
from clonos.graph.compile import CompiledJob
from clonos.state.deltas import merge_into
from clonos.storage.layers import LayerStore, get_layers, put_whole
from clonos.storage.opened import ScratchFile
from clonos.upgrade.layers import Redistribution
from clonos.upgrade.prepare import NOTHING, Prepared, layers_since
from clonos.upgrade.sealed import Sealed, beginning
from clonos.upgrade.shape import Shape


class Journal(Protocol):
    """The part of the journal that a switch needs."""

    def rotate(self, head: Sequence[bytes]) -> bool:
        """Begin anew with these records; returns whether that is durable."""


class Switch:
    """Switches from one plan to another, by a driver with the journal's lock and a term.

    Parameters
    ----------
    before, keeper
        The old job, and its house-keeper, which has read the journal.
    waiting
        The outputs found in the journal.
    compiled, successor
        The new job, and an empty house-keeper of its plan.
    drop_state
        Operators whose state may be lost.
    numbers
        By name, how many calls an operator of this name had made in an earlier graph.
    prepared
        Values redistributed in advance, while the job ran.
    each
        Calls a function with each element, one by one or at the same time: a disk syncs several
        files in little more time than one.
    """

    def __init__(
        self,
        before: Shape,
        keeper: HouseKeeper,
        waiting: Sequence[Deliver],
        compiled: CompiledJob,
        successor: HouseKeeper,
        drop_state: Collection[Any] = (),
        numbers: Mapping[str, int] | None = None,
        prepared: Prepared = NOTHING,
        each: Callable[[Callable[[Layer], LayerRef], Iterable[Layer]], Iterable[LayerRef]] = map,
    ) -> None:
        self._before, self._keeper, self._waiting = before, keeper, waiting
        self._prepared, self._each = prepared, each
        self._compiled, self._successor = compiled, successor
        self._drop_state, self._numbers = drop_state, numbers

    def make(
        self,
        store: LayerStore,
        term: int,
        announce: Callable[[Mapping[str, int]], object],
        journal: Journal,
    ) -> bool:
        """Switch; returns whether that is durable.

        Parameters
        ----------
        term
            The driver's term, used in the names of the new layers.
        announce
            Records the new graph beside the old one, and how many calls operators had made.

        Raises
        ------
        CannotUpgrade
            The switch is not possible; nothing has changed.
        """
        self._require_rest()
        keeper = self._keeper
        maker = Incarnation(term, 0)
        sealed = Sealed(maker, keeper.epoch + 1, keeper.generation + 1)
        prepared = self._prepared
        if not prepared.fits(keeper.layers, store):
            last, prepared = self.last_layers(store), NOTHING
        else:
            last = layers_since(self._before, keeper.layers, store, prepared)
        how = (self._drop_state, self._numbers, prepared.operators)
        shared = Redistribution(self._before, last, self._compiled, sealed, *how)
        layers = shared.layers()
        refs = self._each(partial(put_whole, store), layers.values())
        stored = {
            task: (layer, (*prepared.below(task), ref))
            for (task, layer), ref in zip(layers.items(), refs, strict=True)
        }
        announce(shared.asked())
        self._successor.succeed(keeper, stored)
        return journal.rotate(self._successor.snapshot())

    def _require_rest(self) -> None:
        keeper = self._keeper
        if self._before.plan.loops or self._compiled.plan.loops:
            raise CannotUpgrade(
                "rows go round in the job: tasks in a loop cannot be told from those before it",
                remedy="start it with the graph that it had; its functions may be others",
            )
        if keeper.complete:
            raise CannotUpgrade(
                "the job is complete: nothing is left that another graph could do",
                remedy="running.wait(), or a start with the graph that it had, returns its result; "
                "start the new job in another checkpoint_dir",
            )
        if self._waiting or not keeper.is_settled:
            raise CannotUpgrade(
                "the job has not settled: what is on its way belongs to the graph that it had",
                remedy="start it with that graph, stop it with running.stop(settle=...) until that "
                "returns True, and start this one then",
            )

        for task in self._before.plan.tasks:
            for ref in keeper.layers[task.id]:
                if ref.level != STORE:
                    raise not_stored(task.name, ref.level)

    def last_layers(self, store: LayerStore) -> Mapping[int, Layer]:
        """The state of each task until now."""
        return last_layers(self._before.plan, self._keeper, store)


def last_layers(plan: Plan, keeper: HouseKeeper, store: LayerStore) -> dict[int, Layer]:
    """All layers of each task, merged into one; their runs are on the local disk."""
    scratch = ScratchFile()
    found = {task.id: as_one(task, keeper.layers[task.id], store, scratch) for task in plan.tasks}
    scratch.finish()
    return found


def as_one(
    task: TaskSpec, chain: Sequence[LayerRef], store: LayerStore, scratch: ScratchFile
) -> Layer:
    """Merge these layers of a task, with runs in `scratch`; without layers, the one with which the
    task begins."""
    layers, merge = get_layers(store, chain), partial(merge_into, scratch)
    return merge_layers(layers, merge, is_base=True) if layers else beginning(task)


def require_stored(plan: Plan) -> None:
    """Raise `CannotUpgrade` unless all state is in the checkpoint store."""
    for task in plan.tasks:
        if task.level != STORE:
            raise not_stored(task.name, task.level)


def not_stored(task: str, level: str) -> CannotUpgrade:
    """The error for state that is lost with the job's processes or machines."""
    return CannotUpgrade(
        f"its state is kept with persistence={level!r}, and a new graph reads it from the "
        "checkpoint directory",
        where=task,
        remedy="keep it with persistence='store', or start the new job in another checkpoint_dir",
    )
