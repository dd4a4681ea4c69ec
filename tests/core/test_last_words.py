"""What a task tells that cannot go on is in the journal, as if it had come with an output."""

from __future__ import annotations

from clonos.core import messages as msg
from clonos.core.housekeeper import HouseKeeper
from clonos.core.plan import HOUSE_KEEPER, ChannelSpec, Incarnation, Plan, TaskSpec

LIFE = Incarnation(1, 0)
PLAN = Plan(
    tasks=(
        TaskSpec(0, "source[0]", "source", 0, (), (0,), is_source=True),
        TaskSpec(1, "sink[0]", "sink", 0, (0,), (1,), sink="sink"),
    ),
    channels=(ChannelSpec(0, 0, 1), ChannelSpec(1, 1, HOUSE_KEEPER)),
)


def keeper_of(*records):
    made = HouseKeeper(PLAN, lambda _: b"", lambda _: None)
    made.recover(records)
    return made


def run(start, *records, life=LIFE):
    return msg.Run(0, life, start, records)


def test_logs_and_the_step_that_failed_survive():
    keeper = keeper_of()
    keeper.begin_term(1)
    keeper.hear(msg.LastWords(1, LIFE, 4, runs=(run(1, b"a", b"b"),)))
    keeper.hear(msg.LastWords(1, LIFE, 5, b"failed"))
    again = keeper_of(*keeper.take_records())
    assert again.length(0) == 2
    assert again.failed == {1: (5, b"failed")}
    assert keeper_of(*again.snapshot()).failed == again.failed
    journal = again.snapshot()
    again.begin_term(2)
    assert not again.failed
    assert not keeper_of(*again.snapshot()).failed
    assert not keeper_of(*journal, *again.take_records()).failed, "read back, too"


def test_nothing_is_taken_that_no_output_could_have_brought():
    keeper = keeper_of()
    keeper.begin_term(1)
    keeper.hear(msg.LastWords(1, LIFE, 4, runs=(run(3, b"c"),)))
    assert keeper.length(0) == 0, "a gap"
    keeper.fence(0, Incarnation(1, 1))
    keeper.hear(msg.LastWords(1, LIFE, 4, runs=(run(1, b"a"),)))
    assert keeper.length(0) == 0, "of a life that is fenced"
    keeper.resolve(msg.Resolve(0, Incarnation(1, 1), 0, 0, reset=False))
    keeper.hear(msg.LastWords(1, LIFE, 4, runs=(run(1, b"a"),)))
    assert keeper.length(0) == 0, "cut"
    keeper.hear(msg.LastWords(1, LIFE, 4, runs=(run(1, b"a", life=Incarnation(1, 1)),)))
    assert keeper.length(0) == 1
