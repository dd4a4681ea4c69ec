"""What the deaths of a task are put down to, and how the guilty record is found."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from clonos.core import messages as msg
from clonos.core import notes
from clonos.core.blame import (
    HOLD_MS,
    OUTSIDE_MANY,
    SUSPECTS_MAX,
    TOGETHER_MANY,
    TOGETHER_MS,
    WATCHED_STEPS,
    WITHIN_MANY,
    Blame,
)
from clonos.core.calls import CallId, OpenCalls, Outcome, Request
from clonos.core.canonical import decode_error
from clonos.core.determinants import Order, Outcomes, Timer
from clonos.core.events import Trial
from clonos.core.messages import Item, Kind
from clonos.core.placement import Slot
from clonos.core.plan import Incarnation
from clonos.core.program import Batch
from clonos.core.roster import RECOVERY, TaskPhase, TaskState
from clonos.core.suspects import ALL, CALLS, MADE, ONE_BY_ONE, Rows, Suspect
from clonos.core.watch import DEATHS, LIVES, Watch
from clonos.errors import EffectUnknown, PoisonRecord

LIFE = Incarnation(1, 3)
ROWS = Rows(7, 10, 19)


class Deaths:
    """Task 0 runs in slot 5, task 1 in slot 6, both on one executor; slot 9 has one of its own."""

    def __init__(self) -> None:
        machine = RECOVERY.machine
        tasks = {
            task: TaskState(task, LIFE, machine(f"task {task}", TaskPhase.LIVE), slot=5 + task)
            for task in (0, 1)
        }
        plan = SimpleNamespace(leaves_gaps=False, cell_of={0: (0,), 1: (1,)})
        self.told: list[Any] = []
        roster: Any = SimpleNamespace(tasks=tasks, now_ms=0, plan=plan, do=self.told.append)
        self.roster, self.blame = roster, Blame(roster)

    def announces(self, rows: Rows, *, is_cleared: bool = False, life: Incarnation = LIFE) -> None:
        self.blame.announced(5, msg.Announced(0, life, rows, is_cleared))

    def survives(self, left: int = 60) -> None:
        self.blame.survived(5, msg.Survived(0, LIFE, left))

    def loses(self, slot: int, *, at_ms: int, group: str = "a", is_death: bool = True) -> None:
        self.roster.now_ms = at_ms
        self.blame.lost(Slot(slot, "there", group), is_death=is_death)

    def dies(self, *, at_ms: int, is_death: bool = True) -> Any:
        self.loses(5, at_ms=at_ms, is_death=is_death)
        return self.blame.next_life(0)


@pytest.fixture
def deaths() -> Deaths:
    """One, long ago."""
    deaths = Deaths()
    deaths.dies(at_ms=-60_000)
    return deaths


def test_the_first_death_says_nothing():
    deaths = Deaths()
    assert deaths.blame.next_life(0) == (0, ())
    assert deaths.dies(at_ms=0) == (WATCHED_STEPS, ())


def test_many_deaths_outside_of_steps_are_told_once(deaths):
    """Nobody can try what happens there: a call may have an effect."""
    for n in range(1, OUTSIDE_MANY):
        deaths.announces(Rows(7, n, n))
        deaths.survives()
        assert deaths.dies(at_ms=5000 * n) == (WATCHED_STEPS, ())
    assert not deaths.told
    for n in range(OUTSIDE_MANY, 2 * OUTSIDE_MANY):
        assert deaths.dies(at_ms=5000 * n) == (WATCHED_STEPS, (ONE_BY_ONE,))
    assert deaths.told == [notes.Outside(0, OUTSIDE_MANY)]


def test_a_death_within_a_step_that_a_copy_has_survived_is_perhaps_a_calls(deaths):
    deaths.announces(ROWS)
    assert deaths.dies(at_ms=5000) == (WATCHED_STEPS, (Suspect(ROWS, 1, 1),))
    for n in range(1, 1 + OUTSIDE_MANY):
        assert not deaths.told
        deaths.announces(ROWS)
        deaths.announces(ROWS, is_cleared=True)
        _, suspects = deaths.dies(at_ms=5000 + 5000 * n)
        assert suspects[0] == Suspect(ROWS, 0, 1 + n)
    assert suspects[1:] == (ONE_BY_ONE,)
    assert deaths.told == [notes.Outside(0, OUTSIDE_MANY)]


def test_deaths_within_a_call_count_against_it(deaths):
    """A step that is taken meanwhile is not to blame if it was survived, or cleared."""
    call, other = Rows(MADE - 2, 50, 50), Rows(MADE - 2, 51, 51)
    for n in range(OUTSIDE_MANY):
        deaths.dies(at_ms=5000 * n)
    for n in range(1, 4):
        deaths.announces(other)
        deaths.announces(other, is_cleared=True)
        deaths.announces(call)
        deaths.announces(ROWS)
        deaths.survives()
        if n == 2:
            deaths.announces(ROWS, is_cleared=True)
        deaths.loses(5, at_ms=5000 * OUTSIDE_MANY + 200 * n)
        steps, (suspect, search) = deaths.blame.next_life(0)
        assert (steps, suspect, search.rows) == (
            WATCHED_STEPS,
            Suspect(call, n, n),
            ONE_BY_ONE.rows,
        )
        assert search.hold_ms >= HOLD_MS
    deaths.announces(call)
    deaths.announces(call, is_cleared=True)
    assert deaths.blame.next_life(0) == (WATCHED_STEPS, (ONE_BY_ONE,))
    deaths.survives(left=0)
    assert deaths.blame.next_life(0) == (0, ())


CALL, OTHER = Rows(MADE - 2, 50, 50), Rows(MADE, 70, 70)


class Executor(Deaths):
    """Has died so often that the calls of both tasks are made one at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.at_ms = 0
        for _ in range(1 + TOGETHER_MANY):
            self.dies_together()

    def dies_together(self, *, after_ms: int = 0) -> None:
        """With both its slots; a while later both tasks live again."""
        self.at_ms += after_ms
        for slot in (5, 6):
            self.loses(slot, at_ms=self.at_ms)
        self.roster.now_ms = self.at_ms = self.at_ms + 10_000
        self.lives = [self.blame.next_life(task) for task in (0, 1)]

    def calls(self, task: int, rows: Rows) -> None:
        said = msg.Announced(task, LIFE, rows, is_cleared=False, shown=f"ask{task}(7)")
        self.blame.announced(5 + task, said)

    @property
    def suspects(self) -> list[tuple[Any, ...]]:
        return [tuple(life[1][:-1]) for life in self.lives]

    @property
    def holds_ms(self) -> list[int]:
        return [life[1][-1].hold_ms for life in self.lives]


