"""The soak's job without faults, and its judge: a good output passes, each fault is found."""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import time
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest

from clonos.testing import InMemoryRun
from clonos_bench import run
from clonos_bench.report import Report
from clonos_bench.soak import driver, service
from clonos_bench.soak.faults import KINDS, Faults
from clonos_bench.soak.job import DEAR, build
from clonos_bench.soak.run import add_findings, plot
from clonos_bench.soak.verdict import FAULTS, answered, judge

ROWS = 300
REQUEST = b"POST / HTTP/1.1\r\nContent-Length: 20\r\n\r\n"
ANSWERS = "id long, customer long, merchant long, seen long, nonce long, rate long"
BILLS = "merchant long, number long, rows long, total long, draw long"


def run_in_memory(folder, seed):
    """Delivered rows by sink, and what the service wrote down."""
    (folder / "begin").write_text(repr(time.time() - 3600))  # all rows are due
    with service.running(folder / "service.jsonl", seed) as url:
        job = build(folder, url, rate=100.0, rows=ROWS, parallelism=2, standbys=1)
        delivered = InMemoryRun(job.compile(), seed=seed, batch_rows=40, restore=0.3).run()
    lines = (folder / "service.jsonl").read_text().splitlines()
    said = {
        (line["nonce"], *pair)
        for line in map(json.loads, lines)
        for pair in zip(line["ids"], line["rates"], strict=True)
    }
    return {name: table.to_pylist() for name, table in delivered.items()}, said


def test_who_was_dead_before_it_could_be_frozen_is_not_thawed():
    ended = subprocess.Popen(["true"])
    ended.wait()
    slot = SimpleNamespace(runs=("a",), keeps=(), pid=ended.pid, executor="1", executor_pid=1)
    job: Any = SimpleNamespace(slots=lambda: [slot])
    told: list[str] = []
    faults = Faults(job, 1, 0.001, ["freeze"], lambda kind, what, pids: told.append(kind))
    for now_s in range(0, 200, 20):  # each is frozen and thawed
        faults.look(float(now_s))
    faults.end()
    assert len(told) >= 2


def test_memory_is_that_of_the_driver_and_of_the_largest_slot():
    own, other = (SimpleNamespace(pid=pid) for pid in (os.getpid(), 1 << 30))
    job: Any = SimpleNamespace(slots=lambda: [own, other])
    found = driver.memory(job)
    assert found["slot"] > 1e6  # the other one is gone
    assert found["driver"] > 1e6


def test_the_picture_and_the_report_of_a_soak_have_its_memory(tmp_path):
    lines: list[dict[str, Any]] = [{"what": "begin", "at_s": 0.0}]
    for at_s in range(1, 60):
        lines += [
            {"what": "sample", "at_s": at_s, "live": 1, "tasks": 2, "bills": at_s},
            {"what": "memory", "at_s": at_s, "driver": 2e8, "slot": 1e6 * at_s},
        ]
    found = Report("soak", "a minute", ("", "n", "worst (s)", "target"))
    add_findings(found, lines, [], 1.0)
    assert (
        "memory of the largest slot, most in each quarter of the time: 14, 29, 44, 59 MB"
        in found.notes
    )
    for name, drawn in (("with.png", lines), ("without.png", lines[:-1:2])):
        plot(tmp_path / name, drawn, [30.0], "a minute")
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_processes_with_other_working_directories_find_the_files(tmp_path, monkeypatch):
    """Sources wait for one of them: in executors of a cluster no row would ever come."""
    monkeypatch.chdir(tmp_path)
    found = run.folder(argparse.Namespace(out="out"), "soak")
    assert found == tmp_path / "out" / "soak"
    assert found.is_dir()


