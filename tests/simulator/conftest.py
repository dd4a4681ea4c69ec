"""What tests of the simulated cluster share."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clonos.simulator.processes.cluster import Cluster


@pytest.fixture(params=[True, False], ids=["marked", "uncoordinated"])
def has_markers(request, monkeypatch):
    """Jobs of :class:`~tests.simulator.play.Play` with markers, and without."""

    def of_kind(job, *rest):
        return Cluster(replace(job, plan=replace(job.plan, has_markers=request.param)), *rest)

    monkeypatch.setattr("tests.simulator.play.Cluster", of_kind)
    return request.param
