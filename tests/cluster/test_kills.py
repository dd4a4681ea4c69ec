"""Real processes of real jobs, killed with SIGKILL: the output is as if nothing had happened."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import threading
import time
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import cloudpickle

import clonos
from clonos.core.plan import FULL_DEPTH
from clonos.errors import NothingToWatch
from clonos.watch.command import look
from examples.demo.client import check_words
from examples.demo.process import LOOPBACK, ServerProcess

cloudpickle.register_pickle_by_value(sys.modules[__name__])
HELD = 300
"""The number whose call waits at a gate."""
pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(900),
]


def test_one_after_the_other(kit, spark, tmp_path):
    """Source, stateful, sink, standby, neighbours, one task twice, and one during a recovery."""
    rows = 12_000
    job = kit.build(kit.gated(tmp_path, rows), rate=1000).start(spark, ui_port=0)
    for victims in (["events[0]"], ["running[1]"], ["out[0]"], ["running[0]", "windows[0]"]):
        kit.wait_quiet(job)
        before = len(job.observer.recoveries)
        kit.kill(job, *victims)
        kit.wait_recovered(job, before + len(victims))
    # A standby: nobody recovers, but a new one is there afterwards.
    kit.wait_quiet(job)
    before = len(job.observer.recoveries)
    os.kill(next(slot.pid for slot in job.slots() if not slot.runs), signal.SIGKILL)
    kit.wait_quiet(job, floors=2)
    assert len(job.observer.recoveries) == before
    # The same task as soon as it is live again, and its neighbour as soon as it is activated.
    kit.kill(job, "windows[1]")
    kit.wait_recovered(job, before + 1)
    kit.kill(job, "windows[1]")
    kit.wait_for(lambda: "activated" in job.observer.recoveries[-1].stages)
    kit.kill(job, "running[1]")
    kit.wait_recovered(job, before + 3)
    shown = look(job.ui_url)
    assert shown["recovered"] == before + 3
    assert {task["phase"] for task in shown["tasks"]} == {"live"}
    assert all(name in job._repr_html_() for name in ("events[0]", "fence", "replay"))
    kit.open_tap(tmp_path)
    result = job.wait(kit.WAIT_S)
    kit.check(result.table(), rows)
    assert result.is_complete
    assert not result.generation
    with pytest.raises(NothingToWatch, match="does not answer"):
        look(job.ui_url)
    assert not result.warnings
    assert {r.name for r in result.recoveries} >= {"events[0]", "running[1]", "out[0]"}


def test_a_join_with_far_less_memory_than_state(kit, spark, tmp_path):
    """Rows that wait, rows that have met others, and all that was not in memory at the end."""
    rows, partners = 6000, 2000
    job = clonos.Job("join", checkpoint_interval="200 ms", state_memory="1 MiB")
    at = pa.array([kit.row(0)[0]] * rows, pa.timestamp("us", "UTC"))
    texts = [f"{n:08d}" * 100 for n in range(rows)]
    left = pa.RecordBatch.from_arrays([pa.array(range(rows)), pa.array(texts), at], ["k", "x", "t"])
    right = pa.RecordBatch.from_arrays(
        [pa.array([2 * n for n in range(partners)]), at.slice(0, partners)], ["m", "v"]
    )
    sides = [
        job.source(source, name=name, parallelism=1).with_watermark(time, "0 ms").key_by(key)
        for source, name, time, key in (
            (kit.held_batches(tmp_path, [left], rows - 1), "left", "t", "k"),
            (kit.held_batches(tmp_path, [right], partners // 2), "right", "v", "m"),
        )
    ]
    joined = (
        sides[0]
        .slot_group("join")
        .join(sides[1].slot_group("join"), how="left", keep="1 hour", on=("t", "v"), name="join")
    )
    joined.start_new_chain().slot_group("out").sink(clonos.sinks.collect(), name="out")
    running = job.start(spark)
    kit.wait_rows(running, partners // 2)
    for count in (1, 2):
        kit.wait_quiet(running)
        kit.kill(running, "join[0]")
        kit.wait_recovered(running, count)
    kit.open_tap(tmp_path)
    result = running.wait(kit.WAIT_S)
    assert result.is_complete
    table = result.table()
    met = {2 * n for n in range(partners)}
    assert table["x"].to_pylist() == [texts[k] for k in table["k"].to_pylist()]
    found = sorted(zip(table["k"].to_pylist(), table["m"].to_pylist(), strict=True), key=str)
    assert found == sorted(((k, k if k in met else None) for k in range(rows)), key=str)


@pytest.mark.parametrize(("depth", "checkpoints"), [("full", "marked"), (0, "uncoordinated")])
def test_slots_of_several_tasks(kit, spark, tmp_path, depth, checkpoints):
    """Two slots run six tasks and the source; those of a slot die, and recover, together."""
    rows = 6_000
    source = kit.gated(tmp_path, rows)
    settings = {"sharing_depth": depth, "checkpoints": checkpoints}
    job = kit.build(source, is_apart=False, **settings).start(spark)
    assert job.pool.size == 3  # with one for standbys
    for number, victim in enumerate(("windows[1]", "events[0]", "windows[1]")):
        kit.wait_quiet(job)
        (slot,) = [slot for slot in job.slots() if victim in slot.runs]
        assert len(slot.runs) == (4 if "events[0]" in slot.runs else 3)
        before = len(job.observer.recoveries)
        kit.kill(job, victim)
        kit.wait_recovered(job, before + len(slot.runs))
        assert {r.name for r in job.observer.recoveries[before:]} >= set(slot.runs), number
    kit.open_tap(tmp_path)
    kit.check(job.wait(kit.WAIT_S).table(), rows)


def test_other_threads_read_while_tasks_are_killed(kit, spark, tmp_path):
    """What users' threads see is a value: they never meet what the driver is changing."""
    rows = 4_000
    job = kit.build(kit.gated(tmp_path, rows)).start(spark, progress_s=0.05)
    ends, failures, read = threading.Event(), [], [0] * 8

    def look(number: int) -> None:
        try:
            while not ends.is_set():
                names = [task.name for task in job.tasks()]
                assert len(names) == len(job.plan.tasks)
                assert all(set(slot.runs) <= {*names} for slot in job.slots())
                assert job.status.message
                progress = job.last_progress
                assert progress is None or [t.name for t in progress.tasks] == names
                assert all(r.stages for r in job.observer.recoveries)
                read[number] += 1
        except Exception as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=look, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    try:
        for number, task in enumerate(("running[0]", "events[0]", "windows[1]"), 1):
            kit.wait_quiet(job)
            kit.kill(job, task)
            kit.wait_recovered(job, number)
    finally:
        ends.set()
        for thread in threads:
            thread.join()
    assert not failures
    assert all(read)
    kit.open_tap(tmp_path)
    kit.check(job.wait(60).table(), rows)


