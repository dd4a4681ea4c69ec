"""What a task may rely on when its items are on the local disk: in files, and in the simulation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from clonos.columns.batches import seal
from clonos.core.events import DropSpilled, ReadBack, ReadSpilled, Spill, Spilled
from clonos.nodes.events import DiskAnswered
from clonos.nodes.ports import Scratch
from clonos.runtime.scratch import LocalScratch
from clonos.simulator.processes.scratch import SlotScratch

from .common import Real, Simulated

LIFE, OTHER, CHANNEL = 7, 8, 3


class OnDisk(Real):
    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self._folder, self._patch = folder, patch
        patch.setenv("SPARK_LOCAL_DIRS", str(folder))
        self._scratch = LocalScratch(self._inbox.put, digests=True)
        self.port: Scratch = self._scratch

    def batch(self, number: int) -> Any:
        texts = pa.array([None if number % 2 else "x"], pa.string())
        return seal(pa.record_batch({"n": [number], "t": texts}))

    def fill_up(self) -> None:
        self._patch.setenv("SPARK_LOCAL_DIRS", str(self._folder / "missing"))

    def rot(self) -> None:
        (written,) = self._scratch._files.values()
        written.file.seek(written.nbytes // 2)
        byte = written.file.read(1)
        written.file.seek(written.nbytes // 2)
        written.file.write(bytes([byte[0] ^ 1]))
        written.file.flush()

    def close(self) -> None:
        self._scratch.close()
        self._inbox.close()


class InSimulation(Simulated):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.port: Scratch = SlotScratch(self.ear)

    def batch(self, number: int) -> Any:
        return self.cluster.job.wrap(((number, number),))

    def _fail(self) -> None:
        self.cluster.options.scratch_faults = 1.0
        self.cluster.heals_at = float("inf")

    fill_up = rot = _fail


@pytest.fixture(params=["disk", *range(5)])
def world(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Any]:
    kind = request.param
    with closing(OnDisk(tmp_path, monkeypatch) if kind == "disk" else InSimulation(kind)) as made:
        yield made


def answers(world: Any, count: int, life: int = LIFE) -> list[Any]:
    world.until(lambda: len(world.heard) >= count)
    assert [type(answer) for answer in world.heard] == [DiskAnswered] * count
    found = [answer.outcome for answer in world.heard if answer.life == life]
    world.heard.clear()
    return found


def write(world: Any, numbers: range, life: int = LIFE) -> dict[int, tuple[Any, ...]]:
    """A file for each number, of as many batches."""
    files = {n: tuple(world.batch(i) for i in range(n)) for n in numbers}
    for number, batches in files.items():
        world.port.write(life, Spill(CHANNEL, number, batches))
    assert answers(world, len(files), life) == [Spilled(CHANNEL, n, True) for n in numbers]
    return files


def test_what_is_read_is_what_was_written_in_the_order_that_is_asked_for(world):
    files = write(world, range(1, 5))
    for number in (3, 1, 4):
        world.port.read(LIFE, ReadSpilled(CHANNEL, number))
    found = answers(world, 3)
    assert [type(back) for back in found] == [ReadBack] * 3
    assert [back.number for back in found] == [3, 1, 4]
    for back in found:
        assert [b.digest for b in back.batches] == [b.digest for b in files[back.number]]
        assert [b.payload for b in back.batches] == [b.payload for b in files[back.number]]


def test_a_full_disk_is_an_answer(world):
    world.fill_up()
    world.port.write(LIFE, Spill(CHANNEL, 1, (world.batch(1),)))
    assert answers(world, 1) == [Spilled(CHANNEL, 1, False)]


def test_a_file_that_has_rotted_never_looks_like_what_was_written(world):
    files = write(world, range(3, 4))
    world.rot()
    world.port.read(LIFE, ReadSpilled(CHANNEL, 3))
    (back,) = answers(world, 1)
    read = [b.digest for b in back.batches or ()]
    assert read != [b.digest for b in files[3]]


def test_lives_do_not_share_files_and_what_is_dropped_is_gone_for_nobody_else(world):
    mine, others = write(world, range(1, 3)), write(world, range(2, 4), OTHER)
    world.port.drop(LIFE, DropSpilled(CHANNEL, 1))
    world.port.withdraw(LIFE)
    world.port.read(OTHER, ReadSpilled(CHANNEL, 2))
    (back,) = answers(world, 1, OTHER)
    assert [b.digest for b in back.batches] == [b.digest for b in others[2]]
    assert [b.digest for b in mine[2]] == [b.digest for b in others[2]]
