"""Flink as a peer, as far as it needs no Flink: processes that run jobs, and what they leave."""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from contextlib import nullcontext

import pytest

from clonos.errors import ClonosError
from clonos_bench import run
from clonos_bench.flink.process import Installation, Peer
from clonos_bench.gates import TRIAL_EVENTS, Ran, tried_out
from clonos_bench.nexmark import measurement as nexmark
from clonos_bench.nexmark.generator import BASE_MS
from clonos_bench.nexmark.parts import flink, flink_recovery
from clonos_bench.nexmark.parts.flink import (
    WAYS,
    Side,
    compete,
    functions_in_python,
    queries,
)
from clonos_bench.nexmark.parts.functions import CASES
from clonos_bench.nexmark.parts.paced import Pace, expected
from clonos_bench.nexmark.queries import QUERIES

ECHO = """
import sys
for line in sys.stdin:
    job = line.strip()
    print("something that a library says", flush=True)
    if job == "die":
        break
    if job == "fail":
        print("failed for a reason", flush=True)
        continue
    if job != "hang":
        print("done 0.25 7 150", flush=True)
"""


@pytest.fixture
def peer(tmp_path):
    with Peer([sys.executable, "-c", ECHO], tmp_path / "log", job_s=20.0) as started:
        yield started


def test_a_job_says_what_it_took(peer):
    for _ in range(2):
        ran = peer.run("job")
        assert (ran.wall_s, ran.rows_out) == (0.25, 7)
        assert ran.cpu_s == 150 / os.sysconf("SC_CLK_TCK")


def test_a_job_that_fails_says_why_and_the_next_one_runs(peer):
    with pytest.raises(ClonosError, match="for a reason"):
        peer.run("fail")
    assert peer.run("job").rows_out == 7


def test_a_process_that_ends_is_an_error(peer):
    for _ in range(2):
        with pytest.raises(ClonosError, match="has ended"):
            peer.run("die")


def test_a_job_that_hangs_is_an_error(tmp_path):
    with (
        Peer([sys.executable, "-c", ECHO], tmp_path / "log", job_s=0.5) as peer,
        pytest.raises(ClonosError, match=r"not ended after 0\.5 s"),
    ):
        peer.run("hang")


def test_without_flink_the_part_is_skipped_and_says_how_to_get_it(tmp_path):
    parser = argparse.ArgumentParser()
    nexmark.add_arguments(parser)
    given = ["--parts", "flink", "--flink-python", "no/bin/python", "--out", str(tmp_path)]
    (report,) = nexmark.measure(parser.parse_args(given)).parts
    assert report.ok
    assert not report.lines
    assert "scripts/setup_flink.sh" in report.notes[0]


def test_every_function_is_one_of_ours():
    assert {way.ours for way in WAYS.values()} <= set(CASES)


@pytest.mark.parametrize("query", ["3", "8"])
def test_what_a_cluster_wrote_is_read_back(tmp_path, query):
    pace = Pace(float(int(time.time()) - 30), 20_000.0)  # arrivals are whole milliseconds
    rows = expected(query, pace, time.time())
    lines = []
    for number, row in enumerate(rows):
        since_ms, opens_ms = BASE_MS, row[2] // 1000 if query == "8" else BASE_MS + 40
        arrival_ms = pace.began_s * 1000 + opens_ms - BASE_MS + 5 + number % 2
        ids = row if query == "3" else row[:2]
        cells = ["+I", round(arrival_ms), *ids, since_ms, opens_ms]
        lines.append("\t".join(map(str, cells)) + "\n")
    half = len(lines) // 2
    (tmp_path / "0.tsv").write_text("".join(lines[:half]) + "+I\t17", "utf-8")
    (tmp_path / "1.tsv").write_text("".join(lines[half:]), "utf-8")
    found, latency = flink_recovery.read(tmp_path, pace, query)
    assert found == rows
    assert len(latency) == half
    assert {round(late_ms) for _, late_ms in latency} == {5, 6}


def test_the_newest_whole_row_says_how_late_rows_are(tmp_path):
    pace = Pace(1000.0, 20_000.0)
    assert flink_recovery._newest_ms(tmp_path, pace) == math.inf
    lines = [f"+I\t{1_000_000 + i + 7}\t{i}\t{BASE_MS}\t{BASE_MS + i}\n" for i in range(2_000)]
    (tmp_path / "0.tsv").write_text("".join(lines) + "+I\t9", "utf-8")
    assert flink_recovery._newest_ms(tmp_path, pace) == 7