@pytest.mark.parametrize(
    ("depth", "standbys", "checkpoints", "victims"),
    [
        (0, 1, "uncoordinated", [["running[0]"], ["events[0]"]]),
        pytest.param(
            2,
            2,
            "uncoordinated",
            [["windows[0]", "running[0]"], ["out[1]", "windows[1]"]],
            marks=pytest.mark.soak,
        ),
        ("full", 1, "marked", [["events[0]", "running[0]", "windows[0]", "out[0]"]]),
        ("full", 1, "uncoordinated", [["running[0]", "windows[0]"], ["events[0]", "out[1]"]]),
        pytest.param(1, 0, "marked", [["windows[1]"], ["events[0]"]], marks=pytest.mark.soak),
    ],
)
def test_depths_and_standbys(kit, spark, tmp_path, depth, standbys, checkpoints, victims):
    rows = 5_000
    source, settings = kit.gated(tmp_path, rows), {"standbys": standbys, "checkpoints": checkpoints}
    job = kit.build(source, sharing_depth=depth, **settings).start(spark)
    assert job.plan.sharing_depth == (FULL_DEPTH if depth == "full" else depth)
    for group in victims:
        kit.wait_quiet(job)
        before = len(job.observer.recoveries)
        kit.kill(job, *group)
        kit.wait_recovered(job, before + len(group))
    kit.open_tap(tmp_path)
    kit.check(job.wait(kit.WAIT_S).table(), rows)


