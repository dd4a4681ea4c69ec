"""What a cluster loses: its master, a worker that is taken back, memory."""

from __future__ import annotations

import contextlib
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import clonos
from clonos.spark.session import get_or_create
from tests.deploy.conftest import executors, small, wait_for

pytestmark = [
    pytest.mark.spark,
    pytest.mark.soak,
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(900),
]

ROWS = 4_000
SMALL = {**small(), "spark.decommission.enabled": "true"}
Session = Callable[[Any], SparkSession]


@pytest.fixture
def session(new_jvm: None) -> Iterator[Session]:
    made: list[SparkSession] = []

    def make(cluster: Any) -> SparkSession:
        spark = get_or_create(cluster.address, "losses", config=SMALL)
        made.append(spark)
        wait_for(lambda: executors(spark) == 2, "executors are there", 300)
        return spark

    yield make
    for spark in made:
        spark.stop()


@pytest.fixture
def cluster(standalone: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("SPARK_WORKER_OPTS", "-Dspark.decommission.enabled=true")
    made = standalone(tmp_path)
    try:
        yield made
    finally:
        made.stop()


def test_the_master_is_lost(kit, cluster, session, tmp_path):
    """The application goes on: slots are launched again without it."""
    cluster.add_workers("first", "second")
    job = kit.build(kit.gated(tmp_path, ROWS), checkpoint_dir=str(tmp_path / "job"))
    running = job.start(session(cluster))
    kit.wait_quiet(running)
    cluster.kill("master")
    kit.kill(running, "windows[1]")
    kit.wait_recovered(running, 1)
    kit.wait_quiet(running)
    kit.kill(running, "running[0]")
    kit.wait_recovered(running, 2)
    kit.open_tap(tmp_path)
    kit.check(running.wait(300).table(), ROWS)


def test_a_worker_is_taken_back(kit, cluster, session, tmp_path):
    """A spot notice to the worker, which tells its executors: tasks leave, nothing is recovered."""
    cluster.add_workers("first", "second")
    job = kit.build(kit.gated(tmp_path, ROWS), parallelism=1, checkpoint_dir=str(tmp_path / "job"))
    running = job.start(session(cluster), standby_slots=8)
    kit.wait_for(lambda: len({slot.executor for slot in running.slots()}) == 2)
    kit.wait_quiet(running)
    victim = next(slot for slot in running.slots() if slot.runs)
    name = next(n for n in ("first", "second") if cluster.is_of(n, victim.executor_pid))
    cluster.signal(name, signal.SIGPWR)
    kit.wait_for(lambda: not any(s.runs for s in running.slots() if s.executor == victim.executor))
    kit.wait_quiet(running)
    cluster.kill(name)
    kit.wait_for(lambda: victim.executor not in {slot.executor for slot in running.slots()})
    kit.open_tap(tmp_path)
    result = running.wait(300)
    kit.check(result.table(), ROWS)
    assert not result.recoveries


class Memory:
    """A group of processes with a limit of its own, in either version of Linux's cgroups."""

    def __init__(self) -> None:
        root = Path("/sys/fs/cgroup/memory")
        is_first = root.is_dir()
        self._group = (root if is_first else root.parent) / f"clonos-{secrets.token_hex(4)}"
        self._group.mkdir()
        self._limit = self._group / ("memory.limit_in_bytes" if is_first else "memory.max")
        self._usage = self._group / ("memory.usage_in_bytes" if is_first else "memory.current")
        self._kills = self._group / ("memory.oom_control" if is_first else "memory.events")
        self.prefix = ("sh", "-c", f'echo $$ > {self._group}/cgroup.procs && exec "$@"', "sh")

    def tighten(self, more: int) -> None:
        """From now on, so many bytes more than are used at this moment."""
        self._limit.write_text(str(int(self._usage.read_text()) + more))

    @property
    def kills(self) -> int:
        said = dict(line.split() for line in self._kills.read_text().splitlines())
        return int(said["oom_kill"])

    def close(self) -> None:
        until = time.monotonic() + 30
        while time.monotonic() < until:
            with contextlib.suppress(OSError):
                self._group.rmdir()
                return
            time.sleep(0.1)


@pytest.fixture
def memory() -> Iterator[Memory]:
    try:
        made = Memory()
        made.tighten(1 << 40)
    except OSError as error:
        pytest.skip(f"no groups with a memory limit here: {error}")
    yield made
    made.close()


def hungry(flag: str) -> Any:
    """Once, takes far more memory than there is."""

    def same(row: Any) -> Any:
        if Path(flag).exists():
            with contextlib.suppress(FileNotFoundError):
                Path(flag).unlink()
                return row.n, bytes(bytearray(b"x") * (3 << 30))[:1].decode()
        return row.n, "x"

    return same


def test_memory_runs_out(kit, cluster, session, tmp_path, memory):
    """The kernel ends a process of the workers: whichever that is, no row is lost or repeated."""
    cluster.add_workers("first", "second", prefix=memory.prefix)
    job = clonos.Job("hungry", parallelism=2, checkpoint_dir=str(tmp_path / "job"))
    rows = job.source(kit.gated(tmp_path, ROWS), name="events", parallelism=1)
    eaten = rows.rebalance().map(hungry(str(tmp_path / "hungry")), "n long, s string", name="eat")
    eaten.sink(clonos.sinks.collect(), name="out")
    running = job.start(session(cluster))
    kit.wait_quiet(running)
    memory.tighten(1 << 30)
    (tmp_path / "hungry").touch()
    kit.open_tap(tmp_path)
    result = running.wait(600)
    assert memory.kills >= 1
    assert result.is_complete
    assert sorted(result.table().column("n").to_pylist()) == sorted(
        n for _, _, n in map(kit.row, range(ROWS))
    )
