"""Structured Streaming as a peer: its virtual machine, and how much it is given to do."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from clonos.bench import nexmark_spark, run
from clonos.bench.nexmark_files import FILES
from clonos.bench.report import Report


def heap_and_collectors(spark):
    jvm = spark._jvm.java.lang
    beans = jvm.management.ManagementFactory.getGarbageCollectorMXBeans()
    return jvm.Runtime.getRuntime().maxMemory(), {bean.getName() for bean in beans}


@pytest.mark.spark
@pytest.mark.usefixtures("new_jvm")
def test_a_heap_is_that_of_a_new_virtual_machine():
    with run.session("local[2]"):
        gateway: Any = SparkContext._gateway
        process = gateway.proc
    assert process.poll() is None
    with nexmark_spark.session(2) as spark:
        assert process.poll() is not None
        heap, collectors = heap_and_collectors(spark)
    assert 2.5e9 < heap < 3.3e9
    assert "PS Scavenge" in collectors
    assert SparkContext._gateway is None  # nobody else is given this one


class Conf(dict[str, str]):
    """Of a session."""

    set = dict.__setitem__
    unset = dict.__delitem__


@pytest.fixture
def made(monkeypatch):
    """The runs that were made: 100 s for all files, and one second in any case."""
    runs = []

    def run_query(spark, query, folder, files, *, ends):
        runs.append((files, ends))
        return nexmark_spark.Ran(1 + 100 * files / FILES, 7.0, 5)

    spark = argparse.Namespace(conf=Conf())
    monkeypatch.setattr(nexmark_spark, "session", lambda cores: contextlib.nullcontext(spark))
    monkeypatch.setattr(nexmark_spark, "run_query", run_query)
    return runs


def measure(names, **options):
    arguments = argparse.Namespace(events=48_000, runs=2, parallelism=2, **options)
    report = Report("x", "x", ("",))
    return nexmark_spark.measure(report, names, arguments, Path()), report


def test_runs_take_as_many_files_as_the_time_allows(made):
    rates, report = measure(["3", "6"], run_seconds=20.0)
    alone = [(3, False), (8, False), (8, False)]  # a trial, and two runs that count
    assert made == [*alone, *((files, True) for files, _ in alone)]
    assert rates["3"] == pytest.approx(8_000 / (1 + 100 * 8 / 48))
    assert report.data["structured_streaming"]["3"]["events"] == 8_000
    assert report.lines[1][4] == "5"
    assert any("q6 not in" in note for note in report.notes)


def test_trials_grow_until_they_say_something_and_end_with_all_files(made):
    measure([], run_seconds=60.0)
    assert [files for files, _ in made][:2] == [3, 12]
    made.clear()
    measure([], run_seconds=10_000.0)
    assert [files for files, _ in made] == [3, 12, 48, 48, 48]
