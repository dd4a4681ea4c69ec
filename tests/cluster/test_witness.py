"""Where the bundles of failed jobs are, if their journal is on no local disk."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from clonos.cluster.witness import folder_of
from clonos.errors import UnusableStore

IN_A_DATABASE: Any = SimpleNamespace(local_folder=None)


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """The temporary files of a machine that several users share."""
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    return tmp_path


def test_only_its_user_may_enter_the_folder(temporary):
    folder = folder_of(IN_A_DATABASE, "fraud")
    assert folder == folder_of(IN_A_DATABASE, "fraud")
    (own,) = temporary.iterdir()
    assert own in folder.parents
    assert own.stat().st_mode & 0o077 == 0


def test_each_user_has_a_folder_of_their_own(temporary, monkeypatch):
    mine = folder_of(IN_A_DATABASE, "fraud")
    monkeypatch.setattr("os.getuid", lambda: 12345)
    with pytest.raises(UnusableStore, match="somebody else"):  # it is ours, not 12345's
        folder_of(IN_A_DATABASE, "fraud")
    (theirs,) = (one for one in temporary.iterdir() if one not in mine.parents)
    assert theirs.name == "clonos-12345"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_a_folder_that_somebody_else_has_made_is_not_written_to(temporary):
    folder_of(IN_A_DATABASE, "fraud")
    (own,) = temporary.iterdir()
    os.chown(own, 12345, 12345)
    with pytest.raises(UnusableStore, match="could read and replace bundles") as caught:
        folder_of(IN_A_DATABASE, "fraud")
    assert "TMPDIR" in caught.value.remedy
