"""Jobs that have settled go on with another graph: another parallelism, other operators."""

from __future__ import annotations

import asyncio
import errno
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import clonos
from clonos.cluster.directory import JobDirectory
from clonos.errors import (
    CannotReplace,
    CannotUpgrade,
    NotSettled,
    OperatorError,
    OtherJob,
    SinkFailed,
)
from tests.cluster.conftest import gated

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(900),
]

ROWS = 6_000
STAGES = (1, 2, 3)
NEVER = int(datetime(2100, 1, 1, tzinfo=timezone.utc).timestamp() * 1000)
TOLD = "key string, what string, number long"


async def price(n: int) -> int:
    await asyncio.sleep(0.001)
    return 7 * n


class Totals(clonos.Process):
    """The sum so far; by timer, how many rows have come since the last one."""

    def open(self, ctx: Any) -> None:
        self.total, self.fresh = ctx.state("total", "long"), ctx.state("fresh", "long")

    def on_row(self, row: Any, ctx: Any) -> Any:
        self.total.set(self.total.get(0) + row.price)
        if not self.fresh.get(0):
            ctx.timers.processing_time(ctx.clock.now_ms() + 20)
            ctx.timers.event_time(NEVER)  # at the end of the input
        self.fresh.set(self.fresh.get(0) + 1)
        yield row.key, "total", self.total.get()

    def on_timer(self, key: str, due: int, ctx: Any) -> Any:
        if self.fresh.get(0):
            yield key, "fresh", self.fresh.get()
            self.fresh.set(0)


class Counting(clonos.Process):
    """Numbers the rows of a key, in a state of this name."""

    def __init__(self, state: str = "count") -> None:
        self.state = state

    def open(self, ctx: Any) -> None:
        self.count = ctx.state(self.state, "long")

    def on_row(self, row: Any, ctx: Any) -> Any:
        self.count.set(self.count.get(0) + 1)
        yield row.key, "count", self.count.get()


