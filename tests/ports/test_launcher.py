"""What the driver may rely on when it has processes launched, by Spark and in the simulation."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from clonos.api.job import Job
from clonos.cluster import pool as pool_module
from clonos.cluster.pool import SlotPool
from clonos.graph.compile import compile_graph
from clonos.nodes.events import Ended
from clonos.nodes.ports import Launcher
from clonos.simulator.processes.spark import Spark
from clonos.sinks import collect
from clonos.sources import from_batches
from clonos.transport.events import ControlOpened

from .common import Real, Simulated

PLACES = 3


class OnSpark(Real):
    """A process leaves a file with its place, and ends when another one says how."""

    def __init__(self, spark: Any, folder: Path, patch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self._folder = folder
        where = str(folder)

        def body(info: Any, _: Any) -> None:
            came = Path(where, f"{info.slot} {info.nonce}")
            came.touch()
            while not (end := came.with_suffix(".end")).exists():
                time.sleep(0.01)
            if end.read_text("utf-8"):
                raise RuntimeError("it goes wrong")

        patch.setattr(pool_module, "body", lambda _: body)
        job = Job("launcher", parallelism=PLACES, standbys=0)
        job.source(from_batches([], "n long")).sink(collect())
        shipment: Any = type("Shipment", (), {"job_id": "launcher"})
        self._pool = SlotPool(spark, compile_graph(job.graph), shipment, self._inbox, 0)
        self.port: Launcher = self._pool

    def came(self) -> list[int]:
        """The places whose processes have come, each as often as it has."""
        return sorted(int(p.name.split()[0]) for p in self._folder.iterdir() if not p.suffix)

    def ends(self, place: int, *, badly: bool) -> None:
        for came in [p for p in self._folder.glob(f"{place} *") if not p.suffix]:
            came.with_suffix(".end").write_text("badly" if badly else "", "utf-8")

    def close(self) -> None:
        for place in range(PLACES):
            self.ends(place, badly=False)
        self._pool.close()
        self._inbox.close()


class InSimulation(Simulated):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._driver = self.cluster.driver
        self._came: list[int] = []
        self.heard: list[Any] = []
        self._driver.post = self._hears  # type: ignore[method-assign, assignment]
        self.cluster.random.seed(seed)
        self._driver.spark = Spark(self.cluster, self._driver, [None] * PLACES)
        self.port: Launcher = self._driver.spark

    def _hears(self, event: Any) -> None:
        if isinstance(event, ControlOpened):
            self._came.append(event.register.slot)
        elif isinstance(event, Ended):
            self.heard.append(event)

    def came(self) -> list[int]:
        return sorted(self._came)

    def ends(self, place: int, *, badly: bool) -> None:
        attempts = self._driver.spark._attempts.values()
        (slot,) = [one.process for one in attempts if one.place == place and not one.is_over]
        assert slot is not None
        self.cluster.kill(slot, "it goes wrong" if badly else "")


@pytest.fixture(params=[pytest.param("Spark", marks=pytest.mark.spark), *range(5)])
def world(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Any]:
    kind = request.param
    if kind == "Spark":
        made: Any = OnSpark(request.getfixturevalue("shared_spark"), tmp_path, monkeypatch)
    else:
        made = InSimulation(kind)
    with closing(made):
        yield made


def launch(world: Any) -> None:
    for place in range(PLACES):
        world.port.launch(place, 10 + place)
        assert world.heard == []
    world.until(lambda: world.came() == list(range(PLACES)))


def end_of(world: Any) -> Ended:
    world.until(lambda: world.heard)
    (ended,) = world.heard
    world.heard.clear()
    assert type(ended) is Ended
    return ended


def test_processes_come_and_their_end_is_told_once_with_its_reason(world):
    launch(world)
    world.ends(1, badly=True)
    failed = end_of(world)
    assert (failed.place, failed.attempt) == (1, 11)
    assert "goes wrong" in str(failed.error)
    world.ends(2, badly=False)
    assert end_of(world) == Ended(2, 12)
    world.port.launch(1, 21)
    world.until(lambda: world.came() == [0, 1, 1, 2])
    world.port.cancel(21)
    assert end_of(world) == Ended(1, 21)


def test_who_is_cancelled_ends_and_nobody_else_does(world):
    launch(world)
    world.port.describe("one", "is cancelled")
    world.port.cancel(10)
    assert end_of(world) == Ended(0, 10)
    world.port.cancel(10)  # it is over
    world.port.launch(0, 20)
    world.until(lambda: world.came() == [0, 0, 1, 2])
    world.port.cancel(10)  # not the one in its place
    world.ends(0, badly=True)
    last = end_of(world)
    assert (last.place, last.attempt) == (0, 20)
    assert last.error is not None
