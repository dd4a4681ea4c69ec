"""Spark's ``@udf``, ``@pandas_udf`` and ``@arrow_udf`` within expressions: in tasks as in Spark."""

from __future__ import annotations

import datetime as dt
import re
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark import cloudpickle
from pyspark.errors import PythonException
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.types import (
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

import clonos
from clonos.dataframes.rows import spark_schema
from clonos.errors import ExpressionFailed, NotInTasks, OperatorError
from clonos.testing.in_memory import InMemoryRun

pytestmark = pytest.mark.spark

sf: Any = F
SCHEMA = (
    "n long, s string, d double, day date, dec decimal(10,2), b boolean, raw binary, at timestamp"
)
AT = dt.datetime(2024, 2, 29, 12, 30, tzinfo=dt.timezone.utc)
ROWS = [
    (i if i != 4 else None, [None, "a", "b c", "É"][i % 4], [0.5, float("nan"), None][i % 3],
     dt.date(2024, 1, 1 + i), Decimal(i) / 4, i % 2 == 0, bytes([i]), AT)
    for i in range(9)
]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def spark(shared_spark):
    shared_spark.udf.register("known", plus_one)
    return shared_spark


@sf.udf(LongType())
def plus_one(n):
    return None if n is None else n + 1


@sf.udf(StringType(), useArrow=False)
def loud(word):
    return word and word.upper()


@sf.udf(DoubleType(), useArrow=False)
def whole_number(n):
    return n


@sf.udf(DoubleType(), useArrow=True)
def as_double(n):
    return n


@sf.udf(IntegerType())
def seven():
    return 7


@sf.udf(StringType())
def classes(*values):
    return " ".join(type(value).__name__ for value in values)


@sf.udf(LongType())
def hundred_by(n):
    return 100 // n


@sf.udf(DateType())
def next_day(day):
    return day + dt.timedelta(days=1)


@sf.pandas_udf(LongType())
def doubled(n: pd.Series) -> pd.Series:
    return n * 2


@sf.arrow_udf(LongType())
def size(word: pa.Array) -> pa.Array:
    return pc.utf8_length(word)


@sf.arrow_udf(TimestampType())
def later(at: pa.Array) -> pa.Array:
    return pc.add(at, pa.scalar(dt.timedelta(hours=1)))


EQUAL: dict[str, Callable[[Any], Any]] = {
    "within a sum": lambda s: s.select((F.col("n") + plus_one("n")).alias("x")),
    "of an expression": lambda s: s.select(plus_one(F.col("n") * 2).alias("x")),
    "of another": lambda s: s.select((plus_one(plus_one("n")) - 1).alias("x")),
    "of another kind": lambda s: s.select((size(loud("s")) + doubled("n")).alias("x")),
    "of a kind that SQL knows": lambda s: s.selectExpr("n", "coalesce(known(n), -1) as x"),
    "without arguments": lambda s: s.select((F.col("n") + seven()).alias("x")),
    "in a condition": lambda s: s.where((plus_one("n") > 3) & F.col("s").isNotNull()),
    "behind a condition": lambda s: s.where((F.col("n") != 0) & (hundred_by("n") > 20)),
    "before a condition": lambda s: s.where((hundred_by("n") > 20) & (F.col("n") != 0)),
    "as a condition": lambda s: s.where(size("s") == 1).where(loud("s") == "A"),
    "in a list": lambda s: s.where(plus_one("n").isin(2, 4)),
    "several times": lambda s: s.withColumns(
        {"x": plus_one("n"), "y": plus_one("n") * plus_one("n"), "s": loud("s")}
    ),
    "in a case": lambda s: s.select(
        F.when(F.col("b"), plus_one("n")).otherwise(doubled("n")).alias("x")
    ),
    "of all types": lambda s: s.select(classes("n", "s", "d", "day", "dec", "b", "raw").alias("x")),
    "of days": lambda s: s.select(F.year(next_day("day")).alias("x"), next_day("day").alias("y")),
    "of times": lambda s: s.select(F.hour(later("at")).alias("x"), later("at").alias("y")),
    "integers for doubles": lambda s: s.select((as_double("n") / 2).alias("x")),
    "nothing to choose from": lambda s: s.select(F.coalesce(loud("s"), F.lit("-")).alias("x")),
}


def stream(rows: list[Any] = ROWS, **options: Any) -> Any:
    return clonos.Job(**options).source(clonos.sources.from_batches([rows], SCHEMA))


def result(made: Any, **how: Any) -> list[tuple[Any, ...]]:
    made.sink(clonos.sinks.collect(), name="out")
    compiled = cloudpickle.loads(cloudpickle.dumps(made._job.compile()))  # as slots are sent it
    table = InMemoryRun(compiled, **how).run()["out"]
    return sorted(zip(*table.to_pydict().values(), strict=True), key=repr)


def of_spark(spark: Any, build: Callable[[Any], Any]) -> list[tuple[Any, ...]]:
    schema = stream().schema
    arrays = [
        pa.array(list(column), field.type)
        for column, field in zip(zip(*ROWS, strict=True), schema, strict=True)
    ]
    frame = spark.createDataFrame(pa.Table.from_arrays(arrays, schema=schema), spark_schema(schema))
    table = build(frame).toArrow()
    return sorted(zip(*table.to_pydict().values(), strict=True), key=repr)


@pytest.mark.parametrize("case", EQUAL)
def test_functions_within_expressions_give_what_spark_gives(case, spark):
    found = result(EQUAL[case](stream()), restore=0.3, batch_rows=4)
    assert repr(found) == repr(of_spark(spark, EQUAL[case]))  # NaN is not equal to itself


def test_the_users_traceback_comes_first():
    with pytest.raises(OperatorError) as caught:
        result(stream().where("n is not null").select(F.lit(1) + hundred_by("n"), F.col("n")))
    assert caught.value.where.startswith("select")
    assert "ZeroDivisionError" in caught.value.what
    assert "n=0" in caught.value.what
    assert "correct the function" in caught.value.remedy
    told = clonos.blame.users_traceback(caught.value)
    assert told.startswith("Traceback of your code (most recent call last):")
    assert re.search(r"test_functions_in_expressions\.py\", line \d+, in hundred_by", told)


def test_only_the_row_that_fails_is_bad():
    made = stream(on_bad_record="drop").where("n is not null").select("n", hundred_by("n") + 1)
    assert result(made, batch_rows=9) == [(n, 100 // n + 1) for n in range(1, 9) if n != 4]


def test_a_function_is_called_for_all_rows_as_in_spark(spark):
    """Also for those that a case would not have asked for, and so is what it is given."""
    guarded = F.when(F.col("n") > 0, hundred_by(F.coalesce("n", F.lit(1)))).otherwise(0)
    with pytest.raises(OperatorError, match="ZeroDivisionError"):
        result(stream().select(guarded))
    with pytest.raises(PythonException, match="ZeroDivisionError"):
        of_spark(spark, lambda frame: frame.select(guarded))
    given = F.when(F.col("n") > 0, plus_one(F.expr("1 div n"))).otherwise(0)
    with pytest.raises(ExpressionFailed, match="DIVIDE_BY_ZERO"):
        result(stream().select(given))


def test_a_value_that_spark_would_drop_without_a_word_is_an_error(spark):
    assert of_spark(spark, lambda frame: frame.select(whole_number("n")).distinct()) == [(None,)]
    with pytest.raises(OperatorError, match=r"0 is of class int, .* Spark would make a null"):
        result(stream().select(whole_number("n") + 1))


def test_a_function_of_a_column_that_nobody_reads_is_not_called():
    made = stream().withColumns({"x": hundred_by("n"), "y": plus_one("n")}).select("y")
    assert len(result(made)) == len(ROWS)


def test_a_function_that_is_used_twice_is_called_once():
    told: Counter[int] = Counter()

    @sf.udf(LongType())
    def counted(n):
        told[n] += 1
        return n

    rows = [row for row in ROWS if row[0] is not None]
    made = stream(rows).select(counted("n") + counted("n"), counted("n"))
    made.sink(clonos.sinks.collect(), name="out")
    operation = made._vertex.operation
    function = operation.projection.columns[1][1].fn  # it was pickled: it counts elsewhere
    assert {each.fn for each in operation.projection.columns[0][1].arguments} == {function}
    InMemoryRun(made._job.compile()).run()
    cells = dict(zip(function.__code__.co_freevars, function.__closure__, strict=True))
    assert set(cells["told"].cell_contents.values()) == {1}


def test_a_function_behind_a_pickle_is_another_graph_only_by_its_name():
    one, same, other = (
        stream().select(function("n").alias("x"))._vertex.operation.settings
        for function in (plus_one, sf.udf(plus_one.func, "long"), doubled)
    )
    assert one == same != other


@sf.pandas_udf(LongType())
def total(n: pd.Series) -> int:
    return int(np.sum(n))


@sf.udf(TimestampType())
def same_time(at):
    return at


@sf.udf(StructType([StructField("a", LongType())]))
def pair(n):
    return (n,)


LARGE = bytes(2_000_000)


def large() -> Any:
    blob = LARGE + b"!"
    return sf.udf(lambda n: n + len(blob), "long")


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "of many rows": (lambda: total("n"), "more than one row"),
    "of times": (lambda: same_time("at"), "in the zone of a process"),
    "structs": (lambda: pair("n"), "struct<"),
    "by name": (lambda: plus_one(n=F.col("n")), "by position"),
    "that is not the same each time": (
        lambda: sf.udf(plus_one.func, "long").asNondeterministic()("n"),
        "another value each time",
    ),
    "that is large": (lambda: large()("n"), "cannot be taken out"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_functions_that_are_refused_within_expressions(case):
    column, told = REFUSED[case]
    with pytest.raises(NotInTasks) as caught:
        stream().select(F.lit(1), column().alias("x"), name="op")
    assert told in str(caught.value)
    assert caught.value.where == "op"
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("condition", "of_spark"),
    [("n >= 15", 5), ("twice >= 30", 20 + 5), ("twice >= 30 and n >= 18", 2 + 2)],
)
def test_how_often_a_column_is_computed_that_a_condition_follows(
    condition, of_spark, spark, tmp_path
):
    """As docs/columns.md says: tasks keep the order; Spark moves the condition, and what it has of
    the column with it."""

    def calls(build: Callable[[Any, Any], Any], what: str) -> int:
        path = tmp_path / what

        def twice(n: int) -> int:
            with path.open("a") as file:
                file.write("x")
            return 2 * n

        build(F.udf(twice, "int", useArrow=False), what)
        return int(path.stat().st_size)

    rows = [(n,) for n in range(20)]

    def in_tasks(function: Any, what: str) -> None:
        source = clonos.sources.from_batches([rows], "n int")
        made = clonos.Job().source(source)
        if what == "before":
            made = made.where("n >= 15")
        result(made.withColumn("twice", function("n")).where(condition))

    def in_spark(function: Any, what: str) -> None:
        frame = spark.createDataFrame(rows, "n int").withColumn("twice", function("n"))
        frame.where(condition).collect()

    assert calls(in_tasks, "after") == 20
    assert calls(in_tasks, "before") == 5
    assert calls(in_spark, "spark") == of_spark