@pytest.mark.soak
def test_without_failures_the_order_is_the_same_too(kit, spark, tmp_path):
    """With one task per operator the output is equal row by row, killed or not."""
    rows = 4_000
    source = kit.gated(tmp_path, rows)
    job = kit.build(source, parallelism=1).start(spark)
    for count, victim in enumerate(("running[0]", "windows[0]"), 1):
        kit.wait_quiet(job)
        kit.kill(job, victim)
        kit.wait_recovered(job, count)
    kit.open_tap(tmp_path)
    quiet = kit.build(source, rate=None, parallelism=1).run(spark, timeout_s=kit.WAIT_S)
    assert job.wait(kit.WAIT_S).table().equals(quiet.table())
    kit.check(quiet.table(), rows)


def test_dataframe_source(kit, spark, tmp_path, monkeypatch):
    rows = 9_000
    kit.hold_dataframe(monkeypatch, tmp_path, rows)
    job = kit.build(kit.dataframe(spark, rows)).start(spark)
    for count in (1, 2):
        kit.wait_quiet(job)
        kit.kill(job, "events[0]")
        kit.wait_recovered(job, count)
    kit.open_tap(tmp_path)
    kit.check(job.wait(kit.WAIT_S).table(), rows)


def test_direct_parquet_sink(kit, spark, tmp_path):
    rows = 5_000
    out = tmp_path / "out"
    sink = clonos.sinks.parquet(str(out), rows_per_file=10, linger="50 ms")
    job = kit.build(kit.gated(tmp_path, rows), sink=sink, is_fused=True).start(spark)
    for count, victim in enumerate(("windows[0]", "windows[1]", "windows[0]"), 1):
        kit.wait_quiet(job)
        kit.kill(job, victim)
        kit.wait_recovered(job, count)
    kit.open_tap(tmp_path)
    job.wait(kit.WAIT_S)
    kit.check(pq.read_table(out), rows)
    assert not [p for p in out.iterdir() if p.name.startswith(".")]


@pytest.mark.parametrize("is_fused", [False, True])
def test_socket_source(kit, spark, tmp_path, is_fused):
    """What it has given is in the journal before it leaves, also if it leaves as output."""
    lines = [f"line {i}" for i in range(1_000)]
    text = tmp_path / "text"
    text.write_text("\n".join(lines) + "\n")
    arguments = [str(text), "--rate", "1500", "--until", str(tmp_path / "tap")]
    with ServerProcess("examples.demo.lines", arguments) as server:
        job = clonos.Job("socket", checkpoint_interval="300 ms")
        source = clonos.sources.socket_lines(LOOPBACK, server.port, resume=True)
        stream = job.source(source, name="lines")
        if not is_fused:
            stream = stream.key_by("value").filter(lambda row: True)
        stream.sink(clonos.sinks.collect(), name="out")
        running = job.start(spark)
        victims = ("lines[0]", "lines[0]" if is_fused else "filter[0]", "lines[0]")
        for count, victim in enumerate(victims, 1):
            kit.wait_quiet(running)
            kit.wait_rows(running, 500)
            kit.kill(running, victim)
            kit.wait_recovered(running, count)
        kit.wait_rows(running, 500)
        kit.open_tap(tmp_path)
        result = running.wait(kit.WAIT_S)
    passes, rest = divmod(result.table().num_rows, len(lines))
    assert not rest
    assert result.table().column(0).to_pylist() == lines * passes


