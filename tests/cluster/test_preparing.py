"""The process that shares out state before a change of the job: it may hang, or not be needed."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

import clonos
from clonos.cluster import succession as module
from clonos.cluster.aside import told
from clonos.cluster.succession import Succession
from clonos.core.levels import LayerRef
from clonos.core.plan import Incarnation
from clonos.errors import CannotUpgrade, NotSettled
from clonos.nodes.events import StopAsked
from clonos.upgrade.prepare import Prepared
from tests.processes import is_there

LIMIT_S = 60.0
"""Only a test that has failed waits for so long."""
MADE = LayerRef(1, 1, Incarnation(2, 9), 0, "1/made", 10, 0)


def hangs(_: object, **_request: object) -> Iterator[Any]:
    """Says nothing, ever."""
    signal.pause()
    yield None


def shares_out(_: object, **_request: object) -> Iterator[Any]:
    """Has shared out something at once."""
    for _chains in told():
        yield Prepared({0: 1}, frozenset({"op"}), {1: (MADE,)}, 1)


def job(parallelism: int) -> Any:
    made = clonos.Job("job", parallelism=parallelism)
    rows = made.source(clonos.sources.from_batches([], "n long"), name="rows", parallelism=1)
    rows.key_by("n").deduplicate(name="once").sink(clonos.sinks.collect(), name="out")
    return made.compile()


class Running:
    """A driver, as far as a succession sees it."""

    def __init__(self, function: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "SHARE_OUT", f"{__name__}:{function}")
        self.heard: SimpleQueue[Any] = SimpleQueue()
        self.deleted: list[str] = []
        self.may_go_on = threading.Event()
        ref = LayerRef(0, 1, Incarnation(1, 1), 0, "0/kept", 10, 0)
        setup: Any = SimpleNamespace(
            compiled=job(1),
            directory=SimpleNamespace(layers_uri="nowhere", is_temporary=False, retired=()),
            durability="process",
            inbox=self.heard,
            keeper=SimpleNamespace(term=1, epoch=2, layers={0: (ref,)}, complete=False),
            merger=SimpleNamespace(may_go_on=self.may_go_on, delete=self.deleted.extend),
        )
        loop: Any = SimpleNamespace(over=threading.Event(), error=None)
        self.succession = Succession(setup, loop, 0.1)
        self.succession.prepare(job(2), (), {})

    def asked_to_stop(self) -> StopAsked:
        """Wait until the job is to stop."""
        until_s = time.monotonic() + LIMIT_S
        while time.monotonic() < until_s:
            self.succession.look(None)
            while not self.heard.empty():
                if isinstance(event := self.heard.get(), StopAsked):
                    return event
            time.sleep(0.01)
        raise AssertionError("the job was never asked to stop")


def wait_for(is_so: Callable[[], object]) -> None:
    until_s = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < until_s
        time.sleep(0.01)


def test_a_process_that_hangs_does_not_stop_the_change(monkeypatch):
    monkeypatch.setattr(module, "PREPARED_S", 0.5)
    running = Running("hangs", monkeypatch)
    running.asked_to_stop()
    assert not running.succession.prepared.rounds


def test_a_change_that_is_given_up_leaves_no_process(monkeypatch):
    running = Running("hangs", monkeypatch)
    wait_for(lambda: running.succession._aside)
    aside: Any = running.succession._aside
    pid = aside._process.pid
    assert is_there(pid)
    running.succession.give_up()
    wait_for(lambda: not is_there(pid))
    wait_for(running.succession._is_prepared.is_set)
    assert running.may_go_on.is_set()


def test_a_job_that_does_not_settle_keeps_nothing_of_what_was_shared_out(monkeypatch):
    running = Running("shares_out", monkeypatch)
    asked = running.asked_to_stop()
    assert running.succession.prepared.layers
    assert asked.otherwise is not None
    asked.otherwise()
    with pytest.raises(NotSettled):
        running.succession.look(None)
    assert not running.deleted
    running.succession.give_up()
    assert running.deleted == [MADE.path]


def test_a_name_that_the_job_does_not_know_is_refused_before_the_pause(monkeypatch):
    running = Running("shares_out", monkeypatch)
    running.succession.require(job(2), ["once"], {})
    with pytest.raises(CannotUpgrade, match="drop_state names 'twice'"):
        running.succession.require(job(2), ["twice"], {})
    running.succession.give_up()
