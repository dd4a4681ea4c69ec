"""Every query against an independent reference over the whole input: exactly the same rows."""

from __future__ import annotations

from collections import Counter

import pytest

import clonos
from clonos.testing import Batches, InMemoryRun
from clonos_bench.nexmark import Generator
from clonos_bench.nexmark.queries import QUERIES, ROW_QUERIES, Auctions

DETERMINISTIC = [number for number in QUERIES if number != 12]
DELAY_US = 2_000
"""Between events: 20,000 of them last 40 s, several windows."""


def define(query, events, *, parallelism=2, delay_us=DELAY_US):
    job = clonos.Job("nexmark", parallelism=parallelism)
    house = Auctions(job, events, delay_us=delay_us, block_events=500)
    query(house).sink(clonos.sinks.collect(), name="out")
    return job.compile()


@pytest.mark.parametrize("number", DETERMINISTIC)
@pytest.mark.parametrize("parallelism", [1, 3])
def test_query_gives_what_sql_says(reference, number, parallelism):
    compiled = define(QUERIES[number], 20_000, parallelism=parallelism)
    run = InMemoryRun(compiled, seed=number, restore=0.02)
    result = reference.found(run.run()["out"])
    expected = reference.expected(number, Generator(20_000, DELAY_US))
    assert len(expected) > 3
    assert result == expected
    assert not any(run.statistics().values())


@pytest.mark.parametrize("number", sorted(ROW_QUERIES))
def test_row_by_row_gives_the_same(reference, number):
    compiled = define(ROW_QUERIES[number], 2_000)
    result = reference.found(InMemoryRun(compiled, seed=number).run()["out"])
    assert result == reference.expected(number, Generator(2_000, DELAY_US))


@pytest.mark.parametrize("number", [11, 14])
def test_sessions_end_within_the_input(reference, number):
    """Slow events: users come back after their session has ended."""
    delay_us = 10**6 if number == 11 else 10**7
    compiled = define(QUERIES[number], 5_000, delay_us=delay_us)
    result = reference.found(InMemoryRun(compiled, restore=0.02).run()["out"])
    assert result == reference.expected(number, Generator(5_000, delay_us))


def test_old_state_is_dropped_in_time(reference):
    """The persons of query 3 are kept for 600 s of event time: here some are too old."""
    delay_us = 500_000
    compiled = define(QUERIES[3], 40_000, delay_us=delay_us)
    run = InMemoryRun(compiled, batch_rows=200)
    result = reference.found(run.run()["out"])
    expected = reference.expected(3, Generator(40_000, delay_us))
    assert result == expected
    unbounded = reference.SQL[3].replace("600000", "1e15")
    reference.SQL[-3] = unbounded
    assert len(reference.expected(-3, Generator(40_000, delay_us))) > len(expected)


def recomputed(run, compiled):
    """Query 12 out of what its tasks were given, and when: the determinants of its steps."""
    counts: Counter[tuple[int, int]] = Counter()
    for code in compiled.codes:
        if code.task.operator == "q12":
            for now_ms, event in run.events[code.task.id]:
                if isinstance(event, Batches):
                    for batch in event.batches:
                        pieces = zip(*batch.select(["bidder", "~rows"]).to_pydict().values(),
                                     strict=True)  # fmt: skip
                        for bidder, rows in pieces:
                            counts[bidder, now_ms // 10_000 * 10_000] += rows
    return sorted((bidder, start, start + 10_000, n) for (bidder, start), n in counts.items())


def test_processing_time_matches_its_determinants(reference):
    compiled = define(QUERIES[12], 20_000)
    run = InMemoryRun(compiled, restore=0.02, step_ms=500)
    result = reference.found(run.run()["out"])
    assert len({start for _, start, _, _ in result}) > 3
    assert result == recomputed(run, compiled)
    assert sum(n for *_, n in result) == Generator(20_000).rows("bid")
