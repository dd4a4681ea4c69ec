"""Which slots are launched again, when, and how often; which are given up."""

from __future__ import annotations

from typing import Any

import pytest

from clonos.core import messages as msg
from clonos.core.plan import Incarnation
from clonos.errors import (
    ClonosError,
    NotPicklable,
    OtherVersion,
    SlotBroken,
    SlotsLost,
    UnusableStore,
)
from clonos.nodes.errors import ExecutorLost
from clonos.nodes.events import Ended
from clonos.nodes.places import (
    ASKED_S,
    BROKEN_MAX,
    BROKEN_S,
    EXPELLED_S,
    LEFT_S,
    RELAUNCH_FOR_S,
    RELAUNCH_MAX,
    RELAUNCH_MOST_S,
    RELAUNCH_S,
    SETTLE_S,
    WANTED_S,
    Places,
    State,
)
from clonos.nodes.versions import HASH_SEED
from clonos.transport.events import ControlOpened, Register
from tests.link import Link

DIED = ClonosError("it has died")
BROKEN = SlotBroken("KeyError: 3 (resident.py:10)", where="slot 0")
LOST = ExecutorLost("its executor has ended")
FOLDER = "the folder /mnt/a for state on the local disk cannot be used: Permission denied"
UNUSABLE = UnusableStore(FOLDER, where="node7", remedy="give clonos.Job(local_dir=...)")
UNUSABLE_TOO = UnusableStore(FOLDER, where="node8", remedy="give clonos.Job(local_dir=...)")


class Cancelled(ClonosError):
    """Whoever cancels one slot wants the whole to end."""


class Launcher:
    retries = True

    def __init__(self) -> None:
        self.launched: list[tuple[int, int]] = []
        self.cancelled: list[int] = []
        self.described: list[str] = []

    def launch(self, place: int, attempt: int) -> None:
        self.launched.append((place, attempt))

    def cancel(self, attempt: int) -> None:
        self.cancelled.append(attempt)

    def describe(self, task: str, text: str) -> None:
        self.described.append(f"{task}, {text}")


class World:
    """Two places for any task, one for task 5."""

    def __init__(self, *, spare: bool = True) -> None:
        self.launcher = Launcher()
        self.places = Places(
            "etl", (None, None, 5), self.launcher, spare=spare, versions={"Python": "3.11"},
            fatal=(Cancelled,),
        )  # fmt: skip
        self.places.launch_all(0.0)

    def registers(self, place: int, conn: int, python: str = "3.11") -> Link:
        link = Link(conn)
        versions = {"Python": python, HASH_SEED: "0"}
        register = Register(place, 1, "nonce", "node7", "2", 10, 11, "there:1", versions)
        event = ControlOpened(conn, register, link)
        for slot in self.places.replaced(event):
            self.places.expel(slot, 0.0)
        self.ready = self.places.registered(event)
        return link

    def ends(self, place: int, at_s: float, error: ClonosError | None = DIED) -> Any:
        attempt = self.places.places[place].attempt
        return self.places.ended(Ended(place, attempt, error), at_s)

    def launched(self, place: int) -> int:
        return [number for number, _ in self.launcher.launched].count(place)


@pytest.fixture
def world() -> World:
    return World()


def test_a_slot_that_registers_is_known_by_its_stream(world):
    link = world.registers(2, 30)
    assert (world.ready.slot, world.ready.bound, world.ready.group) == (30, 5, "2")
    world.places.command(30, msg.Stop())
    world.places.command(31, msg.Stop())
    assert link.sent == [msg.Stop()]
    assert world.places.seats[30].pid == 11
    world.places.check()


