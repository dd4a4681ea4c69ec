"""Copies begin again with merged layers, while tasks fail and take them over.

Chains of layers are rarely long enough for that in other seeds.
"""

from __future__ import annotations

from clonos.nodes.standby import Copies, Standby
from clonos.simulator.runs.kinds import Kind
from clonos.simulator.runs.limits import merged_early
from clonos.simulator.runs.seeds import simulate

SEEDS = (930000013, 930000031, 930000037, 930000044, 930000052, 930000082)


def test_no_seed_violates_an_invariant(monkeypatch):
    begun = failed = 0
    renewed, failing = Standby.renewed, Copies._failed

    def begins(standby):
        nonlocal begun
        begun += 1
        return renewed(standby)

    def fails(copies, following):
        nonlocal failed
        failed += copies.standbys.get(following.task) not in (None, following.standby)
        failing(copies, following)

    monkeypatch.setattr(Standby, "renewed", begins)
    monkeypatch.setattr(Copies, "_failed", fails)
    with merged_early(2):
        results = {seed: simulate(seed, Kind(arrow=True)) for seed in SEEDS}
    assert {seed: r.failure for seed, r in results.items() if r.verdict != "ok"} == {}
    assert begun > 20
    assert failed, "some of them have to do with the copy that there was"
