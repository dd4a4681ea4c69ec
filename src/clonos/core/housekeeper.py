"""The house-keeper: the holder that does not fail, and the receiver of all output of the job.

It is at the end of every channel that leads out of the job. To its senders it is a receiver like
any other (same handshake, same delta, same digests), with two differences: it acknowledges only
what its journal has, and it takes an output only when it holds every log entry that the output
depends on. Then the output is *delivered*: whatever dies, the logs from the last floor on reproduce
exactly this output.

It is sans-I/O: :meth:`HouseKeeper.take_records` gives what to append to the journal,
:meth:`HouseKeeper.committed` is called when that is durable, :meth:`HouseKeeper.recover` reads
it back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import msgpack

from clonos.core import events as ev
from clonos.core import messages as msg
from clonos.core.channels import Inbound, Verdict
from clonos.core.cuts import rests_on_stable
from clonos.core.fences import Trust, depends_on_lost, fields_of, from_fields, merged
from clonos.core.history import RECORDS, Chains, History, Keep, Point
from clonos.core.holder import Holder
from clonos.core.inbounds import Inbounds
from clonos.core.levels import LayerRef
from clonos.core.machine import with_stories
from clonos.core.messages import Dependencies, Item, Kind
from clonos.core.plan import HOUSE_KEEPER, Incarnation, Plan
from clonos.core.program import Batch
from clonos.core.sealed import Layer
from clonos.core.standing import Floors, Positions, cuts_still_needed
from clonos.core.version import VERSION
from clonos.errors import ProtocolError


@dataclass(frozen=True, slots=True)
class Deliver:
    """An output is durable: (generation, task, seq) is its name for ever.

    ``item.batch.payload`` is opaque; ``kind`` END: this sink task has no more output. ``again``: it
    was read from the journal, and may have taken effect before."""

    channel: int
    task: int
    generation: int
    item: Item
    again: bool = False


class HouseKeeper:
    """Logs, outputs and floors of one job.

    Parameters
    ----------
    plan
        The job.
    encode, decode
        A batch's payload to bytes and back.
    keep
        How much of the past is kept; by default nothing.

    Attributes
    ----------
    epoch
        How often floors have moved; with markers, the epoch of all floors.
    positions, layers
        Of each task: the position of its floor, and the layers up to there.
    needs
        Of each channel: the last item that its receiver's floor has taken.
    floor_generation
        The generation of all floors.
    hard
        The floors that the journal names; see :mod:`clonos.core.standing`.
    failed
        Of tasks that could not go on: the failed step, and the beginning of its log entry.
    claimed
        At most once: what sources have taken (see :class:`~clonos.core.messages.Claim`).
    history
        The past that is kept.
    version
        How often the plan has been replaced.
    """

    def __init__(
        self,
        plan: Plan,
        encode: Callable[[Batch], bytes],
        decode: Callable[[bytes], Any],
        keep: Keep | None = None,
    ) -> None:
        self.plan = plan
        self.history = History(keep)
        self.term = 0
        self.generation = 0
        self.version = 0
        self.epoch = 0
        self.floor_generation = 0
        self.positions: dict[int, int] = {task.id: 0 for task in plan.tasks}
        self.layers: dict[int, tuple[LayerRef, ...]] = {task.id: () for task in plan.tasks}
        self.needs: dict[int, int] = {channel.id: 0 for channel in plan.channels}
        self.hard = self.floors
        self.complete = False
        self.counted: dict[str, Any] = {}
        self.failed: dict[int, tuple[int, bytes]] = {}
        self.claimed: dict[int, tuple[int, bytes]] = {}
        self.holder = Holder()
        self.book = self.holder.book
        self.fences = self.holder.fences
        self.stable = self.holder.stable
        self.stable.update({task.id: 0 for task in plan.tasks})
        self.resolved: list[msg.Resolve] = []
        self._encode = encode
        self._decode = decode
        self._records: list[bytes] = []
        self._delivered: list[Deliver] = []
        self._actions: list[ev.Action] = []
        self.inbounds = Inbounds(
            (Inbound(plan, c, 0, 0) for c in plan.channels if c.receiver == HOUSE_KEEPER),
            self.holder,
            self._actions.append,
        )
        self.inputs = self.inbounds.ends
        self._credit_due: set[int] = set()
        self._unstable = set(self.stable)
        # By the channel to us of each task with effects: the task, which waits for its log to be
        # stable.
        self._waited_for = {
            channel: self.plan.channels[channel].sender
            for channel in self.inputs
            if self.plan.tasks[self.plan.channels[channel].sender].has_effects
        }
        self._told: dict[int, int] = {}  # by such a channel: the stable length told last

    # --- the journal ------------------------------------------------------------------------

    def _write(self, kind: str, *fields: Any) -> None:
        self._records.append(msgpack.packb((kind, *fields)))

    def take_records(self) -> list[bytes]:
        """What the journal must hold before :meth:`committed` may be called."""
        records, self._records = self._records, []
        return records

    def committed(self) -> tuple[list[ev.Action], list[Deliver]]:
        """Everything taken so far is durable: acknowledge it, let it out."""
        self._advance_stable()
        self._tell_what_is_safe()
        for channel in sorted(self._credit_due):
            inbound = self.inputs[channel]
            credit = inbound.credit(relaxed=False, force=True)
            if credit is not None and inbound.conn is not None:
                stable = {t: self.stable[t] for t in inbound.logs}
                message = msg.Credit(channel, credit.processed, stable=stable)
                if channel in self._waited_for:
                    self._told[channel] = stable[self._waited_for[channel]]
                self._actions.append(ev.Reply(inbound.conn, message))
        self._credit_due.clear()
        actions = self._actions.copy()
        self._actions.clear()
        delivered, self._delivered = self._delivered, []
        return actions, delivered

    def _tell_what_is_safe(self) -> None:
        """Tasks with effects hear what is stable of their logs, even if they have sent nothing."""
        for channel, task in self._waited_for.items():
            if self._told.get(channel) != self.stable[task]:
                self._credit_due.add(channel)

    def _advance_stable(self) -> None:
        """Find out how much of each log can never be cut any more: all entries that it depends on
        are held, too.

        Only that much is acknowledged. Entries that are merely held may turn out void (they took
        items that no surviving log says were made), and then holders must pass on their
        replacements.
        """
        before = -1
        while before != (before := sum(self.stable.values())):
            for task in sorted(self._unstable):
                position = max(self.stable[task], self.positions[task])
                end = self.length(task)
                while position < end and self._rests_on_stable(task, position + 1):
                    position += 1
                self.stable[task] = position
                if position == end:
                    self._unstable.discard(task)

    def _rests_on_stable(self, task: int, position: int) -> bool:
        record = self.book.record(task, position)
        return rests_on_stable(self.plan, record, self.stable, self.resolved)

    def snapshot(self, unsettled: Iterable[bytes] = ()) -> list[bytes]:
        """Records that replace the whole journal so far, without the content of delivered output.

        ``unsettled``: records that were taken and never became durable. Their content is kept.
        """
        pending, self._records = self._records, []
        for name, value in (VERSION, self.version), ("counted", self.counted):
            if value:
                self._write(name, value)
        self._write("term", self.term, self.generation, self.complete)
        self._write_floor(self.hard.positions, self.hard.layers, self.hard.needs)
        for record in self.history.snapshot():
            self._write(*record)
        for command in self.resolved:
            self._write_resolve(command)
        for task in self.plan.tasks:
            for run in self.book.runs(task.id, 1):
                self._write_run(run)
        for kind, known in ("failed", self.failed), ("claim", self.claimed):
            for number, fields in known.items():
                self._write(kind, number, *fields)
        # They come before the records of the state that they led to, which count.
        self._records += [
            r for r in unsettled if msgpack.unpackb(r, strict_map_key=False)[0] == "item"
        ]
        for channel, i in self.inputs.items():
            dep = fields_of(i.consumed_dep)
            state = (i.consumed, i.consumed_chain, i.ended, i.reset_at)
            self._write("world", channel, *state, dep)
        head, self._records = self._records, pending
        return head

    def recover(self, records: Iterable[bytes]) -> list[Deliver]:
        """Read the journal back. Returns the deliveries whose content is still in it."""
        readers: dict[str, Callable[..., None]] = {
            VERSION: partial(setattr, self, "version"),
            "counted": partial(setattr, self, "counted"),
            "term": self._read_term,
            "floor": self._read_floor,
            "run": self._read_run,
            "item": self._read_item,
            "world": self._read_world,
            "resolve": self._read_resolve,
            "failed": lambda task, *step: self.failed.update({task: step}),
            "claim": lambda task, *claim: self.claimed.update({task: claim}),
            **{kind: partial(self.history.take, kind) for kind in RECORDS},
        }
        for record in records:
            kind, *fields = msgpack.unpackb(record, strict_map_key=False)
            if kind not in readers:
                raise ProtocolError(f"unknown journal record {kind!r}", where="house-keeper")
            readers[kind](*fields)
        delivered, self._delivered = self._delivered, []
        return delivered

    def _read_term(self, term: int, generation: int, complete: bool) -> None:
        if term != self.term:
            self.failed.clear()
        self.term, self.generation, self.complete = term, generation, complete

    def _read_floor(self, epoch: int, generation: int, at: dict[int, int], *rest: Any) -> None:
        refs, needs = rest
        layers = {t: tuple(map(LayerRef.of, chain)) for t, chain in refs.items()}
        self._stand_on(self.floors.moved(epoch, generation, at, layers, needs))
        self._harden(self.floors)

    def _read_run(self, task: int, term: int, n: int, start: int, records: list[bytes]) -> None:
        stable = max(start - 1, 0)
        self.holder.append(msg.Run(task, Incarnation(term, n), start, tuple(records), stable))
        self._unstable.add(task)  # for a reader that follows a growing journal

    def _read_item(self, channel: int, generation: int, seq: int, *rest: Any) -> None:
        kind, epoch, rows, digest, chain, dep, content = rest
        is_batch = Kind(kind) is Kind.BATCH
        batch = Batch(self._decode(content), rows, len(content), digest) if is_batch else None
        item = Item(seq, Kind(kind), epoch, 0, batch, from_fields(dep), chain)
        dep = merged(self.inputs[channel].consumed_dep, item.dep)
        i = self._restore(channel, seq, chain, ended=item.kind is Kind.END)
        i.consumed_dep = dep
        self.generation = max(self.generation, generation)
        self._delivered.append(Deliver(channel, i.spec.sender, generation, item, again=True))

    def _read_world(self, channel: int, consumed: int, chain: int, *rest: Any) -> None:
        ended, reset_at, dep = rest
        i = self._restore(channel, consumed, chain, ended=ended)
        if reset_at is not None:
            i.start_over(reset_at)
        i.consumed_dep = from_fields(dep)

    def _restore(self, channel: int, consumed: int, chain: int, *, ended: bool) -> Inbound:
        spec = self.plan.channels[channel]
        end = self.inputs[channel] = Inbound(self.plan, spec, consumed, chain, ended=ended)
        return end

    def _read_resolve(self, task: int, term: int, n: int, length: int, *rest: Any) -> None:
        generation, reset = rest
        self._resolve(msg.Resolve(task, Incarnation(term, n), length, generation, reset))

    def _write_run(self, run: msg.Run) -> None:
        self._write("run", run.task, *run.incarnation, run.start, run.records)

    # --- as a receiver ------------------------------------------------------------------------

    @property
    def incarnation(self) -> Incarnation:
        return Incarnation(self.term, 0)

    def handle(self, event: ev.Opened | ev.Received | ev.InputClosed) -> None:
        """A sender connects, sends or goes. Effects appear after the next commit."""
        try:
            if isinstance(event, ev.Received):
                self._receive(event)
            elif isinstance(event, ev.InputClosed):
                self.inbounds.closed(event)
            elif self.inbounds.opened(event):
                self._greet(self.inputs[event.channel])
        except ProtocolError as error:
            end = self.inputs[event.channel]
            with_stories(error, (end.link, end.items))
            raise

    def _greet(self, inbound: Inbound) -> None:
        if self.inbounds.can_greet(inbound):
            # A sink takes what we say we have as delivered; items that wait here are not.
            inbound.forget_queue()
            self.inbounds.greet(inbound, self.incarnation)
            self._credit_due.add(inbound.spec.id)

    def _receive(self, event: ev.Received) -> None:
        runs = event.data.runs if isinstance(event.data, msg.Data) else ()
        lengths = {run.task: self.book.length(run.task) for run in runs}
        verdict = self.inbounds.received(event)
        if verdict is None:
            return
        self._journal_new(lengths)
        if verdict is Verdict.TAKEN:
            self._credit_due.add(event.channel)
        self._deliver()

    def _journal_new(self, lengths: dict[int, int]) -> None:
        for task, before in lengths.items():
            for run in self.book.runs(task, before + 1):
                self._write_run(run)
                self._unstable.add(task)

    def holds(self, dep: Dependencies) -> bool:
        """Whether every log entry in `dep` is held here or below its floor."""
        if not self.plan.causal_log:
            return True
        return all(d.position <= self.length(t) for t, d in dep.items())

    def _deliver(self) -> None:
        """Take every output whose causes are all held (log before effect)."""
        for channel, i in self.inputs.items():
            while i.queue:
                item = i.queue[0]
                dep = self.fences.clamp(item.dep)
                if self.fences.judge(item.dep) is not Trust.VALID or not self.holds(dep):
                    break
                known = i.consumed_dep
                i.consume(1)
                i.consumed_dep = merged(known, dep)
                if item.kind is Kind.END:
                    i.end()
                self._write_item(channel, item, dep)
                self._delivered.append(Deliver(channel, i.spec.sender, self.generation, item))
                self._credit_due.add(channel)

    def _write_item(self, channel: int, item: Item, dep: Dependencies) -> None:
        batch = item.batch
        rows, digest = (batch.rows, batch.digest) if batch else (0, 0)
        state = (item.seq, int(item.kind), item.epoch, rows, digest, item.chain, fields_of(dep))
        content = self._encode(batch) if batch else b""
        self._write("item", channel, self.generation, *state, content)

    # --- as a holder --------------------------------------------------------------------------

    def length(self, task: int) -> int:
        """How much of a task's log is held; entries below its floor count as held."""
        return max(self.book.length(task), self.positions[task])

    def append(self, runs: Iterable[msg.Run]) -> None:
        """Log entries that only another holder had (recovery)."""
        for run in runs:
            before = self.book.length(run.task)
            self.book.append(run)
            self._journal_new({run.task: before})
        self._deliver()

    def hear(self, words: msg.LastWords) -> None:
        """The log entries of a life that cannot go on; they count as if they had come with an
        output."""
        for run in words.runs:
            is_next = run.start <= self.length(run.task) + 1
            if is_next and not self.fences.must_wait(run) and not self.fences.forbids(run):
                self.append([run])
        if not words.runs:
            self.failed[words.task] = words.position, words.record
            self._write("failed", words.task, words.position, words.record)

    def claim(self, claim: msg.Claim) -> None:
        """A source has taken these rows: they are never read again."""
        self.claimed[claim.task] = claim.rows, claim.cut
        self._write("claim", claim.task, claim.rows, claim.cut)

    def begin_term(self, term: int) -> None:
        """A coordinator starts; all commands of earlier ones are void."""
        self.failed.clear()
        self.term = term
        self._write("term", term, self.generation, self.complete)

    def count(self, counted: dict[str, Any]) -> None:
        """What calls have cost and which rows were dropped."""
        self.counted = counted
        self._write("counted", counted)

    def finish(self) -> None:
        """All outputs are delivered; there is nothing to recover any more."""
        self.complete = True
        self._write("term", self.term, self.generation, self.complete)

    def fence(self, task: int, incarnation: Incarnation) -> None:
        """Refuse lower incarnations."""
        self.holder.fence(task, incarnation, self.length(task))
        self.inbounds.refuse_from(task)

    def resolve(self, command: msg.Resolve) -> None:
        """Set how much of a fenced log survives; durable before any process acts on it."""
        self._write_resolve(command)
        self._resolve(command)
        # A failure may have several losses: output that the next one makes void must not leave now.
        if not (command.reset and any(map(self.fences.pending, self.positions))):
            self._deliver()

    def _write_resolve(self, command: msg.Resolve) -> None:
        fields = (*command.incarnation, command.length, command.generation, command.reset)
        self._write("resolve", command.task, *fields)

    def _resolve(self, command: msg.Resolve) -> None:
        self.resolved.append(command)
        self.holder.resolve(command)
        self.generation = max(self.generation, command.generation)
        for i in self.inputs.values():
            before = {t: self.book.length(t) for t in i.logs}
            self.inbounds.judge(i, command)
            self._journal_new(before)
            self._greet(i)

    @property
    def forgiven(self) -> int:
        """How often a loss was forgiven. (All other generations began with another plan.)"""
        return self.generation - self.version

    def depends_on_lost(self, task: int, incarnation: Incarnation, length: int) -> bool:
        """Whether delivered output depends on lost log entries."""
        deps = (i.consumed_dep for i in self.inputs.values())
        return any(depends_on_lost(task, incarnation, length, dep) for dep in deps)

    @property
    def is_settled(self) -> bool:
        """Whether logs and output end at the hard floors, so that nothing is replayed from there.

        Then no item is under way between tasks either, except in loops: what a sender's floor has
        sent, its receiver's floor has taken, and anything sent later would be in a log.
        """
        positions, needs = self.hard.positions, self.hard.needs
        return all(self.length(t) == position for t, position in positions.items()) and all(
            needs[channel] == i.consumed for channel, i in self.inputs.items()
        )

    def succeed(
        self,
        before: HouseKeeper,
        first: Mapping[int, tuple[Layer, tuple[LayerRef, ...]]],
        *,
        keeps_history: bool = False,
    ) -> None:
        """Begin where the house-keeper of another plan has settled, or at another time of the same
        plan, whose past stays (``keeps_history``).

        Output from here on is of the next generation, so its names differ from all names so far.
        ``first``: of each task its first layer, and the chain of layers that ends with it.
        """
        assert before.is_settled or keeps_history
        self.term, self.version = before.term, before.version + 1
        self.generation = before.generation + 1
        if keeps_history:
            self.history = before.history
        else:
            self.history.begin_behind(before.history)
        needs = dict(self.needs)
        for layer, _ in first.values():
            needs |= {channel: seq for channel, (seq, _) in layer.ins.items()}
            for channel in layer.outs.keys() & self.inputs.keys():
                needs[channel], chain = layer.outs[channel]
                self._restore(channel, needs[channel], chain, ended=layer.end_is_out)
        positions = {task: layer.position for task, (layer, _) in first.items()}
        layers = {task: chain for task, (_, chain) in first.items()}
        epoch = before.epoch + 1
        self._stand_on(self.floors.moved(epoch, self.generation, positions, layers, needs))
        self._harden(self.floors)

    @property
    def floors(self) -> Floors:
        """The floors in use."""
        return Floors(self.epoch, self.floor_generation, self.positions, self.layers, self.needs)

    def advance(self, epoch: int, positions: Positions, layers: Chains, needs: Positions) -> None:
        """The floors of these tasks and channels have moved; others stay where they are."""
        self._stand_on(self.floors.moved(epoch, self.generation, positions, layers, needs))
        if not self.plan.chooses_levels:
            self.harden(self.floors)
        self._deliver()  # what waited for logs that nobody needs any more

    def harden(self, floors: Floors) -> None:
        """From now on no task ever goes back below these floors."""
        before = self.hard
        self._harden(floors)
        self._write_floor(*floors.since(before))

    def fall_back(self) -> None:
        """Layers of the floors in use are lost: all tasks go back to the hard floors."""
        self._stand_on(self.hard)

    def shorten(self, task: int, chain: tuple[LayerRef, ...]) -> None:
        """Layers of a task were merged; its floor stays where it was."""
        self.layers = {**self.layers, task: chain}
        hard = self.hard.shortened(task, chain)
        if hard.layers[task] != self.hard.layers[task]:
            self._harden(hard)  # as everybody does who reads the record
            self._write_floor({}, {task: hard.layers[task]}, {})

    def may_pass(self, ref: LayerRef) -> bool:
        """Whether a floor may move to this layer. With a history, or if tasks may have to go back
        further, all log entries below it must be stable."""
        needs_all = self.history.points or self.plan.chooses_levels
        return not needs_all or self.stable[ref.task] >= ref.position

    def make_point(self, now_ms: int) -> None:
        """Make the present floors a point of the history."""
        self.keep_in_mind(*self.history.next_point(now_ms, *self.hard.place))

    def rewind(self, point: Point, runs: Iterable[msg.Run]) -> None:
        """Go back to a point of the history, and hold all log entries since. For replays only: the
        journal is not told."""
        self.hard = Floors(
            point.epoch, self.floor_generation, point.positions, point.layers, point.needs
        )
        self.fall_back()
        for task, position in self.positions.items():
            self.book.begin_at(task, position)
        for run in runs:
            self.book.append(run)
        self._unstable.update(self.positions)

    def keep_in_mind(self, kind: str, *values: Any) -> None:
        """Change the history by a record, which also goes into the journal."""
        self._write(kind, *values)
        self.history.take(kind, *values)

    def _write_floor(self, positions: Positions, layers: Chains, needs: Positions) -> None:
        refs = {t: [ref.named for ref in chain] for t, chain in layers.items()}
        self._write("floor", self.hard.epoch, self.hard.generation, positions, refs, needs)

    def _stand_on(self, floors: Floors) -> None:
        moved = {task for task, at in floors.positions.items() if at != self.positions[task]}
        self._unstable.update(moved)  # floors may be beyond the logs that have come here
        self.epoch, self.floor_generation = floors.epoch, floors.generation
        # Replaced, never changed: others keep what they have seen.
        self.positions, self.layers = dict(floors.positions), dict(floors.layers)
        self.needs = dict(floors.needs)

    def _harden(self, floors: Floors) -> None:
        before, self.hard = self.hard.positions, floors
        for task, position in floors.positions.items():
            if position == before[task]:
                continue
            if self.history.points:
                for run in self.book.runs(task, 1):
                    self.history.passed(run, position)
            self.book.truncate(task, position)
        self.fences.truncate(floors.positions)
        self.resolved = cuts_still_needed(self.resolved, floors.positions)

    def check(self) -> None:
        """Assertions over the whole state."""
        self.holder.check()
        self.inbounds.check()
        self.history.check()
        for task, refs in self.layers.items():
            assert not refs or refs[-1].position == self.positions[task]
            assert all(one.epoch < other.epoch for one, other in pairwise(refs))
            assert self.hard.part_of(task, refs) == self.hard.layers[task]
            held, stable = self.length(task), self.stable[task]
            assert stable <= held
            assert stable >= self.positions[task] or task in self._unstable
            assert max(stable, self.positions[task]) == held or task in self._unstable
        newest: dict[int, Incarnation] = {}
        for cut in self.resolved:
            assert newest.get(cut.task, cut.incarnation) <= cut.incarnation
            assert cut.generation <= self.generation
            newest[cut.task] = cut.incarnation
