"""Whether a job is to settle, and for whom."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from clonos.nodes.events import StopAsked
from clonos.nodes.settling import Settling


def test_nobody_waits_for_the_end_of_a_job_that_did_not_settle_and_goes_on():
    """Else its end, much later, would not wait until its slots have left."""
    told: list[str] = []
    checkpoints: Any = SimpleNamespace(
        settle=lambda: None, go_on=lambda: told.append("on"), have_settled=False
    )
    settling = Settling(checkpoints)
    assert settling.ask(StopAsked(5.0, lambda: told.append("no")), 0.0)
    assert settling.is_for_another
    assert not settling.is_over(4.9)
    assert not settling.is_over(5.0)
    assert told == ["on", "no"]
    assert not settling.is_for_another
