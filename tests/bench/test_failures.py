"""From kills, deliveries and recoveries to numbers; and what else a measurement consists of."""

from __future__ import annotations

import itertools
import json
import math
import os
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from clonos.core.plan import Incarnation
from clonos.nodes.views import Recovery
from clonos.sources.readers import EndOfInput
from clonos_bench import jobs, plots
from clonos_bench.failures import analyse
from clonos_bench.kills import Kill, kill_workers
from clonos_bench.report import PERCENTILES, Aim, Report
from clonos_bench.statistics import summarize
from clonos_bench.watch import Ledger


def partition(start, end):
    times = np.arange(0.0, 10.0, 0.01)
    times = times[(times <= start) | (times >= end)]
    return times, np.full(len(times), 5.0)


def recovery(name, detected, live):
    return Recovery(0, name, Incarnation(1, 1), {"detected": detected, "live": live})


def test_a_worker_is_judged_by_its_own_partition():
    series = {"sink[0]": partition(5.0, 5.06), "sink[1]": partition(5.0, 5.9)}
    kill = Kill("worker", 1, ("state[0]",), 5.001)
    (found,) = analyse([kill], series, [recovery("state[0]", 5.01, 5.05)], pause_s=2)
    assert found.gap_ms == pytest.approx(50)
    assert found.stages["detected"] == pytest.approx(9)
    assert found.stages["live"] == pytest.approx(49)


def test_an_executor_is_judged_by_the_worst_partition():
    series = {"sink[0]": partition(5.0, 5.06), "sink[1]": partition(5.0, 5.9)}
    kill = Kill("executor", 1, ("state[0]", "map[1]"), 5.001)
    recoveries = [recovery("state[0]", 5.01, 5.05), recovery("map[1]", 5.02, 5.85)]
    (found,) = analyse([kill], series, recoveries, pause_s=2)
    assert found.gap_ms == pytest.approx(890)
    assert found.stages["live"] == pytest.approx(849)


def test_each_kill_has_its_own_recovery():
    series = {"sink[0]": partition(5.0, 5.06)}
    kills = [Kill("worker", n, ("state[0]",), at) for n, at in enumerate((3.001, 5.001))]
    recoveries = [recovery("state[0]", 3.003, 3.02), recovery("state[0]", 5.01, 5.05)]
    first, second = analyse(kills, series, recoveries, pause_s=2)
    assert first.gap_ms == pytest.approx(0, abs=1e-6)
    assert second.gap_ms == pytest.approx(50)


def test_a_kill_is_timed_before_anybody_can_notice_it(monkeypatch):
    """A recovery that began before the kill would be taken for none of this kill's."""
    noticed_s, seconds = [], itertools.count()
    monkeypatch.setattr(time, "monotonic", lambda: float(next(seconds)))
    monkeypatch.setattr(os, "kill", lambda *_: noticed_s.append(time.monotonic()))
    slot = SimpleNamespace(pid=1, runs=("state[0]",))
    job: Any = SimpleNamespace(slots=lambda: [slot])
    kill = kill_workers(job, ["state[0]"])
    assert noticed_s[0] > kill.at_s


def test_what_comes_after_the_last_kill_s_time_is_due_to_something_else():
    series = {"sink[0]": partition(5.0, 5.06)}
    kill = Kill("worker", 1, ("state[0]",), 5.001)
    recoveries = [recovery("state[0]", 5.01, 5.05), recovery("state[0]", 9.0, 9.5)]
    (found,) = analyse([kill], series, recoveries, pause_s=2, end_s=8.0)
    assert found.stages["live"] == pytest.approx(49)


def test_what_feeds_all_partitions_is_judged_by_the_worst_of_them():
    series = {"sink[0]": partition(5.0, 5.06), "sink[1]": partition(5.0, 5.9)}
    kill = Kill("workers", 1, ("map[0]", "state[0]", "sink[0]"), 5.001)
    (found,) = analyse([kill], series, [recovery("map[0]", 5.01, 5.85)], pause_s=2)
    assert found.gap_ms == pytest.approx(890)


def test_output_that_never_returns_is_infinitely_late():
    kill = Kill("worker", 1, ("state[0]",), 5.0)
    (found,) = analyse([kill], {"sink[0]": partition(4.9, 11.0)}, [], pause_s=2)
    assert found.gap_ms == math.inf


def ledger(ids):
    result = Ledger()
    ids = np.array(ids)
    result.add(np.arange(len(ids)), ids, np.ones(len(ids), int))
    return result


def test_the_ledger_finds_what_is_missing_or_repeated():
    assert ledger([0, 2, 1, 3]).faults(parallelism=2) == []
    # Task 1 (ids 1, 3, 5) may simply be behind task 0 (ids 0, 2, 4), but 2 was left out.
    assert ledger([0, 4, 1]).faults(parallelism=2) == ["1 rows missing"]
    assert ledger([0, 1, 1]).faults(parallelism=2) == ["1 rows delivered more than once"]


def test_the_ledger_grows():
    result = ledger(range(200_000))
    assert result.rows == 200_000
    assert result.faults(parallelism=2) == []


