"""What the parts of the Nexmark measurement are made of, and make of runs, without Spark."""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from dataclasses import replace

import pyarrow as pa
import pytest

import clonos
from clonos.sources.readers import EndOfInput
from clonos.testing import InMemoryRun
from clonos_bench import plots
from clonos_bench.gates import Timed, gated, tried_out
from clonos_bench.nexmark import Generator
from clonos_bench.nexmark import measurement as nexmark
from clonos_bench.nexmark.parts import files, growth, overhead, recovery
from clonos_bench.nexmark.parts.overhead import BASE, VARIANTS
from clonos_bench.nexmark.parts.paced import Pace, Rows, expected, paced
from clonos_bench.nexmark.parts.spark_recovery import PacedStream
from clonos_bench.nexmark.queries import Auctions, q0
from clonos_bench.report import Report
from clonos_bench.timelines import Timeline


def options(*given):
    parser = argparse.ArgumentParser()
    nexmark.add_arguments(parser)
    return parser.parse_args(list(given))


def timed(wall_s, cpu_s):
    counters = {"a": {"entry_bytes": 7}, "b": {"entry_bytes": 5, "items_out": 2}}
    return Timed(wall_s, cpu_s, 1, 10_000_000, counters, events=1000, checkpoints=5)


# --- overhead -------------------------------------------------------------------------------------


def rounds(slower, moods=(1.0, 2.0, 5.0)):
    return {
        BASE: [timed(mood, mood) for mood in moods],
        "1": [timed(mood * slower, mood * 1.2) for mood in moods],
    }


def test_what_is_lost_is_that_of_pairs(tmp_path):
    report = overhead.compare({"1": rounds(1.25), "5": rounds(2.0)}, tmp_path)
    lines: dict[str, tuple[str, ...]] = {}
    for line in report.lines:
        lines.setdefault(line[0], tuple(line[1:]))  # throughput comes before CPU
    assert lines["q1"][1] == "+20.0 [+20.0, +20.0]"
    assert lines["q5"][1] == "+50.0 [+50.0, +50.0]"
    assert lines["mean"][1].startswith("+36.8")  # 1 - 1/sqrt(2.5)
    assert lines["worst"][1] == "+50.0 (q5)"
    assert lines["target for mean, worst"][1] == "<= 2: missed, <= 5: missed"
    assert lines["Clonos on Flink (paper): mean, worst"][1] == "+5.3, +16.0"
    assert report.lines[-1] == ("q5", "0.012; 10", "0.012; 10")
    assert (tmp_path / "overhead.png").exists()
    assert "| q5 |" in report.markdown()


def test_variants_that_give_other_rows_are_wrong(tmp_path):
    done = {"1": rounds(1.25), "12": rounds(1.25)}
    assert overhead.compare(done, tmp_path).ok
    wrong = replace(done["1"]["1"][0], rows_out=2)
    for query in done:
        done[query]["1"][0] = wrong
    report = overhead.compare(done, tmp_path)
    assert not report.ok
    assert [note for note in report.notes if "gave" in note] == ["q1 gave 1 or 2 rows"]


def test_runs_without_checkpoints_are_noticed(tmp_path):
    done = {"1": rounds(1.25)}
    done["1"]["1"][0] = replace(done["1"]["1"][0], checkpoints=1)
    report = overhead.compare(done, tmp_path)
    assert report.notes[-1] == "each run has seen 1 checkpoints or more (few: q1 1)"


def test_a_run_is_made_to_take_so_long():
    tried = []

    def once(events):
        tried.append(events)
        return replace(timed(events / 1e6 + 0.1, 1.0), events=events)

    found, first = tried_out(once, 5.0)
    assert tried[0] < tried[1] < found
    assert first.events == tried[0]
    assert once(found).wall_s == pytest.approx(5.0, rel=0.02)


def test_unknown_variants_and_parts_are_refused(tmp_path):
    arguments = options("--variants", "off,2", "--out", str(tmp_path))
    with pytest.raises(clonos.ClonosError, match="no variant 2"):
        overhead.measure({"0": q0}, arguments, tmp_path)
    with pytest.raises(clonos.ClonosError, match="no part x"):
        nexmark.measure(options("--parts", "plain,x", "--out", str(tmp_path)))


def test_off_is_without_causal_log_and_bare_without_checkpoints():
    for name, interval in ((BASE, 100), ("bare", 24 * 3600 * 1000)):
        job = VARIANTS[name].job("x", 1, 100)
        q0(Auctions(job, 100)).sink(clonos.sinks.collect())
        compiled = job.compile()
        assert not compiled.plan.causal_log
        assert not any(code.digests for code in compiled.codes)
        assert compiled.options.standbys == 0
        assert compiled.options.checkpoint_interval_ms == interval
    assert VARIANTS["bare"].options == {"durability": "process"}


# --- sources --------------------------------------------------------------------------------------


