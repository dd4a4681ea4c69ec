"""What a step costs: Python calls, messages and steps, none of which depends on the machine."""

from __future__ import annotations

import sys
from collections import Counter, deque
from typing import Any

import pyarrow as pa
import pytest

import clonos
from clonos.columns.batches import seal
from clonos.core import events as ev
from clonos.core import messages as msg
from clonos.core.housekeeper import HouseKeeper
from clonos.core.plan import HOUSE_KEEPER, Incarnation
from clonos.core.task import TaskMachine
from clonos.simulator.world import NoWorld

FIRST = Incarnation(1, 0)
ROWS = 500
BATCHES = 60
CALLS_MAX = {"source[0]": 75, "window_partial[0]": 205, "window[0]": 215, "sink[0]": 95}
"""Python calls per step, operators included, of a batch of 500 rows with the watermark behind it.
What comes in with a step costs, too; that is not counted."""


class World(NoWorld):
    def clock_ms(self) -> int:
        return 1000

    def ticks_ms(self) -> int:
        return 1000


class Wires:
    """A job whose channels are lists: machines and house-keeper, and nothing between them."""

    def __init__(self, job: Any) -> None:
        self.plan = job.plan
        self.keeper = HouseKeeper(self.plan, lambda batch: b"", lambda content: None)
        self.keeper.begin_term(1)
        self.keeper.take_records()
        self.calls: Counter[str] = Counter()
        self.sent: Counter[int] = Counter()  # by channel
        self._queue: deque[ev.Action] = deque()
        self.machines = {}
        for code in job.codes:
            task = code.task.id
            outs = self.plan.tasks[task].outputs
            peers = tuple(msg.Peer(channel, FIRST, "here") for channel in outs)
            activate = msg.Activate(task, FIRST, (), (), (), peers)
            self.machines[task] = TaskMachine(self.plan, activate, code.program(), (), World(seal))
        for machine in self.machines.values():
            self._queue.extend(machine.start())
        self.settle()

    def settle(self) -> None:
        """Carry messages until there are none."""
        while self._queue:
            action = self._queue.popleft()
            if isinstance(action, ev.Dial):
                self._to_receiver(ev.Opened(action.channel, action.attempt, FIRST))
            elif isinstance(action, ev.Send):
                self.sent[action.data.channel] += 1
                self._to_receiver(ev.Received(action.data.channel, action.attempt, action.data))
            elif isinstance(action, ev.Reply):
                self._to_sender(action)
            self._commit()

    def _to_receiver(self, event: ev.Opened | ev.Received) -> None:
        receiver = self.plan.channels[event.channel].receiver
        if receiver == HOUSE_KEEPER:
            self.keeper.handle(event)
        else:
            self._queue.extend(self.machines[receiver].handle(event))

    def _to_sender(self, action: ev.Reply) -> None:
        message: Any = action.message
        sender = self.machines[self.plan.channels[message.channel].sender]
        answered = ev.Answered(message.channel, action.conn, message)
        self._queue.extend(sender.handle(answered))

    def _commit(self) -> None:
        if self.keeper.take_records() or not self._queue:
            actions, _ = self.keeper.committed()
            self._queue.extend(actions)

    def steps(self, task: int) -> int:
        """Let a task do what it can; how many steps that were. Python calls are counted."""
        machine, before = self.machines[task], self.machines[task].position
        counted = 0

        def profile(frame: Any, event: str, argument: Any) -> None:
            nonlocal counted
            counted += event == "call"

        while True:
            sys.setprofile(profile)
            try:
                if (job := machine.begin()) is None:
                    break
                job()
                actions = machine.end()
            finally:
                sys.setprofile(None)
            self.calls[machine.spec.name] += counted
            counted = 0
            self._queue.extend(actions)
        self._queue.extend(machine.flush())
        self.settle()
        return machine.position - before


