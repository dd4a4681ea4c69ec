"""What is written as in PySpark, in real processes that are killed: joins, UDFs, processors."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import Row
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import clonos

cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(900),
]
ROWS = 4_000
KEEP = 10
"""So many rows later a partner may come."""
FAR_MS = 4_000_000_000_000


class Count(StatefulProcessor):
    """Numbers the rows of a key, and says at the end what it has kept."""

    def init(self, handle):
        self.handle = handle
        self.rows = handle.getValueState("rows", "n long")
        self.last = handle.getListState("last", "n long")
        self.by_number = handle.getMapState("by number", "n long", "times long")

    def handleInputRows(self, key, rows, timerValues):  # noqa: N802, N803 - PySpark's names
        self.handle.registerTimer(FAR_MS)
        for row in rows:
            number = 1 + (self.rows.get() or (0,))[0]
            self.rows.update((number,))
            self.last.put([*list(self.last.get())[-4:], (row.more,)])
            (times,) = self.by_number.getValue((row.n,)) or (0,)
            self.by_number.updateValue((row.n,), (times + 1,))
            yield Row(key=key[0], number=number, told=str(row.more))

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):  # noqa: N802, N803 - PySpark's
        assert list(self.handle.listTimers()) == [FAR_MS]
        numbers = sorted((n, times) for (n,), (times,) in self.by_number.iterator())
        last = [n for (n,) in self.last.get()]
        yield Row(key=key[0], number=-1, told=f"{numbers} {last}")


def build(source: Any) -> clonos.Job:
    more = F.udf(lambda n: n + 1000, "long")
    job = clonos.Job("language", parallelism=2, checkpoint_interval="300 ms")
    events = job.source(source, name="events", parallelism=1, rows_per_second=1500)
    rows = events.withWatermark("at", "0 ms").withColumn("more", F.col("n") + more("n"))
    counted = (
        rows.slot_group("counted")
        .groupBy("key")
        .transformWithState(
            Count(), "key string, number long, told string", "Append", "EventTime", name="counted"
        )
    )
    counted.sink(clonos.sinks.collect(), name="counts")
    some = rows.where("n = 0").select("at", "key").withColumnsRenamed({"at": "then", "key": "same"})
    joined = (
        rows.slot_group("joined")
        .key_by("key")
        .join(
            some.key_by("same"),
            keep=(f"{10 * KEEP} ms", "0 ms"),
            on=("at", "then"),
            how="left",
            name="joined",
        )
    )
    joined.sink(clonos.sinks.collect(), name="pairs")
    return job


def expected_pairs(kit: Any) -> list[Any]:
    made = []
    for i, (at, key, n) in enumerate(map(kit.row, range(ROWS))):
        later = map(kit.row, range(i, min(ROWS, i + KEEP + 1)))
        partners = [(then, same) for then, same, m in later if same == key and m == 0]
        made += [(at, key, n, 2 * n + 1000, *each) for each in partners or [(None, None)]]
    return sorted(made, key=repr)


def expected_counts(kit: Any) -> list[Any]:
    by_key: dict[str, list[int]] = {}
    for _, key, n in map(kit.row, range(ROWS)):
        by_key.setdefault(key, []).append(n)
    made: list[Any] = []
    for key, ns in by_key.items():
        made += [(key, i, str(2 * n + 1000)) for i, n in enumerate(ns, 1)]
        numbers = sorted((n, ns.count(n)) for n in set(ns))
        made.append((key, -1, f"{numbers} {[2 * n + 1000 for n in ns[-5:]]}"))
    return sorted(made)


def test_joins_and_processors_whose_processes_are_killed(kit, spark, tmp_path):
    job = build(kit.gated(tmp_path, ROWS)).start(spark)
    before = 0
    for victims in (["counted[0]"], ["joined[1]"], ["joined[0]", "counted[1]"], ["events[0]"]):
        kit.wait_quiet(job)
        before += len(victims)
        kit.kill(job, *victims)
        kit.wait_recovered(job, before)
    kit.open_tap(tmp_path)
    result = job.wait(kit.WAIT_S)
    counts = sorted(map(tuple, map(dict.values, result.table("counts").to_pylist())))
    assert counts == expected_counts(kit)
    pairs = sorted(map(tuple, map(dict.values, result.table("pairs").to_pylist())), key=repr)
    assert pairs == expected_pairs(kit)
    assert sum(pair[-1] is None for pair in pairs) > ROWS // 2
    assert not result.warnings