def test_an_executor_that_dies_again_and_again_is_told_and_calls_are_made_one_at_a_time():
    executor = Executor()
    assert executor.lives == [(WATCHED_STEPS, (ONE_BY_ONE,))] * 2
    assert executor.told == [notes.Together(0, TOGETHER_MANY)]


def test_an_executor_that_dies_while_one_call_is_made_is_a_proof_and_told():
    executor = Executor()
    for n in range(1, LIVES + 1):
        executor.calls(0, CALL)
        executor.dies_together(after_ms=700)
        assert executor.suspects == [(Suspect(CALL, 0, n),), ()]
        assert executor.holds_ms == [2 * 700, 4 * 700], "the other one waits until it has died"
    assert executor.told[1:] == [notes.Call(0, "ask0(7)", n, True) for n in range(1, LIVES + 1)]


def test_of_several_calls_that_are_made_when_an_executor_dies_none_is_to_blame():
    executor, firsts = Executor(), set()
    for _ in range(2 * LIVES):
        executor.calls(0, CALL)
        executor.calls(1, OTHER)
        executor.dies_together(after_ms=700)
        assert executor.suspects == [(Suspect(CALL, 0, 0),), (Suspect(OTHER, 0, 0),)]
        assert sorted(executor.holds_ms) == [1400, 2800]
        firsts.add(executor.holds_ms.index(1400))
    assert firsts == {0, 1}, "they take turns"


@pytest.mark.parametrize("how", ["nothing is asked", "a neighbour asks", "a step", "not yet live"])
def test_who_dies_while_calls_are_held_back_did_not_die_of_them(how):
    executor = Executor()
    executor.calls(0, CALL)
    executor.dies_together(after_ms=700)
    if how == "a neighbour asks":
        executor.calls(1, OTHER)
    if how == "a step":
        executor.announces(ROWS)
    if how == "not yet live":
        (task, _) = executor.roster.tasks.values()
        task.machine = RECOVERY.machine("task 0", TaskPhase.RESTORING)
    executor.dies_together()
    assert (Suspect(CALL, 0, 1) in executor.suspects[0]) == (how != "nothing is asked")
    assert (executor.holds_ms == [0, 0]) == (how == "nothing is asked")