def run(depth: Any = "full", *, batches_per_turn: int = 1) -> tuple[Wires, Counter[str]]:
    """A source with watermarks, windows by key, a sink; so many batches, then a turn of each."""
    job = clonos.Job(parallelism=1, sharing_depth=depth)
    rows = job.source(clonos.sources.from_batches([], "key long, at timestamp"), name="source")
    rows = rows.with_watermark("at", "1 second")
    keyed = rows.start_new_chain().slot_group("windows").key_by("key")
    windows = keyed.window(clonos.tumbling("1 s", on="at")).agg(n=clonos.count())
    windows.slot_group("sink").sink(clonos.sinks.collect(), name="sink")
    compiled = job.compile()
    wires, steps = Wires(compiled), Counter[str]()
    assert compiled.codes[0].source is not None
    schema = compiled.codes[0].source.schema
    for number in range(BATCHES):
        at = pa.array([number * 400_000] * ROWS, pa.int64()).cast(schema.field("at").type)
        batch = pa.RecordBatch.from_arrays([pa.array(range(ROWS)), at], schema=schema)
        wires.machines[0].handle(ev.SourceRows(seal(batch), None, 1))
        if (number + 1) % batches_per_turn == 0:
            for task in wires.machines:
                steps[wires.machines[task].spec.name] += wires.steps(task)
    return wires, steps


@pytest.fixture(scope="module")
def costs() -> dict[Any, tuple[Wires, Counter[str]]]:
    return {depth: run(depth) for depth in ("full", 1, 0)}


@pytest.mark.parametrize("depth", ["full", 1, 0])
def test_a_watermark_takes_no_step_of_its_own(costs, depth):
    _, steps = costs[depth]
    assert set(steps.values()) == {BATCHES}


@pytest.mark.parametrize("depth", ["full", 1, 0])
@pytest.mark.parametrize("task", CALLS_MAX)
def test_a_step_makes_no_more_python_calls_than_it_did(costs, task, depth):
    wires, steps = costs[depth]
    assert wires.calls[task] / steps[task] <= CALLS_MAX[task]


def test_with_full_depth_nothing_is_sent_but_items(costs):
    wires, _ = costs["full"]
    (sink,) = [c for c in wires.plan.channels if c.receiver == HOUSE_KEEPER]
    assert wires.sent[sink.id] == wires.machines[sink.sender].outputs[sink.id].log.last


def test_logs_that_only_the_house_keeper_gets_are_sent_once_a_turn():
    wires, steps = run(1, batches_per_turn=10)
    logs = [c for c in wires.plan.channels if c.receiver == HOUSE_KEEPER][:-1]
    assert logs
    for channel in logs:
        name = wires.plan.tasks[channel.sender].name
        assert steps[name] > 3 * wires.sent[channel.id], name
    held = wires.keeper
    for machine in wires.machines.values():
        assert held.length(machine.id) <= machine.position
        assert held.length(machine.id) == machine.position or machine.spec.is_sink


def test_a_gated_source_puts_down_what_it_has_read_at_the_end_of_the_turn():
    job = clonos.Job(parallelism=1)
    lines = job.source(clonos.sources.socket_lines("localhost", 1), name="source")
    lines.start_new_chain().sink(clonos.sinks.collect(), name="sink")
    compiled = job.compile()
    assert compiled.codes[0].source is not None
    wires, schema = Wires(compiled), compiled.codes[0].source.schema
    source = wires.machines[0]
    assert source.spec.is_gated
    for number in range(BATCHES):
        columns = [pa.array([str(number)]).cast(field.type) for field in schema]
        batch = seal(pa.RecordBatch.from_arrays(columns, schema=schema))
        source.handle(ev.SourceRows(batch, str(number).encode(), 1))
    (to_keeper,) = [c for c, end in source.outputs.items() if end.to_world]
    (to_sink,) = [end for end in source.outputs.values() if not end.to_world]
    assert wires.steps(0) == BATCHES
    assert wires.keeper.length(0) == BATCHES
    assert wires.sent[to_keeper] == 1
    assert to_sink.log.cursor == BATCHES + 1  # all let out by the one acknowledgement


def test_a_fenced_task_sends_no_logs():
    wires, _ = run(0, batches_per_turn=BATCHES + 1)
    task = wires.machines[0]
    assert task.step() is not None
    task.handle(msg.Fence(0, Incarnation(1, 1)))
    assert task.flush() == []
