"""What counts as another graph."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

import clonos
from clonos.errors import OtherJob
from clonos.graph.description import describe, require_same
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


@pytest.mark.parametrize("kind", [clonos.sinks.parquet, clonos.sinks.table])
def test_keys_of_a_sink_are_no_part_of_the_graph(kind):
    """They may be replaced, and who may read the description need not know them."""

    def described(uri):
        job = clonos.Job("copy")
        job.source(clonos.sources.from_batches([], "n long")).sink(kind(uri), name="out")
        return json.loads(json.dumps(describe(job.compile())))

    was, now = described("s3://KEY:SEC/RET@bucket/out"), described("s3://NEW:KEY@bucket/out")
    assert "RET" not in json.dumps(was)
    require_same(was, now, "graph.json")
    was, now = (described(f"abfs://out@acme/x?account_key={key}") for key in ("OLD", "NEW"))
    assert "OLD" not in json.dumps(was)
    require_same(was, now, "graph.json")
    was, now = described("s3://KEY:SEC/RET@bucket/out"), described("s3://NEW:KEY@bucket/out")
    with pytest.raises(OtherJob, match="bucket/elsewhere"):
        require_same(was, described("s3://NEW:KEY@bucket/elsewhere"), "graph.json")


def test_another_kind_of_join_is_another_graph_though_its_numbers_are_the_same():
    schemas, keys = (pa.schema([]), pa.schema([])), (("k",), ("k",))
    kept, in_windows = Keep("at", 60_000), SameWindow("at", 60_000)
    was = Join(schemas, keys, (kept, kept)).settings
    with pytest.raises(OtherJob, match='was "Keep", is "SameWindow"'):
        require_same(was, Join(schemas, keys, (in_windows, in_windows)).settings, "graph.json")