def test_a_process_that_dies_while_calls_are_held_back_did_not_die_of_them(deaths):
    for n in range(OUTSIDE_MANY):
        deaths.dies(at_ms=5000 * n)
    for n in range(2, 2 * DEATHS):
        deaths.announces(CALL)
        assert deaths.dies(at_ms=20_000 * n)[1][0] == Suspect(CALL, 1, 1)
        deaths.dies(at_ms=20_000 * n + 5000)
        deaths.roster.now_ms += 2 * TOGETHER_MS
        assert deaths.blame.next_life(0) == (WATCHED_STEPS, (ONE_BY_ONE,))


def test_a_process_of_which_not_all_was_heard_may_have_made_a_call(deaths):
    """The next process came before its stream had ended: its last words may be on their way."""
    for n in range(OUTSIDE_MANY):
        deaths.dies(at_ms=5000 * n)
    deaths.announces(CALL)
    deaths.dies(at_ms=40_000)
    deaths.roster.now_ms = 45_000
    deaths.blame.lost(Slot(5, "there", "a"), is_death=True, is_heard=False)
    deaths.roster.now_ms += 2 * TOGETHER_MS
    assert deaths.blame.next_life(0)[1][0] == Suspect(CALL, 1, 1)


def test_who_dies_within_a_step_while_a_call_is_made_may_have_died_of_the_step(deaths):
    deaths.announces(Rows(MADE, 50, 50))
    deaths.announces(ROWS)
    assert deaths.dies(at_ms=5000) == (WATCHED_STEPS, (Suspect(ROWS, 1, 1),))


def test_a_call_that_is_suspect_may_have_killed_who_dies_within_a_step(deaths):
    """It counts against both: perhaps the step was only being tried."""
    for n in range(OUTSIDE_MANY):
        deaths.dies(at_ms=5000 * n)
    deaths.announces(CALL)
    deaths.dies(at_ms=20_000)
    deaths.announces(CALL)
    deaths.announces(ROWS)
    suspects = deaths.dies(at_ms=30_000)[1]
    assert suspects[0]._replace(hold_ms=0) == Suspect(CALL, 2, 2)
    assert Suspect(ROWS, 1, 1) in suspects


def test_a_step_is_over_when_a_call_is_announced_after_it(deaths):
    """Calls are made between steps. That the step was survived may be told later, or never."""
    deaths.announces(ROWS)
    deaths.announces(CALL)
    assert deaths.dies(at_ms=5000) == (WATCHED_STEPS, (Suspect(CALL, 1, 1),))


@pytest.mark.parametrize("spoil", ["works", "executor", "given up"])
def test_deaths_that_have_another_reason_are_not_told(deaths, spoil):
    for n in range(1, 3 * OUTSIDE_MANY):
        if spoil == "works":
            deaths.survives(left=0)
        if spoil == "executor":
            deaths.loses(6, at_ms=5000 * n)
        deaths.dies(at_ms=5000 * n, is_death=spoil != "given up")
    assert not [note for note in deaths.told if isinstance(note, notes.Outside)]


def test_a_death_within_an_announced_step_makes_its_rows_suspect(deaths):
    deaths.announces(Rows(7, 1, 9))
    deaths.survives()
    deaths.announces(ROWS)
    assert deaths.dies(at_ms=5000) == (WATCHED_STEPS, (Suspect(ROWS, 1, 1),))
    assert deaths.dies(at_ms=9000) == (WATCHED_STEPS, (Suspect(ROWS, 1, 1),)), "within no step"


def test_the_same_rows_are_those_that_all_deaths_have_in_common(deaths):
    for n in range(3):
        deaths.announces(Rows(7, 10 + n, 30 - n))
        (_, suspects) = deaths.dies(at_ms=5000 * n)
    assert suspects == (Suspect(Rows(7, 12, 28), 3, 3),)


def test_rows_that_were_taken_are_not_suspect_any_more(deaths):
    deaths.announces(ROWS)
    deaths.dies(at_ms=0)
    deaths.announces(Rows(7, 10, 14))
    deaths.survives()
    assert deaths.blame.next_life(0) == (WATCHED_STEPS, (Suspect(Rows(7, 15, 19), 1, 1),))
    deaths.announces(Rows(7, 15, 30))
    deaths.survives()
    assert deaths.blame.next_life(0) == (WATCHED_STEPS, ())
    deaths.survives(left=0)
    assert deaths.blame.next_life(0) == (0, ())


