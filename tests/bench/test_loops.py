"""What the measurement of loops compares with: both ways round, and what it does not let pass."""

from __future__ import annotations

import pyarrow as pa
import pytest

from clonos.testing.in_memory import InMemoryRun
from clonos_bench import jobs, loops

EDGES = 3 * loops.TOGETHER * loops.EDGES // 2
"""One group of small graphs is whole, another one half of it."""


@pytest.mark.parametrize("kind", loops.KINDS)
def test_a_row_passes_the_operator_three_times_and_comes_out_once(kind):
    job = loops.rounds_of(jobs.at_once(500), kind, rounds=3, parallelism=2)
    table = InMemoryRun(job.compile(), restore=0.1).run()["sink"]
    assert sorted(table["id"].to_pylist()) == list(range(500))


def found():
    source = jobs.at_once(EDGES)
    job = loops.reachability(source, parallelism=2)
    return InMemoryRun(job.compile(), restore=0.02).run()["pairs"]


def test_the_loop_finds_what_a_search_finds_and_nothing_less_passes():
    table = found()
    assert loops.verdict(table, EDGES) == f"right: {EDGES:,} edges, {len(table):,} pairs, each once"
    less, more = table.slice(1), pa.concat_tables([table, table.slice(0, 2)])
    assert loops.verdict(less, EDGES).startswith("WRONG: 1 pairs are missing, 0 are wrong")
    assert loops.verdict(more, EDGES).startswith("WRONG: 0 pairs are missing, 2 are wrong")
