"""Merging layers: what is chosen, what comes of it, and who does it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from clonos.cluster.compaction import Compactor, CompactorDied
from clonos.cluster.layers import LARGE_BYTES, BackgroundMerger
from clonos.core.layer import (
    encode_layer,
    layer_path,
    merged_path,
    open_layer,
    refer_to,
)
from clonos.core.levels import LayerRef
from clonos.core.merges import choose, longest
from clonos.core.messages import Dependency, Item, Kind
from clonos.core.plan import Incarnation
from clonos.core.program import Batch
from clonos.core.sealed import Layer
from clonos.errors import ClonosError
from clonos.nodes.events import MergeFailed, Surveyed
from clonos.state.deltas import Changes, decode_delta, encode_delta
from clonos.storage.layers import LayerStore
from clonos.transport.inbox import Inbox

FIRST = Incarnation(1, 0)
NAMES = ["state"]


def refs(sizes: list[int]) -> list[LayerRef]:
    return [LayerRef(0, e, FIRST, e, f"{e}", n, 0) for e, n in enumerate(sizes)]


@pytest.mark.parametrize(
    ("nbytes", "times", "garbage"), [(10, 10, 1), (10 << 20, 4, 2), (200 << 20, 3, 2)]
)
def test_every_byte_is_written_a_few_times_only(nbytes: int, times: float, garbage: float) -> None:
    """All keys together have 200 times what each layer has."""
    chain, written, most = list[LayerRef](), 0, 200 * nbytes
    for epoch in range(5000):
        chain.append(LayerRef(0, epoch, FIRST, epoch, "", nbytes, 0))
        if chosen := choose(chain):
            size = min(sum(ref.nbytes for ref in chosen), most)  # keys are overwritten
            written += size
            start = chain.index(chosen[0])
            last = chosen[-1].epoch
            chain[start : start + len(chosen)] = [LayerRef(0, last, FIRST, last, "", size, 0)]
        assert len(chain) <= longest(chain)
        assert sum(ref.nbytes for ref in chain) <= (1 + garbage) * most
    assert written < times * 5000 * nbytes


@pytest.fixture
def store(tmp_path: Path) -> LayerStore:
    return LayerStore(tmp_path / "layers", "process")


@pytest.fixture
def compactor(tmp_path: Path) -> Iterator[Compactor]:
    made = Compactor(str(tmp_path / "layers"), "process", 4)
    yield made
    made.close()


def put(store: LayerStore, epoch: int, changes: dict[bytes, bytes | None]) -> LayerRef:
    delta = encode_delta(NAMES, [(0, Changes([1] * len(changes), [*changes], [*changes.values()]))])
    layer = Layer(3, FIRST, epoch, epoch * 10, {}, {}, (), {}, 0, None, 0, False, delta)
    path = layer_path(3, epoch, FIRST)
    content = encode_layer(layer)
    return refer_to(layer, content, path, store.put(path, content))


def content(store: LayerStore, ref: LayerRef) -> dict[bytes, bytes | None]:
    layer = open_layer(store.get(ref.path), ref)
    ((_, _, keys, values),) = decode_delta(NAMES, layer.delta)
    keys, values = keys.to_pylist(), values.to_pylist()
    return dict(zip(keys, values, strict=True))


def test_a_merged_layer_has_the_effect_of_all(store: LayerStore, compactor: Compactor) -> None:
    chain = [
        put(store, 1, {b"a": b"1", b"b": b"1"}),
        put(store, 2, {b"b": b"2", b"c": b"2"}),
        put(store, 3, {b"a": None, b"d": b"3"}),
    ]
    upper = compactor.merge(chain, chain[1:])
    assert content(store, upper) == {b"b": b"2", b"c": b"2", b"a": None, b"d": b"3"}
    assert content(store, compactor.merge([chain[0], upper], [chain[0], upper])) == {
        b"b": b"2",
        b"c": b"2",
        b"d": b"3",
    }


def test_rows_that_go_round_a_loop_are_still_in_the_merged_layer(
    store: LayerStore, compactor: Compactor
) -> None:
    """The process that merges knows Arrow's batches, too: layers of loops carry them."""
    rows = pa.RecordBatch.from_pydict({"n": [1, 2, 3]})
    item = Item(1, Kind.BATCH, 0, 0, Batch(rows, 3, 24, 17), {3: Dependency(FIRST, 1)}, 17)
    refs = []
    for epoch in (1, 2):
        layer = Layer(
            3, FIRST, epoch, epoch * 10, {}, {}, (), {}, 0, None, 0, False, b"",
            carried={1: (17, (item,) * epoch)},
        )  # fmt: skip
        path, encoded = layer_path(3, epoch, FIRST), encode_layer(layer)
        refs.append(refer_to(layer, encoded, path, store.put(path, encoded)))
    merged = compactor.merge(refs, refs)
    _, items = open_layer(store.get(merged.path), merged).carried[1]
    assert [each.batch and each.batch.payload for each in items] == [rows, rows]


