"""What counts as another graph."""

from __future__ import annotations

import json

import pytest

from clonos.errors import OtherJob
from clonos.graph.description import require_same


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.1, [1, [float("nan")]]])
def test_a_graph_is_like_itself(value):
    now = {"operators": {"a": value}}
    require_same(json.loads(json.dumps(now)), now, "graph.json")


@pytest.mark.parametrize(("was", "becomes"), [(float("nan"), 0.0), ([], [[]]), (None, 1)])
def test_another_setting_is_another_graph(was, becomes):
    with pytest.raises(OtherJob, match="another graph"):
        require_same({"operators": {"a": was}}, {"operators": {"a": becomes}}, "graph.json")
