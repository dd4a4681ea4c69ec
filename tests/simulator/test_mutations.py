"""The simulator finds every deliberate mistake."""

from __future__ import annotations

import pytest

from clonos.simulator.mutations import MUTATIONS
from clonos.simulator.seeds import simulate

SEEDS = 400


@pytest.mark.parametrize("name", MUTATIONS)
def test_every_mistake_is_found(name):
    mutation = MUTATIONS[name]
    with mutation.active():
        for seed in range(mutation.near, mutation.near + SEEDS):
            result = simulate(seed, harsh=mutation.harsh, availability=mutation.availability)
            if result.verdict == "violation":
                return
    pytest.fail(f"not found within {SEEDS} seeds: {name}, which breaks {mutation.breaks!r}")


def test_without_a_mistake_nothing_is_found():
    seeds = {(m.near + i, m.harsh, m.availability) for m in MUTATIONS.values() for i in range(20)}
    results = [
        simulate(seed, harsh=harsh, availability=availability)
        for seed, harsh, availability in sorted(seeds, key=str)
    ]
    assert not [result for result in results if result.verdict == "violation"]
