"""Jobs that settle and go on with another plan, under faults; the switch breaks off at any call."""

from __future__ import annotations

from functools import cache

import pytest

from clonos.simulator.runs.kinds import Kind
from clonos.simulator.runs.seeds import simulate

FOUND = {
    18: "one of two sources had ended: its channels to the new tasks have ended, too",
    30: "a state that no key had any more was to get another name: refused with it and without",
    31: "an operator came before others: they heard of the fastest of two senders",
    294: "a source had ended, and calls were open: END had not been put out",
    381: "an old life took what an old life had made, while new ones were on their way",
}
"""What seeds have found; each was shown first, then mended."""

simulated = cache(simulate)


@pytest.mark.parametrize(
    "seed", [*range(12), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(12, 400))]
)
def test_any_job_goes_on(seed):
    result = simulated(seed, Kind(upgrade=True))
    assert result.verdict == "ok", result.failure


@pytest.mark.parametrize(
    "seed", [*range(12), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(12, 400))]
)
def test_any_job_goes_on_while_it_runs(seed):
    """Slots wait for the next driver; a job that does not settle in time goes on."""
    result = simulated(seed, Kind(live=True))
    assert result.verdict == "ok", result.failure


def test_some_jobs_do_not_settle_in_time():
    results = [simulated(seed, Kind(live=True)) for seed in range(6)]
    assert sum(result.coverage["went on", "finished"] for result in results) > 3


@pytest.mark.parametrize("seed", FOUND, ids=FOUND.get)
def test_what_was_found(seed):
    result = simulated(seed, Kind(upgrade=True))
    assert result.verdict == "ok", result.failure


def test_plans_are_replaced_and_switches_broken_off():
    results = [simulated(seed, Kind(upgrade=True)) for seed in range(10)]
    assert sum(result.coverage["switch", "finished"] for result in results) > len(results)
    assert sum(result.coverage["no switch", "finished"] for result in results) > 0
    assert sum(result.coverage["renamed", "finished"] for result in results) > 0
    assert sum(result.coverage["shared out", "finished"] for result in results) > 0
