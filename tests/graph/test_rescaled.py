"""A graph with other numbers of tasks gives the same rows."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

import clonos
from clonos.errors import CannotUpgrade
from clonos.graph.compile import compile_graph
from clonos.graph.rescaled import rescaled
from clonos.testing.in_memory import InMemoryRun

ROWS = 60
KEYS = 5


class Counting(clonos.Process):
    def on_row(self, row: Any, ctx: Any) -> Any:
        count = ctx.state("count", "long")
        count.set(count.get(0) + 1)
        yield row.key, count.get()


def numbers(job: clonos.Job) -> clonos.Stream:
    batches = [
        pa.record_batch({"key": [n % KEYS], "at": pa.array([1000 * n], pa.timestamp("us", "UTC"))})
        for n in range(ROWS)
    ]
    return job.source(
        clonos.sources.from_batches(batches, "key long, at timestamp"),
        name="numbers",
        parallelism=1,
    )


def keyed_then_counted(parallelism: int | None = None) -> clonos.Job:
    job = clonos.Job("keyed", parallelism=2)
    kept: Any = numbers(job).key_by("key").filter(lambda row: True, name="kept")
    counted = kept.process(
        Counting(), "key long, number long", name="counted", parallelism=parallelism
    )
    counted.sink(clonos.sinks.collect(), name="out")
    return job


def all_in_one_window() -> clonos.Job:
    job = clonos.Job("all", parallelism=1)
    timed = numbers(job).key_by("key").with_watermark("at", "0 s", name="timed")
    found = timed.map(lambda row: (row.key, row.at), "key long, at timestamp", name="plain")
    late = found.with_watermark("at", "1 second", name="late")
    window = late.rebalance().window(clonos.tumbling("1 day"))
    window.agg(n=clonos.count(), name="whole").sink(clonos.sinks.collect(), name="out")
    return job


def rows_of(compiled: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = InMemoryRun(compiled).run()["out"].to_pylist()
    return rows


def check_counted(compiled: Any) -> None:
    numbers = Counter((row["key"], row["number"]) for row in rows_of(compiled))
    due = [(key, n) for key in range(KEYS) for n in range(1, ROWS // KEYS + 1)]
    assert numbers == Counter(due)


@pytest.mark.parametrize("parallelism", [1, 3, {"counted": 4}, {"kept": 1}])
def test_rows_of_a_key_stay_in_one_task(parallelism):
    check_counted(compile_graph(rescaled(keyed_then_counted().graph, parallelism)))


def test_rows_of_a_key_stay_in_one_task_if_only_the_next_operator_has_more_of_them():
    check_counted(keyed_then_counted(4).compile())


@pytest.mark.parametrize("parallelism", [1, 3, {"late": 3}])
def test_a_window_over_all_rows_stays_in_one_task(parallelism):
    (row,) = rows_of(compile_graph(rescaled(all_in_one_window().graph, parallelism)))
    assert row["n"] == ROWS


def test_a_window_over_all_rows_is_not_shared_out():
    with pytest.raises(CannotUpgrade, match="'whole' is a window over all rows"):
        rescaled(all_in_one_window().graph, {"whole": 2})


@pytest.mark.parametrize("parallelism", [0, -1, {"counted": 0}, 1_000_000, "4", True, 2.5, None])
def test_what_is_no_number_of_tasks(parallelism):
    with pytest.raises(CannotUpgrade, match="give whole numbers from 1 to"):
        rescaled(keyed_then_counted().graph, parallelism)


@pytest.mark.parametrize(
    ("name", "why"), [("numbers", "'numbers' is a source"), ("other", "no operator 'other'")]
)
def test_what_cannot_be_rescaled(name, why):
    with pytest.raises(CannotUpgrade, match=why):
        rescaled(keyed_then_counted().graph, {name: 2})
