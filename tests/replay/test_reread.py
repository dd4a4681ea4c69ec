"""Before a job goes back, its sources are asked whether they still have the rows."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

import clonos
from clonos.columns.batches import seal
from clonos.core.determinants import Determinant, Source, SourceEnd, encode_record
from clonos.core.messages import Run
from clonos.core.plan import Incarnation
from clonos.errors import CannotRewind
from clonos.replay.reread import reread
from clonos.upgrade.sealed import beginning


def batch(*numbers):
    return pa.RecordBatch.from_pydict({"n": list(numbers)})


def compiled(*numbers, **how):
    job = clonos.Job("numbers")
    spec = replace(clonos.sources.from_batches([batch(*numbers)], "n long"), **how)
    job.source(spec, name="rows").sink(clonos.sinks.collect(), name="out")
    return job.compile()


def looked(job, *cuts, after=0):
    """What came in these batches, behind so many rows."""
    layer = replace(beginning(job.plan.tasks[0]), source_rows=after)
    causes: list[Determinant] = [Source(len(c), seal(batch(*c)).digest, None) for c in cuts]
    records = tuple(encode_record([cause]) for cause in [*causes, SourceEnd()])
    return reread(job.codes, {0: layer}, [Run(0, Incarnation(1, 0), 5, records)], "memory://none")


def test_rows_that_are_there_are_counted():
    assert looked(compiled(1, 2, 3, 4), (3,), (4,), after=2) == ({"rows": 2}, {})
    assert looked(compiled(1, 2)) == ({"rows": 0}, {})


@pytest.mark.parametrize(
    ("numbers", "match"),
    [
        ((1, 2, 3), "cannot be read again from row 2 on: the source ended 1 rows before"),
        ((1, 2, 3, 5), "gives other rows where it gave 1 behind row 3"),
        ((), "cannot be read again from row 2"),
    ],
)
def test_rows_that_are_gone_are_missed(numbers, match):
    with pytest.raises(CannotRewind, match=match) as caught:
        looked(compiled(*numbers), (3,), (4,), after=2)
    assert "--unchecked" in caught.value.remedy


def test_a_source_that_gives_no_row_twice():
    once = compiled(1, 2, 3, replayable=False)
    with pytest.raises(CannotRewind, match="gives no row twice, and it has given 3 since"):
        looked(once, (1, 2), (3,))
    assert looked(once) == ({"rows": 0}, {}), "it has given nothing since"


def test_rows_that_only_spark_can_bring():
    job = compiled(1)
    codes = [replace(c, source=c.source and replace(c.source, factory=None)) for c in job.codes]
    found, unknown = looked(replace(job, codes=tuple(codes)), (1,))
    assert found == {}
    assert "come from Spark" in unknown["rows"]
