"""A slow disk holds up neither the driver nor the causal log, and nothing is lost by that."""

from __future__ import annotations

import itertools
import threading
from contextlib import closing

import pytest

from clonos.cluster.journal_thread import JournalThread
from clonos.errors import UnusableStore
from clonos.nodes.events import Committed, OutsideFailed
from clonos.storage.disk_thread import QUICK_S, DiskThread
from clonos.storage.watchdog import Watchdog
from clonos.transport.inbox import Inbox

WAIT_S = 30.0


@pytest.fixture
def inbox():
    with closing(Inbox()) as made:
        yield made


class GatedJournal:
    """A journal whose writes wait for a gate; `works` says whether they succeed."""

    nbytes = 0

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.written: list[list[bytes]] = []
        self.threads: list[threading.Thread] = []
        self.works = True

    def append(self, records):
        assert self.gate.wait(WAIT_S)
        self.threads.append(threading.current_thread())
        self.written.append(list(records))
        return self.works

    rotate = append

    def prove(self):
        return self.append([])


def slow_disk() -> DiskThread:
    """Every write seems to take twice as long as a quick one."""
    ticks = itertools.count(0, 2 * QUICK_S)
    return DiskThread("disk", clock=lambda: next(ticks))


def come(inbox: Inbox) -> list[object]:
    """What the thread has told; waits for the first."""
    for _ in range(int(WAIT_S * 1000)):
        if events := list(inbox.take()):
            return events
        threading.Event().wait(0.001)
    raise AssertionError("nothing came")


def test_a_quick_disk_is_waited_for(inbox):
    file = GatedJournal()
    file.gate.set()
    journal = JournalThread(file, inbox, DiskThread("disk", clock=lambda: 0.0))
    assert journal.append([b"a"])
    assert journal.append([b"b"])
    assert file.threads == [threading.current_thread()] * 2
    assert list(inbox.take()) == []


def test_a_slow_disk_is_not(inbox):
    file = GatedJournal()
    file.gate.set()
    journal = JournalThread(file, inbox, slow_disk())
    assert journal.append([b"a"])  # nobody knows yet that it is slow
    file.gate.clear()
    assert not journal.append([b"b"])  # returns although the write hangs
    assert file.written == [[b"a"]]
    file.gate.set()
    assert [type(event) for event in come(inbox)] == [Committed]
    assert file.written == [[b"a"], [b"b"]]
    assert file.threads[1] is not threading.current_thread()
    journal.close()


def test_a_rotation_is_never_waited_for_and_says_nothing_of_the_next_write(inbox):
    file = GatedJournal()
    journal = JournalThread(file, inbox, DiskThread("disk", clock=lambda: 0.0))
    assert not journal.rotate([b"head"])
    file.gate.set()
    assert [type(event) for event in come(inbox)] == [Committed]
    assert journal.append([b"a"])
    journal.close()


def test_a_failure_is_told_by_the_file_alone(inbox):
    file = GatedJournal()
    file.gate.set()
    file.works = False
    journal = JournalThread(file, inbox, slow_disk())
    assert not journal.append([b"a"])
    assert not journal.append([b"b"])
    journal.close()
    assert list(inbox.take()) == []


def test_what_nobody_expected_of_the_file_ends_the_job(inbox):
    """Raised in a thread it would be lost, and the driver would wait for ever."""
    file = GatedJournal()
    journal = JournalThread(file, inbox, DiskThread("disk", clock=lambda: 0.0))
    file.rotate = lambda head: 1 // 0  # type: ignore[method-assign]
    assert not journal.rotate([b"head"])
    (failed,) = come(inbox)
    assert isinstance(failed, OutsideFailed)
    assert "ZeroDivisionError" in failed.error.what
    journal.close()


@pytest.mark.parametrize(
    "makes_disk", [lambda: DiskThread("disk"), slow_disk], ids=["loop", "thread"]
)
def test_a_write_that_hangs_is_warned_of_once(inbox, makes_disk):
    """Whoever waits for it, the driver's loop or the thread."""
    file, warned, told = GatedJournal(), threading.Event(), list[str]()

    def warn() -> None:
        told.append("hangs")
        file.gate.set()
        warned.set()

    file.gate.set()
    watchdog = Watchdog(warn, hangs_s=0.02)
    journal = JournalThread(file, inbox, makes_disk(), watchdog)
    assert journal.append([b"a"])
    told.clear()
    warned.clear()
    file.gate.clear()
    journal.append([b"b"])
    assert warned.wait(WAIT_S)
    journal.close()
    assert told == ["hangs"]
    assert file.written == [[b"a"], [b"b"]]


def test_closing_waits_for_what_is_being_written(inbox):
    file = GatedJournal()
    journal = JournalThread(file, inbox, DiskThread("disk", clock=lambda: 0.0))
    assert not journal.rotate([b"head"])
    closing_thread = threading.Thread(target=journal.close)
    closing_thread.start()
    assert file.written == []
    file.gate.set()
    closing_thread.join(WAIT_S)
    assert file.written == [[b"head"]]


def test_a_store_that_cannot_be_used_is_told_as_such(inbox):
    error = UnusableStore("a table of the journal is gone")

    def gone(records):
        raise error

    file = GatedJournal()
    journal = JournalThread(file, inbox, DiskThread("disk", clock=lambda: 0.0))
    file.rotate = gone  # type: ignore[method-assign]
    assert not journal.rotate([b"head"])
    assert come(inbox) == [OutsideFailed(error)]
    journal.close()
