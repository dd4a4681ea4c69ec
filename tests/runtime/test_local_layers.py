"""The folder of layers on a machine's own disk."""

from __future__ import annotations

import os

import pytest

from clonos.runtime.layers import disk_of, local_folder
from clonos.storage.files import UnusableStore

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
