"""The layers that a task seals, until they are below its floor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sized
from dataclasses import replace
from enum import Enum
from typing import Protocol

from clonos.core.channels import Inbound, Outbound
from clonos.core.events import Action, LayerStored, StoreLayer, Tell
from clonos.core.handover import HANDED_BYTES, AtRest, at_rest, to_store
from clonos.core.inbounds import Inbounds
from clonos.core.intake import Intake
from clonos.core.levels import LayerRef
from clonos.core.life import Life
from clonos.core.log import LogBook
from clonos.core.loops import Rounds
from clonos.core.machine import Machine, Table
from clonos.core.messages import Dependencies, Kind, LayerAck, Prepared, Resting, SealLayer
from clonos.core.outbounds import Outbounds
from clonos.core.plan import Incarnation, Plan
from clonos.core.program import Program
from clonos.core.sealed import Layer


class SealState(Enum):
    """The states of a sealed layer."""

    STORING = "storing"
    STORED = "stored"
    ACKNOWLEDGED = "acknowledged"


class SealEvent(Enum):
    """What happens to a sealed layer."""

    STORED = "stored"
    SETTLED = "outputs settled"


SEAL = Table(
    "a sealed layer",
    SealState.STORING,
    {
        (SealState.STORING, SealEvent.STORED): SealState.STORED,
        (SealState.STORED, SealEvent.SETTLED): SealState.ACKNOWLEDGED,
    },
)


class Closing(Enum):
    """Whether more layers follow: none does once a task is prepared to move."""

    OPEN = "open"
    LAST = "one more"
    CLOSED = "closed"


class Task(Protocol):
    """What a seal needs to know of the task."""

    id: int
    incarnation: Incarnation
    life: Life
    program: Program
    position: int
    epoch: int
    dep: Dependencies
    clock_ms: int
    wake_ms: int | None
    intake: Intake
    end_is_out: bool
    rounds: Rounds | None

    @property
    def book(self) -> LogBook: ...
    @property
    def plan(self) -> Plan: ...
    @property
    def inbounds(self) -> Inbounds: ...
    @property
    def outbounds(self) -> Outbounds: ...
    @property
    def under_way(self) -> object | None: ...
    @property
    def inputs(self) -> Mapping[int, Inbound]: ...
    @property
    def outputs(self) -> Mapping[int, Outbound]: ...
    @property
    def calls(self) -> Sized: ...


class Seal:
    """A layer on its way into the store and from there into a floor."""

    def __init__(self, layer: Layer, open_calls: int) -> None:
        self.layer, self._open_calls = layer, open_calls
        self._ref: LayerRef | None = None
        self.machine = SEAL.machine(f"seal of epoch {layer.epoch}")

    def stored(self, ref: LayerRef) -> None:
        """The layer is stored."""
        self.machine.on(SealEvent.STORED)
        self._ref = ref

    def acknowledge(self) -> LayerAck:
        """All output that the task delivered before it is durable, so the layer counts."""
        self.machine.on(SealEvent.SETTLED)
        layer, ref = self.layer, self._ref
        assert ref is not None
        ins = {channel: seq for channel, (seq, _) in layer.ins.items()}
        outs = {channel: seq for channel, (seq, _) in layer.outs.items()}
        for channel, (_, items) in layer.carried.items():
            first = outs[channel] + 1 - len(items)
            rows = (item.seq for item in items if item.kind is Kind.BATCH)
            outs[channel] = max(rows, default=first - 1)
        return LayerAck(
            layer.task,
            layer.incarnation,
            ref,
            ins,
            outs,
            layer.dep,
            layer.generation,
            self._open_calls,
        )


class Seals:
    """The seals of one task, by their numbers.

    Parameters
    ----------
    task
        The task that seals.
    floor
        The layer that it begins with, if any.
    do
        Takes actions.

    Attributes
    ----------
    is_due
        Without markers: a layer should be sealed.
    """

    def __init__(self, task: Task, floor: Layer | None, do: Callable[[Action], None]) -> None:
        self.is_due = False
        self._task, self._do = task, do
        self._closing = Closing.OPEN
        self._seals: dict[int, Seal] = {}
        self._open: dict[int, Seal] = {}  # not acknowledged yet
        # A sender of feedback seals once in each life: only its acknowledgement says which
        # items it has sent back, and the last one may have reached only an earlier coordinator.
        self._newest = (0, 0)
        if floor is not None and not floor.carried:
            self._newest = floor.position, floor.generation

    @property
    def has_news(self) -> bool:
        """Whether something has happened that is in no layer."""
        return self._newest != (self._task.position, self._task.life.generation)

    # --- when to seal -------------------------------------------------------------------------

    def wanted(self, command: SealLayer) -> None:
        """The coordinator wants a layer; or to know if there is nothing to seal. Before a move, it
        is to be the last one instead: a sender in the same cell waits for it."""
        self.is_due = True
        if self.is_closed:
            self._closing = Closing.LAST
        self.seal_if_due()
        if resting := self._resting(command.number):
            self._do(Tell(resting))

    def seal_if_due(self) -> None:
        """Without markers: seal, if it is time and no step is under way."""
        if self._task.under_way is not None:
            return
        if self.may_seal():
            self.seal(self._task.epoch + 1)
        if self._closing is Closing.LAST and not self.has_news:
            self._closing, self.is_due = Closing.CLOSED, False
            task = self._task
            self._do(Tell(Prepared(task.id, task.incarnation, task.position)))

    def may_seal(self) -> bool:
        """Without markers: whether to seal now; one layer after the other.

        Not while an input starts over, because our place on it is unknown then.
        """
        return (
            self.is_due
            and self._closing is not Closing.CLOSED
            and not self._open
            and self.has_news
            and all(end.reset_at is None for end in self._task.inputs.values())
        )

    def _resting(self, number: int) -> Resting | None:
        """What a live task answers that has nothing to seal; None: it has, or may have soon."""
        task = self._task
        is_at_work = task.under_way is not None or not task.life.is_live
        intake = task.intake
        takes_rows = task.life.spec.is_source and not (intake.is_closed or intake.ended)
        if is_at_work or takes_rows or self._open or self.has_news:
            return None
        return Resting(task.id, task.incarnation, task.position, len(task.calls), number)

    # --- a layer ------------------------------------------------------------------------------

    def seal(self, epoch: int) -> None:
        """Freeze what has changed since the last seal. Steps do not notice."""
        self._do(self._sealed(epoch))

    def _sealed(self, epoch: int) -> StoreLayer:
        task, self.is_due = self._task, False
        task.epoch = task.inbounds.epoch = epoch
        self._newest = task.position, task.life.generation
        layer = Layer(
            task=task.id,
            incarnation=task.incarnation,
            epoch=epoch,
            position=task.position,
            ins={c: (i.consumed, i.consumed_chain) for c, i in task.inputs.items()},
            outs={c: (o.log.last, o.log.chain) for c, o in task.outputs.items()},
            ended=tuple(c for c, i in task.inputs.items() if i.ended),
            dep=dict(task.dep),
            clock_ms=task.clock_ms,
            wake_ms=task.wake_ms,
            source_rows=task.intake.taken,
            source_cut=task.intake.cut,
            source_ended=task.intake.ended,
            delta=b"",
            end_is_out=task.end_is_out,
            generation=task.life.generation,
            carried={c: o.log.carried for c, o in task.outputs.items() if o.spec.is_feedback},
            rounds=task.rounds.state if task.rounds is not None else None,
        )
        self._seals[epoch] = self._open[epoch] = Seal(layer, len(task.calls))
        return StoreLayer(layer, task.program.delta())

    def stored(self, event: LayerStored) -> None:
        """A layer is stored; ignored if a floor has passed it."""
        if (seal := self._seals.get(event.ref.epoch)) is not None:
            seal.stored(event.ref)
        self.acknowledge()

    def acknowledge(self) -> None:
        """A layer counts once it is stored and all output delivered before it is durable."""
        for number, seal in list(self._open.items()) if self._open else ():
            if seal.machine.state is SealState.STORED:
                upto = {channel: seq for channel, (seq, _) in seal.layer.outs.items()}
                if self._task.outbounds.are_settled(upto):
                    self._do(Tell(seal.acknowledge()))
                    del self._open[number]
                    self.seal_if_due()

    # --- before a move ------------------------------------------------------------------------

    def prepare(self) -> None:
        """The task is about to move: seal once more, and then no more."""
        self._closing, self.is_due = Closing.LAST, True
        self.seal_if_due()

    def resume(self) -> None:
        """It does not move after all."""
        self._closing = Closing.OPEN
        self.seal_if_due()

    @property
    def is_closed(self) -> bool:
        """Whether no more layers follow for now."""
        return self._closing is Closing.CLOSED

    def rest(self) -> AtRest | None:
        """Seal what has changed since the floor, with all items that receivers may still ask for.
        None: nothing has, not all of it is here, or it is too much.

        It is a layer like any other, except that it is stored only where the task goes on.
        """
        logs = {channel: end.log for channel, end in self._task.outputs.items()}
        is_all_here = not any(log.spilled.files for log in logs.values())
        is_prepared = self._closing is not Closing.OPEN
        if not is_prepared or self._seals or not self.has_news or not is_all_here:
            return None
        task = self._task
        bytes_max = HANDED_BYTES // len(task.plan.cell_of[task.id])
        if task.book.nbytes + sum(log.nbytes for log in logs.values()) > bytes_max:
            return None
        sealed = self._sealed(task.epoch + 1)
        carried = {channel: log.carried for channel, log in logs.items()}
        sealed = StoreLayer(replace(sealed.layer, carried=carried), sealed.delta)
        return at_rest(sealed, task.book, bytes_max)

    def take_over(self, layer: Layer) -> None:
        """The task begins with this layer, which an earlier life has not stored: store it."""
        assert isinstance(layer.delta, bytes)
        self._newest = layer.position, layer.generation
        sealed = to_store(self._task.plan, layer, layer.delta)
        self._seals[layer.epoch] = self._open[layer.epoch] = Seal(sealed.layer, 0)
        self._do(sealed)

    # --- floors -------------------------------------------------------------------------------

    @property
    def beyond_floor(self) -> int:
        """How many layers have been sealed since the floor."""
        return len(self._seals)

    def floor(self, position: int) -> None:
        """The floor has moved to `position`: forget the layers up to there.

        Layers that are not acknowledged are in no floor: after a reset, the same position is sealed
        again.
        """
        passed = [e for e, s in self._seals.items() if s.layer.position <= position]
        for number in set(passed) - self._open.keys():
            del self._seals[number]

    def get(self, epoch: int) -> Seal | None:
        """The seal of an epoch, if no floor has passed it."""
        return self._seals.get(epoch)

    def machines(self) -> list[Machine[SealState, SealEvent]]:
        """Its state machines, for reports of errors."""
        return [seal.machine for seal in self._seals.values()]
