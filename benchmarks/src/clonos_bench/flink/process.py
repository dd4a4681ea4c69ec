"""Flink's processes: where they are installed, how they are started, what they use.

A *peer* is a process that is given jobs, a line each, and says what they took when they have ended.
It stays, so that its virtual machine is warm.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from clonos.errors import ClonosError
from clonos_bench.gates import Ran
from clonos_bench.processes import descendants

DEFAULT_PYTHON: Final = ".venv-flink/bin/python"
REMEDY: Final = "run scripts/setup_flink.sh, or give --flink-python"

_SOURCES: Final = Path(__file__).with_name("java")
_LOGGING: Final = Path(__file__).with_name("log4j.properties")
_LINE_BYTES: Final = 1 << 16

HEAP: Final = ("-Xms3g", "-Xmx3g", "-XX:+UseParallelGC")
"""Of a virtual machine that runs everything. More throughput than the default collector gives."""

SETTINGS: Final[Mapping[str, str]] = {
    "execution.runtime-mode": "STREAMING",
    "execution.checkpointing.mode": "EXACTLY_ONCE",
    "pipeline.object-reuse": "true",
    "restart-strategy.type": "disable",
    "state.backend.type": "hashmap",
    "table.exec.mini-batch.enabled": "true",
    "table.exec.mini-batch.allow-latency": "1 s",
    "table.exec.mini-batch.size": "50000",
    "table.exec.sink.rowtime-inserter": "DISABLED",
    "table.local-time-zone": "UTC",
    "table.optimizer.agg-phase-strategy": "TWO_PHASE",
    "taskmanager.memory.managed.size": "512m",
}
"""Flink at its fastest: objects are reused, state is in the heap, rows are aggregated in small
batches, and before the shuffle, too."""


@dataclass(frozen=True)
class Installation:
    """Flink with our source and sink, in a virtual environment."""

    python: Path
    home: Path
    jar: Path

    @classmethod
    def find(cls, python: str) -> Installation:
        """What belongs to a Python.

        Raises
        ------
        ClonosError
            There is no Flink, or what was compiled there is another source.

        Examples
        --------
        >>> try:
        ...     Installation.find("no/bin/python")
        ... except ClonosError as error:
        ...     print(error)
        no Flink at no/bin/python. To do: run scripts/setup_flink.sh, or give --flink-python
        """
        venv = Path(python).absolute().parent.parent
        homes = sorted(venv.glob("lib/python3.*/site-packages/pyflink"))
        jar = venv / "nexmark.jar"
        stamp = venv / "nexmark.jar.sha256"
        if not homes or not jar.exists() or not stamp.exists():
            raise ClonosError(f"no Flink at {python}", remedy=REMEDY)
        if stamp.read_text("ascii").strip() != _digest(_SOURCES):
            raise ClonosError(f"{jar} is of another source than this one", remedy=REMEDY)
        return cls(Path(python).absolute(), homes[-1], jar)

    def java(self, main: str, *arguments: str, options: Sequence[str] = HEAP) -> list[str]:
        """The command that starts a class of Flink or ours."""
        config = (self.home / "conf" / "config.yaml").read_text("utf-8")
        # What Flink needs opened in Java 17 is in its configuration, behind "all:".
        opened = next(line.split()[1:] for line in config.splitlines() if " all: --add" in line)
        return [
            "java",
            *options,
            *opened,
            f"-Dlog4j.configurationFile={_LOGGING}",
            "-cp",
            f"{self.home}/lib/*:{self.jar}",
            main,
            *arguments,
        ]

    def version(self) -> str:
        """Of Flink."""
        found = next(self.home.glob("lib/flink-dist-*.jar"), None)
        return "unknown" if found is None else found.stem.rpartition("-")[2]


class Peer:
    """A process that runs jobs; use as a context manager.

    Parameters
    ----------
    command
        What it is started with.
    log
        Where everything but its answers goes.
    job_s
        A job that takes longer is an error.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        *,
        environment: Mapping[str, str] | None = None,
        job_s: float = 120.0,
    ) -> None:
        self._command = list(command)
        self._log = log
        self._environment = {**os.environ, **(environment or {})}
        self._job_s = job_s
        self._unread = b""

    def __enter__(self) -> Peer:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                env=self._environment,
            )
        return self

    def __exit__(self, *_: object) -> None:
        below = descendants(self._process.pid)
        self._process.kill()
        self._process.wait()
        for pid in below:
            _kill(pid)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def run(self, job: str) -> Ran:
        """Run a job, given in one line."""
        self.start(job)
        seconds, rows, ticks = self._done(time.monotonic() + self._job_s)
        return Ran(float(seconds), int(ticks) / os.sysconf("SC_CLK_TCK"), int(rows))

    def start(self, job: str) -> None:
        """Start a job, given in one line, and wait for nothing."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{job}\n".encode())
        except BrokenPipeError:
            raise self._gone() from None

    def _done(self, give_up: float) -> list[str]:
        """The words behind "done"; what libraries print is passed over."""
        while True:
            word, *words = self._line(give_up).split(" ")
            if word == "done":
                return words
            if word == "failed":
                raise ClonosError(f"Flink: {' '.join(words)}", remedy=f"see {self._log}")

    def _line(self, give_up: float) -> str:
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        while b"\n" not in self._unread:
            ready, _, _ = select.select([pipe], [], [], max(0.0, give_up - time.monotonic()))
            if not ready:
                raise ClonosError(
                    f"a job of Flink has not ended after {self._job_s:g} s",
                    remedy=f"use fewer events; see {self._log}",
                )
            read = os.read(pipe, _LINE_BYTES)
            if not read:
                raise self._gone()
            self._unread += read
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode(errors="replace").strip()

    def _gone(self) -> ClonosError:
        return ClonosError("Flink's process has ended", remedy=f"see {self._log}")


def _digest(folder: Path) -> str:
    """Of all files, one behind the other in the order of their names."""
    paths = sorted((path for path in folder.rglob("*") if path.is_file()), key=str)
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()


def options(settings: Mapping[str, object]) -> list[str]:
    """Flink's settings as arguments of our driver.

    Examples
    --------
    >>> options({"parallelism.default": 2})
    ['parallelism.default=2']
    """
    return [f"{key}={value}" for key, value in settings.items()]


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
