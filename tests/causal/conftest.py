"""What several tests of causal services need: a task to be in, and the example's paid model."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import TaskContext

from clonos import causal
from clonos.causal import gate, process
from clonos.causal.holder import LogAccess
from clonos.causal.server import LogServer
from clonos.causal.task import flusher

ROOT = Path(__file__).parents[2]
_numbers = itertools.count(1)


class World:
    """Answers differently each time, and counts."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self._numbers = itertools.count()

    def __call__(self, *question: Any) -> int:
        self.asked.append(question)
        return next(self._numbers)


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def ask(world: World) -> Any:
    return causal.service(world, name="ask")


class Model:
    """The example's model service, with its bill."""

    def __init__(self, journal: Path, url: str) -> None:
        self.journal = journal
        self.url = url

    def bill(self) -> Counter[str]:
        """How often each text was asked for."""
        lines = self.journal.read_text().splitlines()
        return Counter(json.loads(line)["text"] for line in lines)


@contextlib.contextmanager
def model_service(latency_ms: float = 0.0) -> Iterator[Model]:
    with tempfile.TemporaryDirectory() as folder:
        journal = Path(folder) / "journal"
        command = [sys.executable, str(ROOT / "examples/model_service/service.py")]
        command += ["--journal", str(journal), "--latency-ms", str(latency_ms)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                yield Model(journal, process.stdout.readline().strip())
            finally:
                process.kill()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LogServer]:
    with LogServer(tmp_path / "log", durability="process") as running:
        yield running


def access_to(server: LogServer, **changed: Any) -> LogAccess:
    options = {"run": "run", "term": "term", "patience_s": 60.0, **changed}
    return server.reached_by(LogAccess(**options))


class Attempt:
    """Lets this process be a Python worker in an attempt of a task."""

    def __init__(self, access: LogAccess) -> None:
        self.access = access

    @contextlib.contextmanager
    def __call__(
        self, partition: int = 0, execution: str = "1", *, dies: bool = False, **props: str
    ) -> Iterator[None]:
        process.connect(self.access)
        properties = {"spark.sql.execution.id": execution, **props}
        context = TaskContext()
        context._taskAttemptId, context._partitionId = next(_numbers), partition
        context._stageId, context._localProperties = 0, properties
        TaskContext._setTaskContext(context)
        gate._gate.is_installed = True
        try:
            yield
        except BaseException:
            process.end_task(succeeded=False)
            raise
        else:
            if dies:
                task = process._process.task
                assert task is not None
                flusher.unwatch(task)
            else:
                process.end_task(succeeded=True)
        finally:
            TaskContext._setTaskContext(None)
            process.connect(None)


@pytest.fixture
def attempt(server: LogServer) -> Attempt:
    return Attempt(access_to(server))


# --- a PostgreSQL server of the tests' own -------------------------------------------------------


def _as_postgres(command: list[str]) -> None:
    # PostgreSQL does not run as root.
    prefix = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    subprocess.run([*prefix, *command], check=True, capture_output=True, cwd="/")


def _postgres_folder() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    on_path = shutil.which("initdb")
    if on_path:
        found.append(Path(on_path).resolve())
    return found[-1].parent if found else None


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The DSN of a server that is started for the tests."""
    folder = _postgres_folder()
    if folder is None:
        pytest.skip("PostgreSQL is not installed here (Debian's package: postgresql)")
    pytest.importorskip("psycopg")
    with tempfile.TemporaryDirectory(prefix="pg-") as scratch:
        if os.geteuid() == 0:
            shutil.chown(scratch, "postgres")
        data = f"{scratch}/data"
        _as_postgres([f"{folder}/initdb", "-D", data, "-A", "trust", "-U", "postgres", "-N"])
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        options = f"-p {port} -k {scratch} -c listen_addresses=127.0.0.1 -c fsync=off"
        server = [f"{folder}/pg_ctl", "-D", data, "-l", f"{scratch}/log", "-w"]
        _as_postgres([*server, "-o", options, "start"])
        try:
            yield f"postgresql://postgres@127.0.0.1:{port}/postgres"
        finally:
            _as_postgres([*server, "-m", "immediate", "stop"])
