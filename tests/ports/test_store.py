"""What a slot may rely on when it stores layers, in a folder and in the simulation."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clonos.core.events import StoreLayer
from clonos.core.levels import LOCAL, MEMORY, STORE, LayerRef, MergeLayers
from clonos.core.plan import Incarnation
from clonos.core.sealed import Layer
from clonos.errors import UnreadableLayer
from clonos.nodes.events import (
    Fetched,
    FetchFailed,
    Kept,
    Looked,
    MergedHere,
    PartRead,
    Stored,
)
from clonos.nodes.ports import Store
from clonos.runtime.layers import Layers
from clonos.simulator.processes.durable import SlotStore
from clonos.storage import retry
from clonos.storage.files import LocalFiles

from .common import Real, Simulated


class InFolder(Real):
    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self._folder, self._patch = folder, patch
        patch.setattr(retry, "FIRST_PAUSE_S", 0.001)
        levels, local = (MEMORY, LOCAL, STORE), folder / "local"
        self._layers = Layers(str(folder / "store"), "fsync", self._inbox, levels, str(local))
        self._folder = folder / "store"
        self.port: Store = self._layers

    def fail(self, for_calls: int) -> None:
        """The next calls that write fail."""
        write, left = LocalFiles.write, [for_calls]

        def refuse(files: LocalFiles, *rest: Any) -> None:
            left[0] -= 1
            if left[0] >= 0:
                raise OSError(errno.ENOSPC, "no space left")
            write(files, *rest)

        self._patch.setattr(LocalFiles, "write", refuse)

    def damage_local(self, path: str) -> None:
        (file,) = (f for f in self._local() if str(f).endswith(path))
        content = bytearray(file.read_bytes())
        content[20] ^= 1
        file.write_bytes(content)

    def fill_local(self) -> None:
        """The local disk is full until a file of it is deleted."""
        write, before = LocalFiles.write, self._local()

        def refuse(files: LocalFiles, path: str, *rest: Any) -> None:
            if "/local/" in path and self._local() >= before:
                raise OSError(errno.ENOSPC, "no space left")
            write(files, path, *rest)

        self._patch.setattr(LocalFiles, "write", refuse)

    def _local(self) -> set[Path]:
        return set(self._folder.parent.joinpath("local").rglob("*.layer"))

    def files(self) -> list[Path]:
        return [path for path in self._folder.rglob("*") if path.is_file()]

    def lose(self, path: str) -> None:
        (self._folder / path).unlink()

    def damage(self, path: str) -> None:
        content = bytearray((self._folder / path).read_bytes())
        content[20] ^= 1
        (self._folder / path).write_bytes(content)

    def close(self) -> None:
        self._layers.close()
        self._inbox.close()


class InSimulation(Simulated):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.ear.address = "slot"
        machine = self.cluster.disks.of_machine("machine")
        self.port: Store = SlotStore(self.ear, "/layers", machine=machine)
        self._disk = self.cluster.disks.shared

    def fail(self, for_calls: int) -> None:
        left = [for_calls]

        def refuse(call: str, _path: str) -> int:
            left[0] -= call == "write"
            return errno.ENOSPC if call == "write" and left[0] >= 0 else 0

        self._disk.faults = refuse

    def damage_local(self, path: str) -> None:
        self.cluster.disks.of_machine("machine")[1].flip(f"/layers/{path}", 8 * 20)

    def fill_local(self) -> None:
        """The local disk is full until a file of it is deleted."""
        disk = self.cluster.disks.of_machine("machine")[1]
        disk.capacity = disk.used

    def files(self) -> list[Any]:
        found = self._disk.observe().entries("/layers", recursive=True)
        return [info for info in found if not info.is_folder]

    def lose(self, path: str) -> None:
        self._disk.lose(f"/layers/{path}")

    def damage(self, path: str) -> None:
        self._disk.flip(f"/layers/{path}", 8 * 20)


@pytest.fixture(params=["folder", *range(5)])
def world(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Any]:
    kind = request.param
    with closing(
        InFolder(tmp_path, monkeypatch) if kind == "folder" else InSimulation(kind)
    ) as made:
        yield made


def sealed(task: int, epoch: int) -> StoreLayer:
    life, delta = Incarnation(1, 2), f"{task} {epoch}".encode() * 10
    layer = Layer(
        task, life, epoch, epoch, {}, {}, (), {}, 0, None, 0, source_ended=False, delta=b""
    )
    return StoreLayer(layer, delta)


def put(world: Any, *layers: StoreLayer, level: str = STORE) -> list[LayerRef]:
    """Store layers; return their references in the same order."""
    for life, layer in enumerate(layers):
        world.port.put(life, layer, level)
    world.until(lambda: len(world.heard) == len(layers))
    assert {type(event) for event in world.heard} == {Stored}
    refs = {event.life: event.ref for event in world.heard}
    world.heard.clear()
    return [refs[life] for life in range(len(layers))]


def fetch(world: Any, ticket: int, refs: list[LayerRef]) -> Any:
    world.port.fetch(ticket, refs)
    assert not world.heard, "never before the call has returned"
    world.until(lambda: world.heard)
    (event,) = world.heard
    world.heard.clear()
    assert event.ticket == ticket
    return event


def test_layers_are_fetched_as_they_were_stored_in_the_order_that_is_asked_for(world):
    refs = put(world, sealed(0, 1), sealed(1, 1), sealed(0, 2))
    event = fetch(world, 7, refs[::-1])
    assert type(event) is Fetched
    assert [(layer.task, layer.epoch) for layer in event.layers] == [(0, 2), (1, 1), (0, 1)]
    assert [layer.delta for layer in event.layers] == [b"0 2" * 10, b"1 1" * 10, b"0 1" * 10]
    assert type(fetch(world, 8, [])) is Fetched


def test_what_is_stored_twice_is_there_once(world):
    once, again = put(world, sealed(0, 1)), put(world, sealed(0, 1))
    assert once == again
    assert len(world.files()) == 1


def test_a_store_that_is_full_for_a_while_is_waited_for(world):
    world.fail(3)
    (ref,) = put(world, sealed(0, 1))
    assert fetch(world, 1, [ref]).layers[0].delta == b"0 1" * 10
    assert len(world.files()) == 1, "and nothing that was begun in vain"


@pytest.mark.parametrize("harm", ["lose", "damage"])
def test_what_cannot_be_read_is_told(world, harm):
    one, other = put(world, sealed(0, 1), sealed(0, 2))
    getattr(world, harm)(other.path)
    event = fetch(world, 3, [one, other])
    assert type(event) is FetchFailed
    assert isinstance(event.error, UnreadableLayer)
    assert type(fetch(world, 4, [one])) is Fetched


def test_another_layer_in_its_place_is_told(world):
    (ref,) = put(world, sealed(0, 1))
    event = fetch(world, 3, [replace(ref, digest=ref.digest ^ 1)])
    assert type(event) is FetchFailed


# --- layers that slots keep -----------------------------------------------------------------------


def answer(world: Any, kind: type[Any]) -> Any:
    """What comes of the last request."""
    world.until(lambda: world.heard)
    (event,) = world.heard
    world.heard.clear()
    assert type(event) is kind
    return event


def content(world: Any, ref: LayerRef) -> bytes:
    """All of a layer, as another slot is given it."""
    parts = b""
    while True:
        world.port.read(1, ref, len(parts))
        part = answer(world, PartRead).part
        assert (part.path, part.start) == (ref.path, len(parts))
        parts += part.content
        if len(parts) == part.nbytes:
            return bytes(parts)


@pytest.mark.parametrize("level", [MEMORY, LOCAL])
def test_a_layer_goes_from_one_slot_to_another(world, level):
    one, two = put(world, sealed(0, 1), sealed(0, 2), level=level)
    assert not world.files(), "the checkpoint store has none of it"
    sent = content(world, two)
    world.port.drop([two])
    world.port.look(5, [one, two])
    assert answer(world, Looked).found == (one.path,)
    assert type(fetch(world, 6, [one, two])) is FetchFailed
    world.port.keep(7, two, sent)
    assert answer(world, Kept).error is None
    event = fetch(world, 8, [one, two])
    assert [layer.delta for layer in event.layers] == [b"0 1" * 10, b"0 2" * 10]


@pytest.mark.parametrize("level", [MEMORY, LOCAL])
def test_what_is_not_the_layer_that_is_meant_is_not_kept(world, level):
    one, two = put(world, sealed(0, 1), sealed(0, 2), level=level)
    sent = content(world, one)
    world.port.drop([one, two])
    for wrong in sent, sent[:-3], b"":
        world.port.keep(7, two, wrong)
        assert isinstance(answer(world, Kept).error, UnreadableLayer)
    world.port.look(5, [one, two])
    assert answer(world, Looked).found == ()


@pytest.mark.parametrize("level", [MEMORY, LOCAL])
def test_who_is_asked_for_a_layer_that_is_not_here_says_so(world, level):
    (ref,) = put(world, sealed(0, 1), level=level)
    world.port.drop([ref])
    world.port.look(2, [ref])
    assert answer(world, Looked).found == ()
    world.port.read(3, ref, 0)
    event = answer(world, PartRead)
    assert (event.ticket, event.part.nbytes, event.part.content) == (3, -1, b"")


@pytest.mark.parametrize("level", [MEMORY, LOCAL])
def test_layers_that_are_not_here_are_not_merged(world, level):
    one, two = put(world, sealed(0, 1), sealed(0, 2), level=level)
    world.port.drop([two])
    world.port.merge(4, MergeLayers(0, (one, two), True, level, "0/merged.layer"))
    assert answer(world, MergedHere) == MergedHere(4, None)


def test_a_full_disk_hinders_neither_what_makes_room_nor_other_levels(world):
    old, other = put(world, sealed(0, 1), sealed(0, 2), level=LOCAL)
    world.fill_local()
    world.port.put(1, sealed(0, 3), LOCAL)
    world.port.put(3, sealed(1, 3), MEMORY)
    world.port.put(4, sealed(2, 3), STORE)
    world.port.look(5, [old, other])
    world.until(lambda: len(world.heard) == 3)
    assert {type(event) for event in world.heard} == {Stored, Looked}
    world.port.drop([old])
    world.until(lambda: len(world.heard) == 4)
    assert {event.life for event in world.heard if type(event) is Stored} == {1, 3, 4}


def test_who_is_asked_for_a_damaged_layer_does_not_give_it_away(world):
    (ref,) = put(world, sealed(0, 1), level=LOCAL)
    world.damage_local(ref.path)
    world.port.read(3, ref, 0)
    assert answer(world, PartRead).part.nbytes == -1
