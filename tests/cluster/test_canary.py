"""A canary says how far it has come, and why it has ended."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from clonos.branch.follow import Report
from clonos.cluster.canary import Canary
from clonos.errors import AsideFailed


def canary(*said: Any) -> Canary:
    """One whose process says this, and ends."""

    def reports() -> Any:
        for one in said:
            if isinstance(one, Exception):
                raise one
            yield one

    nothing = SimpleNamespace(said=reports, close=lambda: None, ask_to_end=lambda: None)
    made = Canary(SimpleNamespace(is_running=True), nothing, {})  # type: ignore[arg-type]
    made._thread.join()
    return made


def test_one_that_has_ended_has_caught_up():
    """The job was stopped or is complete: the canary has taken all steps, and no more will come."""
    began_s = time.monotonic()
    canary(Report(steps=8, looks=1)).catch_up()
    assert time.monotonic() - began_s < 5


@pytest.mark.parametrize("error", [AsideFailed("has ended"), ModuleNotFoundError("fraud")])
def test_one_that_has_failed_says_why(error):
    found = canary(Report(steps=8, looks=1), error)
    with pytest.raises(AsideFailed, match=r"has ended|fraud"):
        found.catch_up()
    assert not found.is_running
