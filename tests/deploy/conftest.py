"""Spark's own standalone cluster, started for a test: on this machine, or on several that are
network namespaces with cables between them."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

WAIT_S = 300.0
"""Nothing depends on it but how long a test hangs that has failed."""
SUBMITTED_S = 900.0
"""The same, for an application with its JVMs; beside much other work it took over 180."""
NEW_NETWORK = 0x40000000
"""What Linux calls CLONE_NEWNET."""

_spec = importlib.util.spec_from_file_location(
    "cluster_kit", Path(__file__).parent.parent / "cluster" / "conftest.py"
)
assert _spec is not None
assert _spec.loader is not None
cluster_kit = importlib.util.module_from_spec(_spec)
sys.modules["cluster_kit"] = cluster_kit
_spec.loader.exec_module(cluster_kit)

kit = cluster_kit.kit
_no_job_outlives_its_test = cluster_kit._no_job_outlives_its_test


def wait_for(condition: Any, what: str, wait_s: float = WAIT_S) -> None:
    until = time.monotonic() + wait_s
    while not condition():
        assert time.monotonic() < until, f"not within {wait_s:g} s: {what}"
        time.sleep(0.05)


def small(host: str = "127.0.0.1") -> dict[str, str]:
    """What a session needs whose driver is at this address; its executors are small."""
    return {
        "spark.executor.memory": "512m",
        "spark.driver.host": host,
        "spark.driver.bindAddress": host,
        "spark.ui.enabled": "false",
    }


def executors(spark: SparkSession) -> int:
    """How many Spark has, without the driver, which it counts too."""
    found: int = len(spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos())
    return found - 1


def submit(
    program: Path,
    master: str,
    folder: Path,
    environment: dict[str, str],
    *sent: str,
    home: str,
) -> None:
    """Have spark-submit run ``application.py``, with packages that are `sent`, and check what it
    leaves in the folder: each row is there once, with clonos out of `home`."""
    settings = [word for pair in small().items() for word in ("--conf", "=".join(pair))]
    application = Path(__file__).parent / "application.py"
    words = ["--master", master, *sent, *settings, str(application), str(folder)]
    done = subprocess.run(
        [str(program), *words],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=SUBMITTED_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-9000:]
    said = json.loads((folder / "said.json").read_text())
    assert [n for n, *_ in said["rows"]] == list(range(3_000))
    assert {(key, seen) for _, key, seen, _ in said["rows"]} == {
        (n % 7, n // 7 + 1) for n in range(3_000)
    }
    assert {of_row for *_, of_row in said["rows"]} == {home}
    assert said["executors"] == 2
    assert "count[0]" in said["recovered"]
    assert said["address"].startswith("tls://driver@127.0.0.1:")


class Standalone:
    """A master and workers, each a JVM; a worker's executors belong to its process group."""

    def __init__(self, folder: Path, host: str = "127.0.0.1", prefix: tuple[str, ...] = ()) -> None:
        self._folder = folder
        self._spark_class = str(Path(os.environ["SPARK_HOME"]) / "bin" / "spark-class")
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._host, self._prefix = host, prefix
        log = self._start("master", host, prefix, "master.Master", "--port", "0")
        found: list[str] = []

        def is_there() -> bool:
            words = log.read_text(errors="replace").split()
            found[:] = [w for w in words if w.startswith("spark://")]
            return bool(found)

        try:
            wait_for(is_there, "the master's address")
        except BaseException:
            self.stop()
            raise
        self.address = found[0].rstrip(",.")

    def start_master_again(self) -> None:
        """At its old address; wait until it knows the applications and workers of before."""
        port = self.address.rpartition(":")[2]
        log = self._start("master", self._host, self._prefix, "master.Master", "--port", port)
        wait_for(lambda: "Recovery complete" in log.read_text(errors="replace"), "its recovery")

    def add_workers(
        self, *names: str, host: str = "127.0.0.1", prefix: tuple[str, ...] = ()
    ) -> None:
        """Start workers of ten cores and wait until the master knows them."""
        logs = []
        for name in names:
            args = ["--cores", "10", "--memory", "2g", "--work-dir", str(self._folder / name)]
            logs.append(self._start(name, host, prefix, "worker.Worker", *args, self.address))
        said = "Successfully registered with master"
        for log in logs:
            wait_for(lambda log=log: said in log.read_text(errors="replace"), f"{names} register")

    def kill(self, name: str) -> None:
        """The worker and its executors die at once."""
        process = self._processes.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(WAIT_S)

    def is_of(self, name: str, pid: int) -> bool:
        """Whether a process is a worker's."""
        return os.getpgid(pid) == self._processes[name].pid

    def signal(self, name: str, number: int) -> None:
        """Send a signal to a worker itself."""
        self._processes[name].send_signal(number)

    def stop(self) -> None:
        for name in list(self._processes)[::-1]:
            self.kill(name)

    def _start(self, name: str, host: str, prefix: tuple[str, ...], kind: str, *args: str) -> Path:
        log = self._folder / f"{name}.log"
        environment = {
            **os.environ,
            "SPARK_LOCAL_IP": host,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_NO_DAEMONIZE": "1",
        }
        command = [*prefix, self._spark_class, f"org.apache.spark.deploy.{kind}"]
        with log.open("wb") as file:
            self._processes[name] = subprocess.Popen(
                [*command, "--host", host, "--webui-port", "0", *args],
                env=environment,
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
                start_new_session=True,
            )
        return log


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("standalone")


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


