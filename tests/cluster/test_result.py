"""What a job leaves, asked without a job."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any, cast

import pyarrow as pa
import pytest

from clonos.cluster.result import Delivered, JobResult
from clonos.nodes.views import DriverView, JobStatus
from clonos.sinks import delivered
from clonos.sinks.delivered import DeliveredStore

BATCHES = 50
ROWS = 100


class Held:
    """Counts how many of the batches that were read somebody holds."""

    def __init__(self) -> None:
        self.now = self.most = 0

    def watch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.now += 1
        self.most = max(self.most, self.now)
        weakref.finalize(batch, self._let_go)
        return batch

    def _let_go(self) -> None:
        self.now -= 1


@pytest.fixture
def held(monkeypatch) -> Held:
    held, read_file = Held(), delivered.read_file

    def watched(*args: Any) -> Iterator[tuple[int, pa.RecordBatch]]:
        for seq, batch in read_file(*args):
            yield seq, held.watch(batch)
            del batch

    monkeypatch.setattr(delivered, "read_file", watched)
    return held


def test_rows_are_counted_without_loading_them(tmp_path, held):
    store = DeliveredStore(tmp_path, "process")
    batch = pa.RecordBatch.from_pydict({"n": range(ROWS)})
    for first in range(1, BATCHES, 10):
        store.write("out", 0, 0, first, first + 9, [batch] * 10)
    view = DriverView((), (), JobStatus("ended", False, False), is_complete=True)
    schemas, nowhere = {"out": batch.schema, "empty": batch.schema}, cast("Any", None)
    result = JobResult(view, 0, (), Delivered(nowhere, nowhere, store, schemas))
    assert result.rows == {"out": BATCHES * ROWS, "empty": 0}
    assert repr(result) == "<JobResult complete, rows out: 5000, empty: 0, 0 recoveries>"
    assert held.most <= 2, "one that is counted, one that comes"
    assert sum(batch.num_rows for batch in result.batches("out")) == BATCHES * ROWS
    assert held.most <= 2, "nor does who takes them one by one hold them all"
    assert result.table("out").num_rows == BATCHES * ROWS
    assert held.most == BATCHES, "and the test would have seen it"
