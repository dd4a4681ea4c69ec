"""What a task may rely on when its source is read ahead, by a thread and in the simulation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest

from clonos.core.events import SourceEnded, SourceRows
from clonos.nodes.events import RowsReady
from clonos.nodes.ports import Prefetch
from clonos.simulator.processes.slot import SlotPrefetch
from clonos.sources.prefetch import PrefetchThread
from clonos.sources.readers import BatchesReader

from .common import Real, Simulated

ROWS = 12


class ByThread(Real):
    """The rows are 0, 1, 2, ..."""

    def __init__(self) -> None:
        super().__init__()
        batch = pa.record_batch({"n": list(range(ROWS))})
        self.port: Prefetch = PrefetchThread(
            BatchesReader([batch], batch.schema),
            lambda: self._inbox.put(RowsReady()),
            batch_rows_max=3,
            linger_s=0.0,
        )

    @staticmethod
    def rows(ready: SourceRows) -> list[int]:
        rows: list[int] = ready.batch.payload.column("n").to_pylist()
        return rows

    def close(self) -> None:
        self.port.close()
        self._inbox.close()


class InSimulation(Simulated):
    def __init__(self, seed: int) -> None:
        super().__init__(seed, rows=ROWS)
        self.port: Prefetch = SlotPrefetch(self.ear, 0)
        self._first = self.cluster.job.sources[0].rows[0][0]  # type: ignore[attr-defined]

    def rows(self, ready: SourceRows) -> list[int]:
        return [row[0] - self._first for row in ready.batch.payload]


@pytest.fixture(params=["thread", *range(5)])
def world(request: pytest.FixtureRequest) -> Iterator[Any]:
    kind = request.param
    with closing(ByThread() if kind == "thread" else InSimulation(kind)) as made:
        yield made


def next_of(world: Any, take: Callable[[], SourceRows | SourceEnded | None]) -> Any:
    """What comes next. Whoever looks at the right moment may have it before they are told."""
    found: list[Any] = []

    def look() -> bool:
        if (ready := take()) is not None:
            found.append(ready)
        return bool(found)

    world.until(look)
    world.until(lambda: RowsReady() in world.heard)
    world.heard.remove(RowsReady())
    (ready,) = found
    return None if isinstance(ready, SourceEnded) else world.rows(ready)


def all_of(world: Any) -> list[int]:
    found: list[int] = []
    while (rows := next_of(world, world.port.take)) is not None:
        found += rows
    return found


def test_nothing_is_read_that_nobody_has_asked_for(world):
    assert not world.port.is_placed
    world.port.advance(0)
    assert world.port.is_placed
    assert world.port.taken() is None
    assert world.heard == []


def test_rows_come_in_their_order_from_where_the_task_stands(world):
    world.port.advance(4)
    assert all_of(world) == list(range(4, ROWS))


def test_a_standby_follows_and_never_goes_back(world):
    for at in (0, 2, 5, 3):
        world.port.advance(at)
    assert all_of(world) == list(range(5, ROWS))


def test_a_replay_gets_exactly_the_cuts_it_asks_for_and_then_what_follows(world):
    world.port.advance(1)
    world.port.ask(((2, b""), (4, b"")))
    world.port.ask(((1, b""),))
    assert [next_of(world, world.port.taken) for _ in range(3)] == [[1, 2], [3, 4, 5, 6], [7]]
    assert world.port.taken() is None
    assert all_of(world) == list(range(8, ROWS))


def test_who_closes_hears_nothing_more(world):
    world.port.advance(0)
    world.port.close()
    assert world.port.taken() is None
