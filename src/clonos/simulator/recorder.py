"""Sees everything at once, as nobody in the cluster can, and holds it against the invariants."""

from __future__ import annotations

from typing import Any

from clonos.core import events as ev
from clonos.core import messages as msg
from clonos.core.canonical import decode
from clonos.core.codec import CODEC
from clonos.core.determinants import Order, decode_record
from clonos.core.housekeeper import Deliver, HouseKeeper
from clonos.core.layer import open_layer
from clonos.core.life import Phase
from clonos.core.messages import Kind, Layer
from clonos.core.plan import Incarnation
from clonos.core.task import TaskMachine
from clonos.simulator import invariants
from clonos.simulator.invariants import require
from clonos.simulator.network import Stream
from clonos.simulator.programs import AnyJob
from clonos.simulator.world import TraceDigest

NOBODY = Incarnation(0, 0)
Name = tuple[int, int, int]
"""Of an output: generation, task, seq."""


class Recorder:
    """The history of one simulation."""

    def __init__(self, job: AnyJob, layers: dict[str, bytes], digest: TraceDigest) -> None:
        self.job = job
        self.digest = digest
        self.fenced: dict[int, Incarnation] = {}
        self.newest: dict[int, Incarnation] = {}
        self.generation = 0
        self.steps = 0
        self._layers = layers
        self._entries: dict[int, list[tuple[Incarnation, bytes]]] = {
            t.id: [] for t in job.plan.tasks
        }
        self._owner: dict[int, Incarnation] = {}
        self._outputs: dict[Name, Any] = {}
        self._written: dict[Name, Any] = {}
        self._last: dict[tuple[int, int], int] = {}
        self._durable: dict[int, int] = {}
        self._covered: dict[int, int] = {}
        self._floor_epoch = 0
        self._paths = invariants.longest_paths(job.plan)
        self._channel_floors: dict[int, int] = invariants.floors_of_channels(job, {})

    # --- what the logs say ------------------------------------------------------------------------

    def entries(self, task: int) -> list[tuple[Incarnation, bytes]]:
        return self._entries[task]

    def history(self, task: int) -> list[bytes]:
        return [record for _, record in self._entries[task]]

    def output(self, task: int) -> list[Any]:
        """What a sink task has delivered, all generations, in order."""
        return [content for _, content in self.outputs(task)]

    def outputs(self, task: int) -> list[tuple[Name, Any]]:
        """The same with its names."""
        return sorted((k, v) for k, v in self._outputs.items() if k[1] == task)

    def written_by(self, task: int) -> list[tuple[Name, Any]]:
        """What the store has of a sink task that writes itself."""
        return sorted((k, v) for k, v in self._written.items() if k[1] == task)

    @staticmethod
    def decode_answer(answer: bytes) -> Any:
        return decode(answer)

    # --- control ----------------------------------------------------------------------------------

    def ordered(self, slot: int, command: msg.Command) -> None:
        self.digest.add(slot, CODEC.encode(command))

    def reported(self, slot: int, report: msg.Report) -> None:
        self.digest.add(slot, CODEC.encode(report))

    # --- tasks ------------------------------------------------------------------------------------

    def activated(self, machine: TaskMachine, command: msg.Activate) -> None:
        self.newest[machine.id] = max(machine.incarnation, self.newest.get(machine.id, NOBODY))
        if self.generation or not machine.plan.causal_log:
            return
        known = self._entries[machine.id]
        for run in command.log:
            for position, record in enumerate(run.records, run.start):
                require(
                    position <= len(known) and known[position - 1] == (run.incarnation, record),
                    "stable log",
                    f"{machine.spec.name} is to replay an entry {position} that nobody wrote",
                )

    def live(self, machine: TaskMachine) -> None:
        """From here on this incarnation writes the task's history."""
        if machine.incarnation < self._owner.get(machine.id, NOBODY):
            return
        self._owner[machine.id] = machine.incarnation
        entries = self._entries[machine.id]
        require(
            len(entries) >= machine.position or not machine.plan.causal_log,
            "stable log",
            f"{machine.spec.name} goes live at {machine.position}, {len(entries)} are known",
        )
        del entries[machine.position :]

    def stepped(self, machine: TaskMachine, backlogs: dict[int, int]) -> None:
        """A step has ended; `backlogs` are those from before."""
        self.steps += 1
        record = machine.book.record(machine.id, machine.position)
        self.digest.add(machine.id, machine.incarnation, machine.position, record)
        if machine.incarnation < self.newest.get(machine.id, NOBODY):
            if machine.incarnation == self._owner.get(machine.id):
                self._append(machine)
            return
        self._append(machine)
        if machine.phase is not Phase.FENCED:
            invariants.log_before_effect(machine, self._durable, self._paths)
            invariants.gap_free_input(machine, {})
            invariants.bounded_memory(machine, backlogs)

    def _append(self, machine: TaskMachine) -> None:
        owner = self._owner.get(machine.id)
        entries = self._entries[machine.id]
        if owner == machine.incarnation and machine.position == len(entries) + 1:
            record = machine.book.record(machine.id, machine.position)
            entries.append((machine.incarnation, record))

    def sends(self, machine: TaskMachine, data: msg.Data | msg.Welcome) -> None:
        if isinstance(data, msg.Data) and data.item is not None:
            self.digest.add(data.channel, data.item.seq, data.item.chain)
            invariants.gated_source(machine, data.channel, data.item, self._durable)

    def receives(self, machine: TaskMachine, event: ev.Received) -> None:
        inbound = machine.inputs[event.channel]
        is_current = machine.incarnation == self.newest[machine.id]
        if (
            is_current
            and machine.phase is not Phase.FENCED
            and inbound.conn == event.conn
            and machine.incarnation >= self.fenced.get(machine.id, NOBODY)
        ):
            sender = inbound.spec.sender
            invariants.fencing(sender, event.data.incarnation, self.fenced, machine.spec.name)

    def written(self, task: int, action: ev.Release) -> None:
        key = (action.generation, task, action.item.seq)
        self.digest.add(*key, action.item.chain)
        invariants.stable_output(self._written, key, action.item, "written")

    # --- the house-keeper -------------------------------------------------------------------------

    def keeper_receives(
        self, keeper: HouseKeeper, stream: Stream, data: msg.Data | msg.Welcome
    ) -> None:
        inbound = keeper.inputs[stream.channel]
        if inbound.conn == stream.conn:
            sender = inbound.spec.sender
            invariants.fencing(sender, stream.incarnation, self.fenced, "the house-keeper")

    def recovered(self, keeper: HouseKeeper, delivered: list[Deliver]) -> None:
        """A new life of the driver has read the journal: it knows what the world knows."""
        for deliver in delivered:
            self._take_output(deliver)
        for (generation, task, seq), (_, _, chain) in self._outputs.items():
            if generation != keeper.generation:
                continue
            (channel,) = (c for c in self.job.plan.tasks[task].outputs)
            inbound = keeper.inputs[channel]
            require(inbound.consumed >= seq, "stable output", "a delivery was forgotten")
            if inbound.consumed == seq:
                require(inbound.consumed_chain == chain, "stable output", "another digest")
        self._durable = {t: keeper.length(t) for t in keeper.positions}

    def committed(self, keeper: HouseKeeper) -> None:
        self._durable = {t: keeper.length(t) for t in keeper.positions}
        self.generation = max(self.generation, keeper.generation)
        if keeper.epoch > self._floor_epoch:
            self._floor_epoch = keeper.epoch
            newest: dict[int, Layer | None] = {
                task: open_layer(self._layers[refs[-1].path], refs[-1]) if refs else None
                for task, refs in keeper.layers.items()
            }
            self._channel_floors = invariants.floors_of_channels(self.job, newest)
            invariants.logs_kept(keeper)

    def kept(self, machine: TaskMachine) -> None:
        """Called after a floor has reached a task."""
        if machine.incarnation != self.newest[machine.id]:
            return
        for channel, floor in self._channel_floors.items():
            output = machine.outputs.get(channel)
            if output is not None:
                invariants.no_early_truncation(output, floor, machine.spec.name)

    def delivered(self, keeper: HouseKeeper, deliver: Deliver) -> None:
        invariants.log_before_output(keeper, deliver)
        if not self.generation and keeper.plan.causal_log:
            self._cover(deliver.task, deliver.item.dep[deliver.task].position)
        self._take_output(deliver)

    def _cover(self, task: int, position: int) -> None:
        """Invariant 1 once more, not from what items say they depend on, but from what the steps
        have in truth taken."""
        start = self._covered.get(task, 0)
        if position <= start:
            return
        require(
            position <= self._durable[task],
            "log before effect",
            f"output rests on entry {position} of task {task}, the journal has {self._durable}",
        )
        self._covered[task] = position
        for _, record in self._entries[task][start:position]:
            cause = decode_record(record)[0]
            if isinstance(cause, Order):
                self._cover(self.job.plan.channels[cause.channel].sender, cause.position)

    def _take_output(self, deliver: Deliver) -> None:
        key = (deliver.generation, deliver.task, deliver.item.seq)
        self.digest.add(*key, deliver.item.chain)
        is_new = key not in self._outputs
        invariants.stable_output(self._outputs, key, deliver.item, "delivered")
        if is_new:
            invariants.gap_free_output(self._last, deliver)

    # --- the end ----------------------------------------------------------------------------------

    def check_end(self, service: Any) -> None:
        """After the job is done."""
        for task in self.job.plan.tasks:
            if task.is_sink:
                kinds = [kind for kind, _, _ in self.output(task.id)]
                require(kinds and kinds[-1] == Kind.END, "liveness", f"{task.name} has no END")
        exact = self.generation == 0 and self.job.plan.causal_log
        if exact:
            invariants.equivalence(self.job, self)
            invariants.calls_once(self.job, self, service)
            invariants.written_once(self.job, self)
        invariants.conservation(self.job, self, at_least=not exact)