def test_outcomes_of_calls_come_in_any_order(deaths):
    """That a later call was answered says nothing of an earlier one."""
    suspect = Rows(CALLS - 2, 50, 50)
    deaths.announces(suspect)
    deaths.dies(at_ms=0)
    for number in (95, 3):
        deaths.announces(Rows(CALLS - 2, number, number))
        deaths.survives()
    deaths.announces(Rows(CALLS - 1, 50, 50))
    deaths.survives()
    assert deaths.blame.next_life(0) == (WATCHED_STEPS, (Suspect(suspect, 1, 1),))
    deaths.announces(suspect)
    deaths.survives()
    assert deaths.blame.next_life(0) == (WATCHED_STEPS, ())


@pytest.mark.parametrize(
    "spoil",
    [
        lambda d: d.dies(at_ms=5000, is_death=False),
        lambda d: (d.blame.next_life(0), d.dies(at_ms=5000)),  # fenced in its slot
        lambda d: (d.survives(), d.announces(ROWS, life=Incarnation(1, 2)), d.dies(at_ms=5000)),
    ],
)
def test_what_does_not_count(deaths, spoil):
    deaths.announces(ROWS)
    spoil(deaths)
    assert deaths.blame.next_life(0)[1] == ()


def test_an_executor_that_dies_is_no_fault_of_its_tasks(deaths):
    deaths.announces(ROWS)
    deaths.dies(at_ms=0)
    deaths.loses(6, at_ms=TOGETHER_MS)
    assert deaths.blame.next_life(0)[1] == (Suspect(ROWS, 0, 1),), "to be tried, but not counted"
    deaths.announces(ROWS)
    deaths.loses(6, at_ms=10_000)
    assert deaths.dies(at_ms=10_000)[1] == (Suspect(ROWS, 0, 2),)
    deaths.announces(ROWS)
    deaths.loses(9, at_ms=20_000, group="b")
    assert deaths.dies(at_ms=20_000)[1] == (Suspect(ROWS, 1, 3),)


def test_a_death_although_a_copy_survived_counts_little(deaths):
    deaths.announces(ROWS)
    deaths.dies(at_ms=0)
    deaths.announces(ROWS)
    deaths.announces(ROWS, is_cleared=True)
    assert deaths.dies(at_ms=5000)[1] == (Suspect(ROWS, 0, 2),)


def test_deaths_from_before_a_copy_survived_do_not_count_any_more(deaths):
    """They were those of something else: of a call, perhaps, that was made at the same time."""
    for n in range(DEATHS):
        deaths.announces(ROWS)
        deaths.dies(at_ms=5000 * n)
    deaths.announces(ROWS._replace(last=15))
    deaths.announces(ROWS._replace(last=15), is_cleared=True)
    assert deaths.dies(at_ms=90_000)[1][0].deaths == DEATHS, "a copy has taken some of the rows"
    deaths.announces(ROWS)
    deaths.announces(ROWS, is_cleared=True)
    assert deaths.dies(at_ms=95_000)[1][0].deaths == 0
    deaths.announces(ROWS)
    assert deaths.dies(at_ms=99_000)[1][0].deaths == 1


def test_lives_of_one_task_die_one_after_the_other(deaths):
    for n in range(DEATHS):
        deaths.announces(ROWS)
        (_, suspects) = deaths.dies(at_ms=n)
    assert suspects == (Suspect(ROWS, DEATHS, DEATHS), ALL)


def test_few_rows_are_suspect_at_a_time(deaths):
    for n in range(2 * SUSPECTS_MAX):
        deaths.announces(Rows(7, n, n))
        (_, suspects) = deaths.dies(at_ms=5000 * n)
    *some, everything = suspects
    assert some[-1].rows.first == 2 * SUSPECTS_MAX - 1
    assert len(some) == SUSPECTS_MAX
    assert everything == ALL


def test_whatever_it_takes_is_tried_after_many_deaths_within_steps(deaths):
    """A record may have another number in each life: markers come before it, or other rows."""
    for n in range(WITHIN_MANY):
        assert ALL not in deaths.blame.next_life(0)[1]
        deaths.announces(Rows(7, n, n))
        deaths.dies(at_ms=5000 * n)
    steps, suspects = deaths.blame.next_life(0)
    assert (steps, suspects[-1]) == (WATCHED_STEPS, ALL)
    for number in (99, 100):
        deaths.announces(Rows(7, number, number))
        deaths.survives()
    assert deaths.blame.next_life(0)[1][-1] == ALL
    deaths.survives(left=0)
    assert deaths.blame.next_life(0) == (0, ())


