"""Random programs give the same rows in tasks and as Spark's plans, or are refused by name."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.oracle.judges import FAILED, Case, judge

pytestmark = pytest.mark.spark


def judge_all(
    seeds: range, spark: Any, folder: Path, *, streams: bool, kind: str | None = None
) -> Counter[str]:
    """What became of the programs of these seeds."""
    return Counter(
        judge(Case(seed, streams=streams, kind=kind), spark, folder / f"{streams} {seed}")
        for seed in seeds
    )


def test_some_programs(spark, tmp_path):
    found = judge_all(range(10), spark, tmp_path, streams=False)
    assert found["equal"] >= 5, found


def test_some_programs_on_streams(spark, tmp_path):
    found = judge_all(range(1, 2), spark, tmp_path, streams=True)
    assert found["equal"] == 1, found


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_many_programs(spark, tmp_path):
    found = judge_all(range(1000, 1250), spark, tmp_path, streams=False)
    assert found["equal"] >= 150, found


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_many_programs_on_streams(spark, tmp_path):
    found = judge_all(range(1000, 1050), spark, tmp_path, streams=True)
    assert found["equal"] >= 25, found


@pytest.mark.parametrize("kind", ["join", "window"])
def test_tasks_and_duckdb(kind):
    """Without Spark: many of them take no time."""
    known = 0
    for seed in range(100):
        case = Case(seed, kind=kind)
        if case.program.sql and ".where(" not in case.program.text:  # which needs a session
            tasks, sql = case.in_tasks(), case.in_duckdb()
            assert sql is not None
            assert sql == tasks, case.told({"tasks": tasks, "DuckDB": sql})
            known += bool(sql) and sql != FAILED
    assert known >= 15


def test_some_joins(spark, tmp_path):
    found = judge_all(range(2, 6), spark, tmp_path, streams=False, kind="join")
    assert found["equal"] >= 3, found


@pytest.mark.soak
def test_some_joins_on_streams(spark, tmp_path):
    found = judge_all(range(2, 3), spark, tmp_path, streams=True, kind="join")
    assert found["equal"] == 1, found


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_many_joins(spark, tmp_path):
    found = judge_all(range(1000, 1150), spark, tmp_path, streams=False, kind="join")
    assert found["equal"] >= 100, found


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_many_joins_on_streams(spark, tmp_path):
    found = judge_all(range(1000, 1050), spark, tmp_path, streams=True, kind="join")
    assert found["equal"] >= 30, found
