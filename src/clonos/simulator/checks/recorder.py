"""Sees the whole cluster at once, as no process in it can, and checks the invariants."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from clonos.core import events as ev
from clonos.core import messages as msg
from clonos.core import notes
from clonos.core.codec import CODEC
from clonos.core.determinants import Determinant, Order, decode_record
from clonos.core.housekeeper import Deliver, HouseKeeper
from clonos.core.levels import STORE, LayerRef
from clonos.core.life import Phase
from clonos.core.plan import NOBODY, Incarnation
from clonos.core.sealed import Layer
from clonos.core.task import TaskMachine
from clonos.simulator.checks import endings, floors, implied, invariants, levels, past
from clonos.simulator.checks.closed import ClosedKeeper
from clonos.simulator.checks.invariants import Cuts
from clonos.simulator.checks.lethal import lethal_calls_end
from clonos.simulator.checks.levels import Kept
from clonos.simulator.checks.moves import Rested
from clonos.simulator.checks.violations import require
from clonos.simulator.jobs.programs import AnyJob
from clonos.simulator.world.disks import LAYERS, Disks, stored
from clonos.simulator.world.network import Stream
from clonos.simulator.world.service import Service
from clonos.simulator.world.virtual import TraceDigest
from clonos.storage.layers import LayerStore, get_layers

Name = tuple[int, int, int]
"""Name of an output: generation, task, seq."""


class Recorder:
    """The history of one simulation.

    Attributes
    ----------
    fenced, newest
        For each task: the newest resolved fence, and the newest life that runs.
    cuts
        For each task: where its log was cut, and by which incarnation.
    first
        The layers that tasks began with, if the job had another plan before.
    checks_state
        Whether the machines' own consistency checks are run.
    has_failures
        Whether some life of a task or of the driver has ended too early.
    holders
        Which slot has which of the layers that are not in the store.
    """

    def __init__(self, job: AnyJob, disks: Disks, digest: TraceDigest) -> None:
        self.job = job
        self.digest = digest
        self.fenced: dict[int, Incarnation] = {}
        self.newest: dict[int, Incarnation] = {}
        self.cuts: Cuts = {}
        self.first: dict[int, Layer] = {}
        self.generation = self._begun_in = 0
        self.steps = 0
        self.checks_state, self.has_failures = True, False
        self._disks = disks
        self._store = LayerStore(LAYERS, files=disks.shared.observe())
        self.holders = Kept()
        tasks = [task.id for task in job.plan.tasks]
        self._entries: dict[int, list[tuple[Incarnation, bytes]]] = {t: [] for t in tasks}
        self._rests_on: dict[int, list[dict[int, int]]] = {t: [] for t in tasks}
        self._owner: dict[int, Incarnation] = {}
        self._outputs: dict[Name, Any] = {}
        self._written: dict[Name, Any] = {}
        self._last: dict[tuple[int, int], int] = {}
        self._consumed: dict[tuple[int, Incarnation], dict[int, int]] = {}
        # By slot and holder: the term in which it said so, and how much it holds. A driver that was
        # replaced still hears answers until it notices.
        self._held: dict[int, dict[tuple[int, int], tuple[int, int]]] = defaultdict(dict)
        self._rested = Rested()
        self._over: dict[int, Incarnation] = {}  # given up, even if unaware of it
        self._unresolved: set[int] = set()
        self._due: dict[int, set[int]] = {}  # unresolved tasks at the time when a task was resolved
        self._cut_again: set[int] = set()
        self._durable: dict[int, int] = {}
        self._stable: dict[int, int] = {}
        self._speaker = 0  # the newest term that has let out anything
        self.sealed: dict[tuple[int, Incarnation, int], Any] = {}  # what layers have, as counts
        self._found: set[Name] = set()  # outputs that the newest driver began with
        self._journaled: set[tuple[int, Incarnation, int]] = set()  # cuts
        self._may_stand: list[ClosedKeeper] = []  # what the journal may restore
        self._covered: dict[int, int] = {}
        self._floor_epoch = 0
        self._in_use: Mapping[int, int] = {}
        self._floors: dict[int, int] = {}
        self._channel_floors = floors.floors_of_channels(job.plan, {})
        self._shared = invariants.shared_logs(job.plan)

    @property
    def _is_exact(self) -> bool:
        """Whether the job has logs and no loss was forgiven."""
        return self.generation == self._begun_in and self.job.plan.causal_log

    def goes_on(self, first: Mapping[int, Layer]) -> None:
        """The job had another plan before, and its tasks begin with these layers."""
        self.first = dict(first)
        for task, layer in first.items():
            # Padding, so that list indices are positions.
            self._entries[task] = [(NOBODY, b"")] * layer.position
            self._rests_on[task] = [{}] * layer.position
            self._covered[task] = layer.position
            self.generation = self._begun_in = layer.generation

    # --- what the logs say ------------------------------------------------------------------------

    def entries(self, task: int) -> list[tuple[Incarnation, bytes]]:
        return self._entries[task][self.begin(task) :]

    def begin(self, task: int) -> int:
        """The position at which a task has begun."""
        return self.first[task].position if task in self.first else 0

    def history(self, task: int) -> list[bytes]:
        return [record for _, record in self.entries(task)]

    def output(self, task: int) -> list[Any]:
        """Everything that a sink task has delivered, in all generations, in order."""
        return [content for _, content in self.outputs(task)]

    def outputs(self, task: int) -> list[tuple[Name, Any]]:
        """The same, with the outputs' names."""
        return sorted((k, v) for k, v in self._outputs.items() if k[1] == task)

    def written_by(self, task: int) -> list[tuple[Name, Any]]:
        """The store's content of a sink task that writes itself."""
        return sorted((k, v) for k, v in self._written.items() if k[1] == task)

    # --- control ----------------------------------------------------------------------------------

    def ordered(self, slot: int, command: msg.Command) -> None:
        """The driver sends a command."""
        self.digest.add(slot, CODEC.encode(command))
        if not isinstance(command, msg.Activate):
            return
        if self._is_exact and command.task in self.cuts:
            incarnation, length = self.cuts[command.task][-1]
            if incarnation == command.incarnation:
                known = self._entries[command.task]
                told = self._held[command.task].values()
                held = max((n for term, n in told if term == incarnation.term), default=0)
                record = known[length][1] if len(known) > length else None
                invariants.longest_survives(
                    self.job.plan, command.task, length, held, record, self.cuts
                )

    def commanded(self, machine: TaskMachine, command: msg.Floor | msg.Resolve) -> None:
        """A task has carried out a command."""
        if machine.incarnation != self.newest[machine.id]:
            return
        if isinstance(command, msg.Resolve) and not command.reset and self._is_exact:
            cut = command.incarnation, command.length
            invariants.nothing_lost_held(machine.book, command.task, [cut], machine.spec.name)
            if machine.phase is not Phase.FENCED:
                invariants.no_orphan(machine, command)
        if isinstance(command, msg.Floor) and machine.phase is not Phase.FENCED:
            invariants.entries_kept(machine, self._floors, self._durable)

    def reported(self, slot: int, report: msg.Report) -> None:
        """The driver hears a report."""
        self.digest.add(slot, CODEC.encode(report))
        if isinstance(report, msg.FenceAnswer):
            told = report.incarnation.term, report.length
            self._held[report.task][slot, report.holder] = told

    def noted(self, note: notes.Note) -> None:
        """The coordinator has made a note."""
        match note:
            case notes.Fetched(task, life, length):
                self.fenced[task] = life
                self.cuts.setdefault(task, []).append((life, length))
                self._resolved(task)
            case notes.Detected(task, life) | notes.Moving(task, life):
                if isinstance(note, notes.Moving) and note.hands_over:
                    self._rested.hands_over(task, life)
                self._over[task], self.has_failures = life, True
                self._unresolved.add(task)
                self._held[task].clear()
            case notes.Orphan(task) if task in self._due:
                self._cut_again.add(task)
            case notes.Activated(task):
                self._due.pop(task, None)

    def _resolved(self, task: int) -> None:
        if self._is_exact:
            again = {other: self._due[other] for other in self._cut_again}
            invariants.cut_once(task, again)
        self._unresolved.discard(task)
        self._cut_again.discard(task)
        ancestors = self.job.plan.distances[task].keys()
        self._due[task] = self._unresolved & ancestors

    def lost(self, slot: int) -> None:
        """The driver has given up a slot: what it held is gone."""
        for held in self._held.values():
            for key in [key for key in held if key[0] == slot]:
                del held[key]

    # --- tasks ------------------------------------------------------------------------------------

    def activated(self, machine: TaskMachine, command: msg.Activate) -> None:
        self.newest[machine.id] = max(machine.incarnation, self.newest.get(machine.id, NOBODY))
        self._consumed[machine.id, machine.incarnation] = {
            channel: end.consumed for channel, end in machine.inputs.items()
        }
        if not self.job.plan.causal_log or self._is_over(machine):
            return
        if command.handed is not None:
            self._rested.goes_on_where_it_rests(machine, self.cuts[machine.id])
        if self._is_exact:
            invariants.no_void_entries(self.job.plan, machine.id, command.log, self.cuts)
        invariants.somebody_wrote(machine, command.log, self._entries[machine.id])

    def _is_over(self, machine: TaskMachine) -> bool:
        """Whether the coordinator has given up this life.

        It counts as over from its fence on, not from its Resolve. Tasks upstream may be resolved
        earlier, and a life that does not know that it is over still listens to their old lives.
        """
        task, life = machine.id, machine.incarnation
        is_newest = life == self.newest[task] and life >= self.fenced.get(task, NOBODY)
        return not is_newest or life <= self._over.get(task, NOBODY)

    def live(self, machine: TaskMachine) -> None:
        """From now on this incarnation writes the task's history."""
        if machine.incarnation < self._owner.get(machine.id, NOBODY):
            return
        self._owner[machine.id] = machine.incarnation
        if machine.spec.is_implied:
            return  # it only repeats known steps
        del self._entries[machine.id][machine.position :]
        del self._rests_on[machine.id][machine.position :]

    def touched(self, machine: TaskMachine) -> None:
        """A task has received something, or done a step."""
        if not self._is_over(machine) and machine.phase is not Phase.FENCED:
            invariants.flow_told(machine)

    def acts(self, machine: TaskMachine, actions: list[ev.Action]) -> None:
        """A task returns actions."""
        for action in actions:
            if isinstance(action, ev.Send):
                self.sends(machine, action.data)
            elif isinstance(action, ev.StoreLayer):
                floors.knows_where_it_is(machine)
            elif isinstance(action, ev.Tell) and isinstance(action.report, msg.Live):
                self.live(machine)

    def kept(self, machine: TaskMachine) -> None:
        """A task may have dropped something, which it does neither on receipt nor in a step."""
        if self.job.plan.leaves_gaps:
            return
        if not self._is_over(machine) and machine.phase is not Phase.FENCED:
            for channel, output in machine.outputs.items():
                invariants.items_kept(output, self._channel_floors[channel], machine.spec.name)

    def stepped(self, machine: TaskMachine, backlogs: dict[int, int]) -> None:
        """A step has ended; `backlogs` were measured before it."""
        self.steps += 1
        invariants.over_is_over(machine)
        self._rested.takes_no_step(machine)
        record = machine.book.record(machine.id, machine.position)
        self.digest.add(machine.id, machine.incarnation, machine.position, record)
        if machine.incarnation < self.newest.get(machine.id, NOBODY):
            if machine.incarnation == self._owner.get(machine.id):
                self._append(machine, record)
            return
        cause = self._append(machine, record)
        self._check_step(machine, cause, backlogs)

    def _append(self, machine: TaskMachine, record: bytes) -> Determinant:
        cause = decode_record(record)[0]
        owner = self._owner.get(machine.id)
        entries, at = self._entries[machine.id], machine.position - 1
        if owner == machine.incarnation and machine.spec.is_implied and at < len(entries):
            if self._stands(entries[at][1]):
                implied.same_again(machine, entries[at][1], record)
                entries[at] = machine.incarnation, record
                return cause
            del entries[at:], self._rests_on[machine.id][at:]
        if owner == machine.incarnation and at == len(entries):
            entries.append((machine.incarnation, record))
            if self._is_exact:
                self._rests_on[machine.id].append(self._rest_on(machine, cause))
        return cause

    def _stands(self, record: bytes) -> bool:
        """Whether the items that an entry took still exist."""
        cause = decode_record(record)[0]
        if not isinstance(cause, Order):
            return True
        made = self._entries[self.job.plan.makers[cause.channel]][cause.position - 1 :]
        return bool(made) and made[0][0] == cause.incarnation

    def _rest_on(self, machine: TaskMachine, cause: Determinant) -> dict[int, int]:
        """How many entries of each log the newest step of a task really depends on."""
        before = self._rests_on[machine.id]
        now = dict(before[-1]) if before else {}
        if isinstance(cause, Order):
            maker, at = self.job.plan.makers[cause.channel], cause.position - 1
            made, entries = self._rests_on[maker][at:], self._entries[maker][at:]
            # If a zombie takes items of a zombie, the entry is gone or belongs to another life.
            if made and entries[0][0] == cause.incarnation:
                now.update((t, max(now.get(t, 0), position)) for t, position in made[0].items())
        now[machine.id] = machine.position
        return now

    def _check_step(
        self, machine: TaskMachine, cause: Determinant, backlogs: dict[int, int]
    ) -> None:
        consumed = self._consumed[machine.id, machine.incarnation]
        if self._is_exact:
            invariants.dependencies_known(machine, self._rests_on[machine.id][machine.position - 1])
            invariants.still_no_orphan(machine)
        if machine.life.generation == self._begun_in and not self.job.plan.leaves_gaps:
            invariants.gap_free_input(machine, consumed, cause)
        consumed.update((channel, end.consumed) for channel, end in machine.inputs.items())
        invariants.log_before_effect(machine, self._durable, self._shared)
        invariants.bounded_memory(machine, backlogs)

    def makes(self, machine: TaskMachine, asked_at: int) -> None:
        invariants.log_before_effects(machine, asked_at, self._durable)

    def sends(self, machine: TaskMachine, data: msg.Data | msg.Welcome) -> None:
        if isinstance(data, msg.Data) and data.item is not None:
            self.digest.add(data.channel, data.item.seq, data.item.chain)
            invariants.gated_source(machine, data.channel, data.item, self._durable)

    def receives(self, machine: TaskMachine, event: ev.Received) -> None:
        inbound = machine.inputs[event.channel]
        is_open = machine.phase is not Phase.FENCED and inbound.conn == event.conn
        if is_open and not self._is_over(machine):
            sender = inbound.spec.sender
            invariants.fencing(sender, event.data.incarnation, self.fenced, machine.spec.name)

    def written(self, task: int, action: ev.Release) -> None:
        key = (action.generation, task, action.item.seq)
        self.digest.add(*key, action.item.chain)
        if self._is_exact:
            invariants.released_is_delivered(key, self._outputs)
        invariants.stable_output(self._written, key, action.item, "written")

    # --- the house-keeper -------------------------------------------------------------------------

    def keeper_receives(
        self, keeper: HouseKeeper, stream: Stream, data: msg.Data | msg.Welcome
    ) -> None:
        inbound = keeper.inputs[stream.channel]
        if inbound.conn == stream.conn:
            sender = inbound.spec.sender
            invariants.fencing(sender, stream.incarnation, self.fenced, "the house-keeper")

    def keeper_took(self, keeper: HouseKeeper, data: msg.Data | msg.Welcome) -> None:
        for run in data.runs if isinstance(data, msg.Data) else ():
            invariants.nothing_lost_held(keeper.book, run.task, self.cuts.get(run.task, ()), "it")

    def keeper_says(self, message: msg.ChannelMessage) -> None:
        """The house-keeper answers a sender."""
        if isinstance(message, msg.Hello) and message.reset_at is None and self._is_exact:
            task = self.job.plan.tasks[self.job.plan.channels[message.channel].sender]
            if task.is_sink and message.channel == task.outputs[-1]:
                last = (self._begun_in, task.id, message.next_seq - 1)
                begin = self._lane_begin(task.id)
                invariants.vouches_for_deliveries(task.name, last, begin, self._outputs)

    def _lane_begin(self, task: int) -> int:
        """How many outputs a sink task had when it began."""
        outs = self.first[task].outs if task in self.first else {}
        return outs[self.job.plan.tasks[task].outputs[-1]][0] if outs else 0

    def recovered(self, keeper: HouseKeeper, delivered: list[Deliver], layers: str) -> None:
        """A new life of the driver has read the journal: it must know all that was let out."""
        self._held.clear()
        self.holders.begins()
        self.has_failures = True
        self._store = LayerStore(layers, files=self._disks.shared.observe())
        self._unresolved.clear()
        self._due.clear()
        self._cut_again.clear()
        delivered = [one for one in delivered if one.generation >= self._begun_in]
        for deliver in delivered:  # older outputs belong to a past that a rewind has left
            self._take_output(deliver)
        self._found = set(self._outputs)
        self._check_durable(keeper, delivered)
        self._check_cuts(keeper)
        self._durable = {t: keeper.length(t) for t in keeper.positions}
        self._in_use = keeper.positions

    def lets_out(self, term: int, output: Deliver) -> None:
        """The driver of a term releases an output."""
        name = output.generation, output.task, output.item.seq
        invariants.one_driver(term, self._speaker, is_found=name in self._found)
        self._speaker = max(self._speaker, term)

    def _check_durable(self, keeper: HouseKeeper, delivered: list[Deliver]) -> None:
        """All that was acknowledged is in the journal, the layers or the files of output."""
        found = ClosedKeeper(keeper)
        invariants.journal_stands(found, self._may_stand)
        self._may_stand = [found]
        invariants.nothing_forgotten(keeper, self._outputs)
        invariants.layers_are_there(self._store, keeper.layers)
        past.past_is_there(self._store, found.past)
        if self._is_exact:
            held = [run for task in keeper.positions for run in keeper.book.runs(task, 1)]
            truth = {t: [record for _, record in self._entries[t]] for t in keeper.positions}
            first = {task: layer.position for task, layer in self.first.items()}
            past.past_is_true(self._store, found.past, held, truth, first)
        self.output_is_kept(delivered)

    def output_is_kept(self, in_journal: Sequence[Deliver]) -> None:
        """All delivered output is in the journal, or in the files of output."""
        kept = dict(stored(self.job, self._disks.local.observe(), self._begun_in))
        invariants.output_is_kept(self._outputs, in_journal, kept)

    @property
    def used(self) -> set[str]:
        """The paths of the layers that the journal refers to."""
        layers = {ref.path for chain in self._layers.values() for ref in chain}
        return layers | self._past.paths if self._past is not None else layers

    @property
    def _past(self) -> past.KeptPast | None:
        return self._may_stand[0].past if self._may_stand else None

    @property
    def _layers(self) -> Mapping[int, tuple[LayerRef, ...]]:
        return self._may_stand[0].layers if self._may_stand else {}

    def store_is_back(self) -> None:
        """The store has lost what was not synced."""
        invariants.layers_are_there(self._store, self._layers)
        if self._past is not None:
            past.past_is_there(self._store, self._past)

    def deletes(self, paths: Sequence[str]) -> None:
        """The driver deletes layers."""
        if self._past is not None:
            past.past_stays(paths, self._past)
        invariants.unused(paths, self.used)

    def writes(self, keeper: ClosedKeeper) -> None:
        """A group of records is being written: a reader of the journal may already find it."""
        self._may_stand.append(keeper)

    def committed(self, keeper: ClosedKeeper) -> None:
        """A group of records is durable; nobody has been told yet."""
        self._check_cuts(keeper)
        self._may_stand = [keeper]
        self._stable = dict(keeper.stable)
        self._durable = {t: keeper.length(t) for t in keeper.positions}
        self.generation = max(self.generation, keeper.generation)
        for task in self.holders.chosen:
            levels.stored_before_it_counts(task, keeper.layers[task])
        if keeper.epoch > self._floor_epoch:
            self._floor_epoch = keeper.epoch
            invariants.logs_kept(keeper)
            if not self.holders.chosen:
                self._new_floor(keeper)

    def uses(self, keeper: ClosedKeeper) -> None:
        """Floors are in use from now on. Unless some task has a dial, this happens only when the
        journal has them."""
        if self.holders.chosen:
            self._new_floor(keeper)

    def goes_back(self, positions: Mapping[int, int]) -> None:
        """All tasks restart from the hard floors."""
        self._in_use = positions

    def _check_cuts(self, keeper: HouseKeeper | ClosedKeeper) -> None:
        """Compare cuts that are new in the journal with what tasks were told before."""
        now = {(cut.task, cut.incarnation, cut.length) for cut in keeper.resolved}
        if self.job.plan.causal_log:
            invariants.stable_stays(sorted(now - self._journaled), self._stable)
        self._journaled |= now

    def _new_floor(self, keeper: ClosedKeeper) -> None:
        plan, in_use = self.job.plan, keeper.in_use
        newest = {t: refs[-1:] for t, refs in in_use.layers.items() if refs}
        layers = {t: self._layer(ref) for t, (ref,) in newest.items()}
        moved = {t: layers[t] for t in layers if in_use.positions[t] != self._in_use.get(t)}
        self._in_use = in_use.positions
        # Live tasks have been told of the highest floors, even if all went back to others.
        self._floors = {t: max(n, self._floors.get(t, 0)) for t, n in in_use.positions.items()}
        now = floors.floors_of_channels(plan, layers)
        self._channel_floors = {c: max(n, self._channel_floors[c]) for c, n in now.items()}
        floors.floor_of_the_living(moved, self._over)
        if plan.has_markers:
            floors.consistent_floor(plan, layers)
        else:
            floors.fitting_floors(plan, layers)
            floors.no_orphaned_floor(layers, keeper)
        if self._is_exact:
            effects = {task.id: self._effects(task.id) for task in plan.tasks if task.is_sink}
            floors.floor_has_effect(plan, layers, effects)

    def _layer(self, ref: LayerRef) -> Layer:
        if ref.level == STORE:
            return get_layers(self._store, [ref])[0]
        return self.holders.layers[ref.path]

    def _effects(self, task: int) -> int:
        """How many outputs of a sink have had their effect on the world."""
        outputs = self.outputs(task)
        if self.job.plan.tasks[task].writes_itself:
            for name, (kind, _, _) in outputs:
                if kind == msg.Kind.BATCH and name not in self._written:
                    return name[2] - 1
        return self._lane_begin(task) + len(outputs)

    def delivered(self, keeper: ClosedKeeper, deliver: Deliver) -> None:
        if deliver.generation < self._begun_in:
            return  # it was delivered before the rewind
        invariants.log_before_output(keeper, deliver)
        if self._is_exact:
            maker = self.job.plan.makers[deliver.channel]
            self._cover(maker, deliver.item.dep[maker].position)
        self._take_output(deliver)

    def _cover(self, task: int, position: int) -> None:
        """Invariant 1 once more, computed from the items that steps have really taken, not from
        the dependencies that items claim."""
        start = self._covered.get(task, 0)
        if position <= start:
            return
        require(
            position <= self._durable[task],
            "log before effect",
            f"output depends on entry {position} of task {task}, the journal has {self._durable}",
        )
        self._covered[task] = position
        for _, record in self._entries[task][start:position]:
            cause = decode_record(record)[0]
            if isinstance(cause, Order):
                self._cover(self.job.plan.makers[cause.channel], cause.position)

    def _take_output(self, deliver: Deliver) -> None:
        key = (deliver.generation, deliver.task, deliver.item.seq)
        self.digest.add(*key, deliver.item.chain)
        is_new = key not in self._outputs
        invariants.stable_output(self._outputs, key, deliver.item, "delivered")
        if is_new:
            invariants.gap_free_output(self._last, deliver)

    # --- the end ----------------------------------------------------------------------------------

    def check_end(self, service: Service) -> None:
        """After the job is done."""
        endings.sinks_have_ended(self.job, self)
        for disk in (self._disks.local, self._disks.shared):
            disk.lose_power()
        again = HouseKeeper(self.job.plan, self.job.encode, self.job.decode)
        self._check_durable(again, again.recover(self._disks.journal()))
        if self._is_exact:
            endings.equivalence(self.job, self)
            for task in self.job.plan.tasks:
                service.calls_once(task, self.entries(task.id))
            for task in self.job.plan.tasks:
                service.effects_once(task, self.entries(task.id))
                lethal_calls_end(task, self.job, self.entries(task.id), service.lethal)
            endings.clock_goes_on(self.job, self)
            endings.written_once(self.job, self)
        if self.job.plan.leaves_gaps:
            endings.at_most_once(self.job, self)
        else:
            endings.conservation(self.job, self, at_least=not self._is_exact)
