"""Layers: encoded, stored, and refused when they are not what was stored."""

from __future__ import annotations

import errno
import pickle
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow.fs import LocalFileSystem

from clonos.core.codec import CODEC
from clonos.core.layer import decode_layer, encode_layer, layer_path, open_layer, refer_to
from clonos.core.messages import Credit, Dependency
from clonos.core.plan import Incarnation
from clonos.core.sealed import Layer
from clonos.errors import ProtocolError, StoreAway, UnreadableLayer, UnusableStore
from clonos.storage.files import ArrowFiles, LocalFiles
from clonos.storage.layers import LayerStore
from tests.state.held import counted

counts = st.integers(0, 2**63 - 1)
digests = st.integers(0, 2**64 - 1)
incarnations = st.builds(Incarnation, counts, counts)
ends = st.dictionaries(st.integers(0, 99), st.tuples(counts, digests), max_size=4)
layers = st.builds(
    Layer,
    task=st.integers(0, 99),
    incarnation=incarnations,
    epoch=counts,
    position=counts,
    ins=ends,
    outs=ends,
    ended=st.lists(counts, max_size=3).map(tuple),
    dep=st.dictionaries(
        st.integers(0, 99), st.builds(Dependency, incarnations, counts), max_size=4
    ),
    clock_ms=counts,
    wake_ms=st.none() | counts,
    source_rows=counts,
    source_ended=st.booleans(),
    delta=st.binary(max_size=200),
)


def test_the_folders_around_a_store_are_made_durable_once(tmp_path, monkeypatch):
    """Before, for the first layer of each task, which all the pause of a switch waited for."""
    synced: list[str] = []
    monkeypatch.setattr(LocalFiles, "sync_folder", lambda _, path: synced.append(path))
    store = LayerStore(tmp_path / "store")
    store.put("1/a", b"state")
    assert str(tmp_path) in synced
    synced.clear()
    store.put("2/a", b"state")
    assert synced == [str(tmp_path / "store"), str(tmp_path / "store" / "2")]
    store.make_room(["3/a"])
    synced.clear()
    store.put("3/a", b"state")
    assert synced == [str(tmp_path / "store" / "3")]


def test_keys_in_uris_are_nobodys_business(tmp_path):
    uri = "s3x://KEY:SECRET@bucket/job"
    with pytest.raises(UnusableStore, match="bucket/job") as caught:
        LayerStore(uri)
    assert "KEY" not in str(caught.value)
    assert "SECRET" not in repr(pickle.loads(pickle.dumps(caught.value)))


@given(layer=layers)
def test_a_layer_survives_its_encoding(layer):
    assert decode_layer(encode_layer(layer)) == layer
    backwards = replace(layer, ins=dict(reversed(layer.ins.items())))
    assert encode_layer(backwards) == encode_layer(layer)


