"""A driver that has not looked for later terms for a while does not know whether it drives."""

from __future__ import annotations

from math import inf

import pytest

from clonos.core.mandate import MANDATE_S, MandateAsked, MandateGiven
from clonos.nodes.tenure import ECHO_S, LATE, LOOKS, LOOKS_FOR_EFFECTS, Sight, Tenure

EVERY_S = ECHO_S / LOOKS


class World:
    """A term that has just begun, two clocks, and how many looks were asked for."""

    def __init__(self, ticks_s: float = 100.0, wall_s: float = 1e9) -> None:
        self.ticks_s, self.wall_s, self.looks = ticks_s, wall_s, 0
        self.term = Tenure("etl", self.look)

    def look(self) -> None:
        self.looks += 1

    def after(self, ticks_s: float, wall_s: float | None = None) -> None:
        self.ticks_s += ticks_s
        self.wall_s += ticks_s if wall_s is None else wall_s
        self.term.tick(self.ticks_s, self.wall_s)

    def until_it_looks(self) -> None:
        looks = self.looks
        while self.looks == looks:
            self.after(0.1)


@pytest.fixture
def world() -> World:
    """It has looked for the first time."""
    world = World()
    world.after(0.0)
    world.term.seen(Sight.OURS)
    world.looks = 0
    return world


@pytest.mark.parametrize("ticks_s", [0.0, 100.0])
@pytest.mark.parametrize("later_s", [0.0, 3600.0])
def test_who_begins_is_unsure_until_it_has_looked(ticks_s, later_s):
    """Since it claimed the term, it may have been asleep."""
    world = World(ticks_s)
    seen = [world.term.is_unsure]
    world.after(later_s)
    seen.append(world.term.is_unsure)
    assert world.looks == 1, "at once"
    world.term.seen(Sight.OURS)
    assert [*seen, world.term.is_unsure] == [True, True, False]
    assert world.term.may_delete


def test_whose_term_is_over_when_it_begins_never_holds_it():
    world = World()
    world.after(0.0)
    world.term.seen(Sight.ANOTHERS)
    assert world.term.is_lost


def test_it_looks_now_and_then_one_look_at_a_time(world):
    for _ in range(5):
        before = world.looks
        world.after(EVERY_S - 0.3)
        assert world.looks == before
        world.after(0.3)
        world.after(0.1)
        assert world.looks == before + 1
        world.term.seen(Sight.OURS)
    assert world.term.may_delete


@pytest.mark.parametrize("clock", ["ticks", "wall"])
def test_who_was_asleep_is_unsure_until_it_has_looked(world, clock):
    """The one clock stands still in a machine that is suspended, the other may be set."""
    hour = 3600.0
    world.after(hour if clock == "ticks" else 0.0, hour if clock == "wall" else 0.0)
    assert world.term.is_unsure
    assert not world.term.may_delete
    assert world.looks == 1, "at once"
    world.term.seen(Sight.OURS)
    assert not world.term.is_unsure


def test_a_clock_that_is_set_back_hides_nothing(world):
    world.after(ECHO_S + 1.0, -3600.0)
    assert world.term.is_unsure


def test_a_look_that_was_asleep_too_says_nothing(world):
    """It began before another driver did, perhaps."""
    world.until_it_looks()
    world.after(ECHO_S + 1.0)
    world.term.seen(Sight.OURS)
    assert world.term.is_unsure
    world.after(0.0)
    assert world.looks == 2
    world.term.seen(Sight.OURS)
    assert not world.term.is_unsure


def test_who_cannot_look_goes_on_and_deletes_nothing(world):
    for _ in range(2):
        world.until_it_looks()
        assert world.term.may_delete
        world.term.seen(Sight.HIDDEN)
    for _ in range(5):
        world.until_it_looks()
        world.term.seen(Sight.HIDDEN)
        assert not world.term.is_unsure
    assert not world.term.may_delete
    world.after(ECHO_S + 1.0)
    assert world.term.is_unsure, "asleep, and blind"
    world.term.seen(Sight.OURS)
    assert world.term.may_delete


