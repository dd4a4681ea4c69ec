"""A checkpoint as DataFrames: state by key, and the calls in the log."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import clonos
from tests.cluster.conftest import row

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(900),
]

ROWS = 400


def price(word: str) -> dict[str, Any]:
    if word == "k3":
        raise ValueError("no price for k3")
    return {"word": word, "cents": len(word)}


async def judge(key: str) -> str:
    return f"{key} is good"


def priced() -> clonos.Job:
    """The code from which the log's reader learns what an answer has cost."""
    made = clonos.Job("priced")
    events = made.source(clonos.sources.from_batches([], "key string"))
    paid = clonos.service(cost=lambda answer: len(answer) / 100)(judge)
    events.with_column_async("verdict string", paid, "key", name="judge").sink(
        clonos.sinks.collect()
    )
    return made


class Asking(clonos.Process):
    def open(self, ctx: Any) -> None:
        self.seen = ctx.state("seen", "long")

    def on_row(self, row: Any, ctx: Any) -> Any:
        seen = self.seen.get(0) + 1
        self.seen.set(seen)
        if seen == 1:
            with suppress(ValueError):
                ctx.call(price, row.key)
        yield row.key, seen


class Remembering(StatefulProcessor):
    """Keeps what it has seen in PySpark's three kinds of states, and sets a timer."""

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._one = handle.getValueState("one", "n long")
        self._many = handle.getListState("many", "n long")
        self._by_name = handle.getMapState("by name", "name string, n int", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: N802, N803
        n = len(list(rows))
        self._one.update((n,))
        self._many.put([(n,)])
        self._by_name.updateValue(("all", 1), (n,))
        self._handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 3_600_000)
        yield Row(key=key[0])

    def close(self) -> None:
        pass


def job(kit: Any, folder: Any) -> clonos.Job:
    made = clonos.Job("shown", parallelism=2, checkpoint_dir=str(folder / "c"), history="1 hour")
    events = made.source(kit.gated(folder, ROWS), name="events", parallelism=1)
    judged = events.with_column_async("verdict string", judge, "key", name="judge")
    judged = judged.with_watermark("at", "1 second")
    judged.key_by("key").process(Asking(), "key string, seen long", name="asking").sink(
        clonos.sinks.collect(), name="counts"
    )
    windows = judged.key_by("key").window(clonos.tumbling("10 days", on="at"))
    windows.agg(name="days", rows=clonos.count()).sink(clonos.sinks.collect(), name="windows")
    kept = judged.key_by("key").transformWithState(
        Remembering(), "key string", "Append", "ProcessingTime", name="kept"
    )
    kept.sink(clonos.sinks.callback(len), name="told")
    once = judged.key_by("key").deduplicate(name="once")
    once.sink(clonos.sinks.collect(), name="firsts")
    return made


def test_state_and_calls_of_a_checkpoint(kit, spark, tmp_path):
    path = str(tmp_path / "c")
    running = job(kit, tmp_path).start(spark)
    kit.wait_for(lambda: running.delivered["counts"] >= ROWS // 4)
    kit.wait_quiet(running)
    calls = spark.read.format("clonos.log").load(path)
    assert calls.where("operator = 'judge'").count() > 0  # while it runs
    running.stop()
    judged = calls.where("operator = 'judge'").collect()
    assert {r["answer"] for r in judged} <= {f'"k{k} is good"' for k in range(100)}
    assert all(r["ok"] and r["attempts"] == 1 and len(r["request"]) == 16 for r in judged)
    assert {r["cost"] for r in judged} == {None}
    paid = spark.read.format("clonos.log").option("job", f"{__name__}:priced").load(path)
    costs = paid.where("operator = 'judge'").collect()
    assert len(costs) == len(judged)
    assert all(r["cost"] == len(json.loads(r["answer"])) / 100 for r in costs)
    assert {r["cost"] for r in paid.where("operator is null").collect()} == {None}
    prices = calls.where("operator is null").collect()
    failed = [r["answer"] for r in prices if not r["ok"]]
    assert failed == ["ValueError: no price for k3"]
    state = spark.read.format("clonos.state").load(path)
    seen = {r["key"]: int(r["value"]) for r in state.where("name = 'seen'").collect()}
    count = sum(seen.values())
    expected: dict[str, int] = {}
    for i in range(count):
        key = json.dumps(row(i)[1])
        expected[key] = expected.get(key, 0) + 1
    assert seen == expected
    rows = state.where("operator = 'days' and kind = 'row'").collect()
    assert {json.loads(r["key"])["key"] for r in rows} == {json.loads(k) for k in expected}
    only = spark.read.format("clonos.state").option("operator", "once").load(path)
    once = [json.loads(r["value"]) for r in only.where("kind = 'row'").collect()]
    assert sorted(r["key"] for r in once) == sorted(json.loads(k) for k in expected)
    assert {r["operator"] for r in only.collect()} == {"once"}
    values = state.where("operator = 'kept' and kind = 'value' and name not like '~%'")
    shown: dict[str, Any] = {}
    for r in values.collect():
        shown.setdefault(r["key"], {})[r["name"]] = json.loads(r["value"])
    assert len(shown) == len(expected)
    for by in shown.values():
        n = by["one"]
        assert by == {"one": n, "many": [n], "by name": [[["all", 1], n]]}


def test_mistakes(spark, tmp_path):
    for kind in ("state", "log"):
        with pytest.raises(AnalysisException, match="which checkpoint"):
            spark.read.format(f"clonos.{kind}").load().collect()
        with pytest.raises(AnalysisException, match="no journal"):
            spark.read.format(f"clonos.{kind}").load(str(tmp_path)).collect()
    with pytest.raises(AnalysisException, match="there is no 'no_module:job'"):
        spark.read.format("clonos.log").option("job", "no_module:job").load(str(tmp_path)).collect()
