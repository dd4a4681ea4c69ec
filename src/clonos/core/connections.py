"""A task among its neighbours: streams in and out, fences, what is held of whose log.

The half of the automaton that never runs user code. :class:`~clonos.core.task.TaskMachine` adds
the steps.
"""

from __future__ import annotations

from enum import Enum
from functools import partial

from clonos.core import events as ev
from clonos.core import messages as msg
from clonos.core.channels import Inbound, Outbound, Verdict
from clonos.core.fences import Fences, depends_on_lost
from clonos.core.log import LogBook
from clonos.core.messages import Item, Kind, Layer
from clonos.core.plan import HOUSE_KEEPER, Plan


class Phase(Enum):
    """Of a task's life."""

    REPLAYING = "replaying"
    LIVE = "live"
    FENCED = "fenced"


class Connections:
    """Inputs, outputs, logs and fences of one incarnation of one task."""

    def __init__(self, plan: Plan, activate: msg.Activate, floor: Layer | None) -> None:
        self.plan = plan
        self.spec = plan.tasks[activate.task]
        self.id = activate.task
        self.incarnation = activate.incarnation
        self.generation = activate.generation
        self.phase = Phase.REPLAYING
        self.book = LogBook()
        self.fences = Fences()
        self.stable: dict[int, int] = {}
        self.dep: msg.Dependencies = dict(floor.dep) if floor else {}
        ins = floor.ins if floor else {}
        outs = floor.outs if floor else {}
        self.inputs = {
            c: Inbound(plan, plan.channels[c], *ins.get(c, (0, 0))) for c in self.spec.inputs
        }
        self.outputs = {
            c: Outbound(plan, plan.channels[c], *outs.get(c, (0, 0))) for c in self.spec.outputs
        }
        for channel in floor.ended if floor else ():
            self.inputs[channel].ended = True
        for fence in activate.fences:
            self._remember_fence(fence)
        self.dep = self.fences.clamp(self.dep)
        self._future: msg.Dependencies = {}  # of the log still to be replayed
        self._actions: list[ev.Action] = []
        self.shared_bytes = 0  # log entries sent along with items, as often as they were sent

    def _take_actions(self) -> list[ev.Action]:
        actions, self._actions = self._actions, []
        return actions

    def _do(self, action: ev.Action) -> None:
        self._actions.append(action)

    def _on_settled(self) -> None:
        """More of our output has its effect in the world."""

    # --- inputs -----------------------------------------------------------------------------

    def _on_opened(self, event: ev.Opened) -> None:
        inbound = self.inputs[event.channel]
        if self.fences.refuses(inbound.spec.sender, event.incarnation):
            self._do(ev.Refuse(event.conn))
            return
        if inbound.conn is not None:
            self._do(ev.Refuse(inbound.conn))
        inbound.open(event.conn)
        self._greet(inbound)

    def _greet(self, inbound: Inbound) -> None:
        """Answer as soon as restored; but a sender whose log is being cut has to wait."""
        if inbound.conn is None or inbound.greeted:
            return
        # What we say we hold of a log that is being cut would be wrong when it arrives.
        if any(self.fences.pending(t) for t in (inbound.spec.sender, *inbound.logs)):
            return
        self._do(ev.Reply(inbound.conn, inbound.hello(self.incarnation, self.book)))
        if self.phase is Phase.LIVE:
            self._credit(inbound, force=True)

    def _on_received(self, event: ev.Received) -> None:
        inbound = self.inputs[event.channel]
        if event.conn != inbound.conn or not inbound.greeted:
            return
        if isinstance(event.data, msg.Welcome):
            inbound.restart(event.data.next_seq - 1, event.data.chain)
            return
        if inbound.reset_at is not None:
            return  # sent before the sender knew that we start over
        if inbound.take(event.data, self.book) is Verdict.REFUSED:
            self._refuse(inbound)

    def _refuse(self, inbound: Inbound) -> None:
        if inbound.conn is not None:
            self._do(ev.Refuse(inbound.conn))
            inbound.close()

    def _on_input_closed(self, event: ev.InputClosed) -> None:
        inbound = self.inputs[event.channel]
        if event.conn == inbound.conn:
            inbound.close()

    def _credit(self, inbound: Inbound, *, force: bool = False) -> None:
        relaxed = self.phase is Phase.REPLAYING or inbound.aligned
        credit = inbound.credit(relaxed=relaxed, force=force)
        if credit is not None and inbound.conn is not None:
            self._do(ev.Reply(inbound.conn, credit))

    # --- outputs ----------------------------------------------------------------------------

    def _on_connect(self, command: msg.Connect) -> None:
        peer = command.peer
        outbound = self.outputs[peer.channel]
        receiver = outbound.spec.receiver
        if receiver != HOUSE_KEEPER and self.fences.refuses(receiver, peer.incarnation):
            return
        if peer.incarnation < outbound.peer:
            return
        if (outbound.peer, outbound.address) == (peer.incarnation, peer.address):
            return
        outbound.peer, outbound.address = peer.incarnation, peer.address
        self._dial(outbound)

    def _dial(self, outbound: Outbound) -> None:
        if outbound.attempt:
            self._do(ev.Hang(outbound.spec.id, outbound.attempt))
        outbound.down()
        outbound.broken = False
        outbound.attempt += 1
        assert outbound.address is not None
        self._do(ev.Dial(outbound.spec.id, outbound.attempt, outbound.peer, outbound.address))

    def _on_output_closed(self, event: ev.OutputClosed) -> None:
        outbound = self.outputs[event.channel]
        if event.attempt == outbound.attempt and outbound.address is not None:
            outbound.down()
            outbound.broken = True  # dialled again at the next tick: not as fast as it can fail

    def _on_answered(self, event: ev.Answered) -> None:
        outbound = self.outputs[event.channel]
        if event.attempt != outbound.attempt:
            return
        message = event.message
        if isinstance(message, msg.Hello):
            if message.reset_at is not None:
                outbound.unanswered = message
                self._answer_reset(outbound)
            else:
                outbound.greet(message)
                self._settle(outbound)
                self._pump(outbound)
            return
        for task, length in message.stable.items():
            self.stable[task] = max(self.stable.get(task, 0), length)
        if outbound.carries_items:
            outbound.log.acknowledge(message.processed)
        outbound.relaxed = message.relaxed
        self._settle(outbound)
        if message.stable:
            for other in self.outputs.values():
                self._pump(other)

    def _answer_reset(self, outbound: Outbound) -> None:
        """Availability: once live, continue the channel behind where our log was cut.

        That may have been in an earlier life: what we have made since is still owed.
        """
        hello = outbound.unanswered
        if hello is None or hello.reset_at is None or self.phase is not Phase.LIVE:
            return
        last, chain = outbound.log.made_until(self.id, hello.reset_at)
        outbound.restart(hello, last)
        welcome = msg.Welcome(outbound.spec.id, self.incarnation, last + 1, chain)
        self._do(ev.Send(outbound.attempt, welcome))
        self._settle(outbound)
        self._pump(outbound)

    def _pump(self, outbound: Outbound) -> None:
        """Send what may be sent, each item with what its receiver lacks of the logs."""
        if not outbound.connected:
            return
        if not outbound.carries_items:
            if outbound.lags(self.book, self.stable):
                self._send(outbound, None)
            return
        log = outbound.log
        while log.cursor <= log.last:
            item = log.item(log.cursor)
            if self._gate_closed(outbound, item):
                break
            log.cursor += 1
            self._send(outbound, item)
        # What cannot be read again is put down even if nothing has come of it yet.
        if self.spec.is_gated and outbound.to_world and outbound.lags(self.book, self.stable):
            self._send(outbound, None)

    def _gate_closed(self, outbound: Outbound, item: Item) -> bool:
        # The house-keeper takes an output and the log entries behind it as one.
        if outbound.to_world or not (self.spec.is_gated and self.plan.causal_log):
            return False
        return item.dep[self.id].position > self.stable.get(self.id, 0)

    def _send(self, outbound: Outbound, item: Item | None) -> None:
        runs = outbound.delta(self.book, self.stable)
        self.shared_bytes += sum(len(record) for run in runs for record in run.records)
        data = msg.Data(outbound.spec.id, self.incarnation, item, runs)
        self._do(ev.Send(outbound.attempt, data))

    def _settle(self, outbound: Outbound) -> None:
        """The house-keeper is done with some outputs: let them take effect."""
        if not (outbound.to_world and outbound.carries_items):
            return
        done = min(outbound.log.processed, outbound.log.last)
        if not self.spec.writes_itself:
            outbound.settled = outbound.log.processed
        else:
            # What is made again could be something else: nobody may see it before that is known.
            while outbound.log.is_verified and outbound.released < done:
                outbound.released += 1
                item = outbound.log.item(outbound.released)
                if item.kind is Kind.BATCH:
                    self._do(ev.Release(outbound.spec.id, item, self.generation))
                elif outbound.settled == outbound.released - 1:
                    outbound.settled = outbound.released
        self._on_settled()

    def _on_written(self, event: ev.Written) -> None:
        outbound = self.outputs[event.channel]
        outbound.settled = max(outbound.settled, event.seq)
        while outbound.settled < min(outbound.released, outbound.log.last):
            if outbound.log.item(outbound.settled + 1).kind is Kind.BATCH:
                break
            outbound.settled += 1
        self._settle(outbound)

    def _on_tick(self, event: ev.Tick) -> None:
        """Log entries that no batch has taken along within the linger go by themselves."""
        for outbound in self.outputs.values():
            if outbound.broken and outbound.address is not None:
                self._dial(outbound)
            if outbound.connected and outbound.lags(self.book, self.stable):
                self._send(outbound, None)

    # --- fences, floors -----------------------------------------------------------------------

    def _on_fence(self, command: msg.Fence) -> None:
        task, incarnation = command.task, command.incarnation
        if task == self.id:
            if incarnation <= self.incarnation:
                return
            self.phase = Phase.FENCED
            length, dep = self.book.length(task), None
        else:
            length = self.book.fence(task, incarnation)
            mine = [d for d in (self.dep.get(task), self._future.get(task)) if d is not None]
            dep = max(mine, key=lambda d: d.position) if mine else None
            # What we hold may yet be cut; only what we have said we depend on cannot surprise.
            self.fences.announce(task, incarnation, dep.position if dep else 0)
            for inbound in self._from(task):
                self._refuse(inbound)
            for outbound in self.outputs.values():
                if outbound.spec.receiver == task and outbound.peer < incarnation:
                    self._hang(outbound)
        self._do(ev.Tell(msg.FenceAnswer(self.id, task, incarnation, length, dep)))

    def _from(self, task: int) -> list[Inbound]:
        return [i for i in self.inputs.values() if i.spec.sender == task]

    def _hang(self, outbound: Outbound) -> None:
        if outbound.address is not None:
            self._do(ev.Hang(outbound.spec.id, outbound.attempt))
        outbound.address = None
        outbound.attempt += 1
        outbound.down()

    def _remember_fence(self, fence: msg.Resolve) -> None:
        self.fences.resolve(fence.task, fence.incarnation, fence.length, forgive=fence.reset)
        if fence.task != self.id:
            self.book.resolve(fence.task, fence.incarnation, fence.length)

    def _on_resolve(self, command: msg.Resolve) -> None:
        if command.task == self.id:
            return
        lost = partial(depends_on_lost, command.task, command.incarnation, command.length)
        self._remember_fence(command)

        def void(dep: msg.Dependencies) -> bool:
            return lost(dep if command.reset else self.fences.clamp(dep))

        self.generation = max(self.generation, command.generation)
        task, length = command.task, command.length
        self.stable[task] = min(self.stable.get(task, 0), length)
        for outbound in self.outputs.values():
            outbound.cut(task, length)
            if not outbound.connected and outbound.address is not None and task in outbound.logs:
                self._dial(outbound)  # a hello under way may still count what is cut
        if command.reset:
            self.dep = self.fences.clamp(self.dep)
        for inbound in self.inputs.values():
            from_lost = inbound.spec.sender == task
            if command.reset and from_lost and lost(inbound.consumed_dep):
                inbound.start_over(length)
            elif (from_lost or not command.reset) and inbound.drop_orphans(void):
                self._refuse(inbound)
            if command.reset:
                inbound.consumed_dep = self.fences.clamp(inbound.consumed_dep)
            if inbound.release_held(self.book) is Verdict.REFUSED:
                self._refuse(inbound)
            self._greet(inbound)
