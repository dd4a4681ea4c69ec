"""Limits of memory: who makes the sources wait, and when they go on."""

from __future__ import annotations

import pytest

from clonos.core import messages as msg
from clonos.core.decisions import Action, Command
from clonos.core.housekeeper import HouseKeeper
from clonos.core.inflight import INFLIGHT_BYTES
from clonos.core.log import LOG_BYTES
from clonos.core.placement import Slot
from clonos.core.plan import ChannelSpec, Incarnation, Plan, TaskSpec
from clonos.core.roster import Roster
from clonos.core.throttle import KEEPER_TIMES, RELIEVED, Throttle

INFLIGHT_BYTES_HIGH = 2 * INFLIGHT_BYTES
PLAN = Plan(
    (
        TaskSpec(0, "source[0]", "source", 0, (), (0,), is_source=True),
        TaskSpec(1, "sink[0]", "sink", 0, (0,), (1,), sink="sink"),
    ),
    (ChannelSpec(0, 0, 1), ChannelSpec(1, 1, -1)),
)


@pytest.fixture
def roster() -> Roster:
    keeper = HouseKeeper(PLAN, lambda batch: batch.payload, lambda content: content)
    roster = Roster(PLAN, keeper, "tcp://127.0.0.1:1")
    roster.slots[5] = Slot(5, "tcp://127.0.0.1:2")
    roster.tasks[0].slot = 5
    return roster


def throttled(actions: list[Action]) -> list[bool]:
    told = [a.command for a in actions if isinstance(a, Command)]
    commands = [each.command for each in told if isinstance(each, msg.ToTask)]
    return [command.closed for command in commands if isinstance(command, msg.Throttle)]


@pytest.mark.parametrize(("inflight", "log"), [(INFLIGHT_BYTES_HIGH + 1, 0), (0, LOG_BYTES + 1)])
def test_sources_wait_until_there_is_room_again(roster: Roster, inflight: int, log: int) -> None:
    throttle = Throttle(roster)
    throttle.pressure(1, 1000, 1000)
    assert throttled(roster.take_actions()) == []
    throttle.pressure(1, inflight, log)
    assert throttled(roster.take_actions()) == [True]
    throttle.pressure(1, int(inflight * 0.9), int(log * 0.9))
    throttle.pressure(0, 0, 0)
    assert throttled(roster.take_actions()) == []
    throttle.pressure(1, int(inflight * RELIEVED) - 1, int(log * RELIEVED) - 1)
    assert throttled(roster.take_actions()) == [False]


def test_long_logs_want_a_floor_before_sources_wait(roster: Roster) -> None:
    throttle = Throttle(roster)
    throttle.pressure(1, INFLIGHT_BYTES_HIGH, 0)
    wanted = [throttle.wants_floor]  # it would not help: the receiver is away
    throttle.pressure(1, 0, int(LOG_BYTES * RELIEVED) + 1)
    wanted.append(throttle.wants_floor)
    assert wanted == [False, True]
    assert throttled(roster.take_actions()) == []


def test_a_job_says_how_long_logs_may_be(roster: Roster) -> None:
    throttle = Throttle(roster, log_bytes=1000)
    throttle.pressure(1, 0, 501)
    assert throttle.wants_floor
    assert throttled(roster.take_actions()) == []
    throttle.pressure(1, 0, 1001)
    assert throttled(roster.take_actions()) == [True]


def test_the_house_keeper_has_a_limit_too(roster: Roster) -> None:
    throttle = Throttle(roster, log_bytes=1000 // KEEPER_TIMES)
    roster.keeper.append([msg.Run(0, Incarnation(1, 0), 1, (bytes(600),))])
    assert throttle.wants_floor
    throttle.pressure(1, 0, 0)
    assert throttled(roster.take_actions()) == []
    roster.keeper.append([msg.Run(0, Incarnation(1, 0), 2, (bytes(600),))])
    throttle.pressure(1, 0, 0)
    assert throttled(roster.take_actions()) == [True]