def test_answers_of_a_service_are_asked_once(kit, spark, tmp_path):
    """What is in the output rests on an answer that the service has given, and given once."""
    journal = tmp_path / "service.jsonl"
    with ServerProcess("examples.demo.service", ["--journal", str(journal)]) as service:
        url = service.url

        def ask(row: Any, ctx: clonos.Context) -> tuple[int, str]:
            answer = ctx.call(check_words, url, [str(row.n)], ctx.idempotency_key(row.n))
            return row.n, answer["nonce"]

        job = clonos.Job("service", checkpoint_interval="300 ms")
        job.source(kit.until_tapped(tmp_path), name="numbers", rows_per_second=250).map(
            ask, "n long, nonce string", name="asked", parallelism=2
        ).sink(clonos.sinks.collect(), name="out")
        running = job.start(spark)
        for count, victim in enumerate(("asked[0]", "asked[1]"), 1):
            kit.wait_quiet(running)
            kit.wait_rows(running, 100)
            kit.kill(running, victim)
            kit.wait_recovered(running, count)
        kit.wait_rows(running, 100)
        kit.open_tap(tmp_path)
        table = running.wait(kit.WAIT_S).table()
    assert sorted(table.column("n").to_pylist()) == list(range(table.num_rows))
    used = dict(zip(table.column("nonce").to_pylist(), table.column("n").to_pylist(), strict=True))
    assert len(used) == table.num_rows
    asked = [json.loads(line) for line in journal.read_text().splitlines()]
    given = {entry["nonce"]: entry["words"] for entry in asked}
    assert {nonce: [str(n)] for nonce, n in used.items()}.items() <= given.items()


def test_at_least_once_runs_to_its_end(kit, spark, tmp_path):
    rows = 4_000
    job = kit.build(kit.gated(tmp_path, rows), guarantee="at_least_once").start(spark)
    kit.wait_quiet(job)
    kit.kill(job, "running[0]")
    kit.open_tap(tmp_path)
    table = job.wait(kit.WAIT_S).table()
    keys = {row[:2] for row in kit.rows_of(table)}
    assert keys == {row[:2] for row in kit.expected(rows)}


def test_availability_goes_on(kit, spark, tmp_path):
    """With depth 1, two neighbours at once may take a log with them; the job ends all the same."""
    rows = 4_000
    job = kit.build(kit.gated(tmp_path, rows), on_orphan="availability").start(spark)
    kit.wait_quiet(job)
    kit.kill(job, "events[0]", "running[0]", "running[1]")
    kit.open_tap(tmp_path)
    result = job.wait(kit.WAIT_S)
    keys = {row[:2] for row in kit.rows_of(result.table())}
    assert keys == {row[:2] for row in kit.expected(rows)}
    assert len(result.warnings) == result.generation
    if not result.generation:
        kit.check(result.table(), rows)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_fifty_random_kills(kit, spark, tmp_path):
    rows = 200_000
    path = kit.write_input(tmp_path / "in.csv", rows)
    source = clonos.sources.files(path, "csv", kit.SCHEMA)
    job = kit.build(source, rate=1500).start(spark)
    draw = random.Random(7)
    kills = 0
    while kills < 50 and job.is_running:
        time.sleep(draw.uniform(0.0, 3.0))
        slots = job.slots()
        if not slots:
            continue
        with contextlib.suppress(ProcessLookupError):  # gone, and not noticed yet
            os.kill(draw.choice(slots).pid, signal.SIGKILL)
            kills += 1
    assert kills == 50
    kit.check(job.wait(600).table(), rows)


def test_a_worker_recovers_while_a_task_is_inside_a_call(kit, spark, tmp_path):
    """The task depends on the one that is killed: its answer to the fence must not wait."""
    entered, gate = tmp_path / "entered", tmp_path / "gate"

    def ask(n: int) -> int:
        if n == HELD:
            entered.touch()
            while not gate.exists():
                time.sleep(0.01)
        return n + 1

    job = clonos.Job("inside", checkpoint_interval="300 ms", standbys=1)
    numbers = job.source(kit.until_tapped(tmp_path), name="numbers", rows_per_second=250)
    numbers.start_new_chain().slot_group("asked").map(
        lambda row, ctx: (row.n, ctx.call(ask, row.n)), "n long, next long", name="asked"
    ).sink(clonos.sinks.collect(), name="out")
    running = job.start(spark)
    kit.wait_for(entered.exists)
    kit.kill(running, "numbers[0]")
    kit.wait_recovered(running, 1)
    assert [recovery.name for recovery in running.observer.recoveries] == ["numbers[0]"]
    gate.touch()
    kit.open_tap(tmp_path)
    result = running.wait(kit.WAIT_S)
    assert [recovery.name for recovery in result.recoveries] == ["numbers[0]"]
    rows = sorted(zip(*(result.table().column(i).to_pylist() for i in (0, 1)), strict=True))
    assert rows == [(n, n + 1) for n in range(len(rows))]
    assert len(rows) > HELD
