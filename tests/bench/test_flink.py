"""Flink as a peer, as far as it needs no Flink: processes that run jobs, and what they leave."""

from __future__ import annotations

import argparse
import math
import sys
import time
from contextlib import nullcontext

import pytest

from clonos.bench import nexmark, nexmark_flink, nexmark_flink_recovery
from clonos.bench.flink.process import Installation, Peer, Ran
from clonos.bench.nexmark_flink import WAYS
from clonos.bench.nexmark_functions import CASES
from clonos.bench.nexmark_recovery import Pace, expected
from clonos.errors import ClonosError
from clonos.nexmark.generator import BASE_MS

ECHO = """
import sys, time
for line in sys.stdin:
    job = line.strip()
    print("something that a library says", flush=True)
    if job == "die":
        break
    if job == "fail":
        print("failed for a reason", flush=True)
        continue
    print("began", flush=True)
    ends = time.process_time() + 0.05
    while time.process_time() < ends:
        pass
    if job != "hang":
        print("done 0.25 7", flush=True)
"""


@pytest.fixture
def peer(tmp_path):
    with Peer([sys.executable, "-c", ECHO], tmp_path / "log", job_s=20.0) as started:
        yield started


def test_a_job_is_timed_and_its_processor_time_measured(peer):
    for _ in range(2):
        ran = peer.run("job")
        assert (ran.wall_s, ran.rows_out) == (0.25, 7)
        assert 0.03 <= ran.cpu_s < 5.0


def test_a_job_that_fails_says_why_and_the_next_one_runs(peer):
    with pytest.raises(ClonosError, match="for a reason"):
        peer.run("fail")
    assert peer.run("job").rows_out == 7


def test_a_process_that_ends_is_an_error(peer):
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
    assert {way.ours for way in WAYS.values()} == set(CASES)


@pytest.mark.parametrize("query", ["3", "8"])
def test_what_a_cluster_wrote_is_read_back(tmp_path, query):
    pace = Pace(time.time() - 30, 20_000.0)
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
    found, latency = nexmark_flink_recovery.read(tmp_path, pace, query)
    assert found == rows
    assert len(latency) == half
    assert {round(late_ms) for _, late_ms in latency} == {5, 6}


def test_the_newest_whole_row_says_how_late_rows_are(tmp_path):
    pace = Pace(1000.0, 20_000.0)
    assert nexmark_flink_recovery._newest_ms(tmp_path, pace) == math.inf
    lines = [f"+I\t{1_000_000 + i + 7}\t{i}\t{BASE_MS}\t{BASE_MS + i}\n" for i in range(2_000)]
    (tmp_path / "0.tsv").write_text("".join(lines) + "+I\t9", "utf-8")
    assert nexmark_flink_recovery._newest_ms(tmp_path, pace) == 7


def test_both_sides_are_a_line_of_the_table(tmp_path, monkeypatch):
    jobs: list[str] = []

    def alternate(queries, sizes, there, given, arguments):
        jobs.extend(job for each in given for job in each.values())
        ours = {name: [Ran(1.0, 2.0, 3)] for name in queries}
        return ours, {name: [Ran(4.0, 6.0, 3)] for name in queries}

    nowhere = Installation(tmp_path / "python", tmp_path, tmp_path / "jar")
    monkeypatch.setattr(Installation, "find", lambda python: nowhere)
    monkeypatch.setattr(nexmark_flink, "peer", lambda *_: nullcontext())
    monkeypatch.setattr(nexmark_flink, "python_peer", lambda *_: nullcontext())
    monkeypatch.setattr(nexmark_flink, "alternate", alternate)
    parser = argparse.ArgumentParser()
    nexmark.add_arguments(parser)
    given = ["--parts", "flink", "--queries", "0,6,9", "--events", "1000000"]
    report = nexmark.measure(parser.parse_args([*given, "--out", str(tmp_path)]))
    (part,) = report.parts
    assert [line[0] for line in part.lines] == ["q0", "q9", *WAYS]
    assert part.lines[0] == ("q0", "1,000,000", "2.00", "250,000", "6.00", "4.00")
    assert part.lines[1][1] == "200,000"
    assert part.notes[-1] == "not in Flink SQL: q6"
    assert len(jobs) == 2 * (2 + len(WAYS))
    assert (report.save(tmp_path, {})).exists()
