"""Tasks that share no log die, alone and with others: output is the same, byte for byte."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle

import clonos
from clonos.branch.original import RecordedReplay
from clonos.replay import NothingToReplay
from clonos.replay.past import read

cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(900),
]

KEYS = 7
IMPLIED = ("keyed[0]", "recent[0]", "out[0]")


def build(kit: Any, folder: Path) -> clonos.Job:
    """Numbers -> a declared function -> keyed state -> a sink, each in a slot of its own."""
    job = clonos.Job(
        "implied",
        log="needed",
        standbys=1,
        checkpoint_dir=str(folder / "checkpoint"),
        checkpoint_interval="300 ms",
    )
    numbers = job.source(kit.until_tapped(folder), name="numbers", rows_per_second=4_000.0)
    keyed = numbers.start_new_chain().slot_group("keyed")
    keyed = keyed.map(
        lambda row: (row.n, row.n * row.n % KEYS), "n long, key long", deterministic=True,
        name="keyed",
    )  # fmt: skip
    recent = keyed.slot_group("recent").key_by("key").last(5, name="recent", sum=clonos.sum("n"))
    recent.slot_group("out").start_new_chain().sink(clonos.sinks.collect(), name="out")
    return job


def expected(count: int) -> list[dict[str, int]]:
    recent: dict[int, list[int]] = {}
    rows = []
    for n in range(count):
        key = n * n % KEYS
        recent[key] = [*recent.get(key, []), n][-5:]
        rows.append({"n": n, "key": key, "sum": sum(recent[key])})
    return rows


def serialized(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    content: bytes = sink.getvalue().to_pybytes()
    return content


@pytest.mark.soak
def test_who_shares_no_log_computes_again(kit, spark, tmp_path):
    job = build(kit, tmp_path)
    plan = job.compile().plan
    assert {task.name for task in plan.tasks if task.is_implied} == set(IMPLIED)
    running = job.start(spark)
    kit.wait_quiet(running)
    blows = [IMPLIED[-1:], IMPLIED, ("numbers[0]", "keyed[0]")]
    recovered = 0
    for blow in blows:
        kit.wait_rows(running, 500)
        kit.kill(running, *blow)
        recovered += len(blow)
        kit.wait_recovered(running, recovered)
        kit.wait_quiet(running)
    kit.open_tap(tmp_path)
    table = running.wait(kit.WAIT_S).table()
    rows = pa.Table.from_pylist(expected(table.num_rows), schema=table.schema)
    assert serialized(table) == serialized(rows)
    with clonos.Replay(build(kit, tmp_path)) as replay:
        steps = replay.run()
        assert replay.is_at_the_end
        assert {made for made, due in replay.compared.values()} == {
            due for made, due in replay.compared.values()
        }
        assert all(step.is_logged for step in steps)
    with pytest.raises(NothingToReplay, match=r"keyed.*log='everything'"):
        RecordedReplay(read(build(kit, tmp_path).compile(), None, None))
    for task in (None, "keyed[0]", "recent[0]"):
        clonos.bundle(build(kit, tmp_path), tmp_path / f"{task}.clonos", task=task)
        with clonos.Replay(build(kit, tmp_path), str(tmp_path / f"{task}.clonos")) as replay:
            again = replay.run()
            assert replay.is_at_the_end
        names = {step.task for step in again}
        assert names <= ({task} if task else {task.name for task in plan.tasks})
        assert len(again) == sum(task in {None, step.task} for step in steps)
