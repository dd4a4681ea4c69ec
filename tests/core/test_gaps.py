"""At most once: what a source has taken is claimed, and who begins anew is sent what nobody had."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from clonos.core import events as ev
from clonos.core import messages as msg
from clonos.core.codec import CODEC
from clonos.core.fences import Fences
from clonos.core.gaps import MISSED
from clonos.core.housekeeper import HouseKeeper
from clonos.core.inflight import InFlightLog
from clonos.core.messages import Dependency, Kind
from clonos.core.plan import HOUSE_KEEPER, ChannelSpec, Incarnation, Plan, TaskSpec
from clonos.core.program import Batch
from clonos.core.task import TaskMachine

FIRST, SECOND = Incarnation(1, 0), Incarnation(1, 1)
PLAN = Plan(
    (
        TaskSpec(0, "in[0]", "in", 0, (), (0,), is_source=True),
        TaskSpec(1, "out[0]", "out", 0, (0,), (1,), sink="out"),
    ),
    (ChannelSpec(0, 0, 1), ChannelSpec(1, 1, HOUSE_KEEPER)),
    causal_log=False,
    leaves_gaps=True,
)


class PassOn:
    """Emits what it reads."""

    makes_calls = is_full = False

    def on_source(self, step: Any, batch: Batch) -> None:
        step.emit(0, batch)

    def on_end(self, step: Any, channel: int | None) -> None: ...


class World:
    def clock_ms(self) -> int:
        return 1

    def ticks_ms(self) -> int:
        return 1


def source(activate: msg.Activate) -> TaskMachine:
    program: Any = PassOn()
    world: Any = World()
    machine = TaskMachine(PLAN, activate, program, (), world)
    machine.start()
    return machine


def connected(machine: TaskMachine) -> None:
    """Its receiver is there, and begins anew."""
    machine.handle(msg.Connect(msg.Peer(0, FIRST, "there")))
    hello = msg.Hello(0, FIRST, 1, 0, {}, MISSED)
    machine.handle(ev.Answered(0, machine.outputs[0].attempt, hello))


def read(machine: TaskMachine, rows: int) -> list[ev.Action]:
    machine.handle(ev.SourceRows(Batch("rows", rows, 8, 0)))
    return machine.step() or []


def items(actions: list[ev.Action]) -> list[int]:
    sent = (a.data for a in actions if isinstance(a, ev.Send))
    return [data.item.seq for data in sent if isinstance(data, msg.Data) and data.item]


def test_rows_wait_until_they_are_claimed():
    machine = source(msg.Activate(0, FIRST, (), (), (), ()))
    connected(machine)
    assert items(read(machine, 3)) == []
    (told,) = machine.flush()
    assert told == ev.Tell(msg.Claim(0, FIRST, 1, 3, b""))
    assert items(read(machine, 4)) == []
    assert machine.flush() == [], "one claim at a time is under way"
    assert items(machine.handle(msg.Granted(1))) == [1]
    assert machine.flush() == [ev.Tell(msg.Claim(0, FIRST, 2, 7, b""))]
    assert items(machine.handle(msg.Granted(2))) == [2]
    machine.check()


def test_the_next_life_reads_behind_what_is_claimed():
    activate = msg.Activate(0, SECOND, (), (), (), (), claimed=(7, b"there"))
    machine = source(CODEC.decode(CODEC.encode(activate)))
    assert (machine.intake.taken, machine.intake.cut, machine.position) == (7, b"there", 0)


def test_claims_are_in_the_journal_and_in_what_stands_for_it():
    def keeper() -> HouseKeeper:
        return HouseKeeper(PLAN, lambda _: b"", lambda _: None)

    first = keeper()
    first.begin_term(1)
    first.claim(msg.Claim(0, FIRST, 1, 3, b""))
    first.claim(msg.Claim(0, FIRST, 2, 7, b"there"))
    for records in (first.take_records(), first.snapshot()):
        again = keeper()
        again.recover(records)
        assert again.claimed == {0: (7, b"there")}
    kinds = [msgpack.unpackb(r, strict_map_key=False)[0] for r in first.snapshot()]
    assert kinds.count("claim") == 1, "only the newest counts"


def test_nothing_is_kept_for_a_replay_but_the_end():
    machine = source(msg.Activate(0, FIRST, (), (), (), ()))
    connected(machine)
    read(machine, 3)
    machine.handle(ev.SourceEnded())
    machine.step()
    machine.flush()
    assert items(machine.handle(msg.Granted(2))) == [1, 2]
    machine.handle(ev.Answered(0, machine.outputs[0].attempt, msg.Credit(0, 2)))
    log = machine.outputs[0].log
    assert (log.first, log.last) == (2, 2)
    machine.handle(msg.Fence(1, SECOND))
    machine.handle(msg.Resolve(1, SECOND, 0, 1, reset=True))
    machine.handle(msg.Connect(msg.Peer(0, SECOND, "elsewhere")))
    hello = msg.Hello(0, SECOND, 1, 0, {}, MISSED)
    assert items(machine.handle(ev.Answered(0, machine.outputs[0].attempt, hello))) == [2]


@pytest.mark.parametrize("sent", [0, 1, 2])
def test_what_nobody_was_sent_is_not_missed(sent):
    log = InFlightLog()
    for n in range(2):
        log.append(Kind.BATCH, 0, 0, Batch(n, 1, 8, n), {0: Dependency(FIRST, n + 1)})
    log.cursor += sent
    assert log.sent == sent
    assert log.sent_chain == (log.item(sent).chain if sent else 0)


def test_losses_that_are_forgiven_do_not_add_up():
    fences = Fences()
    for n in range(1, 50):
        fences.resolve(0, Incarnation(1, n), 0, forgive=True)
    assert len(fences._forgiven[0]) == 1
    assert fences.clamp({0: Dependency(FIRST, 9)}) == {0: Dependency(Incarnation(1, 49), 0)}