def test_a_slot_that_a_task_waits_for_is_launched_before_spark_has_noticed_its_end(world):
    """Where Spark retries nothing: no other process can come."""
    world.launcher.retries = False
    world.registers(0, 30)
    world.places.lost(30, 1.0)
    world.places.tick(1.0)
    assert world.launched(0) == 1, "no task waits"
    world.places.tick(1.0, waiting=[0])
    assert world.launched(0) == 2
    first, second = (attempt for place, attempt in world.launcher.launched if place == 0)
    assert world.places.ended(Ended(0, first, DIED), 1.1) is None
    world.places.tick(1.2, waiting=[0])
    assert world.launched(0) == 2
    world.registers(0, 31)
    assert world.places.ended(Ended(0, second, DIED), 2.0) is None
    world.places.tick(2.0, waiting=[0])
    assert world.launched(0) == 3
    assert not world.launcher.cancelled
    world.places.check()


def test_what_spark_says_later_of_a_process_that_has_left_still_counts(world):
    world.launcher.retries = False
    for number in range(BROKEN_MAX + 1):
        world.registers(0, 30 + number)
        left = world.places.places[0].attempt
        world.places.lost(30 + number, 1.0)
        world.places.tick(1.0, waiting=[0])
        assert world.launched(0) == number + 2
        error = world.places.ended(Ended(0, left, BROKEN), 1.1)
    assert isinstance(error, SlotBroken)


def test_a_process_that_holds_its_core_is_cancelled(world):
    """Its stream is over, but it has not ended."""
    world.launcher.retries = False
    world.registers(0, 30)
    left = world.places.places[0].attempt
    world.places.lost(30, 1.0)
    world.places.tick(1.0, waiting=[0])
    world.places.tick(1.0 + LEFT_S - 0.1, waiting=[0])
    assert not world.launcher.cancelled
    world.places.tick(1.0 + LEFT_S, waiting=[0])
    world.places.tick(2.0 + LEFT_S, waiting=[0])
    assert world.launcher.cancelled == [left]
    world.places.close()
    world.ends(0, 9.0, None)
    world.ends(1, 9.0, None)
    world.ends(2, 9.0, None)
    assert not world.places.is_empty
    world.places.ended(Ended(0, left, None), 9.0)
    assert world.places.is_empty


def test_a_slot_that_has_left_twice_waits_for_spark(world):
    world.launcher.retries = False
    world.registers(0, 30)
    world.places.lost(30, 1.0)
    world.places.tick(1.0, waiting=[0])
    world.registers(0, 31)
    left = world.places.places[0].attempt
    world.places.lost(31, 1.01)
    world.places.tick(1.01, waiting=[0])
    assert world.launched(0) == 2
    assert world.launcher.cancelled == [left]
    world.ends(0, 1.05, None)
    world.places.tick(1.05, waiting=[0])
    assert world.launched(0) == 3


@pytest.mark.parametrize(("spare", "pause_s"), [(True, SETTLE_S), (False, 0.0)])
def test_a_lost_slot_is_launched_again(spare, pause_s):
    world = World(spare=spare)
    world.registers(0, 30)
    world.places.lost(30, 1.0)
    assert not world.places.seats
    assert world.ends(0, 2.0) is None
    world.places.tick(2.0 + pause_s / 2 - 0.1)
    assert world.launched(0) == 1
    world.places.tick(2.0 + pause_s)
    assert world.launched(0) == 2
    world.registers(0, 31)
    world.places.check()


def test_what_no_slot_could_ever_read_ends_the_job_at_once(world):
    unreadable = NotPicklable("no")
    assert world.ends(0, 0.0, unreadable) is unreadable


def test_what_one_slot_could_read_others_may_read_later(world):
    unreadable, now_s = NotPicklable("no"), 0.0
    world.registers(1, 30)
    for _ in range(RELAUNCH_MAX):
        assert world.ends(0, now_s, unreadable) is None
        now_s = world.places.places[0].due_s
        world.places.tick(now_s)
    assert world.ends(0, now_s, unreadable) is unreadable


