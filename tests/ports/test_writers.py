"""What a task may rely on when its sink writes itself, in a thread and in the simulation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from threading import Event
from typing import Any

import pyarrow as pa
import pytest

from clonos.columns.batches import seal
from clonos.core.events import Release
from clonos.core.messages import Item, Kind
from clonos.nodes.events import WorkFailed, Wrote
from clonos.nodes.ports import Writer
from clonos.runtime.writers import TaskWriter
from clonos.simulator.processes.slot import SlotWriter
from clonos.sinks.lanes import OutputWriter

from .common import Real, Simulated

LIFE, CHANNEL = 7, 3
OUTPUTS = 20


def release(seq: int) -> Release:
    batch = seal(pa.record_batch({"n": [seq]}))
    return Release(CHANNEL, Item(seq, Kind.BATCH, 0, 0, batch, {}, 0), 1)


class Store:
    """Where outputs end up."""

    def __init__(self) -> None:
        self.written: list[int] = []
        self.fails_at = self.hangs_at = 0
        self.hangs, self.goes_on = Event(), Event()

    def write(self, outputs: Any) -> None:
        for output in outputs:
            if output.key.seq == self.fails_at:
                raise ValueError("the store does not take this one")
            if output.key.seq == self.hangs_at:
                self.hangs.set()
                self.goes_on.wait()
            self.written.append(output.key.seq)

    def close(self) -> None:
        """Nothing is open."""


class ByThread(Real):
    def __init__(self) -> None:
        super().__init__()
        self.store = Store()
        writer: OutputWriter = self.store
        self.port: Writer = TaskWriter(writer, self._inbox, "output of a test")

    def close(self) -> None:
        self.port.close()  # type: ignore[attr-defined]
        self._inbox.close()


class InSimulation(Simulated):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.store = Store()
        recorder: Any = self.cluster.recorder
        recorder.written = lambda _, output: self.store.written.append(output.item.seq)
        self.port: Writer = SlotWriter(self.ear, 1)


@pytest.fixture(params=["thread", *range(5)])
def world(request: pytest.FixtureRequest) -> Iterator[Any]:
    kind = request.param
    with closing(ByThread() if kind == "thread" else InSimulation(kind)) as made:
        yield made


def test_outputs_take_effect_in_their_order_and_the_last_answer_is_for_all(world):
    for seq in range(1, OUTPUTS + 1):
        world.port.write(LIFE, release(seq))
    world.until(lambda: world.heard and world.heard[-1].seq == OUTPUTS)
    assert {type(event) for event in world.heard} == {Wrote}
    assert {(event.life, event.channel) for event in world.heard} == {(LIFE, CHANNEL)}
    seqs = [event.seq for event in world.heard]
    assert seqs == sorted(seqs)
    assert max(Counter(seqs).values()) == 1
    assert world.store.written == list(range(1, OUTPUTS + 1))


def test_an_answer_never_comes_before_the_effect(world):
    for seq in range(1, OUTPUTS + 1):
        world.port.write(LIFE, release(seq))
        world.until(lambda seq=seq: world.heard and world.heard[-1].seq == seq)
        assert world.store.written[-1] == seq


def test_a_store_that_says_nothing_is_away_too():
    """A database that is frozen, say: nothing fails, and nothing is written."""
    with closing(ByThread()) as world:
        assert world.port.away_s == 0
        world.store.hangs_at = 2
        for seq in (1, 2):
            world.port.write(LIFE, release(seq))
        world.store.hangs.wait()
        assert world.port.away_s > 0
        world.store.goes_on.set()
        world.until(lambda: world.heard and world.heard[-1].seq == 2)
        assert world.port.away_s == 0


def test_after_a_failure_nothing_more_is_written():
    """In the simulation no sink ever fails for good: that ends a job, whatever the protocol."""
    with closing(ByThread()) as world:
        world.store.fails_at = 3
        for seq in range(1, OUTPUTS + 1):
            world.port.write(LIFE, release(seq))
        world.until(lambda: world.heard and type(world.heard[-1]) is WorkFailed)
        world.port.write(LIFE, release(OUTPUTS + 1))
    assert world.store.written == [1, 2]