@pytest.mark.parametrize("slots", [(6, 5), (5, 6)])
def test_deaths_with_an_executor_have_nobody_tried(deaths, slots):
    for n in range(2 * WITHIN_MANY):
        deaths.announces(Rows(7, n, n))
        for slot in slots:  # who is first is counted in vain
            deaths.loses(slot, at_ms=10_000 * n)
    assert ALL not in deaths.blame.next_life(0)[1]


class Tried:
    """A task that is about to take items 10 to 12 of channel 7, four rows each."""

    def __init__(
        self,
        dies_of: set[int],
        *,
        deaths: int = 1,
        lives: int = 1,
        outcomes: Any = None,
        leaves_out: bool = False,
        of_each: bool = False,
    ) -> None:
        self.tried: list[list[int]] = []
        self.said: list[Any] = []
        self._dies_of, self._outcomes = dies_of, iter(outcomes or ())
        self._of_each = of_each
        spec: Any = SimpleNamespace(
            name="work[0]", inputs=(4, 7), is_implied=False, leaves_out=leaves_out
        )
        activate = msg.Activate(
            0,
            LIFE,
            (),
            (),
            (),
            (),
            watched_steps=2,
            suspects=(Suspect(Rows(7, 11, 11), deaths, max(deaths, lives)),),
        )
        self.program, self.world, self.wake_ms = self, self, None
        self.intake = SimpleNamespace(taken=0)
        self.watch = Watch(spec, activate, self, self.said.append)  # type: ignore[arg-type]

    def takes(self, first: int = 10) -> Sequence[int]:
        items = [
            Item(seq, Kind.BATCH, 0, 0, Batch(tuple(range(4 * seq, 4 * seq + 4)), 4, 4, 0), {}, 0)
            for seq in range(first, first + 3)
        ]
        return self.watch.before(self, Order(7, 3, 1, 1, 0), items)  # type: ignore[arg-type]

    def new_step(self, cause: Any) -> Any:
        return None

    def attempt(self, program: Any, do: Any) -> Trial:
        do(self)
        met = self._dies_of & set(self.tried[-1])
        is_fatal = bool(met) if self._of_each else bool(met) and met == self._dies_of
        return next(self._outcomes, Trial.DIED if is_fatal else Trial.SURVIVED)

    def on_batches(self, step: Any, channel: int, batches: Any, watermark_ms: Any) -> None:
        self.tried.append([row for batch in batches for row in batch.payload])

    @staticmethod
    def pick(batch: Batch, rows: Sequence[int]) -> Batch:
        return Batch(tuple(batch.payload[row] for row in rows), len(rows), len(rows), 0)

    @staticmethod
    def show(batch: Batch) -> str:
        return f"number {batch.payload[0]}"


TRIAL = msg.Announced(0, LIFE, Rows(7, 10, 12), is_cleared=False)


@pytest.mark.parametrize("row", range(40, 52))
def test_the_record_is_found(row):
    task = Tried({row})
    with pytest.raises(PoisonRecord, match=rf"number {row}, one of items 10 to 12 of input 1,"):
        task.takes()
    assert task.tried[0] == list(range(40, 52))
    assert task.tried[-1] == task.tried[-2] or len(task.tried[-1]) == 1
    assert task.said == [TRIAL], "it may take this process along"
    assert task.watch.condemned == Order(7, 3, 1, 1, 0)


def test_records_that_kill_together_are_found_together():
    task = Tried({44, 45})
    with pytest.raises(PoisonRecord, match="something in 2 records, from number 44 on"):
        task.takes()


def test_records_of_which_each_kills_are_left_out():
    task = Tried({41, 50, 51}, leaves_out=True, of_each=True)
    assert task.takes() == [1, 10, 11]
    assert task.tried[-1] == [row for row in range(40, 52) if row not in {41, 50, 51}]
    assert task.said == [TRIAL, msg.Announced(0, LIFE, Rows(7, 10, 12), is_cleared=True)]
    task = Tried({*range(40, 52)}, leaves_out=True, of_each=True)
    assert task.takes() == list(range(12))
    assert task.tried[-1] == []


