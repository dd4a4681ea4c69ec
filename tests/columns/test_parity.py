"""Column expressions in tasks give what Spark gives, and raise what Spark raises."""

from __future__ import annotations

import logging
import struct
import unicodedata
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from clonos.columns.evaluation import compute
from clonos.columns.formula import Expression, columns_of
from clonos.errors import ExpressionFailed
from clonos.spark.expressions import projected
from tests.columns import parity

pytestmark = pytest.mark.spark

NO_SHORT_CUT = "org.apache.spark.sql.catalyst.optimizer.ConvertToLocalRelation"
RAISING_ROWS = 6
"""So many of the rows that raise are tried in Spark, per expression: there, one at a time."""


@pytest.fixture(scope="module")
def spark(shared_spark):
    logging.getLogger("SQLQueryContextLogger").disabled = True  # errors are what is asked for
    # Rows that the driver has would be computed by the optimizer, not by generated code.
    shared_spark.conf.set("spark.sql.optimizer.excludedRules", NO_SHORT_CUT)
    return shared_spark


def ours(made: Expression, batch: pa.RecordBatch) -> tuple[list[Any], dict[int, str]]:
    """The values, with None where there is none, and why not."""
    try:
        return comparable(compute(made, batch)), {}
    except ExpressionFailed as error:
        if batch.num_rows == 1:
            return [None], {0: error.what.split()[0]}
    half = batch.num_rows // 2
    left, raised_left = ours(made, batch.slice(0, half))
    right, raised_right = ours(made, batch.slice(half))
    return left + right, raised_left | {half + i: why for i, why in raised_right.items()}


def comparable(column: pa.Array) -> list[Any]:
    """Values that are equal only if they are the same; zero has a sign, NaN is one value."""
    if pa.types.is_temporal(column.type):
        column = column.view(pa.int32() if pa.types.is_date(column.type) else pa.int64())
    values: list[Any] = column.to_pylist()
    if not pa.types.is_floating(column.type):
        return values
    return [v if v is None else "NaN" if v != v else struct.pack("d", v) for v in values]  # noqa: PLR0124


def conditions(
    spark: Any, frame: Any, cases: list[str], rows: dict[int, list[int]], stage: str
) -> Any:
    """What Spark raises for these rows of these cases: it is asked row by row."""
    if not rows:
        return {}
    plan = getattr(frame.selectExpr(*cases)._jdf.queryExecution(), stage)()
    catalyst = spark._jvm.org.apache.spark.sql.catalyst.expressions
    given = getattr(catalyst, "package$AttributeSeq")(plan.child().output())
    collected = frame._jdf.queryExecution().executedPlan().executeCollect()
    found = {}
    for case, numbers in rows.items():
        part = plan.projectList().apply(case)
        bound = catalyst.BindReferences.bindReference(part, given, False)
        for row in numbers:
            try:
                found[case, row] = f"no error, but {bound.eval(collected[row])}"
            except PySparkException as error:
                found[case, row] = error.getCondition() or "DATETIME_OVERFLOW"  # it has no name
            except Exception as error:  # noqa: BLE001 - some have no name
                found[case, row] = str(error).partition("\n\tat")[0]
    return found


def differences(
    spark: Any,
    types: tuple[str, str],
    table: pa.Table,
    cases: list[str],
    stage: str = "optimizedPlan",
) -> list[str]:
    named = projected(table.schema, lambda frame: frame.selectExpr(*cases), "test")
    (batch,) = table.combine_chunks().to_batches()
    results = [ours(made, batch) for _, made in named]
    guards = {
        f"ok{i}": pa.array([row not in raised for row in range(len(table))])
        for i, (_, raised) in enumerate(results)
        if raised
    }
    ddl = ", ".join([f"a {types[0]}, b {types[1]}", *(f"{guard} boolean" for guard in guards)])
    frame = spark.createDataFrame(
        pa.table({**{n: table.column(n) for n in table.schema.names}, **guards}), schema=ddl
    )
    columns = [
        f"if(ok{i}, {case}, null) as c{i}" if f"ok{i}" in guards else f"{case} as c{i}"
        for i, case in enumerate(cases)
    ]
    theirs = frame.selectExpr(*columns).toArrow().combine_chunks()
    given = list(zip(*map(comparable, batch.columns), strict=True))
    wrong = []
    for i, (case, (values, raised)) in enumerate(zip(cases, results, strict=True)):
        column = theirs.column(i)
        if column.type != named[i][1].type:
            wrong.append(f"{case}: {named[i][1].type} instead of {column.type}")
        expected = comparable(column.combine_chunks() if len(column) else column)
        for row, (one, other) in enumerate(zip(values, expected, strict=True)):
            if row not in raised and one != other:
                wrong.append(f"{case}: {one!r} instead of {other!r} for {given[row]}")
        good = [row for row in range(len(values)) if row not in raised]
        rows = parity.laid_out_otherwise(batch.take(pa.array(good, pa.int64())))
        if comparable(compute(named[i][1], rows)) != [values[row] for row in good]:
            wrong.append(f"{case}: other values in another memory layout")
    random = Random(0)
    tried = {
        i: random.sample(sorted(raised), min(RAISING_ROWS, len(raised)))
        for i, (_, raised) in enumerate(results)
        if raised and columns_of(named[i][1])
    }
    for (case, row), condition in conditions(spark, frame, cases, tried, stage).items():
        mine = results[case][1][row]
        if condition != mine:
            wrong.append(f"{cases[case]}: raises {mine}, Spark {condition}, for {given[row]}")
    return wrong


@pytest.mark.parametrize("types", parity.CASES, ids=" and ".join)
def test_values_and_errors_are_those_of_spark(spark, types):
    wrong = differences(spark, types, parity.pairs(*types), parity.CASES[types])
    assert not wrong, "\n".join([f"{len(wrong)} differences", *wrong[:40]])


@pytest.mark.parametrize("seed", range(2))
def test_expressions_within_each_other(spark, seed):
    random = Random(seed)
    cases = [parity.composed(random, kind, 4) for kind in ("number", "truth", "text") * 15]
    table = parity.small_pairs()
    # As they were written: the optimizer leaves out what may raise and decides nothing.
    wrong = differences(spark, ("long", "long"), table, cases, "analyzed")
    assert not wrong, "\n".join(wrong[:40])


def test_numbers_in_text(spark):
    table = parity.pairs("string", "boolean", parity.NUMERALS)
    wrong = differences(spark, ("string", "boolean"), table, parity.NUMERAL_CASES)
    assert not wrong, "\n".join(wrong[:40])


@pytest.mark.soak
@pytest.mark.parametrize("case", ["upper", "lower"])
def test_the_case_of_all_letters(spark, case):
    """Only letters differ that Python's Unicode lacks: 55 between its 14.0 and Spark 4.3."""
    letters = pa.table({"a": [chr(n) for n in range(0x110000) if not 0xD800 <= n <= 0xDFFF]})
    ((_, made),) = projected(letters.schema, lambda frame: frame.selectExpr(f"{case}(a)"), "test")
    (batch,) = letters.combine_chunks().to_batches()
    theirs = spark.createDataFrame(letters).selectExpr(f"{case}(a) as b").toArrow()["b"].to_pylist()
    given, mine = letters["a"].to_pylist(), compute(made, batch).to_pylist()
    differ = [(a, b) for a, b, c in zip(given, theirs, mine, strict=True) if b != c]
    assert all("Cn" in map(unicodedata.category, a + b) for a, b in differ)
    if unicodedata.unidata_version == "14.0.0" and spark.version.startswith("4.3"):
        assert len(differ) == 55
