"""A step between its two halves: what a task hears meanwhile, and what it says."""

from __future__ import annotations

from typing import Any

import pytest

from clonos.core import events as ev
from clonos.core import messages as msg
from clonos.core.calls import CallId, Outcome, Request
from clonos.core.determinants import Source, encode_record
from clonos.core.life import Phase
from clonos.core.messages import Dependency, Item, Kind, Run
from clonos.core.plan import Incarnation
from clonos.core.step import Abandoned, attempt
from clonos.core.task import TaskMachine
from clonos.simulator.jobs.programs import Stage, build_job
from clonos.simulator.world.virtual import NoWorld, batch_of

OLD, NEW = Incarnation(1, 0), Incarnation(1, 1)
SOURCE = encode_record([Source(1, 0, None)])
JOB = build_job(
    (Stage("source", 1, ()), Stage("middle", 1, (0,)), Stage("sink", 1, (1,), is_sink=True)),
    sharing_depth=1,
    rows=5,
)
TO_MIDDLE = 0


class World(NoWorld):
    """One in which calls are answered."""

    def __init__(self) -> None:
        super().__init__(lambda content: batch_of(JOB.decode(content)))
        self.asked: list[Any] = []

    def call(self, fn: Any, args: Any, kwargs: Any) -> Any:
        self.asked.append(args)
        return fn(*args)


class Asking:
    """Calls `fn`, whatever comes; user code that catches all that it may."""

    makes_calls = False

    def __init__(self, fn: Any) -> None:
        self.fn = fn

    def on_batches(self, step: Any, *_: Any) -> None:
        for _attempt in range(2):
            try:
                step.call(self.fn, (), {})
            except Exception:  # noqa: BLE001 - as users do
                continue

    def delta(self) -> bytes:
        return b""


class Failing(Asking):
    """Raises, whatever comes."""

    def __init__(self) -> None:
        super().__init__(None)

    def on_batches(self, step: Any, *_: Any) -> None:
        raise ValueError("no such key")


def middle(program: Any = None) -> Any:
    activate = msg.Activate(1, OLD, (), (), (), ())
    task = TaskMachine(JOB.plan, activate, program or JOB.program(1), (), World())
    task.start()
    task.handle(ev.Opened(TO_MIDDLE, 1, OLD))
    return task


def batch(seq: int) -> Item:
    return Item(seq, Kind.BATCH, 0, 0, batch_of(((seq, seq),)), {0: Dependency(OLD, seq)}, seq)


def give(task: TaskMachine, item: Item) -> None:
    run = Run(0, OLD, item.seq, (SOURCE,))
    task.handle(ev.Received(TO_MIDDLE, 1, msg.Data(TO_MIDDLE, OLD, item, (run,))))


def told(actions: list[ev.Action], kind: Any) -> list[Any]:
    return [a.report for a in actions if isinstance(a, ev.Tell) and isinstance(a.report, kind)]


def test_the_answer_to_a_fence_counts_what_the_step_under_way_has_taken():
    task = middle()
    give(task, batch(1))
    job = task.begin()
    assert job is not None
    (answer,) = told(task.handle(msg.Fence(0, NEW)), msg.FenceAnswer)
    assert answer.dep == Dependency(OLD, 1)
    assert task.position == 0
    assert attempt(job) is None
    task.end()
    assert task.position == 1


def test_rows_count_when_their_step_has_ended():
    """What a row takes is the time of whole steps, by the rows of whole steps."""
    task = middle()
    give(task, batch(1))
    job = task.begin()
    assert job is not None
    assert task.rows == 0
    assert attempt(job) is None
    task.end()
    assert task.rows == 1


def test_what_a_step_under_way_has_not_taken_waits_until_the_fence_is_resolved():
    task = middle()
    give(task, batch(1))
    job = task.begin()
    assert job is not None
    give(task, batch(2))
    task.handle(msg.Fence(0, NEW))
    attempt(job)
    task.end()
    assert task.begin() is None
    task.handle(msg.Resolve(0, NEW, 2, 0, reset=False))
    assert task.begin() is not None


def test_an_end_after_a_fence_of_its_own_does_nothing():
    task = middle()
    task.handle(msg.Connect(msg.Peer(1, OLD, "there")))
    task.handle(ev.Answered(1, 1, msg.Hello(1, OLD, 1, 0, {})))
    give(task, batch(1))
    job = task.begin()
    assert job is not None
    (answer,) = told(task.handle(msg.Fence(1, NEW)), msg.FenceAnswer)
    attempt(job)
    assert task.end(ValueError("whatever the old life has raised")) == []
    assert task.phase is Phase.FENCED
    assert task.book.length(1) == answer.length == 0
    assert task.begin() is None


def test_a_call_of_a_life_that_is_over_returns_by_raising_what_users_do_not_catch():
    task: Any = middle(Asking(lambda: task.handle(msg.Fence(1, NEW))))
    give(task, batch(1))
    job = task.begin()
    assert job is not None
    with pytest.raises(Abandoned):
        job()
    assert len(task.world.asked) == 1  # and it makes no other
    assert task.end() == []


def test_what_the_program_raises_belongs_to_the_second_half():
    task = middle(Failing())
    give(task, batch(1))
    job = task.begin()
    assert job is not None
    error = attempt(job)
    with pytest.raises(ValueError, match="no such key"):
        task.end(error)


def test_a_task_is_not_finished_while_its_end_is_under_way():
    task = middle()
    end = Item(1, Kind.END, 0, 0, None, {0: Dependency(OLD, 1)}, 1)
    give(task, end)
    job = task.begin()
    assert job is not None
    task.handle(msg.Fence(0, NEW))
    task.handle(msg.Resolve(0, NEW, 1, 0, reset=False))
    assert not told(task.flush(), msg.Finished)
    attempt(job)
    (finished,) = told(task.end(), msg.Finished)
    assert finished.task == 1
    assert task.phase is Phase.FINISHED


def test_a_marker_is_aligned_with_when_its_step_ends():
    task = middle()
    marker = Item(1, Kind.MARKER, 1, 1, None, {0: Dependency(OLD, 1)}, 1)
    give(task, marker)
    job = task.begin()
    assert job is not None
    assert not task.inputs[TO_MIDDLE].aligned
    give(task, batch(2))
    attempt(job)
    sealed = [a for a in task.end() if isinstance(a, ev.StoreLayer)]
    assert [a.layer.ins[TO_MIDDLE][0] for a in sealed] == [1]


class Paying(Asking):
    """Asks a call with this name, whatever comes."""

    makes_calls = True
    is_full = False

    def __init__(self, name: str) -> None:
        super().__init__(None)
        self.name = name

    def open_calls(self) -> dict[CallId, Request]:
        return {}

    def on_batches(self, step: Any, *_: Any) -> None:
        step.ask(CallId(0, 1), Request(None, (), 7, self.name))

    def on_outcomes(self, *_: Any) -> None:
        """The row goes on."""


@pytest.mark.parametrize("name", ["", "pay"])
def test_what_leads_to_an_effect_and_an_answer_leave_at_once(name):
    task = middle(Paying(name))
    give(task, batch(1))
    made = [a.calls for a in task.step() or () if isinstance(a, ev.MakeCalls)]
    assert len(made) == (0 if name else 1), "of an effect nobody hears before its log is safe"
    assert task.is_urgent == bool(name)
    task.flush()
    assert not task.is_urgent
    task.handle(ev.CallsOver((Outcome(0, 1, 7, ok=True, answer=b""),)))
    task.step()
    assert task.is_urgent
    task.flush()
    assert not task.is_urgent
