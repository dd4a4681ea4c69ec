"""What several tests of causal services need: a task to be in, and the example's paid model."""

from __future__ import annotations

import contextlib
import itertools
import json
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
