"""Which slots ask for a mandate."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from clonos.nodes.seal_times import SealSettings
from clonos.nodes.slot import SlotNode
from tests.nodes.world import PLAN


@pytest.mark.parametrize(
    ("flags", "waits"),
    [
        ({}, False),
        ({"has_effects": True}, True),
        ({"has_effects": True, "is_recognised": True}, False),
    ],
)
def test_effects_wait_for_a_mandate_unless_services_recognise_them(
    flags: dict[str, Any], waits: bool
) -> None:
    told: list[float] = []
    ports: Any = SimpleNamespace(
        network=None, clock=None, calls=SimpleNamespace(may_begin=told.append)
    )
    plan = replace(PLAN, tasks=(replace(PLAN.tasks[0], **flags),))
    SlotNode(plan, ports, share_s=1.0, seals=SealSettings(1.0), unreachable_s=1.0)
    assert told == ([float("-inf")] if waits else [])
