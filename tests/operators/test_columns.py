"""Conditions and projections as operators: rows, bad records, restores, what is pruned."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import clonos
from clonos.columns.formula import Column, Constant, apply
from clonos.columns.rows import row_type
from clonos.errors import BadSchema, ExpressionFailed, UnknownColumn, WrongType
from clonos.operators.operations import Project, Where
from clonos.operators.stateless.columns import Projection, WhereOperator
from clonos.testing import StepHarness, rows
from clonos.testing.in_memory import InMemoryRun

LONG = pa.int64()
N, S = Column("n", LONG), Column("s", pa.string())
INVERSE = apply("IntegralDivide", [Constant(pa.scalar(10)), N], LONG, "(10 div n)")
BIG = apply("GreaterThan", [INVERSE, Constant(pa.scalar(2))], pa.bool_(), "((10 div n) > 2)")
ONLY_INVERSE = Projection(((pa.field("m", LONG), INVERSE),))
COLUMNS = Projection(((pa.field("m", LONG), INVERSE), (pa.field("s", pa.string()), S)))
SCHEMA = "n long, s string"


def where(stream: Any, condition: Any = BIG) -> Any:
    """What ``where`` adds when Spark has read the condition."""
    operation = Where(condition)
    known = {"reads": ("n",), "passes_on": True}
    return stream._like_this(stream._add("where", "op", stream.schema, None, operation, **known))


def project(stream: Any, made: Projection = COLUMNS) -> Any:
    """The same for ``select``."""
    return stream._projected("select", Project(made), "op", None)


BUILD = {"where": where, "project": project}


def harness(kind: str, **options: Any) -> StepHarness:
    job = clonos.Job("test", **options)
    stream = job.source(clonos.sources.from_batches([], SCHEMA), name="in")
    BUILD[kind](stream).sink(clonos.sinks.collect())
    return StepHarness(job.compile().codes[0].program())


@pytest.mark.parametrize("kind", BUILD)
def test_an_error_tells_the_condition_the_expression_and_the_row(kind):
    with pytest.raises(ExpressionFailed, match="DIVIDE_BY_ZERO") as caught:
        harness(kind).source([(i, "x") for i in (5, 4, 3, 0, 2, 1)], SCHEMA)
    names = ("n",) if kind == "where" else ("n", "s")
    row = row_type(names)((0, "x")[: len(names)])
    assert caught.value.what == f"DIVIDE_BY_ZERO in (10 div n) (for {row})"
    assert caught.value.where.startswith("op[0]")
    assert "expression" in caught.value.remedy
    assert "on_bad_record" in caught.value.remedy


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("where", [(3, "c"), (2, "f")]),
        ("project", [(3, "c"), (None, "d"), (5, "f"), (1, "g")]),
    ],
)
def test_bad_records_are_dropped_and_counted(kind, expected):
    given = [(0, "a"), (0, "b"), (3, "c"), (None, "d"), (0, "e"), (2, "f"), (9, "g")]
    run = harness(kind, on_bad_record="drop")
    (batch,) = run.source(given, SCHEMA).batches.values()
    assert rows(batch) == expected
    assert run.program.statistics == {"op: bad_records": 3}  # type: ignore[attr-defined]
    assert not run.source([(0, "a")], SCHEMA).batches


def test_a_batch_of_which_all_rows_are_kept_passes_as_it_is():
    batch = pa.record_batch({"n": [1, 2], "s": ["a", "b"]})
    assert WhereOperator(BIG).made_of(batch) is batch


def stream(schema: str = "a long, b long, c string") -> clonos.Stream:
    return clonos.Job().source(clonos.sources.from_batches([], schema))


def test_names_need_no_session():
    assert stream().select("c", "a").columns == ["c", "a"]
    assert stream().select(["c"]).columns == ["c"]
    assert stream().drop("a", "x").columns == ["b", "c"]
    assert stream().withColumnRenamed("a", "x").columns == ["x", "b", "c"]
    assert stream().withColumnRenamed("x", "y").columns == ["a", "b", "c"]
    assert stream().withColumnsRenamed({"b": "x", "a": "b", "x": "y"}).columns == ["b", "y", "c"]
    assert stream().toDF("b", "a", "c").columns == ["b", "a", "c"]
    assert stream().dtypes == [("a", "bigint"), ("b", "bigint"), ("c", "string")]
    odd = pa.schema([("n", pa.uint8())])
    assert clonos.Job().source(clonos.sources.from_batches([], odd)).dtypes == [("n", "uint8")]


def test_the_schema_is_printed_as_spark_prints_it(capsys):
    stream("n long not null, s struct<x: int>").printSchema()
    assert capsys.readouterr().out.splitlines() == [
        "root",
        " |-- n: long (nullable = false)",
        " |-- s: struct (nullable = true)",
        " |    |-- x: integer (nullable = true)",
    ]


@pytest.mark.parametrize(
    ("define", "error", "text"),
    [
        (lambda: stream().select("d"), UnknownColumn, "the columns are a, b, c"),
        (lambda: stream().select("a", "a"), BadSchema, "there twice"),
        (lambda: stream().withColumnRenamed("a", "b"), BadSchema, "there twice"),
        (lambda: stream().withColumnsRenamed({"a": "b", "b": "a"}), BadSchema, "'a' is there"),
        (lambda: stream().withColumnRenamed("A", "x"), UnknownColumn, "no column 'A'.*mean 'a'"),
        (lambda: stream().withColumnsRenamed({"A": "x"}), UnknownColumn, "no column 'A'"),
        (lambda: stream().drop("b", "C"), UnknownColumn, "no column 'C'.*mean 'c'"),
        (lambda: stream().drop("a", "b", "c"), WrongType, "no column is left"),
        (lambda: stream().filter(5), WrongType, "not a function"),
    ],
)
def test_mistakes_are_found_where_they_are_made(define, error, text):
    with pytest.raises(error, match=text):
        define()


def test_keys_stay_only_as_they_are():
    keyed = stream().key_by("a")
    assert isinstance(keyed.select("a", "b"), clonos.KeyedStream)
    assert isinstance(keyed.drop("b"), clonos.KeyedStream)
    assert isinstance(keyed.withColumnRenamed("b", "x"), clonos.KeyedStream)
    for changed in (keyed.select("b"), keyed.drop("a"), keyed.withColumnRenamed("a", "x")):
        assert not isinstance(changed, clonos.KeyedStream)
    swapped = keyed.toDF("b", "a", "c")
    assert not isinstance(swapped, clonos.KeyedStream)


def test_columns_that_nobody_looks_at_are_not_computed():
    job = clonos.Job(parallelism=1)
    given = clonos.sources.from_batches([[(0, "a"), (2, "b")]], SCHEMA)
    project(job.source(given)).select("s").sink(clonos.sinks.collect(), name="out")
    found = InMemoryRun(job.compile()).run()["out"].to_pylist()
    assert found == [{"s": "a"}, {"s": "b"}], "it would have divided by zero"


def test_a_job_with_restores_gives_the_same_rows():
    batches = [[(i % 7 + 1, f"s{i}") for i in range(k, k + 10)] for k in range(0, 100, 10)]
    job = clonos.Job(parallelism=2)
    given = job.source(clonos.sources.from_batches(batches, SCHEMA))
    inverses = where(given)._projected("select", Project(ONLY_INVERSE), "inverses", None)
    counts = inverses.key_by("m").window(clonos.tumbling("1 day"))
    counts.agg(n=clonos.count()).sink(clonos.sinks.collect(), name="out")
    found = InMemoryRun(job.compile(), restore=0.3, batch_rows=7).run()["out"]
    kept = [10 // n for batch in batches for n, _ in batch if 10 // n > 2]
    expected = {m: kept.count(m) for m in set(kept)}
    assert dict(zip(*(found.column(c).to_pylist() for c in ("m", "n")), strict=True)) == expected
