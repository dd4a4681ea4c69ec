"""Deliberate mistakes in planned moves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from clonos.core import messages as msg
from clonos.core.events import StoreLayer
from clonos.core.handover import AtRest
from clonos.core.log import LogBook
from clonos.core.moves import MoveEvent, Moves
from clonos.core.plan import Cell
from clonos.core.recovery import Recoveries
from clonos.core.roster import TaskPhase, TaskState
from clonos.core.sealed import Layer
from clonos.core.seals import Seals
from clonos.core.task import TaskMachine
from clonos.nodes.resident import Resident


def rest_at_once(_: Any) -> Any:
    def tell(self: Resident, _: TaskMachine) -> None:
        if not self._has_yielded:
            self._has_yielded = True
            self._home.send(msg.Yielded(self.task, self._command.incarnation, self._yields))

    return tell


def never_rest(original: Any) -> Any:
    def steps(self: Resident, *arguments: Any) -> None:
        yields, self._yields = self._yields, 0
        original(self, *arguments)
        self._yields = yields

    return steps


def without_resume(_: Any) -> Any:
    def give_up(self: Moves, why: str) -> None:
        self._end(MoveEvent.GIVEN_UP, why)

    return give_up


def one_by_one(original: Any) -> Any:
    def inherit(self: Recoveries, cell: Cell, heir: int) -> None:
        for task in (self._tasks[task] for task in cell):
            if task.phase is TaskPhase.WAITING and heir in self._roster.slots:
                task.slot = heir
        original(self, cell, heir)

    return inherit


def without_heir(original: Any) -> Any:
    def hand_over(self: Recoveries, cell: Cell, heir: int, **how: Any) -> None:
        original(self, cell, heir, **how)
        if not how.get("is_planned", True):
            self._heirs.pop(cell, None)

    return hand_over


def without_fences(original: Any) -> Any:
    def tell_all(self: Recoveries, command: msg.TaskCommand) -> None:
        if not isinstance(command, msg.Fence) or not self._heirs:
            original(self, command)
            return
        for other in self._tasks.values():  # real fences may pass
            if other.id != command.task:
                self._roster.command(other.id, command)
        self._tasks[command.task].awaited.discard(command.task)

    return tell_all


def without_items(original: Any) -> Any:
    """The items that receivers may still ask for are not handed over."""

    def at_rest(sealed: StoreLayer, book: LogBook, bytes_max: int) -> AtRest:
        bare = replace(sealed.layer, carried={})
        result: AtRest = original(StoreLayer(bare, sealed.delta), book, bytes_max)
        return result

    return at_rest


def as_if_stored(_: Any) -> Any:
    """Whoever takes over counts what it has got as stored."""

    def take_over(self: Seals, layer: Layer) -> None:
        self._newest = layer.position, layer.generation

    return take_over


def without_answers(original: Any) -> Any:
    """Nobody has to answer the fence of a life that hands over."""

    def begin(self: Recoveries, task: TaskState, **how: Any) -> None:
        original(self, task, **how)
        if how.get("hands_over"):
            task.awaited.clear()

    return begin
