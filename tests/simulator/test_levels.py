"""Slots keep layers: no level promises too much, and a state is lost only with all who have it."""

from __future__ import annotations

from collections import Counter

import pytest

from clonos.simulator.runs.kinds import Kind
from clonos.simulator.runs.seeds import simulate

SEEDS = 40
PARTS = 5
LEVELS = Kind(levels=True)


@pytest.mark.parametrize("part", range(PARTS))
def test_no_seed_violates_an_invariant(part):
    ends: Counter[str] = Counter()
    failures, moved = [], 0
    for seed in range(part * SEEDS // PARTS, (part + 1) * SEEDS // PARTS):
        result = simulate(seed, LEVELS)
        ends[result.verdict] += 1
        moved += result.coverage["moved", "running"]
        if result.verdict == "violation":
            failures.append(f"clonos sim --levels --seed {seed}: {result.failure}")
    assert not failures, "\n".join(failures)
    assert ends["ok"] > SEEDS / PARTS / 2, "many jobs come to their end"
    assert moved, "slots keep the layers of tasks that move"


def test_tasks_are_overtaken_whose_layers_slots_keep():
    assert all(simulate(seed, LEVELS).coverage["overtaken", "running"] for seed in (3, 17))


def test_state_is_lost_in_some_seeds():
    """Else nobody would look whether that has a reason."""
    assert any(simulate(seed, LEVELS).verdict == "StateLost" for seed in range(20, SEEDS))


@pytest.mark.parametrize("seed", [20008, 20144, 20195, 50249, 5011, 33227, 70, 36112])
def test_what_long_runs_have_found(seed):
    """A merged layer that did not count because a newer one was not everywhere yet; a late copy
    that deleted what another slot had on the same disk; a store that was away three times over; a
    file that a dead process was told to delete; a driver that was still to write its journal anew
    when all was said to be quiet; merges of the simulator's own, on account of which the driver's
    failed; no copy in the only slots that were free, those of a drained executor; a
    copy that stays, on the same disk, which counted rather than one that leaves on another."""
    result = simulate(seed, LEVELS)
    assert result.verdict != "violation", result.failure


def test_what_is_sent_while_nothing_comes_through_overtakes_nothing():
    """Simulated sockets delivered it before what was still on its way then."""
    assert simulate(879, LEVELS).verdict == "ok"
