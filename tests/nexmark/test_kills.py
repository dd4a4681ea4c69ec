"""Every query in the simulated cluster: tasks are killed at random, the rows are the same."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

import clonos
from clonos_bench.nexmark import Generator
from clonos_bench.nexmark.queries import QUERIES, Auctions
from tests.simulated import delivered

EVENTS = 3500
DELAY_US = 20_000
SEEDS = 2
"""Compared for each query, at least; some process must have died in them."""
SEEDS_MAX = 20


def run(number, seed):
    """What the sinks have delivered, and how many processes died."""
    random = Random(1000 * number + seed)
    depth: Any = random.choice((0, 1, 1, 2, "full"))
    job = clonos.Job("nexmark", parallelism=2, sharing_depth=depth)
    house = Auctions(job, EVENTS, delay_us=DELAY_US, block_events=100)
    QUERIES[number](house).sink(clonos.sinks.collect(), name="out")
    return delivered(job, seed, random, rows_at_once=20)


@pytest.mark.parametrize("number", sorted(QUERIES))
def test_queries_survive_kills(reference, number):
    deaths = 0
    for seed in range(SEEDS_MAX):
        table, died = run(number, seed)
        deaths += died
        found = reference.found(table)
        if number == 12:  # that its windows are those of its log is one of the invariants
            assert sum(n for *_, n in found) == Generator(EVENTS).rows("bid")
        else:
            expected = reference.expected(number, Generator(EVENTS, DELAY_US))
            assert expected
            assert found == expected
        if seed + 1 >= SEEDS and deaths:
            return
    pytest.fail(f"no process died in {SEEDS_MAX} seeds")