def test_a_gated_source_waits_for_its_file_and_then_is_the_same(tmp_path):
    files.write(tmp_path, Generator(2_000))
    source = files.source(tmp_path, "bid")
    gate = tmp_path / "go"
    reader = gated(source, gate).reader(0, 1)
    reader.open(10)
    assert reader.read(100, 0.001) is None
    gate.touch()
    plain = source.reader(0, 1)
    plain.open(10)
    for each in (reader, plain):
        each.skip(20)
    assert reader.read_exactly(50) == plain.read_exactly(50)


def test_files_have_all_events(tmp_path):
    files.write(tmp_path, Generator(2_000))
    job = clonos.Job(parallelism=2)
    house = Auctions(job, 0, source=lambda kind: files.source(tmp_path, kind))
    q0(house).sink(clonos.sinks.collect(), name="out")
    rows = InMemoryRun(job.compile()).run()["out"]
    bids = Generator(2_000).batch("bid", 0, Generator(2_000).rows("bid"))
    assert sorted(rows["price"].to_pylist()) == sorted(bids["price"].to_pylist())


def read_to_its_end(reader):
    while True:
        reader.read(100_000, 0.0)


def test_paced_events_exist_when_their_time_has_come(tmp_path):
    pace = Pace(time.time() - 1.0, 2_000.0)
    readers = [paced(pace, tmp_path / "stop", "bid").reader(i, 2) for i in range(2)]
    rows = 0
    for reader in readers:
        reader.open(0)
        while (batch := reader.read(100_000, 0.0)) is not None:
            rows += batch.num_rows
    assert pace.rows("bid", pace.began_s + 0.99) <= rows <= pace.rows("bid", time.time())
    (tmp_path / "stop").touch()
    with pytest.raises(EndOfInput):
        read_to_its_end(readers[0])


# --- recovery -------------------------------------------------------------------------------------


@pytest.mark.parametrize("query", list(recovery.JOINS))
def test_the_rows_that_are_expected_are_those_that_the_join_gives(query):
    pace = Pace(1000.0, 200.0)
    job = clonos.Job(parallelism=2)
    house = Auctions(job, 10_000, delay_us=pace.generator.delay_us, block_events=500)
    recovery.JOINS[query](house).sink(clonos.sinks.collect(), name="out")
    table = InMemoryRun(job.compile()).run()["out"]
    until_s = pace.began_s + 10_000 / pace.rate
    assert expected(query, pace, until_s).total() == table.num_rows > 10
    rows = Rows(pace, query)
    for batch in table.to_batches():
        rows.put(batch)
    assert rows.faults(until_s, until_s) == []
    assert all(late > 0 for _, late in rows.latency)


def test_missing_and_repeated_rows_are_found():
    pace = Pace(1000.0, 200.0)
    job = clonos.Job(parallelism=1)
    house = Auctions(job, 10_000, delay_us=pace.generator.delay_us, block_events=500)
    recovery.JOINS["3"](house).sink(clonos.sinks.collect(), name="out")
    table = InMemoryRun(job.compile()).run()["out"].combine_chunks()
    rows = Rows(pace, "3")
    rows.put(table.slice(3))
    rows.put(table.slice(10, 2))
    until_s = pace.began_s + 10_000 / pace.rate
    assert rows.faults(until_s, until_s) == ["2 rows too often", "3 rows missing"]


