"""Changed code on the past of a job: the same rows, order, time and answers."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from random import Random
from typing import Any

import pytest

import clonos
from clonos.branch import Branch, Budget, CannotReplace, Unanswered
from clonos.errors import Divergence
from clonos.simulator.jobs.arrow import _START as START
from clonos.simulator.jobs.arrow import (
    SCHEMA,
    ArrowJob,
    Asking,
    Running,
    enrich,
    look_up,
    random_arrow_job,
)
from clonos.simulator.world.virtual import Poisoned
from tests.replay.test_points import at_point
from tests.replay.test_replay import past_of
from tests.simulated import with_history

SEEDS = [*range(6), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(6, 80))]


def simulated(job, seed, **how):
    """A run with kills, of which everything is kept."""
    return with_history(job, seed, Random(f"branch {seed}"), **how)


def points_of(job, cluster):
    return past_of(job, cluster).keeper.history.points


@pytest.mark.parametrize("seed", SEEDS)
def test_unchanged_code_delivers_the_same_without_a_call(seed):
    """Windows, joins, processes, timers, calls, kills, markers or none; to the end or not."""
    random = Random(seed)
    job = random_arrow_job(random, has_markers=seed % 2 == 0)
    cluster = simulated(job, seed)
    points = points_of(job, cluster)
    begin, end = sorted((random.choice(points), random.choice(points)), key=lambda p: p.number)
    for first, until in ((points[0], None), (begin, None if seed % 3 else end)):
        past = at_point(job, cluster, first.number)
        branch = Branch(past, job.compiled, until=until)
        for sink in branch.sinks:
            same = branch.rows(sink)
            assert same == branch.job_rows(sink), sink
            assert branch.compare(sink).changes == 0
        assert not branch.calls
        assert all(line["matched"] for line in branch.bill.to_pylist())
        if first is points[0] and until is None:
            assert any(branch.rows(sink).num_rows for sink in branch.sinks)


def mine(process=None, work=enrich, keep_all=True, **settings):
    """One chain that asks in its steps, and a process behind a shuffle."""
    job = clonos.Job("mine", seed=7, sharing_depth="full", **settings)
    rows = job.source(clonos.sources.from_batches([], schema=SCHEMA), name="rows")
    keyed = rows.map(work, SCHEMA, name="enrich").filter(
        (lambda row: True) if keep_all else (lambda row: row.id % 3), name="some"
    )
    running = keyed.key_by("key").process(process or Running(), SCHEMA, name="running")
    running.sink(clonos.sinks.collect(), name="out")
    if settings.get("on_bad_record") == "keep":
        job.bad_records.sink(clonos.sinks.collect(), name="bad")
    return ArrowJob(job.compile(), rows=60)


@pytest.fixture(scope="module")
def kept():
    job = mine()
    return job, simulated(job, 5, slots=3, standbys=0)


def begun(kept):
    job, cluster = kept
    return at_point(job, cluster, 1)


def test_a_branch_ends_after_it_begins(kept):
    job, cluster = kept
    first, *_, last = points_of(job, cluster)
    with pytest.raises(CannotReplace, match="is before"):
        Branch(at_point(job, cluster, last.number), job.compiled, until=first)


def test_other_functions_than_the_job_had_are_noticed(kept):
    """Also if the branch ends early: it would show their rows as those of the job."""

    class Other(Running):
        def on_row(self, row, ctx):
            return [(*made[:3], made[3] + 1) for made in super().on_row(row, ctx)]

    job, cluster = kept
    points = points_of(job, cluster)
    middle = points[len(points) // 2]
    for until in (middle, None):
        past = at_point(job, cluster, 1, mine(Other()).compiled)
        with pytest.raises(Divergence, match="differ from those delivered"):
            Branch(past, {}, until=until)
    assert Branch(begun(kept), {}, until=middle).rows().num_rows


def test_a_function_is_replaced_and_asks_nothing_new(kept):
    def doubled(row, ctx):
        number, key, at, amount = enrich(row, ctx)
        return number, key, at, 2 * amount

    branch = Branch(begun(kept), {"enrich": doubled})
    found = branch.compare("out")
    assert found.count("changed") == 0
    assert found.count("only_a") == found.count("only_b") > 0
    assert branch.bill.column("matched").to_pylist()[0] > 0
    assert branch.calls == 0
    a = {r["id"]: r["amount"] for r in branch.job_rows().to_pylist()}
    b = {r["id"]: r["amount"] for r in branch.rows().to_pylist()}
    rows = [number for number in a.keys() & b.keys() if number <= 60]
    assert rows
    for key in rows:
        assert b[key] == pytest.approx(2 * a[key]) or a[key] == b[key]


class Deadly(Running):
    """Some rows kill the process."""

    def on_row(self, row, ctx):
        if row.id % 20 == 7:
            raise Poisoned
        return super().on_row(row, ctx)


@pytest.fixture(scope="module")
def without_the_deadly():
    """A run in which the log says which rows were left out, before and behind a shuffle."""

    def deadly(row, ctx):
        if row.id % 20 == 13:
            raise Poisoned
        return enrich(row, ctx)

    job = mine(Deadly(), deadly, on_bad_record="keep")
    cluster = simulated(job, 1, slots=3, standbys=0)
    assert cluster.poisonings
    return job, cluster


def test_a_row_that_was_left_out_because_it_kills_is_left_out(without_the_deadly):
    """Whoever makes a branch would die of it."""
    branch = Branch(begun(without_the_deadly), {})
    for sink in branch.sinks:
        assert branch.compare(sink).changes == 0
        assert branch.rows(sink).num_rows
    assert branch.rows("bad").num_rows == 6


def test_it_is_known_by_what_it_is_not_by_its_place(without_the_deadly):
    """Changed code before it makes other rows, of which none is taken for it."""

    def earlier(row, ctx):
        if row.id % 20 == 13:
            raise Poisoned
        number, key, at, amount = enrich(row, ctx)
        return (number - 1 if number % 20 in (7, 8) else number), key, at, amount

    with pytest.raises(Poisoned):
        Branch(begun(without_the_deadly), {"enrich": earlier})


def test_who_makes_fewer_rows_has_fewer_taken(kept):
    branch = Branch(begun(kept), mine(keep_all=False).compiled)
    a, b = branch.job_rows().to_pylist(), branch.rows().to_pylist()
    of_rows = {row["id"] for row in b if row["key"] is not None and row["amount"]}
    assert 0 < len(b) < len(a)
    assert of_rows
    assert branch.calls == 0


def test_who_makes_more_rows_has_more_taken():
    few = mine(keep_all=False)
    cluster = simulated(few, 5, slots=3, standbys=0)
    branch = Branch(at_point(few, cluster, 1), mine().compiled)
    a, b = branch.job_rows().to_pylist(), branch.rows().to_pylist()
    assert {row["id"] for row in b} >= set(range(1, 61)), "also those behind the last of the job's"
    assert {row["id"] for row in a if row["id"] <= 60} <= {row["id"] for row in b}


def other(number):
    return 41


def more(row, ctx):
    """One question more than the job has asked."""
    number, key, at, amount = enrich(row, ctx)
    return number, key, at, amount + ctx.call(other, row.id)


def test_what_the_log_does_not_know_is_refused_or_stubbed(kept):
    with pytest.raises(Unanswered, match=r"no answer to other\(\d+\)") as caught:
        Branch(begun(kept), {"enrich": more})
    assert "stand_in=" in caught.value.remedy
    branch = Branch(begun(kept), {"enrich": more}, stand_in=lambda fn, number: 0)
    assert branch.compare("out").changes == 0
    lines = {line["function"]: line for line in branch.bill.to_pylist()}
    assert lines["other"]["stubbed"] == 60
    assert lines["look_up"]["matched"] == 60
    assert lines["look_up"]["stubbed"] == 0
    assert branch.calls == 0


def test_live_calls_are_made_of_those_that_are_named_only_and_within_the_budget(kept):
    made = []

    def priced(number):
        made.append(number)
        return 0

    def asks(row, ctx):
        number, key, at, amount = enrich(row, ctx)
        return number, key, at, amount + ctx.call(priced, row.id)

    with pytest.raises(Unanswered, match="no answer to") as caught:
        Branch(begun(kept), {"enrich": asks}, calls="live")
    assert "ask=['priced']" in caught.value.remedy
    assert made == []
    with pytest.raises(Unanswered, match="no answer to") as caught:
        Branch(begun(kept), {"enrich": asks}, calls=Budget(calls=7), ask=["priced"])
    assert "the budget was used up" in caught.value.remedy
    assert len(made) == 7
    made.clear()
    how: dict[str, Any] = {"calls": Budget(cost=10.0), "ask": [priced], "cost": lambda _: 0.5}
    branch = Branch(begun(kept), {"enrich": asks}, stand_in=lambda *_: 0, **how)
    assert (branch.calls, branch.cost) == (20, 10.0)
    assert len(made) == 20
    assert branch.compare("out").changes == 0
    (line,) = [one for one in branch.bill.to_pylist() if one["function"] == "priced"]
    assert (line["live"], line["stubbed"], line["cost"]) == (20, 40, 10.0)
    assert branch.used_up_at.startswith("priced(")
    assert "cost 10.00" in str(branch)
    assert "the budget was used up at priced(" in str(branch)


def test_an_answer_serves_one_question_unless_it_may_be_reused(kept):
    def twice(row, ctx):
        with suppress(ValueError):
            ctx.call(look_up, row.id)
        return enrich(row, ctx)

    with pytest.raises(Unanswered, match="no answer to look_up"):
        Branch(begun(kept), {"enrich": twice})
    branch = Branch(begun(kept), {"enrich": twice}, reuse=[look_up])
    assert branch.compare("out").changes == 0
    (line,) = branch.bill.to_pylist()
    assert (line["matched"], line["reused"]) == (60, 60)


class Slower(Running):
    """Its timers come later than those of the job."""

    def on_row(self, row, ctx):
        self.sum.set(self.sum.get(0.0) + row.amount)
        if not self.seen.get(set()):
            ctx.timers.processing_time(ctx.clock.now_ms() + 20)
        self.seen.set(self.seen.get(set()) | {row.id})
        return [(row.id, row.key, row.at, self.sum.get())]


def test_timers_that_the_job_did_not_have_fire_by_its_clock(kept):
    branch = Branch(begun(kept), {"running": Slower()})
    a, b = branch.job_rows().to_pylist(), branch.rows().to_pylist()
    reports = [
        [r["amount"] for r in rows if r["at"] == START and r["amount"].is_integer()]
        for rows in (a, b)
    ]
    assert 0 < len(reports[1]) < len(reports[0]), "fewer reports, of more rows each"
    assert sum(reports[1]) <= sum(reports[0]) == 60
    assert len(a) - len(reports[0]) == len(b) - len(reports[1]) == 60


def two_tasks():
    job = clonos.Job("two", parallelism=2)
    rows = job.source(clonos.sources.from_batches([], schema=SCHEMA), name="rows")
    rows.sink(clonos.sinks.collect(), name="out")
    return ArrowJob(job.compile(), rows=40)


def asking(process):
    job = clonos.Job("asking", sharing_depth="full")
    rows = job.source(clonos.sources.from_batches([], schema=SCHEMA), name="rows")
    rows.key_by("key").process(process, SCHEMA, name="asking").sink(
        clonos.sinks.collect(), name="out"
    )
    return ArrowJob(job.compile(), rows=40)


class AskingMore(Asking):
    """One of two calls of each row is another one."""

    def on_first(self, reply, ctx):
        self.answers.set(self.answers.get(0) + 1)
        number, key, at, amount = reply.arguments
        self.service.ask(number, key, at, amount + (1 if number % 2 else 0), then="on_second")


def test_calls_that_rows_wait_for_are_matched_too():
    job = asking(Asking())
    cluster = simulated(job, 3, slots=3, standbys=0)
    past = at_point(job, cluster, 1)
    with pytest.raises(Unanswered, match="no answer to look_up"):
        Branch(past, {"asking": AskingMore()})
    past = at_point(job, cluster, 1)
    branch = Branch(past, {"asking": AskingMore()}, stand_in=lambda fn, *row: 1000)
    (line,) = branch.bill.to_pylist()
    assert (line["matched"], line["stubbed"]) == (60, 20)
    found = branch.compare("out", keys=["id"])
    ids = set(found.table.column("id").to_pylist())
    assert {n for n in range(1, 41) if n % 2} <= ids
    assert branch.rows().num_rows == branch.job_rows().num_rows == 40


class Together:
    """Calls of `another`, which answers when so many are open: programs have copies of functions,
    but not of this."""

    wanted = open = most = 0

    @classmethod
    def begin(cls, wanted):
        cls.wanted, cls.open, cls.most = wanted, 0, 0


async def another(number, key, at, amount):
    Together.open += 1
    Together.most = max(Together.most, Together.open)
    for _ in range(1000):
        if Together.most >= Together.wanted:
            break
        await asyncio.sleep(0.01)
    Together.open -= 1
    return 10 * number


class AskingAnother(Asking):
    """Its second question goes to somebody else."""

    def open(self, ctx):
        super().open(ctx)
        self.other = ctx.service("another", another)

    def on_first(self, reply, ctx):
        self.answers.set(self.answers.get(0) + 1)
        self.other.ask(*reply.arguments, then="on_second")


def test_calls_of_several_steps_are_open_together_if_that_is_wanted():
    job = asking(Asking())
    cluster = simulated(job, 3, slots=3, standbys=0)

    def made(wanted, calls="live", **how):
        Together.begin(wanted)
        past = at_point(job, cluster, 1)
        return Branch(past, {"asking": AskingAnother()}, calls=calls, ask=["another"], **how)

    one, at_once = made(1), Together.most
    assert at_once > 0
    branch = made(at_once + 5, in_flight=at_once + 5)
    assert Together.most > at_once, "more than any step asks"
    assert Together.open == 0
    assert branch.calls == one.calls == 40
    assert branch.rows().num_rows == one.rows().num_rows == 40
    assert branch.rows() == made(1, in_flight=at_once + 5).rows(), "however fast they answer"
    branch = made(1, Budget(calls=7), in_flight=20, stand_in=lambda *_: 0)
    assert branch.calls == 7
    assert branch.rows().num_rows == 40
    with pytest.raises(clonos.errors.WrongType, match="in_flight=-1"):
        made(1, in_flight=-1)


def test_what_cannot_be_replaced_is_said(kept):
    for replaced, match in (
        ({"nobody": enrich}, "no operator 'nobody'"),
        ({"out": enrich}, "'out' has no function that could be replaced"),
        ({"running": enrich}, "cannot replace what 'running' runs"),
        (two_tasks().compiled, "other tasks"),
    ):
        with pytest.raises(CannotReplace, match=match):
            Branch(begun(kept), replaced)
    branch = Branch(begun(kept), {})
    with pytest.raises(CannotReplace, match="no sink 'nobody'"):
        branch.rows("nobody")
    with pytest.raises(CannotReplace, match="no column 'nobody'"):
        branch.compare(keys=["nobody"])


def test_an_error_of_the_changed_code_is_its_own(kept):
    def wrong(row):
        raise KeyError(row.id)

    with pytest.raises(clonos.errors.OperatorError) as caught:
        Branch(begun(kept), {"enrich": wrong})
    assert isinstance(caught.value.__cause__, KeyError)


def test_nobody_writes_anything(kept):
    _, cluster = kept

    def contents():
        files = cluster.disks.shared.observe(), cluster.disks.local.observe()
        return [
            (info.path, bytes(of.read(info.path)))
            for of in files
            for info in of.entries("/", recursive=True)
            if not info.is_folder
        ]

    before = contents()
    Branch(begun(kept), {"enrich": more}, stand_in=lambda *_: 1)
    assert contents() == before
