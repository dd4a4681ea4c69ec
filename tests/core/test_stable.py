"""How much of a log is safe, as the house-keeper tells those with effects."""

from __future__ import annotations

import pytest

from clonos.core import events as ev
from clonos.core import messages as msg
from clonos.core.determinants import Timer, encode_record
from clonos.core.housekeeper import HouseKeeper
from clonos.core.messages import Run
from clonos.core.plan import HOUSE_KEEPER, ChannelSpec, Incarnation, Plan, TaskSpec

LIFE = Incarnation(1, 1)
ENTRY = encode_record([Timer(1)])


@pytest.fixture
def keeper():
    task = TaskSpec(0, "pay", "pay", 0, (), (0,), is_source=True, has_effects=True)
    plan = Plan((task,), (ChannelSpec(0, 0, HOUSE_KEEPER),))
    keeper = HouseKeeper(plan, lambda _: b"", lambda content: content)
    keeper.begin_term(1)
    keeper.handle(ev.Opened(0, 1, LIFE))
    committed(keeper)
    return keeper


def data(start, count, conn=1):
    return ev.Received(0, conn, msg.Data(0, LIFE, None, (Run(0, LIFE, start, (ENTRY,) * count),)))


def committed(keeper):
    """What the task hears of its log, once all is durable."""
    keeper.take_records()
    actions, _ = keeper.committed()
    replies = [action.message for action in actions if isinstance(action, ev.Reply)]
    keeper.check()
    return [reply.stable[0] for reply in replies if isinstance(reply, msg.Credit)]


def test_what_has_come_is_told(keeper):
    keeper.handle(data(1, 10))
    assert committed(keeper) == [10]
    assert committed(keeper) == []


@pytest.mark.parametrize("reconnects", [False, True])
def test_a_floor_may_be_ahead_of_the_log(keeper, reconnects):
    """It comes by another connection; then nobody may wait for what it stands for."""
    keeper.handle(data(1, 10))
    committed(keeper)
    keeper.advance(1, {0: 15}, {0: ()}, {})
    assert committed(keeper) == [15]
    if reconnects:
        keeper.handle(ev.InputClosed(0, 1))
        keeper.handle(ev.Opened(0, 2, LIFE))
        assert committed(keeper) == [15]
    else:
        keeper.handle(data(11, 5))
        assert committed(keeper) in ([], [15])
    keeper.handle(data(16, 1, 2 if reconnects else 1))
    assert committed(keeper) == [16]


def test_output_waits_for_no_log_below_a_floor():
    """The log of another task is on its way; it may never come, as nobody needs it any more."""
    tasks = (
        TaskSpec(0, "rows", "rows", 0, (), (0, 1), is_source=True),
        TaskSpec(1, "out", "out", 0, (0,), (2,), sink="out"),
    )
    channels = [ChannelSpec(0, 0, 1)] + [ChannelSpec(n + 1, n, HOUSE_KEEPER) for n in range(2)]
    keeper = HouseKeeper(Plan(tasks, tuple(channels), 0), lambda _: b"", lambda content: content)
    keeper.begin_term(1)
    keeper.handle(ev.Opened(2, 1, LIFE))
    dep = {task: msg.Dependency(LIFE, 1) for task in (0, 1)}
    item = msg.Item(1, msg.Kind.END, 0, 0, None, dep, 0)
    keeper.handle(ev.Received(2, 1, msg.Data(2, LIFE, item, (Run(1, LIFE, 1, (ENTRY,)),))))
    assert not keeper.committed()[1]
    keeper.advance(1, {0: 1}, {0: ()}, {})
    (delivered,) = keeper.committed()[1]
    assert delivered.item is item