def test_latency_is_from_the_creation_of_the_newest_event():
    pace = Pace(1000.0, 200.0)
    job = clonos.Job(parallelism=1)
    house = Auctions(job, 2_000, delay_us=pace.generator.delay_us, block_events=500)
    recovery.JOINS["3"](house).sink(clonos.sinks.collect(), name="out")
    row = InMemoryRun(job.compile()).run()["out"].slice(0, 1)
    auction = row["id"][0].as_py() - 1000
    person = row["person"][0].as_py() - 1000
    newest = max(auction // 3 * 50 + 1 + auction % 3, person * 50)
    delivered_s = pace.began_s + newest / pace.rate + 0.25
    assert pace.late_ms(row, delivered_s) == pytest.approx(250, abs=1.1)


def test_sparks_source_gives_what_exists_and_nothing_twice():
    pace = Pace(time.time() - 1.0, 1_000.0)
    stream = PacedStream(pace, "bid", 2)
    end = stream.latestOffset()
    assert pace.rows("bid", pace.began_s + 0.99) <= end["rows"] <= pace.rows("bid", time.time())
    parts = stream.partitions({"rows": 3}, {"rows": 10})
    batches = [batch for part in parts for batch in stream.read(part)]
    assert len(parts) == 2
    assert pa.Table.from_batches(batches) == pa.Table.from_batches(
        [pace.generator.batch("bid", 3, 7)]
    )
    assert list(stream.partitions({"rows": 3}, {"rows": 3})) == []


def killed(system, normal_s):
    """A delivery every 10 ms, and none after each kill for so long."""
    kills = [10.0, 20.0, 30.0]
    points = [
        (i / 100, 5.0)
        for i in range(4_000)
        if not any(0 < i / 100 - kill < normal_s - 0.005 for kill in kills)
    ]
    return Timeline(system, "3", 1.0, points, kills)


def test_the_aim_is_for_ours_and_every_kill_is_kept(tmp_path):
    report = Report("recovery", "t", recovery._COLUMNS)
    lines = [killed("Clonos, a", 0.1), killed("Clonos, b", 0.4), killed("Flink", 3.0)]
    recovery._table(report, "3", lines)
    assert [line[0] for line in report.lines] == ["q3, Clonos, a", "q3, Clonos, b", "q3, Flink"]
    assert [line[6] for line in report.lines] == ["100", "400", "3,000"]
    aims = [line[-1] for line in report.lines]
    assert aims == ["<= 250: p50 met, max met", "<= 250: p50 missed, max missed", ""]
    saved = json.loads(report.save(tmp_path, {}).read_text("utf-8"))
    assert [len(of_system["kills"]) for of_system in saved["q3"].values()] == [3, 3, 3]
    assert saved["q3"]["Flink"]["kills"][0]["normal_ms"] == pytest.approx(3000, abs=1)


def test_a_system_that_does_not_bear_the_rate_leaves_the_others(tmp_path, monkeypatch):
    def run_(query, system, arguments):
        if system == "full":
            raise clonos.ClonosError("never in time")
        return killed(f"Clonos, {system}", 0.1), []

    monkeypatch.setattr(recovery, "_run", run_)
    monkeypatch.setattr(recovery, "_standbys", lambda *_: [])
    arguments = options("--joins", "3,8", "--systems", "full,1", "--out", str(tmp_path))
    report = recovery.measure({}, arguments, tmp_path)
    assert not report.ok
    assert [line[0] for line in report.lines[:2]] == ["q3, Clonos, 1", "q8, Clonos, 1"]
    assert "q8, full: never in time" in report.notes
    assert (tmp_path / "q3.png").exists()


def test_unknown_systems_are_refused(tmp_path):
    arguments = options("--systems", "1-executor", "--out", str(tmp_path))
    with pytest.raises(clonos.ClonosError, match="full-executor"):
        recovery.measure({}, arguments, tmp_path)


# --- growth ---------------------------------------------------------------------------------------


def test_one_thing_grows_on_each_axis(tmp_path):
    arguments = options()
    tasks = {}
    for axis in growth.AXES:
        for point in growth._points(axis, arguments):
            jobs = {name: build(tmp_path / "go") for name, build in point.builds.items()}
            assert BASE in jobs
            sizes = {len(job.compile().plan.tasks) for job in jobs.values()}
            assert len(sizes) == 1
            tasks[axis, point.at] = sizes.pop()
            assert all(job.cores() >= tasks[axis, point.at] for job in jobs.values())
    assert [tasks["parallelism", p] for p in (1, 2, 4, 8)] == [3, 6, 12, 24]
    assert [tasks["depth", d] for d in (1, 2, 4, 8)] == [2, 3, 5, 9]
    assert len({tasks["keys", k] for k in (100, 10_000, 1_000_000)}) == 1
    with pytest.raises(clonos.ClonosError, match="no axis x"):
        growth._points("x", arguments)


def test_a_point_becomes_a_line_and_a_place_in_the_picture(tmp_path):
    points = []
    for axis, at in (("depth", 1), ("depth", 4), ("keys", 100)):
        point = growth.Point(axis, at, 12, {})
        point.runs = {BASE: [timed(1.0, 1.0)], "full": [timed(1.25, 1.5)]}
        points.append(point)
    cells = growth._cells(points[0], points[0].runs["full"])
    assert cells == ["10", "0.80", "1.50", "1.000", "0.0", "10"]
    growth._draw(points, {}, tmp_path / "growth.png", "t")
    assert (tmp_path / "growth.png").stat().st_size > 1000


# --- tables and pictures --------------------------------------------------------------------------


def test_markdown_has_every_line_and_note():
    report = Report("x", "title", ["", "a"], notes=["note"])
    for number in range(3):
        report.add(f"line {number}", str(random.Random(number).random()))
    lines = report.markdown().splitlines()
    kinds = Counter(line.startswith("|") for line in lines)
    assert kinds[True] == 5
    assert lines[-1] == "note"


def test_small_multiples_may_have_holes(tmp_path):
    panels = [[("a", {"x": [(0, 1.0), (5, 2.0)]}), ("b", {})], [("c", {"y": [(100, 3.0)]})]]
    plots.multiples(tmp_path / "m.png", panels, "t")
    plots.grouped(tmp_path / "g.png", {"one": {"1": 0.9}, "other": {"1": 1.1}}, "u", "t")
    assert len(list(tmp_path.glob("*.png"))) == 2