def test_pauses_grow_and_in_the_end_the_job_does(world):
    now_s, pauses = 0.0, []
    for _ in range(RELAUNCH_MAX):
        assert world.ends(0, now_s) is None
        due_s = world.places.places[0].due_s
        pauses.append(due_s - now_s)
        now_s = due_s
        world.places.tick(now_s)
    assert pauses == [1.0, 0.5, 1.0, 2.0, 4.0, 8.0]
    error = world.ends(0, now_s)
    assert isinstance(error, SlotsLost)
    assert "7 times in a row" in error.what
    assert "it has died" in error.what


def test_a_slot_that_ends_before_it_comes_is_told_soon(world):
    """Once may be a kill. The job waits meanwhile, for a quarter of a minute at least."""
    world.ends(0, 0.0)
    assert not world.places.tick(SETTLE_S)
    world.ends(0, 2.0)
    (warning,) = world.places.tick(2.0)
    assert "slot 0 has ended 2 times in a row before it registered: it has died" in warning
    world.places.tick(2.0 + RELAUNCH_S)
    world.ends(0, 3.0)
    assert not world.places.tick(5.0)


def test_a_bug_in_a_slot_s_loop_ends_the_job_when_it_comes_again_and_again(world):
    """Though the slots register each time."""
    for number in range(3 * BROKEN_MAX):  # once in a while
        assert world.ends(0, number * BROKEN_S, BROKEN) is None
        world.places.tick((number + 1) * BROKEN_S)
        world.registers(0, 30 + number)
    now_s, error = (number + 1) * BROKEN_S, None
    for number in range(2 * BROKEN_MAX):
        error = world.ends(0, now_s + number, BROKEN)
        if error is not None:
            break
        world.places.tick(now_s + number + 1)
        world.registers(0, 100 + number)
    assert isinstance(error, SlotBroken)
    assert number == BROKEN_MAX
    assert "6 times" in error.what
    assert "KeyError: 3 (resident.py:10)" in error.what
    assert "bug in clonos" in error.remedy


def test_where_no_machine_can_keep_state_the_job_ends_at_once(world):
    assert world.ends(0, 1.0, UNUSABLE) is None
    assert world.ends(1, 1.0, UNUSABLE_TOO) is None
    error = world.ends(2, 1.0, UNUSABLE)
    assert isinstance(error, UnusableStore)
    assert str(error) == f"node7, node8: {FOLDER}. To do: give clonos.Job(local_dir=...)"


def test_where_one_machine_cannot_keep_state_the_job_goes_on_elsewhere(world):
    """Said once for each machine; places are tried again for as long as no task needs them."""
    world.registers(2, 30)
    now_s = 1.0
    for _ in range(3 * RELAUNCH_MAX):
        assert world.ends(0, now_s, UNUSABLE) is None
        assert world.ends(1, now_s, UNUSABLE) is None
        warnings = world.places.tick(now_s)
        if now_s == 1.0:
            (warning,) = warnings
            assert f"no slot can begin on node7: {FOLDER}. Slots go on elsewhere" in warning
            assert warning.endswith("To do: give clonos.Job(local_dir=...)")
        else:
            assert warnings == []
        now_s = world.places.places[0].due_s
        world.places.tick(now_s)
    world.places.check()
    world.registers(0, 31)  # on another machine
    world.places.lost(30, now_s)
    world.places.lost(31, now_s)
    assert world.ends(1, now_s, UNUSABLE) is None  # slots 0 and 2 may come again


def test_a_machine_that_cannot_keep_state_for_hours_is_tried_every_ten_seconds(world):
    world.registers(2, 30)
    now_s = 0.0
    for _ in range(1100):  # 2.0**1024 is beyond what a float has
        assert world.ends(0, now_s, UNUSABLE) is None
        pause_s = world.places.places[0].due_s - now_s
        now_s += pause_s
        world.places.tick(now_s)
    assert pause_s == RELAUNCH_MOST_S


