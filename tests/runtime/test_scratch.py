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
from clonos.nodes.events import DiskAnswered
from clonos.runtime.scratch import LocalScratch

BATCHES = tuple(seal(pa.record_batch({"k": [n, n + 1], "t": ["a", None]})) for n in range(3))
SPILL = ev.Spill(7, 1, BATCHES)
READ = ev.ReadSpilled(7, 1)
LIMIT_S = 30.0


class Disk(LocalScratch):
    def __init__(self) -> None:
        self.answers: Queue[DiskAnswered] = Queue()
        super().__init__(self.answers.put, digests=True)

    def said(self) -> ev.Spilled | ev.ReadBack:
        return self.answers.get(timeout=LIMIT_S).outcome


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
