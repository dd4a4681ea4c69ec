"""The process that shares out state before a change of the job: it may hang, or not be needed."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, repeat
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
from clonos.nodes.events import RoundBegins, StopAsked
from clonos.upgrade.names import ALL_STAYS, StateChanges
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


def includes_all(_: object, **_request: object) -> Iterator[Any]:
    """Each round includes all layers."""
    for rounds, chains in enumerate(told(), 1):
        upto = {task: chain[-1].epoch for task, chain in chains.items()}
        yield Prepared(upto, frozenset({"op"}), {1: (MADE,) * rounds}, rounds)


def refuses(_: object, **_request: object) -> Iterator[Any]:
    """Finds that the state cannot go along."""
    yield from ()
    raise CannotUpgrade("state 'c' is not there")


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
        self.rounds: list[bool] = []
        ref = LayerRef(0, 1, Incarnation(1, 1), 0, "0/kept", 10, 0)
        self.layers: dict[int, tuple[LayerRef, ...]] = {0: (ref,)}
        setup: Any = SimpleNamespace(
            compiled=job(1),
            directory=SimpleNamespace(
                layers_uri="nowhere", is_temporary=False, retired=lambda _: []
            ),
            durability="process",
            inbox=SimpleNamespace(put=self.hear),
            keeper=SimpleNamespace(term=1, version=0, epoch=20, layers=self.layers, complete=False),
            merger=SimpleNamespace(delete=self.deleted.extend),
        )
        loop: Any = SimpleNamespace(over=threading.Event(), error=None)
        self.succession = Succession(setup, loop, 0.1)
        self.succession.prepare(job(2), ALL_STAYS)

    def hear(self, event: Any) -> None:
        """The driver hears of an event."""
        self.heard.put(event)
        if isinstance(event, RoundBegins):
            self.rounds.append(event.told is not None)
            if event.told is not None:
                event.told(self.floor())

    def floor(self) -> dict[int, tuple[LayerRef, ...]]:
        return self.layers

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


class Slots:
    """Slots of the next graph, as far as a succession sees them."""

    def __init__(self, *, are_here: bool) -> None:
        self.are_here, self.is_ready = are_here, False
        self.followed: list[int] = []

    def follow(self, layers: Any) -> None:
        self.followed.append(len(layers.get(1, ())))


class Growing(Running):
    """A job in which, before each round, so many bytes have changed."""

    def __init__(self, changes: Sequence[int], monkeypatch: pytest.MonkeyPatch) -> None:
        self.changes = chain(changes, repeat(changes[-1]))
        monkeypatch.setattr(module, "QUICK_S", -1.0)
        super().__init__("includes_all", monkeypatch)

    def floor(self) -> dict[int, tuple[LayerRef, ...]]:
        layers = self.layers[0]
        epoch, nbytes = layers[-1].epoch + 1, next(self.changes)
        self.layers[0] = (*layers, replace(layers[-1], epoch=epoch, nbytes=nbytes))
        return super().floor()


def wait_for(is_so: Callable[[], object]) -> None:
    until_s = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < until_s
        time.sleep(0.01)


def test_a_process_that_hangs_does_not_stop_the_change(monkeypatch):
    monkeypatch.setattr(module, "HANGS_S", 0.5)
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
    assert running.rounds == [True, False], "nothing is shared out any more"


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
    running.succession.require(job(2), StateChanges(["once"]))
    with pytest.raises(CannotUpgrade, match="drop_state names 'twice'"):
        running.succession.require(job(2), StateChanges(["twice"]))
    running.succession.give_up()


@pytest.mark.parametrize(
    ("changes", "due"),
    [
        # As much has changed as before: no more rounds until slots are ready, and then one more.
        ([1000, 990, 10, 990], 2),
        # Less and less has changed: rounds go on, but some are kept for then.
        ([1000, 400, 150, 60, 25, 10, 9, 4, 1, 0], 8),
    ],
)
def test_rounds_go_on_while_less_and_less_is_left(changes, due, monkeypatch):
    running = Growing(changes, monkeypatch)
    running.asked_to_stop()
    assert running.succession.prepared.rounds == due
    running.succession.give_up()


def test_slots_that_copy_are_waited_for_and_then_another_round_follows(monkeypatch):
    monkeypatch.setattr(module, "READY_S", 0.0)
    running, slots = Growing([1000, 990, 10, 990], monkeypatch), Slots(are_here=True)
    waiting: Any = slots
    running.succession.look(waiting)
    wait_for(lambda: running.succession.look(waiting) or slots.followed[-1] == 1)
    for _ in range(100):
        running.succession.look(waiting)
    assert not running.succession.prepared.rounds, "more rounds follow"
    slots.is_ready = True
    wait_for(lambda: running.succession.look(waiting) or running.succession.prepared.rounds == 2)
    running.succession.give_up()


def test_slots_that_do_not_come_are_not_waited_for(monkeypatch):
    monkeypatch.setattr(module, "READY_S", 0.0)
    running, slots = Growing([1000, 990, 10, 990], monkeypatch), Slots(are_here=False)
    waiting: Any = slots
    wait_for(lambda: running.succession.look(waiting) or running.succession.prepared.rounds == 2)
    running.succession.give_up()


def test_slots_that_are_there_before_there_is_anything_to_copy_are_not_ready(monkeypatch):
    running, slots = Running("hangs", monkeypatch), Slots(are_here=True)
    waiting: Any = slots
    slots.is_ready = True
    wait_for(lambda: running.rounds == [True])
    for _ in range(100):
        running.succession.look(waiting)
    assert not running.succession._may_pause.is_set()
    running.succession.give_up()


def test_what_only_the_state_can_tell_is_refused_before_the_pause(monkeypatch):
    running = Running("refuses", monkeypatch)
    with pytest.raises(CannotUpgrade, match="'c' is not there"):
        running.asked_to_stop()
    running.succession.give_up()