def test_who_was_asleep_and_cannot_look_goes_on(world):
    world.after(ECHO_S + 1.0)
    world.term.seen(Sight.HIDDEN)
    assert not world.term.is_unsure
    assert not world.term.may_delete


@pytest.mark.parametrize("is_asleep", [False, True])
def test_a_look_that_hangs_is_none(world, is_asleep):
    if is_asleep:
        world.after(ECHO_S + 1.0)
    else:
        world.until_it_looks()
    assert world.term.is_unsure is is_asleep
    for _ in range(int(10 * ECHO_S) + 2):
        world.after(0.1)
    assert not world.term.is_unsure
    assert not world.term.may_delete
    assert world.looks == 1
    world.term.seen(Sight.OURS)
    assert not world.term.may_delete, "that was long ago"
    world.after(0.1)
    assert world.looks == 2
    world.term.seen(Sight.OURS)
    assert world.term.may_delete


@pytest.mark.parametrize("sight", [Sight.OURS, Sight.HIDDEN])
@pytest.mark.parametrize("takes_s", [0.1, 4.0, 8.0, 12.0])
def test_a_slow_look_holds_up_nothing(world, takes_s, sight):
    """Whoever waits for it would stand still most of the time."""
    for _ in range(10):
        world.until_it_looks()
        for _ in range(round(takes_s / 0.1)):
            world.after(0.1)
            assert not world.term.is_unsure
        world.term.seen(sight)
    assert world.term.may_delete is (sight is Sight.OURS and takes_s < ECHO_S)


def test_nobody_comes_back(world):
    world.until_it_looks()
    world.term.seen(Sight.ANOTHERS)
    assert world.term.is_lost
    world.after(ECHO_S + 1.0)
    world.term.seen(Sight.OURS)
    assert world.term.is_lost


# --- mandates -----------------------------------------------------------------------------------

ASKED = MandateAsked(7)


def test_a_mandate_counts_from_when_the_newest_good_look_began(world):
    world.until_it_looks()
    world.after(0.4)
    world.term.seen(Sight.OURS)
    world.after(0.3)
    assert world.term.mandate(ASKED, -inf) == MandateGiven(7, 700)
    world.until_it_looks()
    world.term.seen(Sight.HIDDEN)  # it proves nothing
    given = world.term.mandate(ASKED, -inf)
    assert given is not None
    assert given.age_ms > 700


def test_who_is_unsure_or_superseded_gives_no_mandate(world):
    unsure = World()
    unsure.after(0.0)
    assert unsure.term.mandate(ASKED, unsure.term.now_s) is None
    world.until_it_looks()
    world.term.seen(Sight.ANOTHERS)
    assert world.term.mandate(ASKED, world.term.now_s) is None


def test_who_was_asleep_gives_no_mandate_before_it_has_looked(world):
    assert world.term.mandate(ASKED, -inf) is not None
    world.after(0.0, 3600.0)  # the machine slept, and its monotonic clock stood still
    assert world.term.mandate(ASKED, world.term.now_s) is None


def test_if_looks_take_long_the_journals_lock_has_to_suffice(world):
    """Each succeeds, when it is too old for a mandate."""
    ages_ms = []
    for _ in range(200):
        world.after(0.1)
        given = world.term.mandate(ASKED, world.term.now_s - 0.5)
        assert given is not None
        ages_ms.append(given.age_ms)
        if world.term._began_s is not None and world.term.now_s - world.term._began_s >= 6.0:
            world.term.seen(Sight.OURS)
    assert not world.term.is_unsure
    assert max(ages_ms) <= 1000 * LATE * ECHO_S + 1
    assert min(ages_ms[60:]) == 500


def test_who_is_blind_relies_on_the_journals_lock(world):
    for _ in range(30):
        world.after(ECHO_S / 20)
    assert not world.term.may_delete, "no look has come back"
    assert world.term.mandate(ASKED, -inf) is None
    given = world.term.mandate(ASKED, world.term.now_s - 2.5)
    assert given == MandateGiven(7, 2_500)


def test_a_job_with_effects_looks_often_enough():
    """A mandate may be nearly as old as a look."""
    assert ECHO_S / LOOKS_FOR_EFFECTS < MANDATE_S / 2
