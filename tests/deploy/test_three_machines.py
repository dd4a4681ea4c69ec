"""Three machines, whose master is lost and comes back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession

from clonos.spark.session import get_or_create
from tests.deploy.conftest import executors, machines, small, wait_for

pytestmark = [
    pytest.mark.spark,
    pytest.mark.soak,
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(900),
]

ROWS = 4_000
Session = Callable[[], SparkSession]


class Cluster(NamedTuple):
    """A master beside the driver, and where workers can be."""

    standalone: Any
    host: str
    machines: Sequence[tuple[str, tuple[str, ...]]]

    def add_workers(self) -> None:
        for n, (host, there) in enumerate(self.machines):
            self.standalone.add_workers(f"worker-{n}", host=host, prefix=there)


@pytest.fixture
def session(cluster: Cluster, jvm: Any) -> Iterator[Session]:
    made: list[SparkSession] = []

    def make() -> SparkSession:
        jvm.need()
        address, config = cluster.standalone.address, small(cluster.host)
        spark = get_or_create(address, "three machines", config=config)
        made.append(spark)
        wait_for(lambda: executors(spark) == len(cluster.machines), "executors are there", 300)
        return spark

    yield make
    for spark in made:
        spark.stop()


@pytest.fixture
def cluster(
    standalone: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Cluster]:
    kept = f"-Dspark.deploy.recoveryMode=FILESYSTEM -Dspark.deploy.recoveryDirectory={tmp_path}/m"
    monkeypatch.setenv("SPARK_MASTER_OPTS", kept)
    with contextlib.ExitStack() as stack:
        network = stack.enter_context(machines(3))
        stack.enter_context(network.in_hub())
        host = network.hub_address
        places = [(a, network.prefix(n)) for n, a in enumerate(network.addresses)]
        monkeypatch.setenv("SPARK_LOCAL_IP", host)
        made = standalone(tmp_path, host)
        stack.callback(made.stop)
        yield Cluster(made, host, places)


def test_the_master_is_lost(kit, cluster, session, tmp_path):
    """The application goes on: slots are launched again without it. When it is back, it replaces
    executors as before."""
    cluster.add_workers()
    job = kit.build(kit.gated(tmp_path, ROWS), checkpoint_dir=str(tmp_path / "job"))
    spark = session()
    running = job.start(spark)
    kit.wait_quiet(running)
    cluster.standalone.kill("master")
    kit.kill(running, "windows[1]")
    kit.wait_recovered(running, 1)
    kit.wait_quiet(running)
    kit.kill(running, "running[0]")
    kit.wait_recovered(running, 2)
    kit.wait_quiet(running)
    cluster.standalone.start_master_again()
    before = {slot.executor for slot in running.slots()}
    victim = next(slot for slot in running.slots() if "running[0]" in slot.runs)
    kit.kill_processes(victim.executor_pid)
    kit.wait_for(lambda: victim.executor not in {slot.executor for slot in running.slots()})
    kit.wait_for(lambda: executors(spark) == len(cluster.machines))
    kit.wait_quiet(running)
    assert {slot.executor for slot in running.slots()} != before
    kit.open_tap(tmp_path)
    kit.check(running.wait(300).table(), ROWS)
