"""A driver that another one has followed finds out, and ends."""

from __future__ import annotations

import threading

import pytest

from clonos.cluster import lookout as lookout_module
from clonos.cluster.directory import JobDirectory
from clonos.cluster.lookout import Lookout
from clonos.errors import ClonosError
from clonos.storage.files import LocalFiles
from clonos.storage.terms import Superseded, UnreadableTerm


@pytest.fixture
def directory(tmp_path):
    made = JobDirectory(str(tmp_path), None, on_one_machine=True)
    made.begin_term(position=0, before=0)
    return made


def follow(directory):
    """Another driver, that has a copy of the journal on another machine."""
    other = JobDirectory(str(directory.journal), None, on_one_machine=True)
    other.begin_term(position=0, before=1)


def test_a_later_term_ends_a_driver(directory):
    lookout = Lookout(directory, print)
    assert lookout.look() is None
    follow(directory)
    error = lookout.look()
    assert isinstance(error, Superseded)
    assert "term 2" in str(error)


def test_whoever_cannot_look_goes_on_and_says_so_once(directory, monkeypatch, caplog):
    lookout = Lookout(directory, print)

    def away(*_, **__):
        raise OSError("unreachable")

    with monkeypatch.context() as patch:
        patch.setattr(LocalFiles, "entries", away)
        assert lookout.look() is None
        assert lookout.look() is None
    assert caplog.text.count("unreachable") == 1
    follow(directory)
    assert isinstance(lookout.look(), Superseded)


def test_a_term_that_cannot_be_read_is_told(directory, tmp_path):
    (tmp_path / "terms" / f"{2:012d}").touch()
    assert isinstance(Lookout(directory, print).look(), UnreadableTerm)


def test_it_looks_again_and_again_and_tells_once(directory, monkeypatch):
    monkeypatch.setattr(lookout_module, "LOOK_S", 0.001)
    told: list[ClonosError] = []
    looked, is_told = threading.Semaphore(0), threading.Event()
    rival = directory.rival

    def look():
        looked.release()
        return rival()

    def tell(error):
        told.append(error)
        is_told.set()

    monkeypatch.setattr(directory, "rival", look)
    lookout = Lookout(directory, tell)
    lookout.start()
    for _ in range(3):
        assert looked.acquire(timeout=20)
    assert not told
    follow(directory)
    assert is_told.wait(20)
    lookout._thread.join(20)
    assert [type(error) for error in told] == [Superseded]
    lookout.close()
