"""Driver and executors on different machines, between which cables are pulled."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from clonos.errors import CannotConnect
from clonos.spark.session import get_or_create

pytestmark = [
    pytest.mark.soak,
    pytest.mark.filterwarnings("default"),
]


@pytest.fixture(scope="module")
def cluster(network: Any, standalone: Any, new_jvm: None, folder: Path) -> Iterator[SparkSession]:
    before = os.environ.get("SPARK_LOCAL_IP")
    os.environ["SPARK_LOCAL_IP"] = network.hub_address
    with network.in_hub():
        made = standalone(folder, network.hub_address)
        try:
            for n, address in enumerate(network.addresses):
                made.add_workers(f"worker-{n}", host=address, prefix=network.prefix(n))
            session = get_or_create(
                made.address,
                "network tests",
                config={
                    "spark.driver.host": network.hub_address,
                    "spark.executor.memory": "600m",
                    "spark.network.timeout": "20s",
                    "spark.network.timeoutInterval": "5s",
                    "spark.executor.heartbeatInterval": "3s",
                    "spark.ui.enabled": "false",
                },
            )
            yield session
            session.stop()
        finally:
            made.stop()
            if before is not None:
                os.environ["SPARK_LOCAL_IP"] = before


def machine_of(network: Any, pid: int) -> int:
    space = subprocess.check_output(["ip", "netns", "identify", str(pid)], text=True)
    found: int = network.machines.index(space.strip())
    return found


def machines_of(network: Any, job: Any) -> dict[str, int]:
    """On which machine each task runs."""
    return {name: machine_of(network, slot.pid) for slot in job.slots() for name in slot.runs}


def started(kit: Any, cluster: SparkSession, folder: Path, **options: Any) -> Any:
    job = kit.build(kit.gated(folder, 4_000), checkpoint_dir=str(folder / "job"))
    running = job.start(cluster, silence_s=3.0, **options)
    kit.wait_quiet(running)
    return running


def finish(kit: Any, job: Any, folder: Path) -> Any:
    kit.open_tap(folder)
    result = job.wait(90)
    kit.check(result.table(), 4_000)
    return result


def test_an_executor_dies_on_another_machine(kit, network, cluster, tmp_path):
    job = started(kit, cluster, tmp_path)
    assert job._plane.address.startswith(f"tls://driver@{network.hub_address}:")
    assert {machine_of(network, slot.pid) for slot in job.slots()} == {0, 1}
    victim = next(slot for slot in job.slots() if "running[0]" in slot.runs)
    os.kill(victim.executor_pid, signal.SIGKILL)
    kit.wait_recovered(job, 1)
    assert finish(kit, job, tmp_path).recoveries


def test_a_slot_listens_on_one_interface(kit, network, cluster, tmp_path):
    job = started(kit, cluster, tmp_path)
    for slot in [slot for slot in job.slots() if slot.runs]:  # a spare one may leave any time
        machine = machine_of(network, slot.pid)
        sockets = subprocess.check_output([*network.prefix(machine), "ss", "-Hltnp"], text=True)
        mine = [line.split()[3] for line in sockets.splitlines() if f"pid={slot.pid}," in line]
        assert [a.rpartition(":")[0] for a in mine] == [network.addresses[machine]]
    finish(kit, job, tmp_path)


def test_a_cable_is_pulled(kit, network, cluster, tmp_path):
    """What ran behind it goes on elsewhere; what is left of it there harms nobody later."""
    job = started(kit, cluster, tmp_path)
    away = machines_of(network, job)["running[0]"]
    lost = [task for task, machine in machines_of(network, job).items() if machine == away]
    network.plug(away, plugged=False)
    try:
        kit.wait_recovered(job, len(lost))
        assert away not in machines_of(network, job).values()
        kit.wait_for(lambda: all(task.phase == "live" for task in job.tasks()))
    finally:
        network.plug(away, plugged=True)
    time.sleep(3.0)  # those that were cut off find out
    result = finish(kit, job, tmp_path)
    assert {r.name for r in result.recoveries} >= set(lost)


@pytest.fixture
def firewall(network: Any) -> Iterator[None]:
    """Executors reach the driver, but not each other."""
    network.let_through(through=False)
    yield
    network.let_through(through=True)


def test_behind_a_firewall_all_tasks_go_where_they_reach_each_other(
    kit, network, cluster, firewall, tmp_path
):
    job = kit.build(kit.gated(tmp_path, 4_000), checkpoint_dir=str(tmp_path / "job"))
    running = job.start(cluster, silence_s=3.0)
    kit.wait_rows(running, 1)
    result = finish(kit, running, tmp_path)
    if result.recoveries:  # or all of them were on one machine from the beginning
        (said, *_) = (w for w in running.warnings if "does not reach" in w)
        assert all(address in said for address in network.addresses)


def test_a_firewall_between_executors_is_named(kit, network, cluster, firewall, tmp_path):
    """... if one machine has not enough room for all."""
    settings = {"parallelism": 4, "standbys": 0, "checkpoint_dir": str(tmp_path / "job")}
    job = kit.build(kit.gated(tmp_path, 4_000), **settings)
    running = job.start(cluster, silence_s=3.0)
    with pytest.raises(CannotConnect) as caught:
        running.wait(150)
    assert all(address in caught.value.what for address in network.addresses)
    assert "docs/deploy.md" in caught.value.remedy