def test_the_paced_source_gives_the_same_rows_again(tmp_path):
    def reader():
        return jobs.PacedReader(jobs.Schedule(1000.0, 10, str(tmp_path)), 30, 1, 2)

    first, second = reader(), reader()
    first.open(0)
    ids: list[int] = []
    while len(ids) < 15:
        batch = first.read(7, 0.002)
        ids += [] if batch is None else batch.column(0).to_pylist()
    with pytest.raises(EndOfInput):
        first.read(7, 0.002)
    assert ids == list(range(1, 30, 2))
    second.open(4)
    assert second.read_exactly(3).column(0).to_pylist() == ids[4:7]


def test_a_row_is_due_whether_or_not_a_reader_was_there(tmp_path):
    schedule = jobs.Schedule(1000.0, 0, str(tmp_path))
    (tmp_path / "begin").write_text(repr(time.time() - 0.5))
    for index in range(2):
        late = jobs.PacedReader(schedule, None, index, 2)
        late.open(0)
        batch = late.read(8192, 0.0)
        assert batch is not None
        assert batch.num_rows >= 250
        assert schedule.late_ms(index, time.time()) >= 499.0
    assert math.isnan(jobs.Schedule(1000.0, 5, str(tmp_path)).late_ms(4, time.time()))


def test_a_row_is_given_when_it_is_due_and_not_before(tmp_path, monkeypatch):
    (tmp_path / "begin").write_text("100.0")
    monkeypatch.setattr(time, "time", lambda: 100.5)  # row 500 is due just now
    ids: list[int] = []
    for index in range(2):
        reader = jobs.PacedReader(jobs.Schedule(1000.0, 0, str(tmp_path)), None, index, 2)
        reader.open(0)
        batch = reader.read(8192, 0.0)
        assert batch is not None
        ids += batch.column(0).to_pylist()
    assert sorted(ids) == list(range(501))


def test_a_batch_is_collected_for_as_long_as_the_job_lets_it_wait(tmp_path, monkeypatch):
    (tmp_path / "begin").write_text("100.0")
    now = [100.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda s: now.__setitem__(0, now[0] + s + 1e-6))
    dense = jobs.PacedReader(jobs.Schedule(20_000.0, 0, str(tmp_path)), None, 0, 2)
    dense.open(0)
    batches = [dense.read(8192, 0.01) for _ in range(10)]
    assert [batch.num_rows for batch in batches if batch is not None] == [101] * 10
    now[0] = 100.0
    sparse = jobs.PacedReader(jobs.Schedule(40.0, 0, str(tmp_path)), None, 1, 2)
    sparse.open(0)
    first = sparse.read(8192, 0.01)
    assert first is not None
    assert first.num_rows == 1
    assert now[0] == pytest.approx(100.0 + 1 / 40.0, abs=1e-4)  # nothing comes for which to wait


def test_a_source_waits_for_who_begins_and_ends_when_told(tmp_path):
    schedule = jobs.Schedule(1000.0, 0, str(tmp_path), waits=True)
    reader = jobs.PacedReader(schedule, None, 0, 1)
    reader.open(0)
    assert reader.read(10, 0.0) is None
    schedule.begin()
    assert schedule.began_s() is not None
    schedule.stop.touch()
    with pytest.raises(EndOfInput):
        reader.read(10, 0.0)


def test_the_repeating_source_gives_the_same_rows_again():
    one, other = (jobs.RepeatReader(1000, 64, 10, 0, 2) for _ in range(2))
    one.open(0)
    other.open(100)
    rows = one.read_exactly(500)
    assert other.read_exactly(400).equals(rows.slice(100))
    with pytest.raises(EndOfInput):
        one.read(1, 0.0)


def test_jobs_are_four_tasks_deep():
    job = jobs.stateful(jobs.at_once(1), keys=1, value_bytes=8)
    names = [task.name for task in job.compile().plan.tasks]
    assert names == [f"{n}[{i}]" for n in ("source", "map", "state", "sink") for i in (0, 1)]


def test_a_report_is_shown_and_saved(tmp_path):
    report = Report("x", "title", PERCENTILES)
    report.summary("gap (ms)", summarize([1.0, math.inf]), p50=Aim(5.0))
    saved = json.loads(report.save(tmp_path, {"rate": 1.0}).read_text("utf-8"))
    assert saved["table"][0]["target"] == "p50 <= 5: missed"
    assert saved["settings"] == {"rate": 1.0}
    assert saved["machine"]["cores"] >= 1


def test_many_points_are_thinned_out_to_the_worst():
    times = np.arange(0.0, 100.0, 0.001)
    values = np.ones(len(times))
    values[77_777] = 9.0
    thin, worst = plots.worst_of_steps(times, values)
    assert len(thin) <= 2000
    assert worst.max() == 9.0


def test_pictures_are_drawn(tmp_path):
    plots.timeline(tmp_path / "a.png", {"sink[0]": partition(5.0, 5.5)}, [5.0], "t")
    plots.histograms(tmp_path / "b.png", {"gap": ([1.0, math.inf], [3.0])}, "t")
    plots.bars(tmp_path / "c.png", {"one": 1.0}, "s", "t")
    assert len(list(tmp_path.glob("*.png"))) == 3
