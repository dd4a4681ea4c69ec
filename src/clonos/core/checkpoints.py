"""Checkpoints: layers that tasks have sealed, and the floors that are made of them.

Floors are made of the layers of one epoch, on whose markers all tasks have aligned
(:mod:`clonos.core.markers`), or of the newest layers that fit together, whenever each was sealed
(:mod:`clonos.core.floors`).
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise
from typing import Any, Final

from clonos.core import messages as msg
from clonos.core import notes
from clonos.core.decisions import Compacted
from clonos.core.floors import in_the_way, newest_fitting
from clonos.core.holdings import Holdings
from clonos.core.levels import LayerRef
from clonos.core.machine import Machine
from clonos.core.markers import Markers
from clonos.core.messages import LayerAck
from clonos.core.plan import HOUSE_KEEPER, Cell
from clonos.core.rest import Rest
from clonos.core.roster import ACTIVE, Roster, TaskState
from clonos.core.standbys import Standbys

FLOORS_MS: Final = 20
"""Without markers, floors are looked for this often: layers come one by one ..."""
TASK_MS: Final = 0.5
"""... but at most once per this time times the number of tasks: looking, and telling all of them,
costs time."""


class Checkpoints:
    """The layers after the floors.

    Attributes
    ----------
    markers
        The epochs; None if each task seals by its own timer.
    moving
        A cell that is about to move: its tasks seal only what the move asks for.
    sealed
        By task: layers beyond its floor, in order. All are kept, because deltas build on each
        other.
    """

    def __init__(self, roster: Roster, standbys: Standbys, holdings: Holdings) -> None:
        self._roster = roster
        self._keeper = roster.keeper
        self._holdings = holdings
        self._standbys = standbys
        self.markers = Markers(roster) if roster.plan.has_markers else None
        self.sealed = holdings.beyond
        self.moving: Cell = ()
        self._look_ms = max(FLOORS_MS, int(TASK_MS * len(roster.tasks)))
        self._looked_ms = 0
        self._came = 0  # layers in all
        self._seen = 0, 0, 0  # at the last look: layers, stable entries, version of the holdings
        self._sent_back: dict[int, int] = {}  # by feedback channel: rows that floors have sent
        self._open_calls: dict[int, int] = {}  # by task: open in its floor
        self._hurried: set[int] = set()  # tasks that were told to seal, and have yet to
        self._wanted: set[int] = set()  # tasks that were told to seal when that is cheap
        self.rest = Rest(roster, self._look_ms)
        self._settles_at: int | None = None  # None: the job need not settle

    @property
    def pending_epoch(self) -> int:
        """The epoch whose markers are under way; 0: none."""
        return self.markers.pending_epoch if self.markers is not None else 0

    def machines(self) -> list[Machine[Any, Any]]:
        """Its state machines, for reports of errors."""
        return [self.markers.machine] if self.markers is not None else []

    # --- when layers are sealed -----------------------------------------------------------------

    def begin(self, *, hurry: bool) -> None:
        """Inject a marker, unless a marker or a recovery is under way.

        Without markers, tasks seal by themselves. In a `hurry` they are told to seal at once: only
        floors make logs shorter.
        """
        if self._roster.plan.leaves_gaps:
            return
        if self.markers is not None:
            self.markers.begin()
            return
        for task in self._roster.active() if hurry else ():
            is_told = task.id in self._hurried or task.id in self.moving
            if not is_told and not self.sealed[task.id]:
                self._hurried.add(task.id)
                self._roster.command(task.id, msg.SealLayer())

    def settle(self) -> None:
        """From the next tick on sources take no more rows, so that floors reach the ends of all
        logs."""
        self.rest.begin()
        self._settles_at = self._keeper.epoch
        if self.markers is not None:  # an epoch that begins after sources have stopped
            self._settles_at = self.markers.next_epoch + (self.pending_epoch > 0)

    def ask(self) -> None:
        """Have tasks seal, or say that they rest, after sources were told to take no more rows."""
        if self.markers is None and (self.is_settling or self.needs_rest):
            self.rest.ask()

    def go_on(self) -> None:
        """The job need not settle after all: from the next tick on sources take rows again."""
        self._settles_at = None

    @property
    def is_settling(self) -> bool:
        """Whether the job was told to settle."""
        return self._settles_at is not None

    @property
    def have_settled(self) -> bool:
        """Whether logs and output end at the floors, and all rows that sources have taken are
        below."""
        keeper, epoch = self._keeper, self._settles_at
        if epoch is None or not keeper.is_settled or not self._nothing_goes_round:
            return False
        return keeper.epoch >= epoch if self.markers is not None else self.rest.is_below_floors

    def live(self, task: TaskState) -> None:
        """Tell a task that was away what the others have heard."""
        if self.markers is not None:
            self.markers.inject(task)
        else:  # its replay has made items that nobody needs any more
            outputs = self._roster.plan.tasks[task.id].outputs
            needs = {channel: self._keeper.needs[channel] for channel in outputs}
            self._roster.command(task.id, msg.Floor({}, needs))

    # --- layers ---------------------------------------------------------------------------------

    def forget(self, task: TaskState) -> None:
        """A life is over: its layers are void as long as they are in no floor."""
        self.sealed[task.id].clear()
        self._forget_orders(task.id)
        self.rest.forget(task)
        self._holdings.forget(task.id)

    def acknowledged(self, slot: int, report: LayerAck) -> None:
        """A layer is stored. Acknowledgements of a superseded life are void."""
        task = self._roster.tasks[report.task]
        self._holdings.sealed(slot, report.ref)
        if report.incarnation != task.incarnation or task.phase not in ACTIVE:
            return
        floor = self._keeper.layers[task.id][-1:]
        if floor and report.ref.epoch <= floor[0].epoch:
            return
        of_task = self.sealed[task.id]
        of_task.append(report)
        of_task.sort(key=lambda layer: layer.ref.epoch)
        self._came += 1
        self._forget_orders(task.id)
        if self.markers is not None:
            self.markers.acknowledged(report)
            self._complete()

    def tick(self) -> None:
        """Time passes: without markers, or where floors wait for stable log entries or for copies
        of layers, floors may be able to move now."""
        is_awaited = self.markers is None or self._keeper.history.points or self._holdings.version
        is_awaited = is_awaited or self._roster.plan.chooses_levels
        if not is_awaited or self._roster.now_ms - self._looked_ms < self._look_ms:
            return
        self._looked_ms = self._roster.now_ms
        seen = self._came, sum(self._keeper.stable.values()), self._holdings.version
        if seen != self._seen and any(self.sealed.values()):
            self._seen = seen
            if self.markers is None:
                self._fit()
            else:
                self._complete()

    # --- floors ---------------------------------------------------------------------------------

    def _may_pass(self, ref: LayerRef) -> bool:
        return self._keeper.may_pass(ref) and self._holdings.is_safe(ref)

    def _complete(self) -> None:
        assert self.markers is not None
        if chosen := self.markers.complete(self.sealed, self._may_pass):
            self._advance(self.markers.next_epoch - 1, chosen)

    def _fit(self) -> None:
        keeper = self._keeper
        newest = {  # layers of an older generation stay in the chain, but make no floor
            task: [
                layer
                for layer in layers
                if layer.generation == keeper.generation and self._may_pass(layer.ref)
            ]
            for task, layers in self.sealed.items()
        }
        chosen = newest_fitting(
            self._roster.plan, newest, keeper.positions, keeper.needs, keeper.stable
        )
        is_mixed = keeper.floor_generation < keeper.generation and len(chosen) < len(newest)
        if chosen and not is_mixed:
            self._advance(keeper.epoch + 1, chosen)
        self._want_others()

    def _want_others(self) -> None:
        """Have tasks seal that keep layers of their senders from being floors."""
        active = {task.id for task in self._roster.active()}
        blocking = in_the_way(self._roster.plan, self.sealed, self._keeper.needs)
        told = {*self._wanted, *self._hurried, *self.moving}
        for task in sorted((blocking & active) - told):
            self._wanted.add(task)
            self._roster.command(task, msg.SealLayer(when_cheap=True))

    def _forget_orders(self, task: int) -> None:
        self._hurried.discard(task)
        self._wanted.discard(task)

    def _advance(self, epoch: int, chosen: dict[int, LayerAck]) -> None:
        """These layers are floors now."""
        roster, keeper = self._roster, self._keeper
        channels = roster.plan.channels
        layers, positions, needs = {}, {}, {}
        for task, newest in chosen.items():
            passed = [s.ref for s in self.sealed[task] if s.ref.epoch <= newest.ref.epoch]
            self.sealed[task] = self.sealed[task][len(passed) :]
            layers[task] = (*keeper.layers[task], *passed)
            positions[task] = newest.ref.position
            self._open_calls[task] = newest.open_calls
            needs.update(newest.ins)
            out = {c: n for c, n in newest.outs.items() if channels[c].receiver == HOUSE_KEEPER}
            needs.update(out)  # a layer is acknowledged when the output before it is settled
            back = (c for c in newest.outs if channels[c].is_feedback)
            self._sent_back.update((c, newest.outs[c]) for c in back)
        keeper.advance(epoch, positions, layers, needs)
        roster.do(notes.Floor(epoch))
        self._harden()
        tasks = roster.plan.tasks
        for active in roster.active():
            of_task = {c: needs[c] for c in tasks[active.id].outputs if c in needs}
            roster.command(active.id, msg.Floor(positions, of_task))
        self._standbys.floor(layers)

    def _harden(self) -> None:
        if self._holdings.hardening.look():
            self._roster.do(notes.Hard(self._keeper.hard.epoch))
            for task in self._keeper.layers:  # other layers are to come to the store next
                self._holdings.moved(task)

    def fall_back(self) -> None:
        """All tasks go back to the hard floors."""
        self._keeper.fall_back()
        self._holdings.fall_back()
        if self.markers is not None:
            self.markers = self.markers.again()
        self._open_calls.clear()
        self._sent_back.clear()

    @property
    def no_call_is_open(self) -> bool:
        """Whether no call is open in the floors. With markers, floors of an earlier term do not
        count, as this is not known of them."""
        said = {task: self.rest.open_calls(task) for task in self._keeper.positions}
        known = {task: count for task, count in said.items() if count is not None}
        return not any({**self._open_calls, **known}.values())

    @property
    def _nothing_goes_round(self) -> bool:
        """Whether the receivers' floors have taken all items that the senders' floors have sent
        back. This is not known of floors of an earlier term, so these count as if they had not."""
        needs, positions = self._keeper.needs, self._keeper.positions
        return all(
            self._sent_back[c.id] <= needs[c.id]
            if c.id in self._sent_back
            else not positions[c.sender]
            for c in self._roster.plan.channels
            if c.is_feedback
        )

    def reset(self) -> None:
        """A loss was forgiven: layers from before and after it do not fit together."""
        if self.markers is not None:
            self.markers.reset(self.sealed)

    @property
    def needs_rest(self) -> bool:
        """Whether sources have to wait for floors: after a loss was forgiven, all floors move at
        once, and while rows flow there may never be a moment at which they can.
        """
        keeper = self._keeper
        return self.markers is None and keeper.floor_generation < keeper.generation

    def compacted(self, event: Compacted) -> None:
        """Some layers of a task were merged, if they are still there."""
        keeper, task = self._keeper, event.merged.task
        chain, count = keeper.layers[task], len(event.replaced)
        start = chain.index(event.replaced[0]) if event.replaced[0] in chain else len(chain)
        if chain[start : start + count] == event.replaced:
            shorter = (*chain[:start], event.merged, *chain[start + count :])
            keeper.shorten(task, shorter)
            self._holdings.moved(task)  # copies need not have what is in the store
            self._harden()

    def check(self) -> None:
        """Assertions over the whole state."""
        if self.markers is not None:
            assert self.markers.next_epoch > self._keeper.epoch
        for task, layers in self.sealed.items():
            known: Collection[Any] = self._keeper.layers[task][-1:]
            refs = [*known, *(layer.ref for layer in layers)]
            assert all(one.epoch < other.epoch for one, other in pairwise(refs))
            for layer in layers:
                life = self._roster.tasks[task].incarnation
                assert (layer.ref.task, layer.ref.incarnation) == (task, life)
                assert layer.incarnation == life
