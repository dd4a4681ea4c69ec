"""A task among its neighbours: streams in and out, fences, what is held of whose log.

The half of the automaton that never runs user code. :class:`~clonos.core.task.TaskMachine` adds
the steps.
"""

from __future__ import annotations

from enum import Enum
from functools import partial

from clonos.core import events as ev
from clonos.core import messages as msg
from clonos.core.channels import Input, Output, Verdict
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
            c: Input(plan, plan.channels[c], *ins.get(c, (0, 0))) for c in self.spec.inputs
        }
        self.outputs = {
            c: Output(plan, plan.channels[c], *outs.get(c, (0, 0))) for c in self.spec.outputs
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
        channel_input = self.inputs[event.channel]
        if self.fences.refuses(channel_input.spec.sender, event.incarnation):
            self._do(ev.Refuse(event.conn))
            return
        if channel_input.conn is not None:
            self._do(ev.Refuse(channel_input.conn))
        channel_input.open(event.conn)
        self._greet(channel_input)

    def _greet(self, channel_input: Input) -> None:
        """Answer as soon as restored; but a sender whose log is being cut has to wait."""
        if channel_input.conn is None or channel_input.greeted:
            return
        # What we say we hold of a log that is being cut would be wrong when it arrives.
        if any(self.fences.pending(t) for t in (channel_input.spec.sender, *channel_input.logs)):
            return
        self._do(ev.Reply(channel_input.conn, channel_input.hello(self.incarnation, self.book)))
        if self.phase is Phase.LIVE:
            self._credit(channel_input, force=True)

    def _on_received(self, event: ev.Received) -> None:
        channel_input = self.inputs[event.channel]
        if event.conn != channel_input.conn or not channel_input.greeted:
            return
        if isinstance(event.data, msg.Welcome):
            channel_input.restart(event.data.next_seq - 1, event.data.chain)
            return
        if channel_input.reset_at is not None:
            return  # sent before the sender knew that we start over
        if channel_input.take(event.data, self.book) is Verdict.REFUSED:
            self._refuse(channel_input)

    def _refuse(self, channel_input: Input) -> None:
        if channel_input.conn is not None:
            self._do(ev.Refuse(channel_input.conn))
            channel_input.close()

    def _on_input_closed(self, event: ev.InputClosed) -> None:
        channel_input = self.inputs[event.channel]
        if event.conn == channel_input.conn:
            channel_input.close()

    def _credit(self, channel_input: Input, *, force: bool = False) -> None:
        relaxed = self.phase is Phase.REPLAYING or channel_input.aligned
        credit = channel_input.credit(relaxed=relaxed, force=force)
        if credit is not None and channel_input.conn is not None:
            self._do(ev.Reply(channel_input.conn, credit))

    # --- outputs ----------------------------------------------------------------------------

    def _on_connect(self, command: msg.Connect) -> None:
        peer = command.peer
        output = self.outputs[peer.channel]
        receiver = output.spec.receiver
        if receiver != HOUSE_KEEPER and self.fences.refuses(receiver, peer.incarnation):
            return
        if peer.incarnation < output.peer:
            return
        if (output.peer, output.address) == (peer.incarnation, peer.address):
            return
        output.peer, output.address = peer.incarnation, peer.address
        self._dial(output)

    def _dial(self, output: Output) -> None:
        if output.attempt:
            self._do(ev.Hang(output.spec.id, output.attempt))
        output.down()
        output.broken = False
        output.attempt += 1
        assert output.address is not None
        self._do(ev.Dial(output.spec.id, output.attempt, output.peer, output.address))

    def _on_output_closed(self, event: ev.OutputClosed) -> None:
        output = self.outputs[event.channel]
        if event.attempt == output.attempt and output.address is not None:
            output.down()
            output.broken = True  # dialled again at the next tick: not as fast as it can fail

    def _on_answered(self, event: ev.Answered) -> None:
        output = self.outputs[event.channel]
        if event.attempt != output.attempt:
            return
        message = event.message
        if isinstance(message, msg.Hello):
            if message.reset_at is not None:
                output.unanswered = message
                self._answer_reset(output)
            else:
                output.greet(message)
                self._settle(output)
                self._pump(output)
            return
        for task, length in message.stable.items():
            self.stable[task] = max(self.stable.get(task, 0), length)
        if output.carries_items:
            output.log.acknowledge(message.processed)
        output.relaxed = message.relaxed
        self._settle(output)
        if message.stable:
            for other in self.outputs.values():
                self._pump(other)

    def _answer_reset(self, output: Output) -> None:
        """Availability: once live, continue the channel behind where our log was cut.

        That may have been in an earlier life: what we have made since is still owed.
        """
        hello = output.unanswered
        if hello is None or hello.reset_at is None or self.phase is not Phase.LIVE:
            return
        last, chain = output.log.made_until(self.id, hello.reset_at)
        output.restart(hello, last)
        welcome = msg.Welcome(output.spec.id, self.incarnation, last + 1, chain)
        self._do(ev.Send(output.attempt, welcome))
        self._settle(output)
        self._pump(output)

    def _pump(self, output: Output) -> None:
        """Send what may be sent, each item with what its receiver lacks of the logs."""
        if not output.connected:
            return
        if not output.carries_items:
            if output.lags(self.book, self.stable):
                self._send(output, None)
            return
        log = output.log
        while log.cursor <= log.last:
            item = log.item(log.cursor)
            if self._gate_closed(output, item):
                break
            log.cursor += 1
            self._send(output, item)
        # What cannot be read again is put down even if nothing has come of it yet.
        if self.spec.is_gated and output.to_world and output.lags(self.book, self.stable):
            self._send(output, None)

    def _gate_closed(self, output: Output, item: Item) -> bool:
        # The house-keeper takes an output and the log entries behind it as one.
        if output.to_world or not (self.spec.is_gated and self.plan.causal_log):
            return False
        return item.dep[self.id].position > self.stable.get(self.id, 0)

    def _send(self, output: Output, item: Item | None) -> None:
        runs = output.delta(self.book, self.stable)
        self.shared_bytes += sum(len(record) for run in runs for record in run.records)
        data = msg.Data(output.spec.id, self.incarnation, item, runs)
        self._do(ev.Send(output.attempt, data))

    def _settle(self, output: Output) -> None:
        """The house-keeper is done with some outputs: let them take effect."""
        if not (output.to_world and output.carries_items):
            return
        done = min(output.log.processed, output.log.last)
        if not self.spec.writes_itself:
            output.settled = output.log.processed
        else:
            # What is made again could be something else: nobody may see it before that is known.
            while output.log.is_verified and output.released < done:
                output.released += 1
                item = output.log.item(output.released)
                if item.kind is Kind.BATCH:
                    self._do(ev.Release(output.spec.id, item, self.generation))
                elif output.settled == output.released - 1:
                    output.settled = output.released
        self._on_settled()

    def _on_written(self, event: ev.Written) -> None:
        output = self.outputs[event.channel]
        output.settled = max(output.settled, event.seq)
        while output.settled < min(output.released, output.log.last):
            if output.log.item(output.settled + 1).kind is Kind.BATCH:
                break
            output.settled += 1
        self._settle(output)

    def _on_tick(self, event: ev.Tick) -> None:
        """Log entries that no batch has taken along within the linger go by themselves."""
        for output in self.outputs.values():
            if output.broken and output.address is not None:
                self._dial(output)
            if output.connected and output.lags(self.book, self.stable):
                self._send(output, None)

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
            for channel_input in self._from(task):
                self._refuse(channel_input)
            for output in self.outputs.values():
                if output.spec.receiver == task and output.peer < incarnation:
                    self._hang(output)
        self._do(ev.Tell(msg.FenceAnswer(self.id, task, incarnation, length, dep)))

    def _from(self, task: int) -> list[Input]:
        return [i for i in self.inputs.values() if i.spec.sender == task]

    def _hang(self, output: Output) -> None:
        if output.address is not None:
            self._do(ev.Hang(output.spec.id, output.attempt))
        output.address = None
        output.attempt += 1
        output.down()

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
        for output in self.outputs.values():
            output.cut(task, length)
            if not output.connected and output.address is not None and task in output.logs:
                self._dial(output)  # a hello under way may still count what is cut
        if command.reset:
            self.dep = self.fences.clamp(self.dep)
        for channel_input in self.inputs.values():
            from_lost = channel_input.spec.sender == task
            if command.reset and from_lost and lost(channel_input.consumed_dep):
                channel_input.start_over(length)
            elif (from_lost or not command.reset) and channel_input.drop_orphans(void):
                self._refuse(channel_input)
            if command.reset:
                channel_input.consumed_dep = self.fences.clamp(channel_input.consumed_dep)
            if channel_input.release_held(self.book) is Verdict.REFUSED:
                self._refuse(channel_input)
            self._greet(channel_input)