def test_what_cannot_be_merged_is_told(store: LayerStore, compactor: Compactor) -> None:
    chain = [put(store, 1, {b"a": b"1"}), LayerRef(3, 2, FIRST, 20, "3/missing.layer", 5, 0)]
    with pytest.raises(ClonosError, match="it is missing"):
        compactor.merge(chain, chain)


def test_a_layer_of_another_driver_is_not_merged(store: LayerStore, compactor: Compactor) -> None:
    chain = [put(store, 1, {b"a": b"1"}), put(store, 2, {b"a": b"2"})]
    put(store, 2, {b"a": b"of another driver, whole, under the same name"})
    with pytest.raises(ClonosError, match="another layer is in its place"):
        compactor.merge(chain, chain)


def test_the_place_of_the_layers_is_on_no_command_line(
    store: LayerStore, compactor: Compactor
) -> None:
    compactor.merge([put(store, 1, {})], [put(store, 1, {})])
    assert compactor._process is not None
    assert "layers" not in str(compactor._process.args)


def test_a_dead_process_is_replaced(store: LayerStore, compactor: Compactor) -> None:
    chain = [put(store, 1, {b"a": b"1"}), put(store, 2, {b"a": b"2"})]
    compactor.merge(chain, chain)
    assert compactor._process is not None
    compactor._process.kill()
    compactor._process.wait()
    with pytest.raises(CompactorDied):
        compactor.merge(chain, chain)
    assert content(store, compactor.merge(chain, chain)) == {b"a": b"2"}


def test_a_process_that_dies_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, dies = threading.Event(), threading.Event()

    def merge(*_: object) -> None:
        begun.set()
        dies.wait()
        raise CompactorDied("it has died")

    monkeypatch.setattr(Compactor, "merge", merge)
    monkeypatch.setattr(Compactor, "close", lambda _: dies.set())
    inbox = Inbox()
    merger = BackgroundMerger(str(tmp_path), "process", 4, inbox)
    chain = refs([10] * 3)
    merger.merge(chain, chain)
    assert begun.wait(10)
    merger.close()  # the job may end meanwhile
    (told,) = inbox.take()
    assert isinstance(told, MergeFailed)
    assert (list(told.chosen), told.error.what) == (chain, "it has died")
    inbox.close()


def test_small_merges_overtake_a_large_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain grows while it waits, and whoever is restored reads all of it."""
    goes_on, small_is_done = threading.Event(), threading.Event()

    def merge(_: Compactor, chain: list[LayerRef], chosen: list[LayerRef]) -> LayerRef:
        if chain[0].nbytes > LARGE_BYTES:
            goes_on.wait()
        else:
            small_is_done.set()
        return chosen[-1]

    monkeypatch.setattr(Compactor, "merge", merge)
    inbox = Inbox()
    merger = BackgroundMerger(str(tmp_path), "process", 4, inbox)
    large, small = refs([LARGE_BYTES + 1]), refs([10] * 3)
    merger.merge(large, large)
    merger.merge(small, small)
    assert small_is_done.wait(10)
    goes_on.set()
    merger.close()
    assert sorted(told.merged.nbytes for told in inbox.take()) == [10, LARGE_BYTES + 1]
    inbox.close()


@pytest.mark.parametrize("nbytes", [10, LARGE_BYTES + 1])
def test_what_is_being_merged_is_not_taken_for_litter(
    nbytes: int, store: LayerStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be deleted half a minute later, and a merge may take longer than that."""
    begun, goes_on = threading.Event(), threading.Event()

    def merge(_: Compactor, chain: list[LayerRef], chosen: list[LayerRef]) -> LayerRef:
        unfinished = tmp_path / "layers" / "0" / f".{merged_path(chosen, 4)[2:]}.12ab34cd.tmp"
        unfinished.write_bytes(b"the first half")
        begun.set()
        goes_on.wait(1.0)
        unfinished.unlink()
        return chosen[-1]

    monkeypatch.setattr(Compactor, "merge", merge)
    store.put(layer_path(0, 0, FIRST), b"state")
    inbox = Inbox()
    merger = BackgroundMerger(str(tmp_path / "layers"), "process", 4, inbox)
    chain = refs([nbytes])
    merger.merge(chain, chain)
    assert begun.wait(10)
    merger.survey()
    told: list[Any] = []
    while len(told) < 2:
        told += inbox.take()
        goes_on.wait(0.01)
    (found,) = [one for one in told if isinstance(one, Surveyed)]
    assert found.paths == (layer_path(0, 0, FIRST),)
    merger.close()
    inbox.close()
