"""Output that a sink writes itself: what is made again waits until it is known to be the same."""

from __future__ import annotations

from itertools import count

import pyarrow as pa
import pytest

import clonos
from clonos.columns.batches import seal
from clonos.core import events as ev
from clonos.core import messages as msg
from clonos.core.plan import Incarnation
from clonos.core.task import TaskMachine
from clonos.errors import Divergence
from clonos.simulator.world.virtual import NoWorld

ROWS = 3


class World(NoWorld):
    def clock_ms(self):
        return 1000

    def ticks_ms(self):
        return 0


def compiled(fn):
    job = clonos.Job()
    rows = job.source(clonos.sources.from_batches([], "a long"), name="in").map(fn, "a long")
    rows.sink(clonos.sinks.parquet("nowhere", rows_per_file=1, linger="1 s"), name="out")
    return job.compile()


def life(job, n, log, hello):
    """A life of the only task, connected to the house-keeper; what it releases, row by row."""
    channel = job.plan.tasks[0].outputs[-1]
    peers = (msg.Peer(channel, Incarnation(1, 0), "here"),)
    command = msg.Activate(0, Incarnation(1, n), (), log, (), peers)
    machine = TaskMachine(job.plan, command, job.codes[0].program(), (), World(seal))
    (dial,) = [action for action in machine.start() if isinstance(action, ev.Dial)]
    seq, chain, length = hello
    answer = msg.Hello(channel, Incarnation(1, 0), seq, chain, {0: length}, None)
    machine.handle(ev.Answered(channel, dial.attempt, answer))
    return machine


def steps(machine, job):
    released = []
    for i in range(ROWS):
        batch = pa.RecordBatch.from_pydict({"a": [i]}, schema=job.codes[0].source.schema)
        machine.handle(ev.SourceRows(seal(batch), None, 1))
        actions = machine.step()
        released.append([a.item.seq for a in actions if isinstance(a, ev.Release)])
    return released


def test_what_is_made_again_is_released_when_it_is_verified():
    job = compiled(lambda row: row.a)
    first = life(job, 0, (), (1, 0, 0))
    assert steps(first, job) == [[], [], []]
    (output,) = first.outputs.values()
    log, chain = tuple(first.book.runs(0, 1)), output.log.chain
    assert steps(life(job, 1, log, (ROWS + 1, chain, ROWS)), job) == [[], [], [1, 2, 3]]


def test_other_output_is_never_released():
    number = count()
    job = compiled(lambda row: row.a + next(number))
    first = life(job, 0, (), (1, 0, 0))
    steps(first, job)
    (output,) = first.outputs.values()
    log, chain = tuple(first.book.runs(0, 1)), output.log.chain
    second = life(job, 1, log, (ROWS + 1, chain, ROWS))
    released = []
    with pytest.raises(Divergence):
        released += steps(second, job)
    assert released == []
    (output,) = second.outputs.values()
    assert not output.released
