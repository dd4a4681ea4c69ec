"""What the driver may rely on when it writes its journal, in files and in the simulation."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from clonos.cluster.durable import JournalFile
from clonos.cluster.journal_thread import JournalThread
from clonos.nodes.events import Committed, JournalFailed
from clonos.nodes.ports import Journal as JournalPort
from clonos.storage.files import LocalFiles
from clonos.storage.journal import Journal

from .common import Real, Simulated


class OnDisk(Real):
    """A journal in files, written at once or by a thread."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self._folder, self._patch = folder, patch
        self._file = JournalFile(folder, "fsync", self._inbox.put)
        self._thread = JournalThread(self._file, self._inbox)
        self.port: JournalPort = self._thread

    def fail(self, is_failing: bool) -> None:
        if not is_failing:
            self._patch.undo()
            return

        def refuse(*_: Any) -> None:
            raise OSError(errno.ENOSPC, "no space left")

        self._patch.setattr("clonos.storage.files.os.fdatasync", refuse)
        self._patch.setattr(LocalFiles, "sync", refuse)

    def read(self) -> list[bytes]:
        """What a successor finds."""
        self._thread.close()
        self._file.close()
        with Journal(self._folder) as journal:
            return list(journal.replay())

    def close(self) -> None:
        self._inbox.close()


class InSimulation(Simulated):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        driver = self.cluster.driver
        self.port: JournalPort = driver.journal
        self.heard: list[Any] = []
        setattr(driver, "post", self.heard.append)  # noqa: B010 - it is a method
        driver.journal._file._tell = self.heard.append

    def fail(self, is_failing: bool) -> None:
        disk = self.cluster.disks.local
        disk.faults = lambda call, _: errno.ENOSPC if is_failing and call == "sync" else 0

    def read(self) -> list[bytes]:
        self.cluster.driver.die()
        self.cluster.disks.local.lose_power()
        return self.cluster.disks.journal()


@pytest.fixture(params=["file", *range(8)])
def world(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Any]:
    kind = request.param
    with closing(OnDisk(tmp_path, monkeypatch) if kind == "file" else InSimulation(kind)) as made:
        yield made


def outcome(world: Any, write: Callable[[Sequence[bytes]], bool], records: Sequence[bytes]) -> bool:
    """Whether they are durable, however that is told: once."""
    world.heard.clear()
    is_written = write(records)
    if not is_written:
        world.until(lambda: world.heard)
        (event,) = world.heard
        assert type(event) in (Committed, JournalFailed)
        is_written = type(event) is Committed
    else:
        assert not world.heard
    return is_written


def test_what_was_acknowledged_is_there(world):
    groups = [[b"one", b""], [], [b"two" * 1000], [b"three"]]
    for group in groups:
        before = world.port.nbytes
        assert outcome(world, world.port.append, group)
        assert world.port.nbytes > before
    assert world.read() == [record for group in groups for record in group]


def test_a_head_stands_for_everything(world):
    assert outcome(world, world.port.append, [b"x" * 10_000])
    before = world.port.nbytes
    assert outcome(world, world.port.rotate, [b"head"])
    assert world.port.nbytes < before
    assert outcome(world, world.port.append, [b"next"])
    assert world.read() == [b"head", b"next"]


def test_a_failure_is_told_and_a_new_segment_makes_it_good(world):
    assert outcome(world, world.port.append, [b"kept"])
    world.fail(True)
    assert not outcome(world, world.port.append, [b"unknown"])
    for _ in range(3):
        assert not outcome(world, world.port.rotate, [b"kept", b"unknown"])
    world.fail(False)
    assert outcome(world, world.port.rotate, [b"kept", b"unknown"])
    assert outcome(world, world.port.append, [b"next"])
    assert world.read() == [b"kept", b"unknown", b"next"]


def test_what_failed_is_there_or_not_and_what_was_before_is(world):
    assert outcome(world, world.port.append, [b"kept"])
    world.fail(True)
    assert not outcome(world, world.port.append, [b"unknown"])
    world.fail(False)
    assert world.read() in ([b"kept"], [b"kept", b"unknown"])
