"""What a copy of a process says about what it has tried."""

from __future__ import annotations

import importlib
import os
import signal
import socket
import sys
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from clonos.columns.batches import seal
from clonos.core.events import Trial
from clonos.runtime import trial
from clonos.runtime.trial import attempt
from clonos.runtime.world import SHOWN_MAX, RealWorld
from tests.processes import is_there

FOREVER_S = 60.0
OPEN_FILES = Path("/proc/self/fd")


class Panic(BaseException):
    """As Rust raises it through PyO3."""


def fail() -> None:
    raise ValueError("for the user to see")


def panic() -> None:
    raise Panic


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("do", "outcome"),
    [
        (lambda: None, Trial.SURVIVED),
        (lambda: pc.sort_indices(pa.array(range(100_000))), Trial.SURVIVED),
        (fail, Trial.UNKNOWN),
        (panic, Trial.UNKNOWN),
        (lambda: sys.exit(0), Trial.DIED),
        (interrupt, Trial.DIED),
        (lambda: os._exit(0), Trial.DIED),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), Trial.DIED),
    ],
)
def test_what_a_copy_says(do: Any, outcome: Trial) -> None:
    assert attempt(do, FOREVER_S) is outcome


def test_a_copy_that_hangs_says_nothing_and_is_ended(tmp_path):
    file = tmp_path / "pid"

    def hang() -> None:
        file.write_text(str(os.getpid()))
        threading.Event().wait()

    assert attempt(hang, 1.0) is Trial.UNKNOWN
    if file.exists():  # it had the time to begin
        with pytest.raises(ProcessLookupError):
            os.kill(int(file.read_text()), 0)


def test_a_copy_that_dies_is_not_taken_for_a_child_of_its_own(tmp_path):
    """Functions may use processes of their own, which outlive the copy."""

    def dies() -> None:
        if not (child := os.fork()):
            signal.pause()
        (tmp_path / "child").write_text(str(child))
        os.kill(os.getpid(), signal.SIGKILL)

    began_s = time.monotonic()
    try:
        assert attempt(dies, limit_s=60.0) is Trial.DIED
        assert time.monotonic() - began_s < 30.0
    finally:
        os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)


def test_nothing_of_it_stays():
    kept = [1]
    before = len(list(OPEN_FILES.iterdir())) if sys.platform == "linux" else 0
    assert attempt(kept.clear, FOREVER_S) is Trial.SURVIVED
    assert kept == [1]
    if before:
        assert len(list(OPEN_FILES.iterdir())) == before


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + FOREVER_S
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_copy_dies_with_its_parent(tmp_path):
    if sys.platform != "linux":
        pytest.skip("elsewhere it dies of its time limit")
    file = tmp_path / "pid"

    def hang() -> None:
        (tmp_path / "new").write_text(str(os.getpid()))
        (tmp_path / "new").rename(file)
        threading.Event().wait()

    parent = os.fork()
    if parent == 0:
        attempt(hang, FOREVER_S)
        os._exit(0)
    wait_for(file.exists)
    copy = int(file.read_text())
    assert is_there(copy)
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    wait_for(lambda: not is_there(copy))


def test_a_copy_has_none_of_the_connections():
    """Else the answer to its request would be taken for that to a later one of ours."""
    ours, theirs = socket.socketpair()
    told, tell = os.pipe()

    def ask() -> None:
        assert ours.recv(1) == b"", "it looks closed"
        for send in (lambda: ours.send(b"?"), lambda: os.write(tell, b"?")):
            try:
                send()
            except OSError:
                continue
            os._exit(0)

    with ours, theirs:
        assert attempt(ask, FOREVER_S) is Trial.SURVIVED
        ours.send(b"!")
        assert theirs.recv(10) == b"!"
    os.close(tell)
    assert os.read(told, 1) == b""
    os.close(told)


def test_a_copy_is_made_when_nobody_imports(tmp_path, monkeypatch):
    """Else it waits for the module for ever: who imports it is not there."""
    (tmp_path / "slow_module.py").write_text(
        "import test_trial_gate\ntest_trial_gate.begun.set()\ntest_trial_gate.go.wait(60)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    gate = types.ModuleType("test_trial_gate")
    gate.begun, gate.go = threading.Event(), threading.Event()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "test_trial_gate", gate)
    importing = threading.Thread(target=importlib.import_module, args=("slow_module",))
    importing.start()
    assert gate.begun.wait(60)
    assert trial._others_import()
    threading.Timer(2.0, gate.go.set).start()

    def use() -> None:
        importlib.import_module("slow_module")

    assert attempt(use, FOREVER_S) is Trial.SURVIVED
    importing.join()
    assert not trial._others_import()


def test_rows_are_shown_and_picked():
    world = RealWorld()
    batch = seal(pa.record_batch({"n": [1, 2, 3], "text": ["a", "b", "x" * 1000]}))
    part = world.pick(batch, [1, 2])
    assert (part.rows, part.payload.column("n").to_pylist()) == (2, [2, 3])
    assert world.show(part) == "{'n': 2, 'text': 'b'}"
    assert len(world.show(world.pick(batch, [2]))) == SHOWN_MAX + len("...")
