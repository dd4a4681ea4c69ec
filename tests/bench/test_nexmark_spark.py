"""Structured Streaming as a peer: its virtual machine, and how much it is given to do."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from clonos_bench import run
from clonos_bench.gates import Ran
from clonos_bench.nexmark.parts import spark as nexmark_spark
from clonos_bench.report import Report


def heap_and_collectors(spark):
    jvm = spark._jvm.java.lang
    beans = jvm.management.ManagementFactory.getGarbageCollectorMXBeans()
    return jvm.Runtime.getRuntime().maxMemory(), {bean.getName() for bean in beans}


@pytest.mark.spark
@pytest.mark.soak
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
    """The runs that were made: 96 s for all files; the first of each query takes a minute more."""
    runs: list[tuple[Any, int, bool]] = []

    def run_query(spark, query, folder, files, *, ends):
        is_cold = query not in {known for known, *_ in runs}
        runs.append((query, files, ends))
        return Ran(2.0 * files + 60 * is_cold, 7.0, 5)

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
    sizes = [3, 3, 12, 10, 10]  # cold, too short, long enough; two that count
    assert [files for _, files, _ in made] == sizes * 2
    assert [ends for *_, ends in made] == [False] * 5 + [True] * 5
    assert rates == {"source alone": 500.0, "3": 500.0}
    assert report.data["structured_streaming"]["3"]["events"] == 10_000
    assert report.lines[1][4] == "5"
    assert any("q6 not in" in note for note in report.notes)


@pytest.mark.parametrize(
    ("seconds", "sizes"), [(10_000.0, [3, 3, 12, 48, 48, 48]), (0.5, [3, 3, 3, 3])]
)
def test_there_is_a_most_and_a_least(made, seconds, sizes):
    measure([], run_seconds=seconds)
    assert [files for _, files, _ in made] == sizes