def test_a_task_waits_a_while_for_a_machine_that_can_keep_state(world):
    world.registers(2, 30)
    now_s, error = 0.0, None
    while error is None:
        world.places.tick(now_s, waiting=[0])
        now_s += 1.0
        error = world.ends(0, now_s, UNUSABLE)
    assert now_s >= RELAUNCH_FOR_S
    assert error.where == "node7"


def test_executors_that_are_lost_again_and_again_are_no_fault_of_the_slot(world):
    """A task waits: whenever Spark says that the request is gone, it is made again."""
    for number in range(5 * RELAUNCH_MAX):
        now_s = 0.6 * number
        assert world.ends(2, now_s, LOST) is None
        world.places.tick(now_s, [5])
        assert world.launched(2) == number + 2
    world.ends(2, now_s, LOST)
    world.places.tick(now_s + SETTLE_S - 0.1)
    assert world.launched(2) == number + 2, "nobody waits: what recovers needs the processor"
    world.places.tick(now_s + SETTLE_S)
    assert world.launched(2) == number + 3


def test_a_task_that_waits_does_not_wait_for_long_pauses(world):
    error, now_s, pauses = None, 0.0, []
    while error is None:
        error = world.ends(0, now_s)
        began_s, launched = now_s, world.launched(0)
        while error is None and world.launched(0) == launched:
            now_s += 0.125
            world.places.tick(now_s, [0])
        pauses.append(now_s - began_s)
    assert isinstance(error, SlotsLost)
    assert max(pauses) == RELAUNCH_S
    assert now_s >= RELAUNCH_FOR_S, "an outage is survived as before"


def test_as_many_slots_are_hurried_as_tasks_wait(world):
    for place in range(3):
        world.ends(place, 1.0, LOST)
    world.places.tick(1.0, [0])
    assert len(world.launcher.launched) == 3 + 1
    world.places.tick(1.0, [0, 5])
    assert {place for place, _ in world.launcher.launched[3:]} == {0, 1, 2}


def test_spark_may_miss_a_lost_machine_only_after_minutes(world):
    """Its place is requested anew, if a task waits for it."""
    world.registers(2, 30)
    world.places.lost(30, 10.0)
    attempt = world.places.places[2].attempt
    assert world.places.places[2].state is State.LEFT
    world.places.tick(10.0 + LEFT_S)
    world.places.tick(10.0 + LEFT_S, [0])
    world.places.tick(10.0 + LEFT_S - 0.1, [5])
    assert not world.launcher.cancelled
    world.places.tick(10.0 + LEFT_S, [5])
    world.places.tick(11.0 + LEFT_S, [5])
    assert world.launcher.cancelled == [attempt]
    world.ends(2, 20.0, None)
    world.places.tick(20.0, [5])
    assert world.launched(2) == 2


def test_a_process_that_spark_starts_again_in_time_is_left_alone(world):
    world.registers(2, 30)
    world.places.lost(30, 10.0)
    world.registers(2, 31)
    world.places.tick(10.0 + LEFT_S, [5])
    assert not world.launcher.cancelled
    world.places.check()


def test_who_registers_begins_anew(world):
    for number in range(3 * RELAUNCH_MAX):
        assert world.ends(0, 0.0) is None
        world.places.tick(1e6)
        world.registers(0, 100 + number)
        world.places.lost(100 + number, 0.0)


def test_some_ends_are_the_jobs(world):
    error = Cancelled("by hand")
    assert world.ends(0, 0.0, error) is error
    assert isinstance(world.ends(1, 0.0, OtherVersion("no module")), OtherVersion)
    with pytest.raises(OtherVersion, match=r"has Python 3\.2"):
        world.registers(2, 30, python="3.2")


def test_the_end_of_an_earlier_attempt_is_nobodys(world):
    first = world.places.places[0].attempt
    world.ends(0, 0.0)
    world.places.tick(SETTLE_S)
    assert world.places.ended(Ended(0, first, DIED), 5.0) is None
    assert world.places.places[0].state is State.ASKED


