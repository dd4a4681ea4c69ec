"""What stands behind a slot's ports waits for stores that are away, as long as it is needed."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from clonos.core import events as ev
from clonos.core.levels import STORE
from clonos.core.messages import Item, Kind
from clonos.core.plan import Incarnation
from clonos.core.program import Batch
from clonos.core.sealed import Layer
from clonos.nodes.events import Fetched, Stored, Wrote
from clonos.runtime.layers import Layers
from clonos.runtime.writers import TaskWriter, Writers
from clonos.sinks.writers import ParquetWriter
from clonos.storage import retry as retry_module
from clonos.storage.files import LocalFiles

LAYER = Layer(3, Incarnation(1, 0), 1, 10, {}, {}, (), {}, 0, None, 0, False, b"")


class Box:
    """An inbox that a test reads."""

    def __init__(self) -> None:
        self.things: list[Any] = []
        self._changed = threading.Condition()

    def put(self, thing: Any) -> None:
        with self._changed:
            self.things.append(thing)
            self._changed.notify_all()

    def next(self) -> Any:
        with self._changed:
            assert self._changed.wait_for(lambda: self.things, 20)
            return self.things.pop(0)


class Away:
    """A disk that takes nothing until it is let."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tried, self.is_back = threading.Semaphore(0), threading.Event()
        write = LocalFiles.write

        def refuse(files: LocalFiles, path: str, content: Any, mode: int = 0o666) -> None:
            if not self.is_back.is_set():
                self.tried.release()
                raise OSError(28, "No space left on device")
            write(files, path, content, mode)

        monkeypatch.setattr(LocalFiles, "write", refuse)
        monkeypatch.setattr(retry_module, "FIRST_PAUSE_S", 0.001)
        monkeypatch.setattr(retry_module, "PAUSE_MAX_S", 0.001)

    def wait(self) -> None:
        for _ in range(3):
            assert self.tried.acquire(timeout=20)


@pytest.fixture
def away(monkeypatch):
    return Away(monkeypatch)


def test_a_layer_is_stored_when_the_disk_has_room_again(tmp_path, away):
    box: Any = Box()
    layers = Layers(str(tmp_path), "process", box)
    layers.put(7, ev.StoreLayer(LAYER, b"state"), STORE)
    away.wait()
    assert not box.things
    away.is_back.set()
    stored = box.next()
    assert isinstance(stored, Stored)
    assert stored.life == 7
    layers.fetch(1, [stored.ref])
    fetched = box.next()
    assert isinstance(fetched, Fetched)
    assert fetched.layers[0].delta == b"state"
    layers.close()


def test_a_slot_that_ends_waits_for_no_store(tmp_path, away):
    box: Any = Box()
    layers = Layers(str(tmp_path), "process", box)
    layers.put(7, ev.StoreLayer(LAYER, b"state"), STORE)
    away.wait()
    layers.close()
    layers._putting[STORE].shutdown(wait=True)  # it would never return


def release(seq: int) -> ev.Release:
    rows = pa.RecordBatch.from_pydict({"n": [seq]})
    return ev.Release(5, Item(seq, Kind.BATCH, 0, 0, Batch(rows, 1, 8, 0), {}, 0), 0)


def test_output_is_written_when_there_is_room_again_and_nobody_waits_for_a_task_that_left(
    tmp_path, away
):
    shipment: Any = SimpleNamespace(
        writers={3: lambda incarnation: ParquetWriter(str(tmp_path), "process")},
        plan=SimpleNamespace(tasks={3: SimpleNamespace(index=0, name="out[0]")}),
    )
    box: Any = Box()
    writers = Writers(shipment, box)
    first = writers.of(3, Incarnation(1, 1))
    assert first is not None
    first.write(1, release(1))
    away.wait()
    second = writers.of(3, Incarnation(1, 2))
    assert second is not None
    second.write(2, release(2))
    assert type(box.next()).__name__ == "WorkFailed", "of the life before, which nobody heeds"
    away.wait()
    away.is_back.set()
    assert box.next() == Wrote(2, 5, 2)
    writers.close()


class Slow:
    """Writes when it is told to, and fails when it is told to."""

    def __init__(self) -> None:
        self.groups: list[list[int]] = []
        self.may_write, self.error = threading.Semaphore(0), BaseException()
        self.is_broken = self.is_closed = False
        self.is_at_work = threading.Semaphore(0)

    def write(self, outputs: Any) -> None:
        self.is_at_work.release()
        self.may_write.acquire()
        if self.is_broken:
            raise self.error
        self.groups.append([output.key.seq for output in outputs])

    def close(self) -> None:
        self.is_closed = True


def test_what_is_released_during_a_write_is_the_next_group():
    box: Any = Box()
    slow = Slow()
    writer = TaskWriter(slow, box, "output of out[0]")
    writer.write(1, release(1))
    slow.is_at_work.acquire()
    for seq in range(2, 6):
        writer.write(1, release(seq))
    slow.may_write.release(2)
    assert [box.next(), box.next()] == [Wrote(1, 5, 1), Wrote(1, 5, 5)]
    assert slow.groups == [[1], [2, 3, 4, 5]]
    writer.close()
    writer._pool.shutdown(wait=True)
    assert slow.is_closed


def test_a_group_is_bounded(monkeypatch):
    monkeypatch.setattr(sys.modules[TaskWriter.__module__], "GROUP_ROWS", 3)
    box: Any = Box()
    slow = Slow()
    writer = TaskWriter(slow, box, "output of out[0]")
    writer.write(1, release(1))
    slow.is_at_work.acquire()
    for seq in range(2, 9):
        writer.write(1, release(seq))
    slow.may_write.release(9)
    assert [box.next().seq for _ in range(4)] == [1, 4, 7, 8]
    writer.close()


def test_nothing_is_written_behind_a_group_that_failed():
    """A sink that keeps a mark would take what is missing for written."""
    box: Any = Box()
    slow = Slow()
    slow.is_broken = True
    writer = TaskWriter(slow, box, "output of out[0]")
    writer.write(1, release(1))
    slow.may_write.release(1)
    assert type(box.next()).__name__ == "WorkFailed"
    slow.is_broken = False
    slow.may_write.release(9)
    writer.write(1, release(2))
    writer.close()
    writer._pool.shutdown(wait=True)
    assert not slow.groups
