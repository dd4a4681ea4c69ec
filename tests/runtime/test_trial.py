"""What a copy of a process says about what it has tried."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from clonos.columns.batches import seal
from clonos.core.events import Trial
from clonos.runtime.trial import attempt
from clonos.runtime.world import SHOWN_MAX, RealWorld

FOREVER_S = 60.0
OPEN_FILES = Path("/proc/self/fd")


def fail() -> None:
    raise ValueError("for the user to see")


@pytest.mark.parametrize(
    ("do", "outcome"),
    [
        (lambda: None, Trial.SURVIVED),
        (lambda: pc.sort_indices(pa.array(range(100_000))), Trial.SURVIVED),
        (fail, Trial.UNKNOWN),
        (lambda: sys.exit(0), Trial.DIED),
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


def test_nothing_of_it_stays():
    kept = [1]
    before = len(list(OPEN_FILES.iterdir())) if sys.platform == "linux" else 0
    assert attempt(kept.clear, FOREVER_S) is Trial.SURVIVED
    assert kept == [1]
    if before:
        assert len(list(OPEN_FILES.iterdir())) == before


def test_a_copy_dies_with_its_parent():
    if sys.platform != "linux":
        pytest.skip("elsewhere it dies of its time limit")
    told, tell = os.pipe()

    def hang() -> None:
        os.write(tell, b"!")
        threading.Event().wait()

    parent = os.fork()
    if parent == 0:
        attempt(hang, FOREVER_S)
        os._exit(0)
    os.close(tell)
    assert os.read(told, 1) == b"!"
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    assert os.read(told, 1) == b"", "nobody holds the other end any more"
    os.close(told)


def test_rows_are_shown_and_parted():
    world = RealWorld()
    batch = seal(pa.record_batch({"n": [1, 2, 3], "text": ["a", "b", "x" * 1000]}))
    part = world.part(batch, 1, 2)
    assert (part.rows, part.payload.column("n").to_pylist()) == (2, [2, 3])
    assert world.show(part) == "{'n': 2, 'text': 'b'}"
    assert len(world.show(world.part(batch, 2, 1))) == SHOWN_MAX + len("...")
