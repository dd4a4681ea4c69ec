"""Who asks for moves, and who looks for executors that Spark takes away, without Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from clonos.cluster import moves
from clonos.cluster.audience import Observer
from clonos.cluster.moves import AGAIN_S, RENEWALS_MAX, SETTLED_S, Executors, Mover
from clonos.core import notes
from clonos.core.decisions import Leaving, MoveAsked
from clonos.core.moves import BUSY, FAILED, FULL, NEVER_COPIED
from clonos.errors import CannotMove, UnknownTask
from clonos.nodes.events import RenewalAsked
from clonos.nodes.views import SlotView
from clonos.simulator.jobs.programs import Behaviour, Stage, build_job

STAGES = (
    Stage("source", 1, (), Behaviour()),
    Stage("sink", 1, (0,), Behaviour(), is_sink=True),
)


class World:
    """A job whose driver answers a move with `answer`; None: it does not."""

    def __init__(self, answer: notes.Note | None, *, causal_log: bool = True) -> None:
        plan = build_job(STAGES, sharing_depth=1, rows=1).plan
        self.names = [task.name for task in plan.tasks]
        self.answer, self.asked = answer, list[Any]()
        self.observer = Observer(self.names)
        self.looks = 0
        self.others: list[tuple[str, tuple[str, ...]]] = [("1", ())]
        job: Any = SimpleNamespace(tasks=plan.tasks, cell_of=plan.cell_of, causal_log=causal_log)
        inbox: Any = SimpleNamespace(put=self.put)
        self.mover = Mover(job, inbox, self.observer, self.look, lambda: True)

    def look(self) -> Any:
        self.looks += 1
        runs = ("sink[0]",) if self.looks < 4 else ()
        others = [SimpleNamespace(executor=executor, runs=runs) for executor, runs in self.others]
        return SimpleNamespace(slots=[SimpleNamespace(executor="2", runs=runs), *others])

    def put(self, event: Any) -> None:
        self.asked.append(event)
        if self.answer is not None:
            self.observer.note(notes.Moved(0, 3), 0.0)  # another cell's
            self.observer.note(self.answer, 0.0)


def test_a_move_is_waited_for():
    world = World(notes.Moved(1, 3))
    world.mover.move(world.names[1], 60.0)
    assert world.asked == [MoveAsked(1)]
    assert not world.observer.listeners


@pytest.mark.parametrize(
    ("why", "said", "remedy"),
    [
        (FULL, "no slot is free that could take it", "standby_slots="),
        (BUSY, "took longer than a second", "try again"),
        (FAILED, "failed meanwhile", "try again"),
        (NEVER_COPIED, "not been copied within a minute", "try again"),
    ],
)
def test_who_stays_says_why(why, said, remedy):
    world = World(notes.Stayed(1, why))
    with pytest.raises(CannotMove, match=said) as told:
        world.mover.move(world.names[1], 60.0)
    assert remedy.lower() in told.value.remedy
    assert told.value.where == world.names[1]
    assert not world.observer.listeners


def test_a_move_that_takes_too_long_says_that_it_may_still_happen():
    with pytest.raises(CannotMove, match=r"within 0 s.*may still"):
        World(None).mover.move("sink[0]", 0.0)


def test_a_job_that_has_ended_says_so():
    world = World(None)
    world.mover._is_running = lambda: False
    with pytest.raises(CannotMove, match="the job has ended"):
        world.mover.move(world.names[1], 60.0)


def test_what_cannot_be_asked_for():
    world = World(notes.Moved(1, 3))
    names: list[Any] = ["sinks", 5]
    for name in names:
        with pytest.raises(UnknownTask, match=f"there is no task {name!r}"):
            world.mover.move(name, 60.0)
    with pytest.raises(CannotMove, match="no slot of this job"):
        world.mover.drain("9", 60.0)
    world = World(notes.Moved(1, 3), causal_log=False)
    for ask in (lambda: world.mover.move(world.names[1], 60.0), lambda: world.mover.drain("2", 9)):
        with pytest.raises(CannotMove, match="without logs"):
            ask()
    assert not world.asked


def test_an_executor_is_drained():
    world = World(None)
    world.mover.drain("2", 60.0)
    assert world.asked == [Leaving("2")]
    with pytest.raises(CannotMove, match=r"on executor '2' there is still sink\[0\]\. To do"):
        World(None).mover.drain("2", 0.0)


@pytest.mark.parametrize("others", [[], [("1", ("source[0]",))]])
def test_an_executor_whose_tasks_have_nowhere_to_go_says_so_at_once(others, monkeypatch):
    monkeypatch.setattr(moves, "SETTLED_S", 0.0)
    world = World(None)
    world.others = others
    with pytest.raises(CannotMove, match=r"sink\[0\], and no other executor has a free slot"):
        world.mover.drain("2", 60.0)
    assert world.looks == 3
    assert world.asked == [Leaving("2")]  # it goes when there is one


def test_a_slot_that_comes_back_soon_is_waited_for():
    world = World(None)
    world.others = [("1", ("source[0]",))]
    world.mover.drain("2", 60.0)
    assert world.looks == 4


def test_what_another_drain_has_emptied_is_no_place_to_go():
    world = World(None)
    world.looks = 9
    world.mover.drain("1", 60.0)
    world.looks = 0
    with pytest.raises(CannotMove, match="no other executor has a free slot"):
        world.mover.drain("2", 60.0)


def test_a_drain_of_a_job_that_ends_says_so():
    world = World(None)
    world.mover._is_running = lambda: False
    with pytest.raises(CannotMove, match="the job has ended"):
        world.mover.drain("2", 60.0)


class Watched:
    """A job of three cells, and what its driver is told of its executors."""

    def __init__(self, *slots: tuple[str, str, str], room: str = "", bound: int | None = None):
        """Of each slot: executor, the tasks that it runs, those that it keeps."""
        plan: Any = SimpleNamespace(
            tasks=[SimpleNamespace(name=name) for name in "abc"],
            cells=[(0,), (1,), (2,)],
            causal_log=True,
        )
        self.phase, self.going = "live", set[str]()
        self.told: list[Any] = []
        self.put(*slots)

        def state(executor: str) -> Any:
            return SimpleNamespace(isDefined=lambda: executor in self.going)

        scheduler = SimpleNamespace(getExecutorDecommissionState=state)
        context = SimpleNamespace(taskScheduler=lambda: scheduler)
        spark = SimpleNamespace(
            sparkContext=SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: context), master="yarn")
        )
        inbox: Any = SimpleNamespace(put=self.told.append)
        bounds = () if bound is None else (bound,)
        self.executors = Executors(spark, plan, self.look, inbox, bounds, lambda: set(room))

    def put(self, *slots: tuple[str, str, str]) -> None:
        self.slots = [
            SlotView(place, 100 + place, executor, 1, tuple(runs), tuple(keeps))
            for place, (executor, runs, keeps) in enumerate(slots)
        ]

    def look(self) -> Any:
        return SimpleNamespace(
            slots=self.slots, tasks=[SimpleNamespace(phase=self.phase) for _ in "abc"]
        )

    def told_by(self, now_s: float) -> list[Any]:
        self.executors.look_who_is_crowded(now_s)
        return self.told


def test_each_decommissioned_executor_is_told_once():
    watch = Watched(("1", "a", ""), ("2", "b", ""))
    watch.going.add("2")
    for _ in range(2):
        watch.executors.look_who_leaves()
    assert watch.told == [Leaving("2", ends=True)]
    watch.going.add("1")
    watch.executors.look_who_leaves()
    assert watch.told == [Leaving("2", ends=True), Leaving("1", ends=True)]


CROWDED = (("1", "a", ""), ("1", "", "ab"), ("1", "", "c"), ("2", "b", ""), ("2", "c", ""))


def test_a_cell_makes_room_for_the_standbys_of_others():
    watch = Watched(*CROWDED)
    assert not watch.told_by(10.0)
    assert not watch.told_by(10.0 + SETTLED_S / 2)
    assert watch.told_by(10.0 + SETTLED_S) == [MoveAsked(2)]
    assert len(watch.told_by(9.0 + SETTLED_S + AGAIN_S)) == 1  # it may have to wait for its calls
    assert len(watch.told_by(11.0 + SETTLED_S + AGAIN_S)) == 2
    watch.put(("1", "a", ""), ("1", "c", ""), ("1", "", "b"), ("2", "b", ""), ("2", "", "ac"))
    assert len(watch.told_by(1000.0)) == len(watch.told_by(2000.0)) == 2


@pytest.mark.parametrize(
    "slots",
    [
        (("1", "a", ""), ("1", "", "abc"), ("2", "b", ""), ("2", "c", "")),  # the only free slot
        (("1", "a", ""), ("1", "", "ab"), ("2", "", "c"), ("2", "b", ""), ("2", "c", "")),
        (("1", "", "abc"), ("1", "", ""), ("2", "a", ""), ("2", "b", ""), ("2", "c", "")),
        (("1", "a", ""), ("1", "", "ab"), ("1", "", "c"), ("2", "b", "")),  # one has no slot
    ],
)
def test_no_cell_moves_if_that_helps_nobody(slots):
    watch = Watched(*slots)
    assert not watch.told_by(10.0)
    assert not watch.told_by(1000.0)


def test_while_a_task_recovers_no_cell_moves():
    watch = Watched(*CROWDED)
    watch.told_by(10.0)
    watch.phase = "replaying"
    watch.told_by(10.0 + SETTLED_S)
    watch.phase = "live"
    assert not watch.told_by(11.0 + SETTLED_S)
    assert watch.told_by(11.0 + 2 * SETTLED_S) == [MoveAsked(2)]


def test_slots_bound_to_a_task_are_left_where_they_are():
    assert not Watched(*CROWDED, bound=2).told_by(10.0)
    watch = Watched(*CROWDED, bound=2)  # its standby's slot is no slot for others
    watch.told_by(10.0)
    assert not watch.told_by(1000.0)


def test_if_all_are_on_one_executor_a_free_slot_is_started_anew():
    here = (("1", "a", ""), ("1", "b", ""), ("1", "c", ""), ("1", "", "abc"), ("1", "", ""))
    alone = Watched(*here, room="1")
    alone.told_by(10.0)
    assert not alone.told_by(1000.0)
    watch = Watched(*here, room="12")
    watch.told_by(10.0)
    assert watch.told_by(10.0 + SETTLED_S) == [RenewalAsked(104)]
    for second in range(20, 100):  # Spark puts it where it was, each time
        watch.told_by(float(second))
    assert watch.told == [RenewalAsked(104)] * RENEWALS_MAX
