"""Effects wait for their turn while another driver takes over: none is made twice."""

from __future__ import annotations

from typing import Any

import pytest

from clonos.core.mandate import Mandate, MandateAsked, MandateGiven
from clonos.nodes.slot import SlotNode
from clonos.nodes.tenure import Tenure
from clonos.simulator.checks.violations import Violation
from clonos.simulator.jobs.programs import Behaviour
from clonos.simulator.processes.calls import SlotCalls
from clonos.simulator.runs.faults import TAKEOVERS, take_over

from .play import Play, sink, source, stage

SEEDS = range(8)
LASTS_MS, LINE_MS = 700.0, 600.0


def paying(seed: int, how: str) -> None:
    """Tasks 0 -> 1 -> 2, of which 1 pays. The first driver is gone for a while, when some effects
    have been made and others wait."""
    pays = Behaviour(in_flight=12, ordered=False, has_effects=True)
    play = Play((source(), stage("pay", 0, behaviour=pays), sink(1)), seed, latency_ms=8.0)
    cluster = play.cluster
    cluster.line_ms = lambda: LINE_MS * cluster.line_random.random()  # type: ignore[method-assign]
    play.all_live()
    play.until(lambda: len(cluster.service.effects) >= 3)
    take_over(cluster, how, LASTS_MS)
    play.finish()
    assert cluster.driver.term == 2


@pytest.mark.parametrize("how", TAKEOVERS)
@pytest.mark.parametrize("seed", SEEDS)
def test_no_effect_is_made_twice(seed: int, how: str) -> None:
    paying(seed, how)


def found_out(how: str) -> None:
    """In one of the seeds."""

    def pay() -> None:
        for seed in SEEDS:
            paying(seed, how)

    with pytest.raises(Violation, match="effects"):
        pay()


@pytest.mark.parametrize("how", TAKEOVERS)
def test_who_needs_no_mandate_is_found_out(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SlotCalls, "may_begin", lambda *_: None)
    found_out(how)


def test_who_counts_from_when_it_hears_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer has waited while all were frozen."""
    right: Any = SlotNode._on_mandate

    def heard(self: SlotNode, _: MandateGiven) -> None:
        right(self, MandateGiven(int(1000 * self._ports.clock.ticks_s()), 0))

    monkeypatch.setattr(SlotNode, "_on_mandate", heard)
    found_out("all frozen")


def test_who_gives_mandates_without_having_looked_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Tenure, "mandate", lambda _, asked, __: MandateGiven(asked.asked_ms, 0))
    found_out("cut off")


def test_who_takes_a_mandate_for_good_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def question(_: Mandate, now_s: float) -> MandateAsked:
        return MandateAsked(int(1000 * now_s) + 600_000)

    monkeypatch.setattr(Mandate, "question", question)
    found_out("frozen")
