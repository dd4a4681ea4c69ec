"""Spilled items on a real disk."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from queue import Queue

import pyarrow as pa
import pytest

from clonos.columns.batches import seal
from clonos.core import events as ev
from clonos.nodes.events import DiskAnswered, WorkFailed
from clonos.runtime.scratch import LocalScratch, Written

BATCHES = tuple(seal(pa.record_batch({"k": [n, n + 1], "t": ["a", None]})) for n in range(3))
SPILL = ev.Spill(7, 1, BATCHES)
READ = ev.ReadSpilled(7, 1)
LIMIT_S = 30.0


class Disk(LocalScratch):
    def __init__(self) -> None:
        self.answers: Queue[DiskAnswered | WorkFailed] = Queue()
        super().__init__(self.answers.put, digests=True)

    def said(self) -> ev.Spilled | ev.ReadBack:
        answer = self.answers.get(timeout=LIMIT_S)
        assert isinstance(answer, DiskAnswered)
        return answer.outcome

    def written(self) -> Written:
        """The file of `SPILL`, written."""
        self.write(1, SPILL)
        assert self.said() == ev.Spilled(7, 1, True)
        return self._files[1, 7, 1]


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    disk = Disk()
    yield disk
    disk.close()


def test_what_is_read_is_what_was_written_and_no_name_is_left(disk: Disk, tmp_path: Path) -> None:
    disk.write(1, SPILL)
    assert disk.said() == ev.Spilled(7, 1, True)
    assert not list(tmp_path.iterdir())
    disk.read(1, READ)
    back = disk.said()
    assert isinstance(back, ev.ReadBack)
    assert back.batches is not None
    assert [b.payload for b in back.batches] == [b.payload for b in BATCHES]
    assert [b[1:] for b in back.batches] == [b[1:] for b in BATCHES]


def test_a_disk_that_takes_nothing_is_no_error(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "missing"))
    disk.write(1, SPILL)
    assert disk.said() == ev.Spilled(7, 1, False)


def test_without_a_folder_of_spark_files_are_in_the_temporary_one(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "")
    folders = list[str]()
    make = tempfile.TemporaryFile

    def noted(dir: str) -> object:  # noqa: A002 - its name there
        folders.append(dir)
        return make(dir=dir)

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(tempfile, "TemporaryFile", noted)
    disk.write(1, SPILL)
    assert disk.said() == ev.Spilled(7, 1, True)
    assert folders == [str(tmp_path)]


def test_files_of_a_life_that_is_over_are_gone(disk: Disk) -> None:
    disk.write(1, SPILL)
    disk.write(2, SPILL)
    disk.said()
    disk.said()
    disk.drop(2, ev.DropSpilled(7, 1))
    disk.withdraw(1)
    disk.read(1, READ)  # nobody wants to know
    disk.read(2, READ)
    assert disk.said() == ev.ReadBack(7, 1, None)


def test_a_file_that_shrinks_after_it_was_read_harms_nobody(disk: Disk) -> None:
    """With a map of the file, looking at the batches would kill the process: SIGBUS."""
    written = disk.written()
    disk.read(1, READ)
    back = disk.said()
    written.file.truncate(0)
    assert isinstance(back, ev.ReadBack)
    assert back.batches is not None
    assert [b.payload for b in back.batches] == [b.payload for b in BATCHES]
    disk.read(1, READ)
    assert disk.said() == ev.ReadBack(7, 1, None)


def test_whichever_byte_is_rotten_nothing_of_it_is_parsed(disk: Disk) -> None:
    """Arrow would believe lengths and offsets in it, and read or reserve what is not there."""
    written = disk.written()
    for place in range(written.nbytes):
        written.file.seek(place)
        whole = written.file.read(1)
        for content in (bytes([whole[0] ^ 0x80]), whole):
            written.file.seek(place)
            written.file.write(content)
            written.file.flush()
            disk.read(1, READ)
            back = disk.said()
            assert isinstance(back, ev.ReadBack)
            assert (back.batches is None) is (content != whole), place


def test_a_file_that_has_grown_is_read_no_further_than_it_was_written(disk: Disk) -> None:
    written = disk.written()
    written.file.truncate(1 << 40)  # a hole, which takes no space
    disk.read(1, READ)
    back = disk.said()
    assert isinstance(back, ev.ReadBack)
    assert back.batches is not None


@pytest.mark.parametrize("act", ["write", "read"])
def test_what_is_not_the_disks_fault_is_an_error_of_the_task(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    """Else it would wait for an answer that never comes."""
    disk.written()

    def broken(*_: object, **__: object) -> None:
        raise TypeError("a bug")

    if act == "write":
        monkeypatch.setattr(pa.ipc, "new_stream", broken)
        disk.write(1, ev.Spill(7, 2, BATCHES))
    else:
        monkeypatch.setattr(pa.ipc, "open_stream", broken)
        disk.read(1, READ)
    failed = disk.answers.get(timeout=LIMIT_S)
    assert isinstance(failed, WorkFailed)
    assert failed.life == 1
    assert isinstance(failed.error, TypeError)


def test_memory_that_is_short_is_no_bug(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    disk.written()

    def short(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(pa, "BufferOutputStream", short)
    disk.write(1, ev.Spill(7, 2, BATCHES))
    assert disk.said() == ev.Spilled(7, 2, False)