def test_runs_are_tried_until_it_is_warm_and_their_length_is_known():
    sizes: list[int] = []

    def once(size):
        sizes.append(size)
        return Ran(size / (1e6 if len(sizes) > 1 else 1e5), 0.0, size)

    events, first = tried_out(once, 2.0, 5.0)
    # They took 2, 0.2, 2 and 2 s: what the compiler does to the first does not count for the size.
    assert sizes == [TRIAL_EVENTS, 200_000, 2_000_000, 2_000_000]
    assert events == 2_000_000
    assert first.rows_out == TRIAL_EVENTS


def measured(tmp_path, monkeypatch, results):
    """The report of the part, had the contests these results."""

    def compete(all_, *_):
        return [(each.name, results(each.name)) for each in all_]

    nowhere = Installation(tmp_path / "python", tmp_path, tmp_path / "jar")
    monkeypatch.setattr(Installation, "find", lambda python: nowhere)
    monkeypatch.setattr(flink, "compete", compete)
    parser = argparse.ArgumentParser()
    nexmark.add_arguments(parser)
    given = ["--parts", "flink,pyflink", "--queries", "0,6,9,12", "--out", str(tmp_path)]
    report = nexmark.measure(parser.parse_args(given))
    assert (report.save(tmp_path, {})).exists()
    assert [line[0] for line in report.parts[1].lines] == list(WAYS)
    return report.parts[0]


def side(events, *walls_s, rows_out=3):
    return Side(events, Ran(0.1, 0.2, rows_out), [Ran(each, 2.0, 3) for each in walls_s])


def test_both_sides_are_a_line_of_the_table(tmp_path, monkeypatch):
    sides = side(2_000_000, 1.0, 0.5, 2.0), side(1_000_000, 4.0, 2.0, 2.5)
    part = measured(tmp_path, monkeypatch, lambda name: sides)
    assert part.ok
    assert [line[0] for line in part.lines] == ["q0", "q9", "q12"]
    of_ours, of_theirs = ("2,000 [1,000, 4,000]", "1.00"), ("400 [250, 500]", "2.00")
    assert part.lines[0] == ("q0", *of_ours, *of_theirs, "5.00")
    assert part.notes[-1] == "not in Flink SQL: q6"


def test_what_fails_is_said_and_the_rest_is_there(tmp_path, monkeypatch):
    def result(name):
        return ClonosError("no room") if name == "q9" else (side(10, 1.0), side(10, 1.0))

    part = measured(tmp_path, monkeypatch, result)
    assert not part.ok
    assert [line[0] for line in part.lines] == ["q0", "q12"]
    assert part.notes[0] == "q9: failed: no room"


def test_other_rows_than_ours_are_said_but_of_the_query_by_the_clock(tmp_path, monkeypatch):
    def result(name):
        return side(10, 1.0), side(10, 1.0, rows_out=4 if name in {"q0", "q12"} else 3)

    part = measured(tmp_path, monkeypatch, result)
    assert not part.ok
    assert part.notes[0] == "q0: of 200,000 events ours gives 3 rows, Flink 4"
    assert "q12" not in " ".join(part.notes)


def test_a_contest_that_fails_leaves_the_next_one_alone(monkeypatch, tmp_path):
    def compared(contest, *_):
        if contest.name == "q0":
            raise ClonosError("lost")
        return side(10, 1.0), side(10, 1.0)

    monkeypatch.setattr(flink, "_compared", compared)
    monkeypatch.setattr(run, "session", lambda master: nullcontext())
    parser = argparse.ArgumentParser()
    nexmark.add_arguments(parser)
    all_ = queries({"0": QUERIES[0], "2": QUERIES[2]})
    nowhere = Installation(tmp_path / "python", tmp_path, tmp_path / "jar")
    (first, error), (second, sides) = compete(all_, nowhere, parser.parse_args([]), tmp_path)
    assert (first, second) == ("q0", "q2")
    assert isinstance(error, ClonosError)
    assert not isinstance(sides, ClonosError)


def test_every_contest_makes_jobs_of_the_wanted_size():
    for each in [*queries({"2": QUERIES[2]}), *functions_in_python()]:
        assert "'events' = '123456'" in each.theirs(123_456)
