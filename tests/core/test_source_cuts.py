"""Sources whose rows have no number: what is logged of a batch, and what a replay asks for."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from clonos.core import events as ev
from clonos.core import messages as msg
from clonos.core.determinants import Source, SourceCut, decode_record, encode_record
from clonos.core.layer import decode_layer, encode_layer
from clonos.core.messages import Run
from clonos.core.plan import Incarnation
from clonos.core.sealed import Layer
from clonos.core.step import attempt
from clonos.core.task import TaskMachine
from clonos.core.watch import Rehearsal
from clonos.errors import Divergence
from clonos.simulator.jobs.programs import Stage, build_job
from clonos.simulator.world.virtual import NoWorld, batch_of

FIRST, NEXT = Incarnation(1, 0), Incarnation(1, 1)
JOB = build_job(
    (Stage("source", 1, ()), Stage("sink", 1, (0,), is_sink=True)), sharing_depth=1, rows=5
)
BEGIN, FIVE, SEVEN = b"from 3 on", b"3 to 5", b"5 to 7"


def rows(start: int, count: int, cut: bytes) -> ev.SourceRows:
    """Some rows; none of them: where it begins."""
    batch = JOB.sources[0].read(start, count) if count else batch_of(())
    return ev.SourceRows(batch, None, 1, cut)


def life(
    incarnation: Incarnation = FIRST, log: tuple[bytes, ...] = (), floor: Layer | None = None
) -> TaskMachine:
    start = floor.position + 1 if floor is not None else 1
    runs = (Run(0, FIRST, start, log),) if log else ()
    activate = msg.Activate(0, incarnation, (), runs, (), ())
    world = NoWorld(lambda content: batch_of(JOB.decode(content)))
    layers = (floor,) if floor is not None else ()
    return TaskMachine(JOB.plan, activate, JOB.program(0), layers, world)


def take(machine: TaskMachine, offered: ev.SourceRows) -> bytes:
    """Have it do a step; its log entry."""
    machine.handle(offered)
    assert machine.step() is not None
    return machine.book.record(0, machine.position)


def asked(actions: list[ev.Action]) -> Any:
    return [action.cuts for action in actions if isinstance(action, ev.NeedRows)]


def logged() -> tuple[TaskMachine, tuple[bytes, ...]]:
    machine = life()
    machine.start()
    offered = (rows(0, 0, BEGIN), rows(0, 2, FIVE), rows(2, 1, SEVEN))
    return machine, tuple(take(machine, one) for one in offered)


def test_the_log_and_the_layer_have_the_readers_words():
    machine, log = logged()
    causes = [decode_record(record)[0] for record in log]
    assert [(type(c), c.rows, c.cut) for c in causes if isinstance(c, SourceCut)] == [
        (SourceCut, 0, BEGIN),
        (SourceCut, 2, FIVE),
        (SourceCut, 1, SEVEN),
    ]
    actions = machine.handle(msg.SealLayer())
    (layer,) = [action.layer for action in actions if isinstance(action, ev.StoreLayer)]
    assert (layer.source_rows, layer.source_cut) == (3, SEVEN)
    assert decode_layer(encode_layer(layer)).source_cut == SEVEN


def test_rows_that_have_a_number_are_logged_as_before():
    machine = life()
    machine.start()
    record = take(machine, rows(0, 2, b""))
    assert record == encode_record([Source(2, rows(0, 2, b"").batch.digest, None)])
    assert len(record) == len(encode_record([SourceCut(2, 0, b"")])) + 7


def test_a_replay_asks_for_the_cuts_and_takes_the_same_steps():
    first, log = logged()
    again = life(NEXT, log)
    assert asked(again.start()) == [((0, BEGIN), (2, FIVE), (1, SEVEN))]
    assert again.step() is None  # nothing is read yet
    for one in (rows(0, 0, BEGIN), rows(0, 2, FIVE), rows(2, 1, SEVEN)):
        again.handle(one)
        assert again.step() is not None
    assert again.is_live
    assert (again.intake.taken, again.intake.cut) == (3, SEVEN)
    assert again.program.delta() == first.program.delta()


def test_a_life_with_a_layer_stands_behind_its_cut():
    machine = life()
    machine.start()
    take(machine, rows(0, 2, FIVE))
    actions = machine.handle(msg.SealLayer())
    (stored,) = [action for action in actions if isinstance(action, ev.StoreLayer)]
    layer = replace(stored.layer, delta=bytes(stored.delta))
    again = life(NEXT, floor=layer)
    assert (again.intake.taken, again.intake.cut) == (2, FIVE)
    assert not asked(again.start())


def test_other_rows_in_a_cut_are_noticed():
    _, log = logged()
    again = life(NEXT, log[1:2])
    again.start()
    again.handle(rows(1, 2, FIVE))
    with pytest.raises(Divergence, match="other rows"):
        again.step()


def test_user_code_hears_nothing_of_a_batch_without_rows():
    machine = life()
    machine.start()
    machine.handle(rows(0, 0, BEGIN))
    machine.program = SimpleNamespace(is_full=False, makes_calls=False)
    job = machine.begin()
    assert job is not None
    assert attempt(job) is None


@pytest.mark.parametrize("cut", [b"", FIVE])
def test_suspect_rows_of_any_source_are_tried_out(cut):
    machine = life()
    machine.start()
    machine.handle(rows(0, 2, cut))
    cause = machine.intake.choose()
    assert cause is not None
    assert [batch.rows for batch in Rehearsal(machine, cause, []).batches] == [2]
