"""A driver that another one has followed finds out, and ends."""

from __future__ import annotations

import queue
import shutil

import pytest

from clonos.cluster.directory import JobDirectory
from clonos.cluster.lookout import Lookout
from clonos.errors import Superseded, UnreadableTerm
from clonos.nodes.events import OutsideFailed
from clonos.nodes.tenure import Sight, TermSeen
from clonos.storage.files import LocalFiles


@pytest.fixture
def directory(tmp_path):
    made = JobDirectory(str(tmp_path), None, on_one_machine=True)
    made.begin_term(position=0, before=0)
    return made


def follow(directory):
    """Another driver, that has a copy of the journal on another machine."""
    other = JobDirectory(directory.root, None, on_one_machine=True)
    other.begin_term(position=0, before=1)


def kinds(lookout):
    """What is seen, and what it means."""
    seen, *failed = lookout.see()
    return [seen.sight, *(type(event.error) for event in failed)]


def test_a_later_term_ends_a_driver(directory):
    lookout = Lookout(directory, print)
    assert kinds(lookout) == [Sight.OURS]
    follow(directory)
    assert kinds(lookout) == [Sight.ANOTHERS, Superseded]
    failed = lookout.see()[1]
    assert isinstance(failed, OutsideFailed)
    assert "term 2" in str(failed.error)


def test_whoever_cannot_look_says_so_once(directory, monkeypatch, caplog):
    lookout = Lookout(directory, print)

    def away(*_, **__):
        raise OSError("unreachable")

    with monkeypatch.context() as patch:
        patch.setattr(LocalFiles, "entries", away)
        assert kinds(lookout) == [Sight.HIDDEN]
        assert kinds(lookout) == [Sight.HIDDEN]
    assert caplog.text.count("unreachable") == 1
    follow(directory)
    assert kinds(lookout) == [Sight.ANOTHERS, Superseded]


def test_a_checkpoint_that_somebody_deletes_is_warned_of(directory, tmp_path, caplog):
    """The job goes on, but nothing would be there for the next driver."""
    lookout = Lookout(directory, print)
    shutil.rmtree(tmp_path / "terms")
    assert kinds(lookout) == [Sight.HIDDEN]
    assert "the checkpoint has been deleted" in caplog.text
    assert "terms/000000000001" in caplog.text


def test_a_term_that_cannot_be_read_is_told(directory, tmp_path):
    (tmp_path / "terms" / f"{2:012d}").touch()
    assert kinds(Lookout(directory, print)) == [Sight.ANOTHERS, UnreadableTerm]


def test_it_looks_whenever_it_is_asked(directory):
    told: queue.SimpleQueue[TermSeen | OutsideFailed] = queue.SimpleQueue()
    lookout = Lookout(directory, told.put)
    for _ in range(3):
        lookout.look()
        assert told.get(timeout=20) == TermSeen(Sight.OURS)
    follow(directory)
    lookout.look()
    assert told.get(timeout=20) == TermSeen(Sight.ANOTHERS)
    assert isinstance(told.get(timeout=20), OutsideFailed)
    lookout.close()
    lookout._thread.join(20)
    assert not lookout._thread.is_alive()
    assert told.empty()