def test_the_job_delivers_what_it_says(tmp_path):
    delivered, said = run_in_memory(tmp_path, seed=3)
    answers = delivered["answers"]
    assert sorted(row["id"] for row in answers) == list(range(ROWS))
    assert {(row["nonce"], row["id"], row["rate"]) for row in answers} <= said
    dear = [row["id"] for row in answers if row["rate"] >= DEAR]
    assert sorted(row["id"] for row in delivered["dear"]) == sorted(dear)
    assert sum(bill["rows"] for bill in delivered["bills"]) == ROWS
    assert sum(bill["total"] for bill in delivered["bills"]) == sum(r["rate"] for r in answers)


@pytest.mark.parametrize("said", [b"POST / HTTP/1.1\r\n", REQUEST, REQUEST + b'{"ids": [1'])
def test_the_service_does_not_complain_of_who_dies_while_asking(tmp_path, capsys, said):
    with service.running(tmp_path / "service.jsonl", seed=1) as url:
        place = urlsplit(url)
        with socket.create_connection((str(place.hostname), place.port or 0), 10) as caller:
            caller.sendall(said)
            caller.shutdown(socket.SHUT_WR)
            while caller.recv(1024):
                pass  # it hangs up when it has dealt with this
    assert capsys.readouterr().err == ""
    assert not (tmp_path / "service.jsonl").read_bytes()


GOOD = [(0, 7, 1, 1, 10, 950), (1, 7, 1, 2, 10, 5), (2, 8, 2, 1, 11, 6)]
JOURNAL = [{"ids": [0, 1], "nonce": 10, "rates": [950, 5]}, {"ids": [2], "nonce": 11, "rates": [6]}]
GOOD_BILLS = [(1, 1, 1, 950, 4), (1, 2, 1, 5, 5), (2, 1, 1, 6, 6)]

# Delivered answers, bills if those are spoilt, and how many faults that makes.
SPOILT = {
    "rows lost": ([GOOD[0], GOOD[2]], None, 1),
    "rows that are none": ([*GOOD, (9, 9, 1, 1, 10, 5)], None, 1),
    "rows repeated": ([*GOOD, GOOD[1]], None, 1),
    "answers that the service did not give": ([*GOOD[:2], (2, 8, 2, 1, 12, 6)], None, 1),
    "customers numbered wrongly": ([GOOD[0], (1, 7, 1, 3, 10, 5), GOOD[2]], None, 1),
    "answers that differ between two sinks": ([(0, 7, 1, 1, 10, 951), *GOOD[1:]], None, 2),
    "merchants whose bills are lost or repeated": (GOOD, [*GOOD_BILLS, GOOD_BILLS[2]], 1),
    "merchants whose bills are wrong": (GOOD, [*GOOD_BILLS[:2], (2, 1, 1, 7, 6)], 1),
}


def verdict_on(spark, folder, answers, bills, kinds=tuple(FAULTS)):
    path = folder / "service.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in JOURNAL))
    return judge(
        spark.createDataFrame(answers, ANSWERS),
        spark.createDataFrame(GOOD[:1], ANSWERS),
        spark.createDataFrame(bills, BILLS),
        answered(spark, path),
        len(GOOD),
        kinds,
    )


@pytest.mark.spark
def test_a_good_output_passes(spark, tmp_path):
    verdict = verdict_on(spark, tmp_path, GOOD, GOOD_BILLS)
    assert verdict.faults == dict.fromkeys(FAULTS, 0)
    assert verdict.asked_again == 0


@pytest.mark.spark
def test_each_fault_is_found(spark, tmp_path):
    assert SPOILT.keys() == FAULTS.keys()
    for name, (answers, bills, count) in SPOILT.items():
        verdict = verdict_on(spark, tmp_path, answers, bills or GOOD_BILLS, [name])
        assert verdict.faults == {name: count}


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_struck_while_nothing_runs(kind):
    """All executors were killed: what is drawn from them is drawn from nobody."""
    job: Any = SimpleNamespace(slots=list, tasks=lambda: [SimpleNamespace(name="count[0]")])
    told = []
    faults = Faults(job, 1, 1e-9, [kind], lambda *fault: told.append(fault))
    for now_s in range(1, 5):
        faults.look(float(now_s))
    faults.end()
    assert told == []
