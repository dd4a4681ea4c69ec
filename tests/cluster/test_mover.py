"""Who asks for moves, and who looks for executors that Spark takes away, without Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from clonos.cluster.audience import Observer
from clonos.cluster.moves import Decommissions, Mover
from clonos.core.decisions import Leaving, MoveAsked, Note
from clonos.errors import CannotMove, UnknownTask
from clonos.simulator.jobs.programs import Behaviour, Stage, build_job

STAGES = (
    Stage("source", 1, (), Behaviour()),
    Stage("sink", 1, (0,), Behaviour(), is_sink=True),
)


class World:
    """A job whose driver answers a move with `answer`; None: it does not."""

    def __init__(self, answer: str | None, *, causal_log: bool = True) -> None:
        plan = build_job(STAGES, sharing_depth=1, rows=1).plan
        self.names = [task.name for task in plan.tasks]
        self.answer, self.asked = answer, list[Any]()
        self.observer = Observer(self.names)
        self.looks = 0
        job: Any = SimpleNamespace(tasks=plan.tasks, cell_of=plan.cell_of, causal_log=causal_log)
        inbox: Any = SimpleNamespace(put=self.put)
        self.mover = Mover(job, inbox, self.observer, self.look, lambda: True)

    def look(self) -> Any:
        self.looks += 1
        runs = ("sink[0]",) if self.looks < 4 else ()
        return SimpleNamespace(slots=[SimpleNamespace(executor="2", runs=runs)])

    def put(self, event: Any) -> None:
        self.asked.append(event)
        if self.answer is not None:
            self.observer.note(Note("moved", 0), 0.0)  # another cell's
            self.observer.note(Note(self.answer, 1), 0.0)  # type: ignore[arg-type]


def test_a_move_is_waited_for():
    world = World("moved")
    world.mover.move(world.names[1], 60.0)
    assert world.asked == [MoveAsked(1)]
    assert not world.observer.listeners


@pytest.mark.parametrize(("answer", "timeout_s"), [("stayed", 60.0), (None, 0.0)])
def test_who_stays_is_told(answer, timeout_s):
    world = World(answer)
    with pytest.raises(CannotMove, match="stays where it is"):
        world.mover.move(world.names[1], timeout_s)
    assert not world.observer.listeners


def test_what_cannot_be_asked_for():
    world = World("moved")
    with pytest.raises(UnknownTask, match="there is no task 'sinks'"):
        world.mover.move("sinks", 60.0)
    with pytest.raises(CannotMove, match="no slot of this job"):
        world.mover.drain("9", 60.0)
    world = World("moved", causal_log=False)
    for ask in (lambda: world.mover.move(world.names[1], 60.0), lambda: world.mover.drain("2", 9)):
        with pytest.raises(CannotMove, match="without logs"):
            ask()
    assert not world.asked


def test_an_executor_is_drained():
    world = World(None)
    world.mover.drain("2", 60.0)
    assert world.asked == [Leaving("2")]
    with pytest.raises(CannotMove, match="still on executor '2'"):
        World(None).mover.drain("2", 0.0)


def test_each_decommissioned_executor_is_told_once():
    going = {"2"}

    def state(executor: str) -> Any:
        return SimpleNamespace(isDefined=lambda: executor in going)

    scheduler = SimpleNamespace(getExecutorDecommissionState=state)
    context = SimpleNamespace(taskScheduler=lambda: scheduler)
    spark = SimpleNamespace(
        sparkContext=SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: context), master="yarn")
    )
    told: list[Any] = []
    inbox: Any = SimpleNamespace(put=told.append)
    watch = Decommissions(spark, lambda: {"1", "2"}, inbox)
    watch.look()
    watch.look()
    assert told == [Leaving("2", ends=True)]
    going.add("1")
    watch.look()
    assert told == [Leaving("2", ends=True), Leaving("1", ends=True)]
