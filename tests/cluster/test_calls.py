"""Calls that take a while, in real processes that are killed: no answer is asked for twice."""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import cloudpickle

import clonos
from clonos.errors import BudgetSpent, OperatorError
from clonos.nodes import alarms
from clonos.nodes.views import Spent

if TYPE_CHECKING:
    from pathlib import Path

cloudpickle.register_pickle_by_value(sys.modules[__name__])
ROWS = 90
pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default"), pytest.mark.timeout(900)]


def hangs(n: int) -> bool:
    return n % 3 == 0


async def ask(folder: Path, n: int) -> int:
    """Writes down what it was asked and what it answers, which is something else each time."""
    with (folder / "asked").open("a") as asked:
        asked.write(f"{n}\n")
    while hangs(n) and not (folder / "gate").exists():  # noqa: ASYNC110 - of another process
        await asyncio.sleep(0.01)
    answer = random.getrandbits(40)
    with (folder / "answered").open("a") as answered:
        answered.write(f"{n} {answer}\n")
    return answer


def asked(folder: Path) -> Counter[int]:
    path = folder / "asked"
    return Counter(map(int, path.read_text().split())) if path.exists() else Counter()


def answers(folder: Path) -> set[tuple[int, int]]:
    lines = (folder / "answered").read_text().splitlines()
    return {(int(n), int(answer)) for n, answer in map(str.split, lines)}


def build(folder: Path, **settings: Any) -> clonos.Job:
    job = clonos.Job("calls", parallelism=1, **settings)
    source = clonos.sources.from_batches([[(n,) for n in range(ROWS)]], "n long")
    rows = job.source(source, name="in").slot_group("asking").start_new_chain()
    answered = rows.with_column_async(
        "answer long", partial(ask, folder), "n", name="ask", in_flight=ROWS, ordered=False
    )
    answered.sink(clonos.sinks.collect(), name="out")
    return job


def check(folder: Path, table: Any) -> None:
    got = sorted(zip(*table.to_pydict().values(), strict=True))
    assert [n for n, _ in got] == list(range(ROWS))
    assert set(got) <= answers(folder)


@pytest.mark.parametrize("standbys", [1, 0])
def test_only_what_is_unanswered_is_asked_again(kit, spark, tmp_path, standbys):
    """Without a checkpoint: it is the log that has the answers."""
    job = build(tmp_path, checkpoint_interval="1 hour", standbys=standbys).start(spark)
    kit.wait_for(lambda: job.delivered["out"] == sum(not hangs(n) for n in range(ROWS)))
    kit.kill(job, "ask[0]")
    kit.wait_recovered(job, 1)
    kit.wait_for(lambda: all(asked(tmp_path)[n] == 2 for n in range(ROWS) if hangs(n)))
    (tmp_path / "gate").touch()
    result = job.wait(kit.WAIT_S)
    check(tmp_path, result.table())
    assert asked(tmp_path) == {n: 1 + hangs(n) for n in range(ROWS)}


def test_checkpoints_wait_for_no_call_and_keep_what_is_open(kit, spark, tmp_path):
    settings = {"checkpoint_interval": "200 ms", "checkpoint_dir": str(tmp_path / "job")}
    settings["checkpoints"] = "marked"  # without markers nobody would seal any more
    job = build(tmp_path, **settings).start(spark)
    kit.wait_for(lambda: job.delivered["out"] == sum(not hangs(n) for n in range(ROWS)))
    floors = job.observer.floors
    kit.wait_for(lambda: job.observer.floors >= floors + 3)
    job.stop()
    assert asked(tmp_path) == dict.fromkeys(range(ROWS), 1)
    job = build(tmp_path, **settings).start(spark)
    kit.wait_for(lambda: all(asked(tmp_path)[n] == 2 for n in range(ROWS) if hangs(n)))
    (tmp_path / "gate").touch()
    check(tmp_path, job.wait(kit.WAIT_S).table())
    assert asked(tmp_path) == {n: 1 + hangs(n) for n in range(ROWS)}


def test_a_bill_counts_each_answer_once_and_a_larger_budget_goes_on(kit, spark, tmp_path):
    def start(calls: int) -> Any:
        settings: dict[str, Any] = {"checkpoint_interval": "1 hour"}
        settings["checkpoint_dir"] = str(tmp_path / "job")
        job = clonos.Job("bill", parallelism=1, **settings)
        source = clonos.sources.from_batches([[(n,) for n in range(ROWS)]], "n long")
        rows = job.source(source, name="in").slot_group("asking").start_new_chain()
        budget = clonos.Budget(calls=calls)
        how: dict[str, Any] = {"in_flight": ROWS, "ordered": False, "cost": 0.1, "budget": budget}
        answered = rows.with_column_async(
            "answer long", partial(ask, tmp_path), "n", name="ask", **how
        )
        answered.sink(clonos.sinks.collect(), name="out")
        return job.start(spark)

    job = start(60)
    kit.wait_for(lambda: job.delivered["out"] == 40)  # of the first 60 calls, each third one hangs
    kit.kill(job, "ask[0]")
    kit.wait_recovered(job, 1)
    kit.wait_for(lambda: sum(asked(tmp_path).values()) == 80)
    (tmp_path / "gate").touch()
    with pytest.raises(BudgetSpent, match=r"share of the budget, 60 calls, is used up"):
        job.wait(kit.WAIT_S)
    result = start(ROWS).wait(kit.WAIT_S)
    check(tmp_path, result.table())
    assert result.bill == {"ask": Spent(ROWS, 9.0)}
    assert start(ROWS).wait(kit.WAIT_S).bill == result.bill, "it was complete"
    assert asked(tmp_path) == {n: 1 + (hangs(n) and n < 60) for n in range(ROWS)}


