"""Times before year 1 and after 9999, which Spark has and Python lacks."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import clonos
from clonos.columns.formula import Column, Constant, apply
from clonos.columns.rows import unreadable
from clonos.columns.schema import TIMESTAMP
from clonos.errors import ExpressionFailed, OperatorError
from clonos.operators.operations import Project
from clonos.operators.stateless.columns import Projection
from clonos.testing import InMemoryRun

DAYS = pa.array([2_932_896, 2_932_897, None, -719_162, -719_163], pa.int32()).view(pa.date32())
TIMES = pa.array([0, 2**62, None, -(2**62), 1]).view(TIMESTAMP)
NUMBERS = pa.array(range(5))
ROWS = pa.record_batch({"day": DAYS, "at": TIMES, "n": NUMBERS})
READABLE = [0, 2]


class Each(clonos.Process):
    def on_row(self, row, ctx):
        yield (row.n,)


async def answered(row):
    return row.n


async def same(day, at):
    return day is at


OPERATIONS: dict[str, Any] = {
    "map": lambda s: s.map(lambda row: (row.n,), "n long"),
    "flat_map": lambda s: s.flat_map(lambda row: [(row.n,)], "n long"),
    "filter": lambda s: s.filter(lambda row: row.n >= 0),
    "with_column": lambda s: s.with_column("x boolean", lambda day, at: day is at, "day", "at"),
    "process": lambda s: s.key_by("day").process(Each(), "n long"),
    "map_async": lambda s: s.map_async(answered, "n long"),
    "with_column_async": lambda s: s.with_column_async("x boolean", same, "day", "at"),
}


def run(define: Any, **options: Any) -> list[int]:
    job = clonos.Job(**options)
    define(job.source(clonos.sources.from_batches([ROWS]))).sink(clonos.sinks.collect(), name="out")
    found: list[int] = InMemoryRun(job.compile()).run()["out"]["n"].to_pylist()
    return sorted(found)


@pytest.mark.parametrize("kind", OPERATIONS)
def test_such_a_row_is_a_bad_record_of_a_function(kind):
    assert run(OPERATIONS[kind], on_bad_record="drop") == READABLE
    with pytest.raises(OperatorError, match=r"only the years 1 to 9999 \(for Row\(.*n?"):
        run(OPERATIONS[kind])


def test_a_function_that_does_not_see_them_is_called():
    assert run(lambda s: s.with_column("x long", lambda n: n + 1, "n")) == [0, 1, 2, 3, 4]


def test_an_expression_that_fails_shows_its_row():
    n, day = Column("n", pa.int64()), Column("day", pa.date32())
    divisor = apply("Subtract", [n, Constant(pa.scalar(1))], pa.int64(), "(n - 1)")
    of = apply("CaseWhen", [apply("IsNull", [day], pa.bool_()), n, divisor], pa.int64(), "case")
    made = apply("IntegralDivide", [Constant(pa.scalar(6)), of], pa.int64(), "(6 div n)")
    columns = ((pa.field("n", pa.int64()), made),)

    def define(stream):
        return stream._projected("select", Project(Projection(columns)), None, None)

    with pytest.raises(ExpressionFailed, match=r"DIVIDE_BY_ZERO.*for Row\(day='10000-01-01'"):
        run(define)


@pytest.mark.parametrize(
    ("data_type", "values"),
    [
        (pa.list_(pa.date32()), [[0, 2**30], [None, 1], None, [], [-(2**30)]]),
        (
            pa.struct([("x", pa.timestamp("s"))]),
            [{"x": 2**40}, {"x": 1}, None, {}, {"x": -(2**40)}],
        ),
        (
            pa.map_(pa.string(), pa.timestamp("ms")),
            [[("a", 0), ("b", 2**50)], [("a", None)], None, [], [("c", -(2**50))]],
        ),
        (pa.timestamp("ns"), [2**62, 1, None, 2, 3]),
    ],
)
def test_inside_of_others(data_type, values):
    column = pa.concat_arrays([pa.array(values[-1:], data_type), pa.array(values, data_type)])
    batch = pa.record_batch({"x": column.slice(1)})
    assert unreadable(batch) == ([] if pa.types.is_timestamp(data_type) else [0, 4])