def test_records_that_kill_only_together_are_not_left_out():
    with pytest.raises(PoisonRecord, match="something in 2 records, from number 44 on"):
        Tried({44, 45}, leaves_out=True).takes()


def test_who_survives_is_cleared():
    task = Tried(set())
    task.takes()
    assert task.said == [TRIAL, msg.Announced(0, LIFE, Rows(7, 10, 12), is_cleared=True)]
    assert not task.watch.after(Timer(0))
    task.takes(13)
    assert task.said[-1] == msg.Announced(0, LIFE, Rows(7, 13, 15), is_cleared=False)
    assert len(task.tried) == 1, "nobody suspects these"
    assert task.watch.after(Timer(0))
    assert task.said[-1] == msg.Survived(0, LIFE, 0)


def test_one_dead_copy_is_no_proof():
    task = Tried(set(), outcomes=[Trial.DIED])
    task.takes()
    assert task.said == [TRIAL]


def test_where_trials_say_nothing_deaths_count():
    task = Tried(set(), deaths=DEATHS - 1, outcomes=[Trial.UNKNOWN])
    task.takes()
    assert not task.said[-1].is_cleared
    task = Tried(set(), deaths=DEATHS, outcomes=[Trial.UNKNOWN])
    with pytest.raises(PoisonRecord, match=f"{DEATHS} lives of the task have ended within"):
        task.takes()


def test_what_trials_do_not_show_is_to_blame_in_the_end():
    """It dies only in the process itself, or takes it along from the copy."""
    task = Tried(set(), lives=LIVES - 1)
    task.takes()
    assert task.said[-1].is_cleared
    task = Tried(set(), lives=LIVES)
    with pytest.raises(PoisonRecord, match=f"{LIVES} lives of the task have ended within"):
        task.takes()
    assert not task.tried


def asked(number: int, key: str = "") -> tuple[CallId, Request]:
    return CallId(2, number), Request(None, (), 100 + number, key)


def watch_of_calls(*suspects: Suspect) -> tuple[Watch, list[Any]]:
    spec: Any = SimpleNamespace(name="work[0]", is_implied=False)
    said: list[Any] = []
    world: Any = None
    activate = msg.Activate(0, LIFE, (), (), (), (), watched_steps=3, suspects=suspects)
    return Watch(spec, activate, world, said.append), said


def test_a_watch_lasts_until_the_calls_of_its_steps_are_over():
    """What comes of a call may kill: its steps are long over then."""
    watch, _ = watch_of_calls()
    calls = OpenCalls(dict(map(asked, range(9))))
    assert not watch.finds_calls
    assert watch.asked((asked(1), asked(2)), calls) == (asked(1), asked(2))
    assert not any(watch.after(Timer(0)) for _ in range(9))
    watch.asked((asked(3),), calls)  # too late to be waited for
    assert not watch.after(Outcomes((Outcome(2, 1, 101, True, b""),)))
    assert watch.after(Outcomes((Outcome(2, 2, 102, True, b""),)))


@pytest.mark.parametrize("key", ["", "key7"])
@pytest.mark.parametrize("count", [{"deaths": DEATHS}, {"lives": LIVES}])
def test_a_call_that_has_ended_enough_lives_is_not_made_again(key, count):
    def suspect(number: int, deaths: int = 1, lives: int = DEATHS) -> Suspect:
        return Suspect(Rows(MADE - 2, 100 + number, 100 + number), deaths, lives)

    suspects = suspect(1, **count), suspect(2, DEATHS - 1, LIVES - 1)
    watch, said = watch_of_calls(*suspects, ONE_BY_ONE)
    assert watch.finds_calls
    due = tuple(asked(number, key) for number in range(1, 4))
    calls = OpenCalls(dict(due))
    assert watch.asked(due, calls) == due[1:]
    (outcome,) = calls.choose(9)
    error = decode_error(outcome.answer)
    assert type(error) is (EffectUnknown if key else PoisonRecord)
    assert f"{count.get('lives', DEATHS)} lives of the task have ended within it" in str(error)
    watch.calls(*due[1])
    watch.calls(*due[1], is_over=True)
    rows = Rows(MADE - 2, 102, 102)
    begun = msg.Announced(0, LIFE, rows, is_cleared=False, shown="()")
    assert said == [begun, msg.Announced(0, LIFE, rows, is_cleared=True)]
