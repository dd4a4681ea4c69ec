"""A process in which tasks run again, each run in a forked child, as in a slot that has just begun.

Its hash seed and time zone are set at its start. It reads requests from its standard input, and
writes answers to its standard output.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

import pyarrow as pa
from pyspark import cloudpickle  # Spark ships functions with it

from clonos.blame import Complaint, complaint_of, your_code
from clonos.graph.compile import CompiledJob
from clonos.simulator.user_job.answers import Answers, Recording, StandIns
from clonos.simulator.user_job.errors import Unanswered
from clonos.testing.determinism import traps
from clonos.testing.determinism.runs import Began, FirstRun, History, Run, again
from clonos.testing.determinism.stuck import Steps

FAILED: Final = 3
"""The exit code of a child that has sent an error."""


@dataclass(frozen=True)
class Surroundings:
    """Differences between two processes that must not matter."""

    hash_seed: str
    time_zone: str
    ahead_s: float


@dataclass(frozen=True)
class Record:
    """Run the job for the first time."""

    services: Mapping[Any, Any]
    answers: str | None
    options: Mapping[str, Any]


@dataclass(frozen=True)
class Again:
    """Run one task again; see :func:`~clonos.testing.determinism.runs.again`."""

    task: int
    history: History
    layers: tuple[bytes, ...] = ()
    recut: int | None = None
    is_watched: bool = False


@dataclass(frozen=True)
class Broken:
    """A failed run: the task, the error, and its kind."""

    task: int
    kind: str  # "unanswered", "refused", "died", "stuck", "error"
    complaint: Complaint


_dumps: Callable[[Any], bytes] = cloudpickle.dumps


class Worker:
    """Starts such a process, and sends it requests.

    Parameters
    ----------
    shipped
        The job, pickled as Spark would.
    timeout_s
        How long a step may take.
    """

    def __init__(self, shipped: bytes, surroundings: Surroundings, timeout_s: float) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"from {__name__} import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={
                **os.environ,
                "PYTHONHASHSEED": surroundings.hash_seed,
                "TZ": surroundings.time_zone,
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            },
        )
        self._send((sys.path, surroundings.ahead_s, shipped, timeout_s))

    def record(self, record: Record) -> dict[int, History] | Broken:
        """Make the first run; returns the history of each task."""
        found: dict[int, History] | Broken = self._ask(record)
        return found

    def again(self, request: Again) -> Run | Broken:
        """Run a task again."""
        found: Run | Broken = self._ask(request)
        return found

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def _ask(self, request: Any) -> Any:
        self._send(request)
        assert self._process.stdout is not None
        return cloudpickle.load(self._process.stdout)

    def _send(self, what: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(_dumps(what))
        self._process.stdin.flush()


# --- in the process -------------------------------------------------------------------------------


def serve() -> None:
    """Answer requests until there are no more."""
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):  # functions may print
        os.dup2(nowhere, descriptor)
    sys.path[:], ahead_s, shipped, timeout_s = cloudpickle.load(requests)
    traps.install(ahead_s)
    job: CompiledJob | None = None
    broken = b""
    try:
        job = cloudpickle.loads(shipped)
    except Exception as error:  # noqa: BLE001 - user code: modules are imported here
        broken = _dumps(Broken(0, "error", complaint_of(error)))
    pa.array([None, 1])  # Arrow imports pandas, if installed, on first use: do it once, here
    gc.freeze()  # children need not scan existing objects
    while True:
        try:
            request = cloudpickle.load(requests)
        except EOFError:
            return
        replies.write(_in_child(job, request, timeout_s) if job is not None else broken)
        replies.flush()


def _in_child(job: CompiledJob, request: Record | Again, timeout_s: float) -> bytes:
    """Handle a request in a child; returns the encoded answer."""
    with tempfile.TemporaryDirectory(prefix="clonos-check-") as folder:
        file, steps = Path(folder, "reply"), Steps(Path(folder, "lines"))
        child = os.fork()
        if not child:
            try:
                steps.opened()
                file.write_bytes(_dumps(_handle(job, request, steps.next)))
            except BaseException:  # noqa: BLE001 - whatever it is, this child must not go on
                traceback.print_exc()
                os._exit(FAILED)
            os._exit(0)
        status = steps.wait(child, timeout_s)
        if status is None:
            what = f"it has not returned for {timeout_s:g} s"
            lines = steps.end(child)
            told = Complaint("Stuck", what, "", "", your_code("has not returned", lines))
            return _dumps(Broken(steps.task, "stuck", told))
        if status == 0:
            return file.read_bytes()
    task = request.task if isinstance(request, Again) else -1
    code = os.waitstatus_to_exitcode(status)
    what = f"the process ended with {f'signal {-code}' if code < 0 else f'exit code {code}'}"
    broken = Broken(task, "died", Complaint("Died", what, "", "", ""))
    return _dumps(broken)


def _handle(
    job: CompiledJob, request: Record | Again, began: Began
) -> dict[int, History] | Run | Broken:
    if isinstance(request, Record):
        return _record(job, request, began)
    recut = None if request.recut is None else Random(request.recut)
    return again(
        job.codes[request.task],
        request.history,
        began,
        layers=request.layers,
        recut=recut,
        is_watched=request.is_watched,
    )


def _record(job: CompiledJob, request: Record, began: Began) -> dict[int, History] | Broken:
    answers = Answers(StandIns(request.services, Recording(request.answers)))
    run = FirstRun(job, answers, began, **request.options)
    try:
        run.run()
    except Unanswered as unanswered:
        complaint = Complaint("Unanswered", str(unanswered), "", "", "")
        return Broken(run.task, "unanswered", complaint)
    except traps.Refused as refused:
        return Broken(run.task, "refused", Complaint("Refused", str(refused), "", "", ""))
    except Exception as error:  # noqa: BLE001 - user code
        return Broken(run.task, "error", complaint_of(error))
    return run.history
