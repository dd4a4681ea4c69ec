"""Checkpoints: markers are injected, layers acknowledged, and a floor is made of them."""

from __future__ import annotations

from enum import Enum

from clonos.core import messages as msg
from clonos.core.decisions import Compacted, Note
from clonos.core.determinants import Marker, decode_record
from clonos.core.machine import Table
from clonos.core.messages import LayerRef
from clonos.core.roster import ACTIVE, Roster, TaskState
from clonos.core.standbys import Standbys


class EpochState(Enum):
    """Of the next epoch."""

    IDLE = "idle"
    INJECTED = "injected"


class EpochEvent(Enum):
    """What happens to it."""

    INJECTED = "all live, markers"
    COMPLETE = "every layer acknowledged"


EPOCH = Table(
    "the next epoch",
    EpochState.IDLE,
    {
        (EpochState.IDLE, EpochEvent.INJECTED): EpochState.INJECTED,
        (EpochState.INJECTED, EpochEvent.COMPLETE): EpochState.IDLE,
        # Its markers may be in the logs from an earlier term: no matter who has injected them.
        (EpochState.IDLE, EpochEvent.COMPLETE): EpochState.IDLE,
    },
)


class Checkpoints:
    """The state of the epochs after the floor.

    Attributes
    ----------
    next_epoch
        The one to complete next.
    acks
        Layers, by epoch, then by task.
    """

    def __init__(self, roster: Roster, standbys: Standbys) -> None:
        self._roster = roster
        self._keeper = roster.keeper
        self._standbys = standbys
        self.machine = EPOCH.machine("checkpoints")
        self.next_epoch = roster.keeper.epoch + 1
        self.acks: dict[int, dict[int, LayerRef]] = {}
        self._mixed_until = 0  # epochs with layers from before and after a reset: no floors

    @property
    def pending_epoch(self) -> int:
        """The epoch whose markers are under way; 0: none."""
        return self.next_epoch if self.machine.state is EpochState.INJECTED else 0

    def begin(self) -> None:
        """Inject a marker, unless one is under way or a recovery is."""
        if self.machine.state is EpochState.IDLE and self._roster.all_run:
            self.machine.on(EpochEvent.INJECTED)
            for task in self._roster.tasks.values():
                self.inject(task)

    def inject(self, task: TaskState) -> None:
        """Tell a task of the marker under way, if there is one."""
        if self.machine.state is EpochState.INJECTED:
            self._roster.command(task.id, msg.Inject(self.next_epoch))

    def forget(self, task: TaskState) -> None:
        """A life is over: its layers are void as long as they are in no floor."""
        for acks in self.acks.values():
            acks.pop(task.id, None)

    def acknowledged(self, slot: int, report: msg.LayerAck) -> None:
        """Acknowledgements of a superseded life are void."""
        task, keeper = self._roster.tasks[report.task], self._keeper
        if report.epoch <= keeper.epoch or report.incarnation != task.incarnation:
            return
        if task.phase not in ACTIVE:
            return
        if report.generation < keeper.generation:  # it had not heard of the reset
            self._mixed_until = max(self._mixed_until, report.epoch)
        # The marker may be in the logs from an earlier term: no matter who has injected it.
        self.acks.setdefault(report.epoch, {})[task.id] = report.ref
        self._complete()

    def _complete(self) -> None:
        """Deltas build on each other: every layer since the last floor is needed."""
        epoch = self.next_epoch
        acks = [self.acks.get(e, {}) for e in range(self._keeper.epoch + 1, epoch + 1)]
        if any(len(of_epoch) < len(self._roster.tasks) for of_epoch in acks):
            return
        self.next_epoch += 1
        self.machine.on(EpochEvent.COMPLETE)
        if epoch > self._mixed_until:  # else channels may have other numbers at their two ends
            self._advance(epoch, acks)
        self._complete()  # of an earlier term, the next may have waited for the same layer

    def _advance(self, epoch: int, acks: list[dict[int, LayerRef]]) -> None:
        roster, keeper = self._roster, self._keeper
        positions = {task: ref.position for task, ref in acks[-1].items()}
        layers = {t: (*keeper.layers[t], *(a[t] for a in acks)) for t in roster.tasks}
        self.acks = {e: of_epoch for e, of_epoch in self.acks.items() if e > epoch}
        keeper.advance(epoch, positions, layers)
        roster.do(Note("floor", value=epoch))
        for task in roster.active():
            roster.command(task.id, msg.Floor(epoch, positions))
        self._standbys.floor(epoch, layers)

    def check(self) -> None:
        """Assertions over the whole state."""
        assert self.next_epoch > self._keeper.epoch
        for epoch, acks in self.acks.items():
            assert epoch > self._keeper.epoch
            for task, ref in acks.items():
                known = self._roster.tasks[task].incarnation
                assert (ref.task, ref.epoch, ref.incarnation) == (task, epoch, known)

    def reset(self) -> None:
        """A loss was forgiven: no epoch that anybody may have begun before makes a floor."""
        self._mixed_until = max(self._mixed_until, self._newest_epoch())

    def _newest_epoch(self) -> int:
        """The newest that anybody may have begun: of an earlier term, its marker is in a log."""
        tasks, book = self._roster.plan.tasks, self._keeper.book
        runs = (run for task in tasks for run in book.runs(task.id, 1))
        causes = (decode_record(record)[0] for run in runs for record in run.records)
        markers = (cause.epoch for cause in causes if isinstance(cause, Marker))
        return max([self.pending_epoch, *self.acks, *markers])

    def compacted(self, event: Compacted) -> None:
        """Some layers of a task were merged, if they are still there."""
        keeper = self._keeper
        chain, count = keeper.layers[event.merged.task], len(event.replaced)
        start = chain.index(event.replaced[0]) if event.replaced[0] in chain else len(chain)
        if chain[start : start + count] == event.replaced:
            shorter = (*chain[:start], event.merged, *chain[start + count :])
            layers = {**keeper.layers, event.merged.task: shorter}
            keeper.advance(keeper.epoch, keeper.positions, layers)
