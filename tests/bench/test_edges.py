"""The measurement of both borders: its source, and what it does not let pass."""

from __future__ import annotations

import pyarrow as pa
import pytest

from clonos.errors import ClonosError
from clonos_bench.edges import Counter, answer
from clonos_bench.spark import PacedStream


class Frame:
    """A micro-batch, as far as the counter asks."""

    def __init__(self, *ids: int) -> None:
        self.batch = answer(pa.RecordBatch.from_pydict({"id": list(ids)}))

    def selectExpr(self, *_):  # noqa: N802 - Spark's name
        return self

    def first(self):
        ids, answers = (column.to_pylist() for column in self.batch.columns)
        return (len(ids), sum(ids), sum(answers), min(ids))


def counted(*batches):
    counter = Counter(0.0, 10.0)
    for number, ids in enumerate(batches):
        counter(Frame(*ids), number)
    return counter


def test_rows_are_counted_and_their_age_is_told():
    counter = counted([0, 1], [3, 2])
    counter.check(4)
    assert counter.oldest == [0, 2]
    assert counter.late_ms[0] > counter.late_ms[1] - 200


@pytest.mark.parametrize("second", [[2], [2, 2], [1, 3], [2, 3, 3]])
def test_rows_that_are_lost_twice_or_wrong(second):
    with pytest.raises(ClonosError, match="count and sums"):
        counted([0, 1], second).check(4)


def test_a_source_with_an_end_and_micro_batches_of_a_size():
    stream = PacedStream(0.0, 1e9, 2, rows=1000, most=300)
    offsets = [stream.initialOffset()]
    while len(offsets) < 2 or offsets[-1] != offsets[-2]:
        offsets.append(stream.latestOffset(offsets[-1], None))
    assert [o["rows"] for o in offsets] == [0, 300, 600, 900, 1000, 1000]