async def ask_what_may_be_down(folder: Path, n: int) -> int:
    await asyncio.sleep(0.01)
    if (folder / "down").exists():
        raise ConnectionError(f"https://api/?api_key=abc{n} refuses")
    return n


def test_a_service_that_is_down_is_told_of_once_and_costs_no_row(kit, spark, tmp_path, monkeypatch):
    monkeypatch.setattr(alarms, "AWAY_S", 1)
    (tmp_path / "down").touch()
    job = clonos.Job("calls", parallelism=2)
    rows = job.source(
        clonos.sources.from_batches([[(n,)] for n in range(ROWS)], "n long"), name="in"
    )
    asking = partial(ask_what_may_be_down, tmp_path)
    answered = rows.rebalance().with_column_async(
        "answer long", asking, "n", name="ask", attempts=1000, backoff=("10 ms", "50 ms")
    )
    answered.sink(clonos.sinks.collect(), name="out")
    running = job.start(spark)
    kit.wait_for(lambda: any("has answered nothing" in text for text in running.warnings))
    (tmp_path / "down").unlink()
    result = running.wait(kit.WAIT_S)
    (told,) = (text for text in result.warnings if "has answered nothing" in text)
    assert told.startswith("ask in ask[")
    assert "ConnectionError: https://api/?api_key=*** refuses" in told
    assert sorted(result.table()["answer"].to_pylist()) == list(range(ROWS))


async def ask_together(folder: Path, numbers: list[int]) -> list[int]:
    """One call about several rows, which may not be those of another call."""
    with (folder / "together").open("a") as together:
        together.write(f"{numbers[0]} {numbers[-1]} {len(numbers)}\n")
    while hangs_together(numbers[0]) and not (folder / "gate").exists():  # noqa: ASYNC110 - as above
        await asyncio.sleep(0.01)
    found = [random.getrandbits(40) for _ in numbers]
    with (folder / "answered").open("a") as answered:
        answered.writelines(f"{n} {answer}\n" for n, answer in zip(numbers, found, strict=True))
    return found


def hangs_together(first: int) -> bool:
    return first % 12 == 0


def test_a_call_about_several_rows_is_made_again_for_the_same_rows(kit, spark, tmp_path):
    """The log has answered batches, also of rows that came when others hung; the state has who was
    asked together."""
    job = clonos.Job("calls", parallelism=1, checkpoint_interval="1 hour", standbys=1)
    batches = [[(n,) for n in range(at, at + 15)] for at in range(0, ROWS, 15)]
    rows = job.source(clonos.sources.from_batches(batches, "n long"), name="in")
    rows = rows.slot_group("asking").start_new_chain()
    how: dict[str, Any] = {"batch": 4, "batch_within": "1 hour", "in_flight": ROWS}
    answered = rows.with_column_async(
        "answer long", partial(ask_together, tmp_path), "n", name="ask", ordered=False, **how
    )
    answered.sink(clonos.sinks.collect(), name="out")
    running = job.start(spark)
    calls = [(at, min(at + 4, ROWS)) for at in range(0, ROWS, 4)]  # the end waits for nobody
    hung = [hangs_together(first) for first, _ in calls]
    kit.wait_for(lambda: len(together(tmp_path)) == len(calls))
    done = sum(end - at for (at, end), hang in zip(calls, hung, strict=True) if not hang)
    kit.wait_for(lambda: running.delivered["out"] == done)
    kit.kill(running, "ask[0]")
    kit.wait_recovered(running, 1)
    kit.wait_for(lambda: sum(together(tmp_path).values()) == len(calls) + sum(hung))
    (tmp_path / "gate").touch()
    check(tmp_path, running.wait(kit.WAIT_S).table())
    made = [(at, end - 1, end - at) for at, end in calls]
    assert together(tmp_path) == {c: 1 + hang for c, hang in zip(made, hung, strict=True)}


def together(folder: Path) -> Counter[tuple[int, int, int]]:
    """First row, last row and size of each call."""
    path = folder / "together"
    lines = path.read_text().splitlines() if path.exists() else []
    return Counter((int(a), int(b), int(n)) for a, b, n in map(str.split, lines))


def refuse(n: int) -> int:
    prices: dict[int, int] = {}
    return prices[n]


def test_an_error_shows_the_users_lines(spark):
    job = clonos.Job("calls", parallelism=1)
    rows = job.source(clonos.sources.from_batches([[(7,)]], "n long"))
    rows.with_column_async("price long", refuse, "n", name="ask").sink(clonos.sinks.collect())
    with pytest.raises(OperatorError) as caught:
        job.run(spark)
    text = str(caught.value)
    assert text.index("return prices[n]") < text.index("KeyError: 7 (for Row(n=7)")
    assert "on_error=" in text