def staged(kit: Any, folder: Path, rows: int) -> Any:
    """A source of so many rows, of which the first fifth comes by itself, and a fifth more by each
    :func:`more`: whatever takes how long, rows come behind every change."""
    source = kit.gated(folder, rows)
    factory = source.factory
    for stage in STAGES:
        factory = partial(gated, factory, rows * stage // 5, folder / f"stage{stage}")
    return replace(source, factory=factory)


def more(folder: Path) -> None:
    """Another fifth."""
    next(path for stage in STAGES if not (path := folder / f"stage{stage}").exists()).touch()


def all_the_rest(kit: Any, folder: Path) -> None:
    for stage in STAGES:
        (folder / f"stage{stage}").touch()
    kit.open_tap(folder)


@pytest.fixture
def made(kit, tmp_path):
    """Makes the job, whose rows come from one task, so that its output is known."""
    source = staged(kit, tmp_path, ROWS)

    def make(parallelism: int, rate: float = 400.0) -> clonos.Job:
        job = clonos.Job(
            "totals",
            parallelism=parallelism,
            checkpoint_dir=str(tmp_path / "checkpoint"),
            checkpoint_interval="200 ms",
        )
        events = job.source(source, name="events", parallelism=1, rows_per_second=rate)
        events = events.with_watermark("at", "1 second", name="times")
        priced = events.with_column_async("price long", price, "n", name="price", in_flight=50)
        totals = priced.key_by("key").process(Totals(), TOLD, name="totals")
        sink = clonos.sinks.parquet(str(tmp_path / "out"), rows_per_file=50, linger="50 ms")
        totals.sink(sink, name="out")
        return job

    return make


def told(kit: Any) -> tuple[list[tuple[str, int]], Counter[str]]:
    """All sums of a run that nothing disturbs, and how many rows each key has."""
    sums: Counter[str] = Counter()
    rows: Counter[str] = Counter()
    totals = []
    for _, key, n in map(kit.row, range(ROWS)):
        sums[key] += 7 * n
        rows[key] += 1
        totals.append((key, sums[key]))
    return totals, rows


def check(table: pa.Table, kit: Any) -> None:
    totals, rows = told(kit)
    found = sorted((r["key"], r["number"]) for r in table.to_pylist() if r["what"] == "total")
    assert found == sorted(totals)
    fresh: Counter[str] = Counter()
    for row in table.to_pylist():
        if row["what"] == "fresh":
            fresh[row["key"]] += row["number"]
    assert fresh == rows


def test_two_then_four_then_one(kit, spark, tmp_path, made):
    running = made(2).start(spark)
    kit.wait_rows(running, 200)
    assert running.stop(settle="60 seconds")
    with pytest.raises(OtherJob, match="upgrade=True"):
        made(4).start(spark)
    running = made(4).start(spark, upgrade=True)
    kit.wait_quiet(running)
    kit.kill(running, "totals[2]")
    kit.wait_recovered(running, 1)
    more(tmp_path)
    kit.wait_rows(running, 200)
    assert running.stop(settle="60 seconds")
    files = {path.name: path.read_bytes() for path in (tmp_path / "out").glob("part-*.parquet")}
    running = made(1, 4000.0).start(spark, upgrade=True)
    kit.wait_quiet(running)
    kit.kill(running, "totals[0]")
    kit.wait_recovered(running, 1)
    all_the_rest(kit, tmp_path)
    assert running.wait(300).is_complete
    check(pq.read_table(tmp_path / "out"), kit)
    for name, content in files.items():  # what was written under earlier plans stays as it was
        assert (tmp_path / "out" / name).read_bytes() == content
    assert {name.split("-")[1] for name in files} == {"0000", "0001"}


def test_not_settled(kit, spark, tmp_path, made):
    """A job that has merely stopped goes on as it was, and nothing of it has changed."""
    running = made(1).start(spark)
    kit.wait_rows(running, 50)
    running.stop()
    if not running.wait(0).is_complete and not running._setup.keeper.is_settled:
        with pytest.raises(CannotUpgrade, match="has not settled"):
            made(2).start(spark, upgrade=True)
    all_the_rest(kit, tmp_path)
    assert made(1, 4000.0).run(spark, timeout_s=300).is_complete
    check(pq.read_table(tmp_path / "out"), kit)


def test_an_operator_comes_and_another_goes(kit, spark, tmp_path):
    source, rows = kit.gated(tmp_path, 2_000), 2_000

    def make(*names: str) -> clonos.Job:
        job = clonos.Job("two", parallelism=2, checkpoint_dir=str(tmp_path / "checkpoint"))
        keyed = job.source(source, name="events", parallelism=1, rows_per_second=1000.0)
        for name in names:
            counted = keyed.key_by("key").process(Counting(), TOLD, name=name)
            counted.sink(clonos.sinks.collect(), name=f"{name} out")
        return job

    running = make("stays", "goes").start(spark)
    kit.wait_rows(running, 100, sink="stays out")
    assert running.stop(settle="60 seconds")
    before = running.wait(0).rows["stays out"]
    with pytest.raises(CannotUpgrade, match=r"drop_state=\['goes'\]"):
        make("stays", "comes").start(spark, upgrade=True)
    with pytest.raises(CannotUpgrade, match="no operator of this name"):
        make("stays", "comes").start(spark, upgrade=True, drop_state=["gone"])
    all_the_rest(kit, tmp_path)
    started = make("stays", "comes").start(spark, upgrade=True, drop_state=["goes"])
    result = started.wait(300)
    keys = Counter(key for _, key, _ in map(kit.row, range(rows)))
    whole = sorted((key, n) for key, count in keys.items() for n in range(1, count + 1))
    stays = result.table("stays out").to_pylist()
    assert sorted((row["key"], row["number"]) for row in stays) == whole
    seen = Counter(key for _, key, _ in map(kit.row, range(before)))
    later = keys - seen
    due = sorted((key, n) for key, count in later.items() for n in range(1, count + 1))
    comes = result.table("comes out").to_pylist()
    assert sorted((row["key"], row["number"]) for row in comes) == due


# --- while it runs --------------------------------------------------------------------------------


def test_a_running_job_has_four_tasks_then_one(kit, spark, tmp_path, made):
    """Under kills; whoever waits for its end goes on waiting."""
    running = made(2).start(spark)
    with ThreadPoolExecutor(1) as pool:
        end = pool.submit(running.wait, 600)
        kit.wait_rows(running, 200)
        first = running.run_id
        running.rescale(4, within="60 seconds")
        assert running.run_id != first
        assert sum(task.name.startswith("totals") for task in running.tasks()) == 4
        kit.wait_quiet(running)
        kit.kill(running, "totals[2]")
        kit.wait_recovered(running, 1)
        more(tmp_path)
        kit.wait_rows(running, 200)
        with pytest.raises(CannotUpgrade, match="source, which keeps its tasks"):
            running.rescale({"events": 2})
        running.rescale({"totals": 1}, within="60 seconds")
        more(tmp_path)
        kit.wait_rows(running, 50)
        running.upgrade(made(3, 4000.0), within="60 seconds")
        assert sum(task.name.startswith("totals") for task in running.tasks()) == 3
        assert not end.done()
        all_the_rest(kit, tmp_path)
        assert end.result().is_complete
    found = pq.read_table(tmp_path / "out")
    check(found, kit)
    assert running.delivered == {"out": found.num_rows}, "the changes have not begun to count anew"


def test_a_running_job_that_cannot_go_on_with_a_graph_goes_on_as_it_was(kit, spark, tmp_path):
    source, rows = staged(kit, tmp_path, 2_000), 2_000

    def make(name: str, parallelism: int = 1, folder: str = "checkpoint") -> clonos.Job:
        job = clonos.Job("two", parallelism=parallelism, checkpoint_dir=str(tmp_path / folder))
        keyed = job.source(source, name="events", parallelism=1, rows_per_second=1000.0)
        counted = keyed.key_by("key").process(Counting(), TOLD, name=name)
        counted.sink(clonos.sinks.collect(), name="out")
        return job

    running = make("counts").start(spark)
    kit.wait_rows(running, 100, sink="out")
    with pytest.raises(CannotUpgrade, match=r"drop_state=\['counts'\]"):
        running.upgrade(make("other"))
    assert running.is_running
    more(tmp_path)
    kit.wait_rows(running, 100, sink="out")
    with pytest.raises(CannotUpgrade, match="checkpoint_dir was"):
        running.upgrade(make("counts", folder="elsewhere"))
    all_the_rest(kit, tmp_path)
    result = running.wait(300)
    keys = Counter(key for _, key, _ in map(kit.row, range(rows)))
    whole = sorted((key, n) for key, count in keys.items() for n in range(1, count + 1))
    found = result.table("out").to_pylist()
    assert sorted((row["key"], row["number"]) for row in found) == whole
    with pytest.raises(CannotUpgrade, match="has ended"):
        running.upgrade(make("counts", 2))


def test_a_store_that_is_away_during_a_change_does_not_end_the_job(
    kit, spark, tmp_path, made, monkeypatch
):
    """Neither driver can read what was written last, for a while; there is no other one."""
    running, right = made(1).start(spark), JobDirectory.catch_up
    kit.wait_rows(running, 100)
    away = ["for the new one", "for the old one", "and again"]

    def catch_up(*how: Any, **more: Any) -> None:
        if away:
            away.pop()
            raise OSError(errno.EIO, "the store is away")
        right(*how, **more)

    monkeypatch.setattr(JobDirectory, "catch_up", catch_up)
    with pytest.raises(OSError, match="the store is away"):
        running.upgrade(made(2, 4000.0), within="60 seconds")
    assert not away
    assert any("it is tried again" in warning.lower() for warning in running.warnings)
    all_the_rest(kit, tmp_path)
    assert running.wait(300).is_complete
    check(pq.read_table(tmp_path / "out"), kit)


def test_after_the_switch_only_the_new_graph_can_be_started_and_the_error_says_so(
    kit, spark, tmp_path, made, monkeypatch
):
    running, right = made(1).start(spark), JobDirectory.claim
    kit.wait_rows(running, 100)

    def claim(*how: Any) -> None:
        raise SinkFailed("there is no room for the new one", remedy="make some")

    monkeypatch.setattr(JobDirectory, "claim", claim)
    with pytest.raises(SinkFailed, match=r"make some; the job has its new graph by now"):
        running.upgrade(made(2, 4000.0), within="60 seconds")
    with pytest.raises(SinkFailed, match="start that again"):
        running.wait(60)
    monkeypatch.setattr(JobDirectory, "claim", right)
    with pytest.raises(OtherJob):
        made(1).start(spark)
    all_the_rest(kit, tmp_path)
    assert made(2, 4000.0).start(spark).wait(300).is_complete
    check(pq.read_table(tmp_path / "out"), kit)


def test_a_job_that_does_not_settle_goes_on_as_it_was(kit, spark, tmp_path, made):
    running = made(1).start(spark)
    kit.wait_rows(running, 100)
    first = running.run_id
    for job in (made(2), made(1)):  # a millisecond is not enough for a checkpoint
        with pytest.raises(NotSettled, match=r"within 0\.001 s"):
            running.upgrade(job, within="1 ms")
    assert running.run_id == first
    more(tmp_path)
    kit.wait_rows(running, 100)
    all_the_rest(kit, tmp_path)
    running.upgrade(made(2, 4000.0))
    assert running.wait(300).is_complete
    check(pq.read_table(tmp_path / "out"), kit)


def test_an_operator_gets_another_name_while_the_job_runs_and_after_a_stop(kit, spark, tmp_path):
    source, rows = staged(kit, tmp_path, 2_000), 2_000

    def make(name: str, parallelism: int) -> clonos.Job:
        folder = str(tmp_path / "checkpoint")
        job = clonos.Job("named", parallelism=parallelism, checkpoint_dir=folder)
        keyed = job.source(source, name="events", parallelism=1, rows_per_second=1000.0)
        counted = keyed.key_by("key").process(Counting(), TOLD, name=name)
        counted.sink(clonos.sinks.collect(), name="out")
        return job

    running = make("score", 1).start(spark)
    kit.wait_rows(running, 100, sink="out")
    with pytest.raises(CannotUpgrade, match="there is no such operator") as told:
        running.upgrade(make("scoring", 2), renamed={"score": "scorin"})
    assert "there are events, scoring, out" in told.value.remedy
    running.upgrade(make("scoring", 2), renamed={"score": "scoring"}, within="60 seconds")
    more(tmp_path)
    kit.wait_rows(running, 100, sink="out")
    assert running.stop(settle="60 seconds")
    with pytest.raises(CannotUpgrade, match="'scoring', which has state") as told:
        make("judging", 1).start(spark, upgrade=True)
    assert "renamed={'scoring': 'judging'}" in told.value.remedy
    names = {"scoring": "judging"}
    assert make("judging", 1).start(spark, upgrade=True, renamed=names).stop(settle="60 seconds")
    all_the_rest(kit, tmp_path)
    again = make("judging", 1).start(spark, upgrade=True, renamed=names)  # as before
    assert any("renamed=" in said for said in again.warnings)
    keys = Counter(key for _, key, _ in map(kit.row, range(rows)))
    whole = sorted((key, n) for key, count in keys.items() for n in range(1, count + 1))
    found = again.wait(300).table("out").to_pylist()
    assert sorted((row["key"], row["number"]) for row in found) == whole


def test_a_state_gets_another_name_while_the_job_runs_and_after_a_stop(kit, spark, tmp_path):
    """The graph does not show it: what was renamed is written down."""
    source, rows = staged(kit, tmp_path, 2_000), 2_000

    def make(state: str, parallelism: int) -> clonos.Job:
        folder = str(tmp_path / "checkpoint")
        job = clonos.Job("named", parallelism=parallelism, checkpoint_dir=folder)
        keyed = job.source(source, name="events", parallelism=1, rows_per_second=1000.0)
        counted = keyed.key_by("key").process(Counting(state), TOLD, name="score")
        counted.sink(clonos.sinks.collect(), name="out")
        return job

    names = {("score", "nothing yet"): "count"}
    running = make("count", 1).start(spark, upgrade=True, renamed=names)
    kit.wait_rows(running, 100, sink="out")
    with pytest.raises(CannotUpgrade, match="no key has a value of that name"):
        running.upgrade(make("sum", 1), renamed={("score", "cuont"): "sum"})
    more(tmp_path)
    kit.wait_rows(running, 100, sink="out")
    before = running.run_id
    for parallelism in (1, 2):
        with pytest.raises(CannotUpgrade, match="had values of the state 'count', and open"):
            running.upgrade(make("sum", parallelism), within="60 seconds")
    assert running.run_id == before, "it goes on as it was"
    running.upgrade(make("sum", 1), renamed={("score", "count"): "sum"}, within="60 seconds")
    more(tmp_path)
    kit.wait_rows(running, 100, sink="out")
    names = {("score", "sum"): "n"}
    running.upgrade(make("n", 2), renamed=names, within="60 seconds")
    more(tmp_path)
    kit.wait_rows(running, 100, sink="out")
    assert running.stop(settle="60 seconds")
    again = make("n", 2).start(spark, upgrade=True, renamed=names)  # as before
    assert any("renamed=" in said for said in again.warnings)
    assert again.stop(settle="60 seconds")
    all_the_rest(kit, tmp_path)
    lost = make("all", 2).start(spark)
    with pytest.raises(CannotUpgrade, match="had values of the state 'n', and open") as told:
        lost.wait(300)
    assert "renamed={('score', 'n'): 'all'}" in told.value.remedy
    last = make("all", 2).start(spark, upgrade=True, renamed={("score", "n"): "all"})
    keys = Counter(key for _, key, _ in map(kit.row, range(rows)))
    whole = sorted((key, n) for key, count in keys.items() for n in range(1, count + 1))
    found = last.wait(300).table("out").to_pylist()
    assert sorted((row["key"], row["number"]) for row in found) == whole


def test_what_a_branch_has_tried_is_adopted(kit, spark, tmp_path):
    rows = 2_000
    job = clonos.Job(
        "prompt",
        checkpoint_dir=str(tmp_path / "checkpoint"),
        checkpoint_interval="200 ms",
        history="1 hour",
    )
    events = job.source(
        staged(kit, tmp_path, rows), name="events", parallelism=1, rows_per_second=1000.0
    )
    judged = events.map(lambda row: (row.at, "old"), "at timestamp, prompt string", name="judge")
    judged.sink(clonos.sinks.collect(), name="out")
    running = job.start(spark)
    kit.wait_rows(running, 100)
    with pytest.raises(CannotReplace, match="no operator 'nobody'"):
        running.branch(at="oldest", replace={"nobody": str})
    with pytest.raises(OperatorError, match="ZeroDivisionError") as caught:
        running.branch(at="oldest", replace={"judge": lambda row: 1 / 0})
    assert "1 / 0" in caught.value.trace
    branch = running.branch(at="oldest", replace={"judge": lambda row: (row.at, "new")})
    assert branch.compare(keys=["at"]).count("changed") == branch.rows().num_rows > 0
    running.adopt(branch, within="60 seconds")
    running.rescale(1)  # what was adopted stays
    all_the_rest(kit, tmp_path)
    found = running.wait(300).table("out").sort_by("at")
    assert found["at"].to_pylist() == sorted(at for at, _, _ in map(kit.row, range(rows)))
    prompts = found["prompt"].to_pylist()
    assert prompts == sorted(prompts, reverse=True), "the old one, then the new one"
    assert 100 <= prompts.count("old") < rows


def test_a_canary_follows_a_job_and_is_adopted(kit, spark, tmp_path):
    rows, asked = 2_000, tmp_path / "asked"

    def ask(number: int) -> int:
        with asked.open("a") as file:
            file.write(f"{number}\n")
        return -number

    def judge(row: Any, ctx: Any) -> Any:
        return (row.at, "old", ctx.call(ask, row.n))

    def careful(row: Any, ctx: Any) -> Any:
        return (row.at, "new", ctx.call(ask, row.n))

    job = clonos.Job(
        "canary",
        checkpoint_dir=str(tmp_path / "checkpoint"),
        checkpoint_interval="200 ms",
        history="1 hour",
    )
    events = job.source(
        staged(kit, tmp_path, rows), name="events", parallelism=1, rows_per_second=1000.0
    )
    apart = events.slot_group("judge").start_new_chain()
    judged = apart.map(judge, "at timestamp, prompt string, n long", name="judge")
    judged.sink(clonos.sinks.collect(), name="out")
    running = job.start(spark)
    with pytest.raises(CannotReplace, match="no operator 'nobody'"):
        running.canary({"nobody": careful})
    kit.wait_rows(running, 20)
    same = running.canary({"judge": judge}, every="50 ms")
    other = running.canary({"judge": careful}, keys={"out": ["at"]}, every="50 ms")
    wrong = running.canary({"judge": lambda row: (row.at, 1 / 0, 0)}, every="50 ms")
    same.catch_up()
    kit.kill(running, "judge[0]")
    kit.wait_recovered(running, 1)
    more(tmp_path)
    kit.wait_rows(running, 100)
    with pytest.raises(OperatorError, match="ZeroDivisionError") as caught:
        wrong.catch_up()
    assert "1 / 0" in caught.value.trace
    assert "ZeroDivisionError" in str(wrong)
    kit.wait_for(lambda: same.compare().rows_a >= 100)
    assert (same.changes, same.error) == (0, None)
    same.stop()
    assert not same.is_running
    other.catch_up()  # before that, perhaps nothing was compared
    kit.wait_for(lambda: other.compare("out").count("changed") >= 100)
    other.catch_up()
    found = other.compare("out")
    assert found.rows_a == found.rows_b == found.count("changed") == other.changes
    assert set(found.dataframe(spark).columns) >= {"change", "at", "prompt_a", "prompt_b"}
    with pytest.raises(CannotReplace, match="rows are different"):
        other.adopt()
    other.adopt(anyway=True, within="60 seconds")
    assert not other.is_running
    all_the_rest(kit, tmp_path)
    table = running.wait(300).table("out").sort_by("at")
    assert table["at"].to_pylist() == sorted(at for at, _, _ in map(kit.row, range(rows)))
    prompts = table["prompt"].to_pylist()
    assert prompts == sorted(prompts, reverse=True), "the old one, then the new one"
    assert 120 <= prompts.count("old") < rows
    calls = len(asked.read_text().splitlines())
    assert rows <= calls < rows + 100, "the killed task may ask again; canaries have not asked"