class Network:
    """Machines around a hub, which runs the driver and passes on what they send each other."""

    def __init__(self, count: int) -> None:
        tag = f"cl{secrets.token_hex(2)}"
        self.hub = f"{tag}hub"
        self.machines = [f"{tag}m{n}" for n in range(1, count + 1)]
        self.hub_address = "10.77.1.1"
        self.addresses = [f"10.77.{n}.2" for n in range(1, count + 1)]

    def set_up(self) -> None:
        for name in (self.hub, *self.machines):
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        for n, machine in enumerate(self.machines, 1):
            ip("-n", self.hub, "link", "add", f"v{n}", "type", "veth", "peer", "name", "v0")
            ip("-n", self.hub, "link", "set", "v0", "netns", machine)
            ip("-n", self.hub, "addr", "add", f"10.77.{n}.1/24", "dev", f"v{n}")
            ip("-n", machine, "addr", "add", f"10.77.{n}.2/24", "dev", "v0")
            ip("-n", self.hub, "link", "set", f"v{n}", "up")
            ip("-n", machine, "link", "set", "v0", "up")
            ip("-n", machine, "route", "add", "default", "via", f"10.77.{n}.1")
        self.let_through(through=True)

    def let_through(self, *, through: bool) -> None:
        """Pass on what machines send each other, or drop it, as a firewall does."""
        value = f"net.ipv4.ip_forward={int(through)}"
        command = ["ip", "netns", "exec", self.hub, "sysctl", "-qw", value]
        subprocess.run(command, check=True, capture_output=True)

    def plug(self, machine: int, *, plugged: bool) -> None:
        """Pull the cable of a machine, or put it in again."""
        ip("-n", self.hub, "link", "set", f"v{machine + 1}", "up" if plugged else "down")

    def prefix(self, machine: int | None) -> tuple[str, ...]:
        """Before a command that is to run on a machine (None: the hub)."""
        return ("ip", "netns", "exec", self.hub if machine is None else self.machines[machine])

    def tear_down(self) -> None:
        for name in (*self.machines, self.hub):
            with contextlib.suppress(subprocess.CalledProcessError):
                ip("netns", "del", name)

    @contextlib.contextmanager
    def in_hub(self) -> Iterator[None]:
        """This thread, and what it starts, is in the hub."""
        libc = ctypes.CDLL(None, use_errno=True)
        with open("/proc/thread-self/ns/net") as here, open(f"/run/netns/{self.hub}") as there:  # noqa: PTH123 - /proc
            assert libc.setns(there.fileno(), NEW_NETWORK) == 0
            try:
                yield
            finally:
                assert libc.setns(here.fileno(), NEW_NETWORK) == 0


@contextlib.contextmanager
def machines(count: int) -> Iterator[Network]:
    made = Network(count)
    try:
        made.set_up()
    except (OSError, subprocess.CalledProcessError) as error:
        made.tear_down()
        said = getattr(error, "stderr", b"") or b""
        pytest.skip(f"no network namespaces here: {error} {said.decode().strip()}")
    try:
        yield made
    finally:
        made.tear_down()


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    with machines(2) as made:
        yield made


@pytest.fixture(scope="session")
def standalone() -> type[Standalone]:
    return Standalone


@pytest.fixture
def two_workers(standalone: type[Standalone], tmp_path: Path) -> Iterator[Standalone]:
    """A cluster on this machine."""
    made = standalone(tmp_path)
    try:
        made.add_workers("first", "second")
        yield made
    finally:
        made.stop()