@given(layer=layers, data=st.data())
def test_any_damage_to_a_layer_is_the_typed_error(layer, data):
    content = bytearray(encode_layer(layer))
    at = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        del content[at:]
    else:
        content[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(UnreadableLayer) as caught:
        decode_layer(bytes(content), where="s3://b/3/1.layer")
    assert "s3://b/3/1.layer" in str(caught.value)
    assert caught.value.remedy


@given(layer=layers, data=st.data())
def test_a_whole_layer_in_the_place_of_another_is_refused(layer, data):
    """Of another driver that keeps its layers in the same place: whole, and yet not ours."""
    content = encode_layer(layer)
    ref = refer_to(layer, content, "3/1.layer", len(content))
    assert open_layer(content, ref) == layer
    name = data.draw(st.sampled_from(["task", "epoch", "incarnation", "position", "delta"]))
    changes: dict[str, Any] = {
        "incarnation": Incarnation(layer.incarnation.term ^ 1, layer.incarnation.n),
        "delta": layer.delta + b"x",
    }
    changed = changes[name] if name in changes else getattr(layer, name) ^ 1
    other = encode_layer(replace(layer, **{name: changed}))
    with pytest.raises(UnreadableLayer, match="another layer is in its place") as caught:
        open_layer(other, ref)
    assert caught.value.where == "3/1.layer"
    assert "checkpoint_dir" in caught.value.remedy


@given(st.binary(max_size=100))
def test_garbage_is_the_typed_error(content):
    with pytest.raises(UnreadableLayer):
        decode_layer(content)


@pytest.mark.parametrize("header", [b"\xc1", CODEC.encode(Credit(1, 2)), b""])
def test_a_header_that_is_no_layer_is_refused(header, monkeypatch):
    class Wrong:
        def encode(self, layer):
            return header

    layer = Layer(1, Incarnation(1, 1), 1, 1, {}, {}, (), {}, 0, None, 0, False, b"d")
    monkeypatch.setattr("clonos.core.layer.CODEC", Wrong())
    content = encode_layer(layer)
    monkeypatch.undo()
    with pytest.raises(UnreadableLayer):
        decode_layer(content)


def test_another_version_is_refused():
    content = b"CLAY" + bytes([9, 0]) + bytes(20)
    with pytest.raises(UnreadableLayer, match="version 9"):
        decode_layer(content)


def test_a_wrong_uri_is_a_typed_error():
    for uri in ("nothing://x", "file:///a b"):
        with pytest.raises(UnusableStore, match="no place"):
            LayerStore(uri)


def test_paths_sort_by_epoch():
    paths = [layer_path(3, epoch, Incarnation(1, 0)) for epoch in (2, 10, 100)]
    assert paths == sorted(paths)


@pytest.fixture(params=["path", "uri"])
def store(request, tmp_path):
    folder = tmp_path / "made" / "on demand"
    return LayerStore(folder if request.param == "path" else folder.as_uri())


def test_put_get_list_delete(store):
    assert store.list() == []
    nbytes = store.put("3/b.layer", b"one")
    assert nbytes == 27
    store.put("1/a.layer", b"")
    store.put("3/b.layer", b"one")
    assert store.list() == ["1/a.layer", "3/b.layer"]
    assert store.get("3/b.layer") == b"one"
    assert store.get("1/a.layer") == b""
    store.delete(["3/b.layer", "3/never.layer"])
    assert store.list() == ["1/a.layer"]
    with pytest.raises(UnreadableLayer, match="missing") as caught:
        store.get("3/b.layer")
    assert "3/b.layer" in caught.value.where


@given(data=st.binary(max_size=100), where=st.floats(0, 0.999), bit=st.integers(-1, 7))
def test_any_damage_to_a_stored_layer_is_found(data, where, bit):
    with tempfile.TemporaryDirectory() as folder:
        store = LayerStore(folder, "process")
        store.put("x", data)
        path = Path(folder, "x")
        content = bytearray(path.read_bytes())
        at = int(where * len(content))
        if bit < 0:
            del content[at:]
        else:
            content[at] ^= 1 << bit
        path.write_bytes(content)
        with pytest.raises(UnreadableLayer):
            store.get("x")


def test_a_killed_writer_leaves_nothing_that_counts(tmp_path):
    store = LayerStore(tmp_path)
    store.put("1/a.layer", b"a")
    (tmp_path / "1" / "b.layer.0abc.tmp").write_bytes(b"half")
    assert store.list() == ["1/a.layer"]
    assert store.sweep() == 1
    assert store.sweep() == 0
    assert [path.name for path in (tmp_path / "1").iterdir()] == ["a.layer"]


def test_a_failed_put_leaves_nothing(tmp_path, monkeypatch):
    store = LayerStore(tmp_path)

    def refuse(path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store._folder.files, "sync", refuse)
    with pytest.raises(StoreAway, match="No space"):
        store.put("1/a.layer", b"a")
    assert list((tmp_path / "1").iterdir()) == []


@pytest.mark.parametrize("path", ["", "/etc/x", "../x", "1/../../x"])
def test_paths_stay_inside(tmp_path, path):
    with pytest.raises(ProtocolError, match="inside"):
        LayerStore(tmp_path).put(path, b"")


def test_a_layer_in_a_store_that_is_not_local_is_copied_piece_by_piece(tmp_path):
    store = LayerStore(tmp_path, files=ArrowFiles(LocalFileSystem()))
    content = bytes(range(256)) * (20 << 12)
    store.put("3/a", content)
    with counted() as held:
        opened = store.open("3/a")
    assert len(opened) == len(content) == 20 << 20
    assert held() < 4 << 20
    assert opened.read(5_000_000, 5_000_300) == content[5_000_000:5_000_300]
    damaged = bytearray((tmp_path / "3" / "a").read_bytes())
    damaged[7_000_000] ^= 1
    (tmp_path / "3" / "a").write_bytes(damaged)
    with pytest.raises(UnreadableLayer, match="checksum is wrong"):
        store.open("3/a")


def test_a_local_disk_that_is_missing_or_full_is_no_fault_of_the_store(tmp_path, monkeypatch):
    store = LayerStore(tmp_path, files=ArrowFiles(LocalFileSystem()))
    store.put("3/a", bytes(3 << 20))
    with monkeypatch.context() as changed:
        changed.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "nowhere"))
        with pytest.raises(FileNotFoundError, match="nowhere"):
            store.open("3/a")

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as changed:
        changed.setattr("os.pwrite", full)
        with pytest.raises(OSError, match="No space left"):
            store.open("3/a")
    assert len(store.open("3/a")) == 3 << 20
