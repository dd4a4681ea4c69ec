"""A rewind: a switch to the layers that a job's tasks had at a point of its history.

As in any switch (:mod:`clonos.upgrade.switch`), one new segment of the journal decides. The graph
stays the same, and no name that was used since the point is used again:

* Logs continue after the longest log, so no position is used twice.
* A sink's lane continues after the newest delivered number, in a new generation.
* Calls that are open at the point keep their names. Names of later calls contain the new
  generation, so an idempotency key never gets a second meaning.

All points of the history stay, even later ones, so the job can also go forward again.

A section of the job may go back alone (:mod:`clonos.upgrade.section`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import msgpack

from clonos.core.history import Point
from clonos.core.housekeeper import HouseKeeper
from clonos.core.messages import Item
from clonos.core.plan import HOUSE_KEEPER, Incarnation
from clonos.core.sealed import Layer
from clonos.errors import CannotRewind
from clonos.graph.compile import CompiledJob
from clonos.storage.layers import LayerStore, put_whole
from clonos.storage.opened import ScratchFile
from clonos.upgrade.layers import Redistribution
from clonos.upgrade.sealed import NUMBERS_APART, Discarded, Sealed
from clonos.upgrade.section import borders, with_section_back
from clonos.upgrade.shape import Shape
from clonos.upgrade.switch import Journal, as_one


class Lane(NamedTuple):
    """The output of one task of a sink: up to `kept` before the point, up to `newest` in all.

    These are output numbers, as in file names and sinks' marks.
    """

    sink: str
    task: int
    kept: int
    newest: int


class Rewind:
    """The rewind of a stopped job, made by a process that holds the journal's lock.

    Parameters
    ----------
    keeper
        The job's house-keeper, which has read the journal.
    compiled
        The job.
    point
        The point of the history.
    store
        The layer store.
    section
        The tasks that go back, including all tasks downstream; None: all.

    Attributes
    ----------
    layers
        By task, its state at the point; for tasks that stay, their present state.
    lanes
        The output delivered before the point, and since.

    Raises
    ------
    CannotRewind
        The job cannot go back to this point.
    """

    def __init__(
        self,
        keeper: HouseKeeper,
        compiled: CompiledJob,
        point: Point,
        store: LayerStore,
        section: Collection[int] | None = None,
    ) -> None:
        self._keeper, self._compiled, self.store = keeper, compiled, store
        self.point, self._plan = point, compiled.plan
        everybody = frozenset(task.id for task in self._plan.tasks)
        self.section = everybody if section is None else frozenset(section)
        self._is_whole = self.section == everybody
        self._scratch = ScratchFile()
        self._require_rest()
        self.layers = {task.id: self._layer(task.id) for task in self._plan.tasks}
        self._scratch.finish()
        self._require()
        self.lanes = [
            Lane(task.sink, task.index, self.layers[task.id].outs[c][0], keeper.inputs[c].consumed)
            for task in self._plan.tasks
            if task.sink is not None
            for c in task.outputs[-1:]
        ]

    @property
    def generation(self) -> int:
        """The generation of output from here on."""
        return self._keeper.generation + 1

    def _layer(self, task: int) -> Layer:
        chains = self.point.layers if task in self.section else self._keeper.layers
        return as_one(self._plan.tasks[task], chains[task], self.store, self._scratch)

    def _require_rest(self) -> None:
        """Check that tasks that stay have nothing to replay."""
        keeper = self._keeper
        if keeper.complete:
            raise CannotRewind(
                "the job is complete, and so is its output",
                where=self._compiled.name,
                remedy="job.branch(at=...) shows what other code makes of its rows",
            )
        for task in self._plan.tasks:
            if task.id not in self.section and (
                keeper.length(task.id) > keeper.positions[task.id]
                or any(
                    keeper.inputs[c].consumed > keeper.needs[c]
                    for c in task.outputs
                    if c in keeper.inputs
                )
            ):
                raise CannotRewind(
                    "it has not settled, and it is to stay where it is",
                    where=task.name,
                    remedy="start the job as it was, and stop it with running.stop(settle=...) "
                    "until that returns True; or take the whole job back",
                )

    def _require(self) -> None:
        keeper, where = self._keeper, self._compiled.name
        again = set(borders(self._plan, self.section))
        for channel in self._plan.channels:
            if channel.id in again:
                continue
            sent = self.layers[channel.sender].outs[channel.id]
            if channel.receiver == HOUSE_KEEPER:
                had_ended = self.layers[channel.sender].end_is_out
                if keeper.inputs[channel.id].ended and not had_ended:
                    raise CannotRewind(
                        "its output has ended since, and its readers may know that",
                        where=self._plan.tasks[channel.sender].name,
                        remedy="choose a later point",
                    )
            elif sent != self.layers[channel.receiver].ins[channel.id]:
                one, other = (self._plan.tasks[t].name for t in (channel.sender, channel.receiver))
                raise CannotRewind(
                    f"at point {self.point.number} rows were on their way from {one} to {other}, "
                    "and the point does not have them",
                    where=where,
                    remedy="choose another point; with checkpoints='marked', the default, rows are "
                    "never on their way at a point",
                )

    def make(
        self,
        term: int,
        announce: Callable[[Mapping[str, int]], object],
        journal: Journal,
        records: Sequence[bytes],
        successor: HouseKeeper,
        superseded: Collection[str],
        numbers: Mapping[str, int],
        sent: Mapping[int, Sequence[Item]] | None = None,
    ) -> bool:
        """Rewind; returns whether that is durable.

        Parameters
        ----------
        term
            The term of the process, used in the names of the new layers.
        announce
            Records how many calls operators may have made, beside the present description.
        records
            The records of the journal; output in it that has not reached its sink stays.
        successor
            An empty house-keeper of the job.
        superseded
            Sinks whose output since the point is deleted.
        numbers
            By name, how many calls an operator of this name had made in an earlier graph.
        sent
            By channel into the section, the items sent since the point.
        """
        keeper, maker = self._keeper, Incarnation(term, 0)
        keeper.begin_term(term)
        lanes = {c: (end.consumed, end.consumed_chain) for c, end in keeper.inputs.items()}
        position = 1 + max(keeper.length(task.id) for task in self._plan.tasks)
        discarded = Discarded(position, lanes)
        sealed = Sealed(maker, keeper.epoch + 1, self.generation, discarded)
        shape = Shape.of(self._compiled)
        shared = Redistribution(shape, self.layers, self._compiled, sealed, (), numbers)
        first = (
            shared.layers()
            if self._is_whole
            else with_section_back(self._compiled, self.layers, self.section, sent or {}, sealed)
        )
        stored = {task: (layer, (put_whole(self.store, layer),)) for task, layer in first.items()}
        asked = shared.asked()
        announce({name: asked.get(name, 0) + NUMBERS_APART for name in shape.homes})
        successor.succeed(keeper, stored, keeps_history=True)
        stays = [record for record in records if not self._goes(record, superseded)]
        return journal.rotate(successor.snapshot(stays))

    def sent_by_then(self, channel: int) -> int:
        """The number of the last item that a task of the section had taken at the point."""
        return self.layers[self._plan.channels[channel].receiver].ins[channel][0]

    def _goes(self, record: bytes, superseded: Collection[str]) -> bool:
        """Whether a record is output that is taken back."""
        kind, *fields = msgpack.unpackb(record, strict_map_key=False)
        if kind != "item" or not superseded:
            return False
        channel, _, seq, *_ = fields
        task = self._plan.tasks[self._plan.channels[channel].sender]
        return task.sink in superseded and seq > self.layers[task.id].outs[channel][0]