def test_an_expelled_slot_leaves_or_is_cancelled(world):
    link = world.registers(0, 30)
    world.places.expel(30, 10.0)
    assert link.is_closed
    assert not world.places.seats
    world.places.lost(30, 10.1)  # its stream's end is heard of, too
    world.places.tick(10.0 + EXPELLED_S - 0.1)
    assert not world.launcher.cancelled
    world.places.tick(10.0 + EXPELLED_S)
    world.places.tick(1e3)
    assert world.launcher.cancelled == [world.places.places[0].attempt]
    world.ends(0, 1e3, None)
    world.places.tick(2e3)
    assert world.launched(0) == 2


def test_a_task_does_not_wait_long_for_a_frozen_process_to_exit(world):
    world.registers(0, 30)
    world.places.expel(30, 10.0)
    world.places.tick(10.0 + WANTED_S - 0.1, [7])
    assert not world.launcher.cancelled
    world.places.tick(10.0 + WANTED_S, [7])
    assert world.launcher.cancelled == [world.places.places[0].attempt]
    world.ends(0, 12.0, DIED)
    world.places.tick(12.0, [7])
    assert world.launched(0) == 2


def test_a_process_that_spark_started_again_is_not_cancelled(world):
    old = world.registers(0, 30)
    new = world.registers(0, 31)  # of the same attempt: the newest one counts
    assert old.is_closed
    assert not new.is_closed
    assert list(world.places.seats) == [31]
    world.places.lost(30, 0.0)
    world.places.check()
    world.places.expel(31, 0.0)
    world.registers(0, 32)
    world.places.tick(EXPELLED_S)
    assert not world.launcher.cancelled


def test_an_end_that_is_heard_of_before_the_streams(world):
    world.registers(0, 30)
    world.ends(0, 0.0)
    world.places.tick(SETTLE_S)
    world.registers(0, 31)
    world.places.lost(30, 2.0)
    assert world.places.places[0].state is State.SEATED
    world.places.check()


def test_a_slot_that_does_not_come_is_said_once(world):
    world.registers(0, 30)
    world.registers(1, 31)
    assert world.places.tick(ASKED_S - 1) == []
    (warning,) = world.places.tick(ASKED_S)
    assert "'etl': slot 2 has not come" in warning
    assert "cores" in warning
    assert world.places.tick(2 * ASKED_S) == []


def test_a_slot_that_is_gone_may_wait_for_a_core(world):
    """Spark runs its task again by itself, as soon as there is room: it has noticed all right."""
    for number in range(3):
        world.registers(number, 30 + number)
    world.places.lost(31, 0.0)
    (warning,) = world.places.tick(ASKED_S)
    assert "'etl': slot 1 is gone, and Spark has not started another process for 30 s" in warning
    assert "no core is free" in warning


def test_slots_that_do_not_come_are_said_together(world):
    (warning,) = world.places.tick(ASKED_S)
    assert "'etl': slots 0, 1 and 2 have not come" in warning


def test_at_the_end_nothing_is_launched(world):
    world.registers(0, 30)
    world.places.close()
    world.places.lost(30, 0.0)
    world.ends(0, 0.0)
    assert world.places.tick(1e6) == []
    assert len(world.launcher.launched) == 3
    assert not world.places.is_empty
    world.places.cancel_all()
    assert len(world.launcher.cancelled) == 2
    world.ends(1, 0.0)
    world.ends(2, 0.0)
    assert world.places.is_empty


def test_what_runs_where_is_shown(world):
    world.registers(0, 30)
    world.places.show("count[1]", Incarnation(1, 2), 30)
    world.places.show("count[1]", Incarnation(1, 2), None)
    assert world.launcher.described == ["count[1], incarnation 1.2, runs in slot 0"]
