"""The folder of layers on a machine's own disk."""

from __future__ import annotations

import os

import pytest
from pyarrow.fs import LocalFileSystem

from clonos.core.events import StoreLayer
from clonos.core.levels import LOCAL
from clonos.core.plan import Incarnation
from clonos.core.sealed import Layer
from clonos.errors import UnusableStore
from clonos.runtime.layers import Layers, disk_of, local_folder
from clonos.storage.files import ArrowFiles
from clonos.storage.layers import LayerStore
from clonos.storage.leveled import LeveledLayers
from clonos.transport.inbox import Inbox

URI = "file:///data/layers/3f"


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The machine's temporary files."""
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    return tmp_path


def test_all_processes_have_the_same_folder_and_disk(temporary):
    folder = local_folder(URI, None)
    assert folder == local_folder(URI, None)
    assert disk_of(folder) == disk_of(folder) != ""
    assert (temporary / f"clonos-{os.getuid()}").stat().st_mode & 0o077 == 0
    assert local_folder(URI, str(temporary / "mine")) == temporary / "mine" / "3f"


def test_a_folder_that_cannot_be_made_says_what_to_do(tmp_path):
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "mine"
    said = f"the folder {folder}/3f for state on the local disk cannot be used: Not a directory"
    with pytest.raises(UnusableStore, match=said) as caught:
        disk_of(local_folder(URI, str(folder)))
    assert "local_dir=" in caught.value.remedy


def test_temporary_files_that_cannot_be_written_are_said(temporary, monkeypatch):
    (temporary / "file").touch()
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(temporary / "file"))
    with pytest.raises(UnusableStore, match="cannot be used: Not a directory"):
        local_folder(URI, None)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_somebody_else_is_refused(temporary):
    base = temporary / f"clonos-{os.getuid()}"
    base.mkdir()
    os.chown(base, 12345, 12345)
    with pytest.raises(UnusableStore, match="somebody else"):
        local_folder(URI, None)


def test_a_link_is_refused(temporary):
    (temporary / "elsewhere").mkdir()
    (temporary / f"clonos-{os.getuid()}").symlink_to(temporary / "elsewhere")
    with pytest.raises(UnusableStore, match="somebody else"):
        local_folder(URI, None)


@pytest.mark.parametrize("is_local", [True, False])
def test_layers_on_a_local_file_system_are_read_where_they_lie(is_local, tmp_path, monkeypatch):
    if not is_local:
        elsewhere = ArrowFiles(LocalFileSystem()), str(tmp_path)
        monkeypatch.setattr("clonos.storage.layers.files_of", lambda _: elsewhere)
    inbox = Inbox()
    layers = Layers(str(tmp_path), "process", inbox)
    assert layers.reads_in_place is is_local
    layers.close()
    inbox.close()


def test_what_killed_processes_have_left_goes(tmp_path):
    store, local = LayerStore(str(tmp_path / "store")), LayerStore(str(tmp_path / "disk"))
    layers = LeveledLayers(store, local)
    named, unheard, of_other, newest = [
        layers.put(StoreLayer(sealed(task, epoch, n), b"rows"), LOCAL)
        for task, epoch, n in ((3, 1, 0), (3, 2, 0), (4, 2, 0), (3, 3, 1))
    ]
    unfinished = tmp_path / "disk" / "3" / f".{unheard.path[2:]}.0f.tmp"
    unfinished.write_bytes(b"half a la")
    gone = layers.tidy(3, Incarnation(1, 1), {named.path})
    assert len(gone) == 2
    assert not unfinished.exists()
    assert sorted(local.everything()) == sorted([named.path, of_other.path, newest.path])
    assert LeveledLayers(store, None).tidy(3, Incarnation(1, 1), ()) == ()


def sealed(task: int, epoch: int, n: int) -> Layer:
    life = Incarnation(1, n)
    return Layer(task, life, epoch, epoch, {}, {}, (), {}, 0, None, 0, False, b"rows")
