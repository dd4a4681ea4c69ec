"""A standby driver while it waits for the journal's lock."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from clonos.cluster import setup
from clonos.errors import NotSettled, PortTaken
from clonos.storage.journal import Journal
from clonos.storage.postgres_disk import PostgresDisk


def test_a_database_that_is_away_for_a_while(postgres_server, postgres, tmp_path, monkeypatch):
    waits, is_away = threading.Event(), threading.Event()

    def told(error: BaseException) -> str:
        is_away.set()
        return str(error)

    def look(_: Any) -> bool:
        waits.set()
        return False

    root = str(tmp_path)
    holder = PostgresDisk(postgres)
    holder.make_folder(root)
    journal = Journal(root, disk=holder)
    disk = PostgresDisk(postgres)
    monkeypatch.setattr(disk._line, "_told", told)
    directory = SimpleNamespace(journal_root=root, disk=disk, read=lambda: None)
    standby: Any = SimpleNamespace(
        compiled=SimpleNamespace(name="job"),
        spark=None,
        directory=directory,
        inbox=SimpleNamespace(put=pytest.fail),
        durability="fsync",
        _prepare=lambda *_: None,
    )
    standby._pause = partial(setup.DriverSetup._pause, standby)
    with ThreadPoolExecutor(1) as pool:
        opened = pool.submit(
            setup.DriverSetup._open_journal, standby, None, None, look, is_patient=True
        )
        assert waits.wait(60)
        postgres_server.stop()
        try:
            assert is_away.wait(60)
        finally:
            postgres_server.start()
        journal.close()
        found = opened.result(60)
    found.close()
    for one in (disk, holder):
        one.close()


def test_what_ends_the_wait_is_told_alone(tmp_path):
    """Not behind three tracebacks about the lock, which was expected to be held."""

    def look(_: Any) -> bool:
        raise NotSettled("it goes on as it was")

    root = str(tmp_path)
    journal = Journal(root)
    standby: Any = SimpleNamespace(
        compiled=SimpleNamespace(name="job"),
        directory=SimpleNamespace(journal_root=root, disk=None),
        inbox=SimpleNamespace(put=pytest.fail),
        durability="fsync",
        _prepare=lambda *_: None,
    )
    standby._pause = partial(setup.DriverSetup._pause, standby)
    with pytest.raises(NotSettled) as caught:
        setup.DriverSetup._open_journal(standby, None, None, look, is_patient=True)
    assert caught.value.__context__ is None
    journal.close()


def test_a_driver_that_follows_another_does_not_end_for_want_of_a_page(tmp_path):
    """By then the switch is made, and nobody else runs the job."""
    warned: list[str] = []
    follower: Any = SimpleNamespace(
        snapshot=None, directory=SimpleNamespace(local_folder=tmp_path), warn=warned.append
    )
    open_page = partial(setup.DriverSetup._open_page, follower)
    with ExitStack() as undo:
        taken = open_page(0, undo, follows=False)
        assert taken is not None
        with pytest.raises(PortTaken):
            open_page(taken.port, undo, follows=False)
        found = open_page(taken.port, undo, follows=True)
        assert found is not None
        assert found.port != taken.port
    assert "another URL" in warned[0]
