"""A job's automata with nothing between them: what a step itself costs, and what it sends."""

from __future__ import annotations

import sys
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from typing import Any

import pyarrow as pa

import clonos
from clonos.columns.batches import seal
from clonos.core import events as ev
from clonos.core import messages as msg
from clonos.core.housekeeper import HouseKeeper
from clonos.core.plan import HOUSE_KEEPER, Incarnation
from clonos.core.task import TaskMachine
from clonos.simulator.world.virtual import NoWorld

FIRST = Incarnation(1, 0)

Meter = Callable[[Callable[[], Any]], tuple[Any, float]]
"""Does something; returns what came of it, and what it cost."""


def python_calls(act: Callable[[], Any]) -> tuple[Any, float]:
    """A :data:`Meter`: how many functions of Python were called."""
    count = 0

    def profile(frame: Any, event: str, argument: Any) -> None:
        del frame, argument
        nonlocal count
        count += event == "call"

    sys.setprofile(profile)
    try:
        result = act()
    finally:
        sys.setprofile(None)
    return result, count - 1  # that of what was to be done


def cpu_s(act: Callable[[], Any]) -> tuple[Any, float]:
    """A :data:`Meter`: CPU seconds of this thread, whatever else the machine does."""
    began = time.thread_time()
    result = act()
    return result, time.thread_time() - began


class World(NoWorld):
    """It is always the same moment."""

    def clock_ms(self) -> int:
        return 1000

    def ticks_ms(self) -> int:
        return 1000


class BareJob:
    """A job whose channels are lists: machines and house-keeper, and nothing between them.

    Parameters
    ----------
    job
        Compiled.
    meter
        Of the steps of tasks, operators included. What comes in with a step costs, too; that is not
        measured.

    Attributes
    ----------
    cost
        Of the steps of each task, by its name.
    sent
        Messages of each channel.
    """

    def __init__(self, job: Any, meter: Meter = python_calls) -> None:
        self.plan = job.plan
        self.keeper = HouseKeeper(self.plan, lambda _: b"", lambda _: None)
        self.keeper.begin_term(1)
        self.keeper.take_records()
        self.cost: defaultdict[str, float] = defaultdict(float)
        self.sent: Counter[int] = Counter()
        self.last: dict[int, msg.Data] = {}  # with rows, of each channel
        self._meter = meter
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
                data = action.data
                self.sent[data.channel] += 1
                if isinstance(data, msg.Data) and data.item is not None and data.item.batch:
                    self.last[data.channel] = data
                self._to_receiver(ev.Received(data.channel, action.attempt, data))
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
        """Let a task do what it can; how many steps that were."""
        machine, before = self.machines[task], self.machines[task].position

        def step() -> list[ev.Action] | None:
            if (job := machine.begin()) is None:
                return None
            job()
            return machine.end()

        while True:
            actions, cost = self._meter(step)
            if actions is None:
                break
            self.cost[machine.spec.name] += cost
            self._queue.extend(actions)
        self._queue.extend(machine.flush())
        self.settle()
        return machine.position - before


def windows(depth: Any = "full") -> Any:
    """A source with watermarks, windows by key and a sink, each a task of its own: compiled."""
    job = clonos.Job(parallelism=1, sharing_depth=depth)
    rows = job.source(clonos.sources.from_batches([], "key long, at timestamp"), name="source")
    rows = rows.with_watermark("at", "1 second")
    keyed = rows.start_new_chain().slot_group("windows").key_by("key")
    counted = keyed.window(clonos.tumbling("1 s", on="at")).agg(n=clonos.count())
    counted.slot_group("sink").sink(clonos.sinks.collect(), name="sink")
    return job.compile()


def batch_of(job: Any, number: int, rows: int) -> pa.RecordBatch:
    """The `number`-th batch of its source: as many keys as rows, at one time."""
    schema = job.codes[0].source.schema
    at = pa.array([number * 400_000] * rows, pa.int64()).cast(schema.field("at").type)
    return pa.RecordBatch.from_arrays([pa.array(range(rows)), at], schema=schema)


def run(
    job: Any, *, batches: int, rows: int, batches_per_turn: int = 1, meter: Meter = python_calls
) -> tuple[BareJob, Counter[str]]:
    """So many batches, then a turn of each task; and how many steps each has done."""
    bare, steps = BareJob(job, meter), Counter[str]()
    for number in range(batches):
        bare.machines[0].handle(ev.SourceRows(seal(batch_of(job, number, rows)), None, 1))
        if (number + 1) % batches_per_turn == 0:
            for task in bare.machines:
                steps[bare.machines[task].spec.name] += bare.steps(task)
    return bare, steps
