"""Changed code follows the log of a job while that grows, in pieces of any size."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from clonos.branch import Branch, Budget, Unanswered, canary
from clonos.branch.answers import Answers
from clonos.branch.compare import compare
from clonos.branch.follow import Follower
from clonos.branch.live_log import newest, part_of, without_log
from clonos.branch.tally import Tally
from clonos.core.history import Point
from clonos.core.housekeeper import HouseKeeper
from clonos.errors import CannotReplace, OperatorError
from clonos.graph.changed import changed
from clonos.replay import NothingToReplay
from clonos.simulator.jobs.arrow import Asking, Running, random_arrow_job
from tests.branch.test_branch import AskingMore, asking, mine, more, other, points_of, simulated
from tests.replay.test_points import at_point

SEEDS = [*range(4), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(4, 80))]


class GrowingLog:
    """The log of a simulated job that is over, as it was from moment to moment."""

    def __init__(self, job, cluster, random):
        self._job, self._cluster, self._random = job, cluster, random
        self.points = points_of(job, cluster)
        self.whole = at_point(job, cluster, 1)
        self._lengths = {t.id: len(dict(self.whole.records(t.id))) for t in job.plan.tasks}
        self._heard = dict(self.points[0].positions)
        self.began, self.is_whole = 0, False

    def begin(self, heard):
        self.began += 1
        fitting = [p for p in self.points if heard is None or at_or_before(p, heard)]
        number = 1 if heard is None else fitting[-1].number
        return without_log(at_point(self._job, self._cluster, number))

    def more(self, heard):
        """Some steps more of a task or two, and what they rest on; or all."""
        if self.is_whole:
            return self.parts(heard, self.whole.ends())
        wanted = {t: self._heard.get(t, 0) for t in self._lengths}
        for task in self._random.sample(sorted(wanted), k=self._random.randint(0, len(wanted))):
            wanted[task] += self._random.randint(1, 12)
        until = self.whole.ends(wanted)
        self._heard = {t: max(until[t], self._heard.get(t, 0)) for t in until}
        return self.parts(heard, self._heard)

    def parts(self, heard, until):
        runs = [run for life in self.whole.activations.values() for run in life.log]
        parts = (part_of(run, heard[run.task], until[run.task]) for run in runs)
        return [part for part in parts if part is not None]


def at_or_before(point, heard):
    return all(at <= heard[task] for task, at in point.positions.items())


def followed(job, cluster, replace, seed, keys=None, anew_every=None, **how):
    """What a canary says in the end, and how often it has looked."""
    log = GrowingLog(job, cluster, Random(seed))
    options = {"calls": "stub", "stand_in": None, "ask": (), "reuse": (), "cost": None, **how}
    answers = Answers((), **options)
    follower = Follower(log, changed(job.compiled, replace), answers, keys or {})
    try:
        for look in range(1, 40):
            if anew_every and look % anew_every == 0:
                follower._heard_since = 1 << 40  # the job's own code begins anew
            report = follower.go_on()
        log.is_whole = True
        follower.go_on()
        report = follower.go_on(to_the_end=True)
        assert report.behind == 0
        return report, log
    finally:
        follower.close()


@pytest.mark.parametrize("anew_every", [None, 7])
@pytest.mark.parametrize("seed", SEEDS)
def test_unchanged_code_does_the_same_without_a_call(seed, anew_every):
    """Windows, joins, processes, timers, calls, kills, markers or none; the replay of the job's own
    code begins anew in between, or does not."""
    random = Random(seed)
    job = random_arrow_job(random, has_markers=seed % 2 == 0)
    cluster = simulated(job, seed)
    report, log = followed(job, cluster, {}, seed, anew_every=anew_every)
    assert log.began > 1 or not anew_every
    branch = Branch(at_point(job, cluster, 1), {})
    for sink in branch.sinks:
        found = report.differences[sink]
        assert found.changes == 0, str(found)
        assert found.rows_a == found.rows_b == branch.job_rows(sink).num_rows
    assert any(one.rows_a for one in report.differences.values())
    assert report.calls == 0
    assert report.steps == sum(len(dict(log.whole.records(t.id))) for t in job.plan.tasks)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_journal_that_is_read_in_pieces_says_at_each_moment_what_it_says_as_a_whole(seed):
    """Kills, markers or none: what can be followed is the same."""
    random = Random(seed)
    job = random_arrow_job(random, has_markers=seed % 2 == 0)
    cluster = simulated(job, seed)
    records, at = list(cluster.disks.journal()), 0
    pieces = HouseKeeper(job.plan, job.encode, job.decode)

    def known(keeper):
        keeper.committed()
        history = keeper.history
        runs = [keeper.book.runs(task, 1) for task in keeper.positions]
        return (keeper.stable, keeper.positions, runs, keeper.complete, history.points,
                history.closed, history.open, history.segments, history.going)  # fmt: skip

    while at < len(records):
        until = at + random.randint(1, 1 + len(records) // 10)
        pieces.recover(records[at:until])
        whole = HouseKeeper(job.plan, job.encode, job.decode)
        whole.recover(records[:until])
        assert known(pieces) == known(whole)
        pieces.take_records()
        at = until
    assert pieces.complete


@pytest.fixture(scope="module")
def kept():
    job = mine()
    return job, simulated(job, 5, slots=3, standbys=0)


@pytest.mark.parametrize("keys", [None, ["id"]])
def test_differences_are_those_of_a_branch(kept, keys):
    class Twice(Running):
        def on_row(self, row, ctx):
            return [(*made[:3], 2 * made[3]) for made in super().on_row(row, ctx)]

    replace = {"running": Twice()}
    branch = Branch(at_point(kept[0], kept[1], 1), replace).compare("out", keys)
    report, _ = followed(kept[0], kept[1], replace, 3, {"out": keys} if keys else None)
    found = report.differences["out"]
    for change in ("changed", "only_a", "only_b"):
        assert found.count(change) == branch.count(change)
    assert found.changes == branch.changes > 0
    assert sorted(map(repr, found.table.to_pylist())) == sorted(map(repr, branch.table.to_pylist()))


def test_questions_that_the_job_has_not_asked(kept):
    with pytest.raises(Unanswered, match="other"):
        followed(kept[0], kept[1], {"enrich": more}, 3)
    how = {"calls": Budget(calls=1000), "ask": [other], "cost": lambda answer: 0.5}
    report, _ = followed(kept[0], kept[1], {"enrich": more}, 3, **how)
    assert report.calls > 0
    assert report.cost == 0.5 * report.calls
    (line,) = [one for one in report.bill.to_pylist() if one["function"] == "other"]
    assert line["live"] == report.calls


def test_calls_that_rows_wait_for():
    job = asking(Asking())
    cluster = simulated(job, 3, slots=3, standbys=0)
    for seed in range(3):
        report, _ = followed(job, cluster, {}, seed, anew_every=5 if seed else None)
        assert report.differences["out"].changes == 0
        report, _ = followed(
            job, cluster, {"asking": AskingMore()}, seed, {"out": ["id"]}, stand_in=lambda *_: 1000
        )
        (line,) = report.bill.to_pylist()
        assert (line["matched"], line["stubbed"]) == (60, 20)
        assert report.differences["out"].rows_b == 40


def test_an_error_of_the_changed_code(kept):
    def wrong(row):
        raise KeyError(row.id)

    with pytest.raises(OperatorError, match="KeyError"):
        followed(kept[0], kept[1], {"enrich": wrong}, 3)
    with pytest.raises(CannotReplace, match="no column 'nobody'"):
        followed(kept[0], kept[1], {}, 3, {"out": ["nobody"]})


def test_few_questions_are_remembered(kept):
    """What the changed code does not ask is forgotten in time, and what it asks at once."""
    report, _ = followed(kept[0], kept[1], {}, 3, remembers=10_000)
    assert report.differences["out"].changes == 0
    answers = Answers((), "stub", None, (), (), None, remembers=3)
    log = GrowingLog(kept[0], kept[1], Random(1))
    follower = Follower(log, changed(kept[0].compiled, {"enrich": lambda row: row}), answers, {})
    log.is_whole = True
    follower.go_on()
    follower.close()
    assert len(answers._asked) == 3
    assert sum(len(known.free) for known in answers._known.values()) == 3


@pytest.mark.parametrize("failures", [canary.ATTEMPTS - 1, canary.ATTEMPTS])
def test_a_job_that_changes_its_files_as_a_canary_begins(kept, monkeypatch, failures):
    """Points are dropped, and layers deleted, while they are read."""

    class Hasty(GrowingLog):
        is_over = True

        def __init__(self, compiled, *where):
            job, cluster = kept
            super().__init__(job, cluster, Random(3))
            self.is_whole = True

        def begin(self, heard):
            if self.began < failures:
                self.began += 1
                raise NothingToReplay("the job has gone on too fast")
            return super().begin(heard)

    monkeypatch.setattr(canary, "LiveLog", Hasty)
    reports = canary.follow(lambda s: False, kept[0].compiled, "there", None, {}, {}, 0.01)
    if failures == canary.ATTEMPTS:
        with pytest.raises(NothingToReplay, match="too fast"):
            next(reports)
    else:
        *_, last = reports
        assert last.steps > 0


def test_where_it_begins():
    def point(number, **positions):
        at = {int(task[1:]): position for task, position in positions.items()}
        return Point(number, 0, 0, at, {}, {})

    history: Any = SimpleNamespace(going=1)
    history.points = [point(n, t0=10 * n, t1=5 * n) for n in (1, 2, 3)]
    assert newest(history, None, "job").number == 3
    assert newest(history, {0: 29, 1: 99}, "job").number == 2
    with pytest.raises(NothingToReplay, match="gone on too fast"):
        newest(history, {0: 19, 1: 99}, "job")
    history.points = []
    with pytest.raises(NothingToReplay, match="keeps no history"):
        newest(history, None, "job")


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("keys", [None, ["id"]])
def test_a_tally_finds_what_a_comparison_finds(seed, keys):
    random = Random(seed)
    schema = pa.schema([("id", pa.int64()), ("n", pa.int64())])

    def rows():
        return [{"id": random.randint(0, 9), "n": random.randint(0, 2)} for _ in range(30)]

    tally, sides = Tally("out", schema, keys), {"a": rows(), "b": rows()}
    left = {side: list(given) for side, given in sides.items()}
    while any(left.values()):
        side: Any = random.choice([side for side in left if left[side]])
        some, left[side] = left[side][:3], left[side][3:]
        tally.add(side, pa.RecordBatch.from_pylist(some, schema))
    a, b = (pa.Table.from_pylist(given, schema) for given in sides.values())
    expected, found = compare("out", a, b, keys), tally.comparison()
    assert (found.rows_a, found.rows_b) == (30, 30)
    for change in ("changed", "only_a", "only_b"):
        assert found.count(change) == expected.count(change)


def test_a_tally_counts_all_and_shows_some(monkeypatch):
    monkeypatch.setattr("clonos.branch.tally.KEPT_MAX", 5)
    tally = Tally("out", pa.schema([("n", pa.int64())]), None)
    tally.add("a", pa.RecordBatch.from_pydict({"n": list(range(100))}))
    found = tally.comparison()
    assert (found.count("only_a"), found.changes, found.table.num_rows) == (100, 100, 5)


def test_a_tally_does_not_grow_for_ever(monkeypatch):
    """Rows that have no like are counted, and let go in the end."""
    monkeypatch.setattr("clonos.branch.tally.WAITING_MAX", 10)
    tally = Tally("out", pa.schema([("n", pa.int64())]), None)
    tally.add("a", pa.RecordBatch.from_pydict({"n": [7, 7, *range(100, 150)]}))
    assert sum(map(len, tally._waiting["a"].values())) == 10
    tally.add("b", pa.RecordBatch.from_pydict({"n": [7, 149]}))
    found = tally.comparison()
    assert (found.count("only_a"), found.count("only_b")) == (51, 1), "7 had been let go"
    assert found.table.num_rows == 52
