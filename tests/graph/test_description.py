"""What counts as another graph."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from clonos.errors import OtherJob
from clonos.graph.description import require_same
from clonos.operators.by_key.join import Keep, SameWindow
from clonos.operators.operations import Join


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.1, [1, [float("nan")]]])
def test_a_graph_is_like_itself(value):
    now = {"operators": {"a": value}}
    require_same(json.loads(json.dumps(now)), now, "graph.json")


@pytest.mark.parametrize(("was", "becomes"), [(float("nan"), 0.0), ([], [[]]), (None, 1)])
def test_another_setting_is_another_graph(was, becomes):
    with pytest.raises(OtherJob, match="another graph"):
        require_same({"operators": {"a": was}}, {"operators": {"a": becomes}}, "graph.json")


def test_another_kind_of_join_is_another_graph_though_its_numbers_are_the_same():
    schemas, keys = (pa.schema([]), pa.schema([])), (("k",), ("k",))
    kept, in_windows = Keep("at", 60_000), SameWindow("at", 60_000)
    was = Join(schemas, keys, (kept, kept)).settings
    with pytest.raises(OtherJob, match='was "Keep", is "SameWindow"'):
        require_same(was, Join(schemas, keys, (in_windows, in_windows)).settings, "graph.json")
