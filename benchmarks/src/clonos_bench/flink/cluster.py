"""A cluster of Flink: a job manager and task managers, each a process of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from clonos.errors import ClonosError
from clonos_bench.flink.process import Installation, options

SETTINGS: Final[Mapping[str, str]] = {
    "cluster.io-pool.size": "4",
    "execution.buffer-timeout.interval": "5 ms",
    "execution.checkpointing.mode": "EXACTLY_ONCE",
    "execution.state-recovery.from-local": "true",
    "heartbeat.interval": "500 ms",
    "heartbeat.rpc-failure-threshold": "1",
    "heartbeat.timeout": "5 s",
    "jobmanager.execution.failover-strategy": "region",
    "jobmanager.memory.process.size": "1g",
    "pipeline.object-reuse": "true",
    "restart-strategy.fixed-delay.attempts": "1000",
    "restart-strategy.fixed-delay.delay": "0 s",
    "restart-strategy.type": "fixed-delay",
    "slotmanager.requirement-check.delay": "0 ms",
    "state.backend.type": "hashmap",
    "table.exec.sink.rowtime-inserter": "DISABLED",
    "table.local-time-zone": "UTC",
}
"""A failure is noticed as soon as a connection breaks, and a restart waits for nothing; state comes
from the task managers' own copies where they live on. Buffers are sent after 5 ms."""

_MANAGER: Final = "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint"
_WORKER: Final = "org.apache.flink.runtime.taskexecutor.TaskManagerRunner"
_WORKER_MEMORY: Final[Mapping[str, str]] = {
    "taskmanager.cpu.cores": "1.0",
    "taskmanager.memory.framework.heap.size": "128m",
    "taskmanager.memory.framework.off-heap.size": "128m",
    "taskmanager.memory.jvm-metaspace.size": "256m",
    "taskmanager.memory.jvm-overhead.max": "192m",
    "taskmanager.memory.jvm-overhead.min": "192m",
    "taskmanager.memory.managed.size": "64m",
    "taskmanager.memory.network.max": "64m",
    "taskmanager.memory.network.min": "64m",
    "taskmanager.memory.task.heap.size": "640m",
    "taskmanager.memory.task.off-heap.size": "0m",
    "taskmanager.numberOfTaskSlots": "1",
}
_WORKER_HEAP: Final = ("-Xms768m", "-Xmx768m", "-XX:+UseG1GC")
_LOOK_S: Final = 0.1
_START_S: Final = 60.0


class Cluster:
    """A job manager and task managers of one slot each; use as a context manager.

    Parameters
    ----------
    folder
        For its configuration and checkpoints.
    logs
        For its logs.
    settings
        In addition to :data:`SETTINGS`.
    """

    def __init__(
        self,
        flink: Installation,
        folder: Path,
        logs: Path,
        workers: int,
        settings: Mapping[str, object],
    ) -> None:
        self._flink = flink
        self._folder = folder
        self._logs = logs
        self._rest = _free_port()
        self._workers = workers
        self._started = 0
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.settings: dict[str, object] = {
            **SETTINGS,
            "execution.checkpointing.dir": (folder / "checkpoints").as_uri(),
            "execution.target": "remote",
            "io.tmp.dirs": str(folder),
            "jobmanager.rpc.address": "localhost",
            "jobmanager.rpc.port": _free_port(),
            "rest.address": "localhost",
            "rest.bind-address": "localhost",
            "rest.port": self._rest,
            **settings,
        }

    def __enter__(self) -> Cluster:
        config = self._folder / "conf"
        config.mkdir(parents=True)
        lines = [line.replace("=", ": ", 1) for line in options(self.settings)]
        (config / "config.yaml").write_text("\n".join(lines) + "\n", "utf-8")
        try:
            self._start("manager", _MANAGER, {}, ("-Xmx512m",))
            for name in [self.add_worker() for _ in range(self._workers)]:
                self.until_there(name)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def add_worker(self) -> str:
        """One more task manager, by name; it is there later."""
        name = f"worker-{self._started}"
        self._started += 1
        more = {**_WORKER_MEMORY, "taskmanager.resource-id": name}
        self._start(name, _WORKER, {**more, "taskmanager.host": "localhost"}, _WORKER_HEAP)
        return name

    def until_there(self, name: str) -> None:
        """Wait until a task manager offers its slot."""

        def is_there() -> bool:
            found = self._get("/taskmanagers").get("taskmanagers", [])
            return any(each["id"] == name and each["slotsNumber"] for each in found)

        self.until(is_there, _START_S, f"{name} is there")

    def kill(self, name: str) -> None:
        """``kill -9`` of a task manager."""
        process = self._processes.pop(name)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()

    def pids(self) -> list[int]:
        """Of the job manager and the task managers that live."""
        return [process.pid for process in self._processes.values()]

    def is_running(self) -> bool:
        """Whether every task of the job runs."""
        vertices = self._job().get("vertices", [])
        return bool(vertices) and all(
            vertex["tasks"]["RUNNING"] == vertex["parallelism"] for vertex in vertices
        )

    def worker_of(self, operator: str, index: int) -> str:
        """The task manager that runs a task, by a word of its operator's name."""
        job = self._job()
        vertex = next(each["id"] for each in job["vertices"] if operator in each["name"])
        found = self._get(f"/jobs/{job['jid']}/vertices/{vertex}")["subtasks"]
        return str(next(each["taskmanager-id"] for each in found if each["subtask"] == index))

    def checkpoints(self) -> int:
        """How many were completed."""
        job = self._job()
        return int(self._get(f"/jobs/{job['jid']}/checkpoints")["counts"]["completed"])

    def until(self, condition: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Wait until something is the case.

        Raises
        ------
        ClonosError
            It takes too long.
        """
        give_up = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > give_up:
                raise ClonosError(
                    f"Flink: not within {timeout_s:g} s: {what}",
                    remedy=f"see the logs in {self._logs}",
                )
            time.sleep(_LOOK_S)

    def _job(self) -> Any:
        jobs = self._get("/jobs").get("jobs", [])
        return self._get(f"/jobs/{jobs[-1]['id']}") if jobs else {}

    def _get(self, path: str) -> Any:
        """What the job manager says; nothing while it does not answer."""
        try:
            with urllib.request.urlopen(
                f"http://localhost:{self._rest}{path}", timeout=5
            ) as answer:
                return json.loads(answer.read())
        except (urllib.error.URLError, OSError):
            return {}

    def _start(
        self, name: str, main: str, settings: Mapping[str, object], heap: tuple[str, ...]
    ) -> None:
        arguments = [f"-D{setting}" for setting in options(settings)]
        config = str(self._folder / "conf")
        command = self._flink.java(main, "--configDir", config, *arguments, options=heap)
        with (self._logs / f"{name}.log").open("wb") as log:
            self._processes[name] = subprocess.Popen(command, stdout=log, stderr=log)

    def _stop(self) -> None:
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait()
        self._processes.clear()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return int(probe.getsockname()[1])
