"""Epochs: markers are injected into the sources, and a floor is complete when all tasks have
sealed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum

from clonos.core import messages as msg
from clonos.core.determinants import Marker, decode_record
from clonos.core.levels import LayerRef
from clonos.core.machine import Table
from clonos.core.roster import Roster, TaskState


class EpochState(Enum):
    """States of the next epoch."""

    IDLE = "idle"
    INJECTED = "injected"


class EpochEvent(Enum):
    """What happens to an epoch."""

    INJECTED = "all live, markers"
    COMPLETE = "every layer acknowledged"


EPOCH = Table(
    "the next epoch",
    EpochState.IDLE,
    {
        (EpochState.IDLE, EpochEvent.INJECTED): EpochState.INJECTED,
        (EpochState.INJECTED, EpochEvent.COMPLETE): EpochState.IDLE,
        # The markers may be in the logs since an earlier term: no matter which driver injected
        # them.
        (EpochState.IDLE, EpochEvent.COMPLETE): EpochState.IDLE,
    },
)


class Markers:
    """The epochs after the floor.

    Attributes
    ----------
    next_epoch
        The one to complete next.
    """

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._keeper = roster.keeper
        self.machine = EPOCH.machine("checkpoints")
        self.next_epoch = roster.keeper.epoch + 1
        self._mixed_until = 0  # epochs up to this one may mix layers from before and after a reset

    def again(self) -> Markers:
        """New markers after all tasks have gone back to earlier floors, as when a term begins."""
        markers = Markers(self._roster)
        markers._mixed_until = self._mixed_until
        return markers

    @property
    def pending_epoch(self) -> int:
        """The epoch whose markers are under way; 0: none."""
        return self.next_epoch if self.machine.state is EpochState.INJECTED else 0

    def begin(self) -> None:
        """Inject a marker, unless a marker or a recovery is under way."""
        if self.machine.state is EpochState.IDLE and self._roster.all_run:
            self.machine.on(EpochEvent.INJECTED)
            for task in self._roster.tasks.values():
                self.inject(task)

    def inject(self, task: TaskState) -> None:
        """Tell a task of the marker under way, if there is one."""
        if self.machine.state is EpochState.INJECTED:
            self._roster.command(task.id, msg.Inject(self.next_epoch))

    def acknowledged(self, report: msg.LayerAck) -> None:
        """A layer is stored. Its task may not have heard of a reset when it sealed."""
        if report.generation < self._keeper.generation:
            self._mixed_until = max(self._mixed_until, report.ref.epoch)

    def complete(
        self,
        sealed: Mapping[int, Sequence[msg.LayerAck]],
        may_pass: Callable[[LayerRef], bool],
    ) -> dict[int, msg.LayerAck]:
        """The layers of the newest epoch that is complete and can be a floor; none: empty.

        ``may_pass``: whether a floor may move to a layer.

        Deltas build on each other: every layer since the last floor is needed.
        """
        found: dict[int, msg.LayerAck] = {}
        epochs = {
            t: {layer.ref.epoch: layer for layer in of_t if may_pass(layer.ref)}
            for t, of_t in sealed.items()
        }
        # Several epochs of an earlier term may have waited for the same layer.
        while all(
            e in of_task
            for of_task in epochs.values()
            for e in range(self._keeper.epoch + 1, self.next_epoch + 1)
        ):
            epoch = self.next_epoch
            self.next_epoch += 1
            self.machine.on(EpochEvent.COMPLETE)
            if epoch > self._mixed_until:  # else channels may have other numbers at their two ends
                found = {task: of_task[epoch] for task, of_task in epochs.items()}
        return found

    def reset(self, sealed: Mapping[int, Sequence[msg.LayerAck]]) -> None:
        """A loss was forgiven: epochs that any task may have begun before make no floor."""
        self._mixed_until = max(self._mixed_until, self._newest_epoch(sealed))

    def _newest_epoch(self, sealed: Mapping[int, Sequence[msg.LayerAck]]) -> int:
        """The newest epoch that any task may have begun; if in an earlier term, its marker is in a
        log."""
        tasks, book = self._roster.plan.tasks, self._keeper.book
        runs = (run for task in tasks for run in book.runs(task.id, 1))
        causes = (decode_record(record)[0] for run in runs for record in run.records)
        markers = (cause.epoch for cause in causes if isinstance(cause, Marker))
        layers = (layer.ref.epoch for of_task in sealed.values() for layer in of_task)
        return max([self.pending_epoch, *layers, *markers])
