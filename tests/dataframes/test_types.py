"""Values of every type as keys and in aggregates: tasks, plans and Spark agree."""

from __future__ import annotations

import datetime as dt
import math
from collections import Counter
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

import clonos
from clonos.columns.schema import parse_schema, parse_type, to_ddl
from clonos.errors import ExpressionFailed
from clonos.testing import InMemoryRun

pytestmark = pytest.mark.spark

AT = dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc)
NAN, INF = math.nan, math.inf


def decimals(digits: int, scale: int) -> list[Any]:
    """Some of which the sum of a dozen still fits."""
    random = Random(f"{digits} {scale}")
    few = min(digits, 32)
    numbers = [0, 1, -1, 5, -5, *(random.randrange(-(10**few), 10**few) for _ in range(8))]
    return [Decimal(n).scaleb(-scale) for n in numbers]


SIMPLE: dict[str, list[Any]] = {
    "boolean": [True, False],
    "byte": [0, 1, -128, 127],
    "short": [0, 5, -(2**15), 2**15 - 1],
    "int": [0, 7, -(2**31), 2**31 - 1],
    "long": [0, 3, -(2**40), 2**45 + 1],
    "float": [0.0, -0.0, 0.5, -2.25, NAN, INF],
    "double": [0.0, -0.0, 0.25, -1.5, NAN, -INF],
    "decimal(5,2)": decimals(5, 2),
    "decimal(28,10)": decimals(28, 10),
    "decimal(29,0)": decimals(29, 0),
    "decimal(38,0)": decimals(38, 0),
    "decimal(38,18)": decimals(38, 18),
    "decimal(38,37)": decimals(38, 37),
    "string": ["", "a", "B", "é", "日本", "😀", "\ufffd"],
    "binary": [b"", b"\x00", b"a", b"\x7f", b"\x80"],
    "date": [dt.date(1, 1, 1), dt.date(1970, 1, 1), dt.date(9999, 12, 31)],
    "timestamp": [AT, dt.datetime(1, 1, 1, tzinfo=dt.timezone.utc)],
    "timestamp_ntz": [each.replace(tzinfo=None) for each in (AT, AT - dt.timedelta(0, 0, 1))],
}
NESTED: dict[str, list[Any]] = {
    "struct<f: double, s: string>": [
        {"f": f, "s": s} for f in (0.0, -0.0, NAN, None) for s in ("a", None)
    ],
    "array<float>": [[], [0.0], [-0.0], [NAN, None], [None], [1.5]],
    "struct<d: decimal(10,2), more: array<struct<t: timestamp>>>": [
        {"d": Decimal("1.50"), "more": [{"t": AT}, None]},
        {"d": None, "more": None},
        {"d": None, "more": []},
    ],
}
NUMBERS = [t for t in SIMPLE if t in ("byte", "short", "int", "long", "float", "double")
    or t.startswith("decimal")]  # fmt: skip
GROUPS = 5


def comparable(value: Any) -> Any:
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0  # -0.0 is equal to 0.0
    if isinstance(value, dict):
        return tuple(map(comparable, value.values()))
    return tuple(map(comparable, value)) if isinstance(value, list) else value


def bag(table: pa.Table) -> Counter[Any]:
    return Counter(tuple(map(comparable, row.values())) for row in table.to_pylist())


def in_tasks(stream: Any) -> pa.Table:
    """In small batches, restored now and then."""
    stream.sink(clonos.sinks.collect(), name="out")
    return InMemoryRun(stream._job.compile(), seed=1, batch_rows=3, restore=0.2).run()["out"]


def table_of(schema: pa.Schema, rows: list[tuple[Any, ...]]) -> pa.Table:
    columns: list[Any] = [list(column) for column in zip(*rows, strict=True)]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def test_aggregates(spark):
    """The last group has only nulls."""
    random = Random(0)
    fields = [pa.field(f"c{i}", parse_type(t)) for i, t in enumerate(SIMPLE)]
    schema = pa.schema([("k", pa.int32()), *fields, *parse_schema("t timestamp")])
    rows: list[tuple[Any, ...]] = []
    for group in range(GROUPS):
        for _ in range((1, 3, 7, 12, 2)[group]):
            some = [
                None if group == GROUPS - 1 or random.random() < 0.1 else random.choice(values)
                for values in SIMPLE.values()
            ]
            rows.append((group or None, *some, AT))
    random.shuffle(rows)
    given = table_of(schema, rows)
    asked = [
        (f"{kind}_{i}", kind, f"c{i}")
        for i, t in enumerate(SIMPLE)
        for kind in ("count", "min", "max", *(("sum", "avg") if t in NUMBERS else ()))
    ]

    source = clonos.sources.from_batches(given.to_batches())
    keyed = clonos.Job(parallelism=2).source(source).with_watermark("t", "0 ms").key_by("k")
    window = keyed.window(clonos.tumbling("1 day", on="t"))
    made = window.agg(**{name: getattr(clonos, kind)(of) for name, kind, of in asked})
    made = made.drop("window_start", "window_end")
    plan = made.to_dataframe(spark, execution="spark").toArrow()
    of_spark = [getattr(F, kind)(of).alias(name) for name, kind, of in asked]
    frame = spark.createDataFrame(given, to_ddl(schema)).groupBy("k").agg(*of_spark).toArrow()
    tasks = in_tasks(made)
    assert tasks.schema.types == frame.schema.types
    for name in ("k", *(name for name, *_ in asked)):
        mine, theirs, planned = (
            dict(zip(t["k"].to_pylist(), map(comparable, t[name].to_pylist()), strict=True))
            for t in (tasks, frame, plan)
        )
        assert mine == theirs == planned, name


@pytest.mark.parametrize(
    ("ddl", "kind", "values"),
    [
        ("long", "sum", [2**63 - 1, 1]),
        ("decimal(38,0)", "sum", [Decimal("9" * 38), Decimal(1)]),
        ("decimal(38,2)", "avg", [Decimal("9" * 36)] * 2),
    ],
)
def test_what_is_too_large_fails_everywhere(spark, ddl, kind, values):
    schema = parse_schema(f"k int, c {ddl}, t timestamp")
    given = table_of(schema, [(1, value, AT) for value in values])
    keyed = clonos.Job().source(clonos.sources.from_batches(given.to_batches()))
    window = keyed.with_watermark("t", "0 ms").key_by("k").window(clonos.tumbling("1 s", on="t"))
    made = window.agg(x=getattr(clonos, kind)("c"))
    frame = spark.createDataFrame(given, to_ddl(schema)).groupBy("k").agg(getattr(F, kind)("c"))
    for table in (frame.toArrow, made.to_dataframe(spark, execution="spark").toArrow):
        with pytest.raises(PySparkException, match=r"ARITHMETIC_OVERFLOW|NUMERIC_VALUE_OUT_OF"):
            table()
    with pytest.raises(ExpressionFailed, match="ARITHMETIC_OVERFLOW"):
        in_tasks(made)


def rows_by_key(ddl: str, name: str, count: int) -> tuple[pa.Schema, list[tuple[Any, ...]]]:
    random = Random(f"{ddl} {name}")
    values = [None, *{**SIMPLE, **NESTED}[ddl]]
    rows = [(random.choice(values), number) for number in range(count)]
    return pa.schema([(f"k{name}", parse_type(ddl)), (name, pa.int64())]), rows


OF_KEYS: dict[str, Any] = {
    "count": lambda one, _: (
        one.with_column("t timestamp", lambda _: AT, "a").with_watermark("t", "0 ms").key_by("ka")
        .window(clonos.tumbling("1 s", on="t")).agg(n=clonos.count(), m=clonos.sum("a"))
    ),
    "distinct": lambda one, _: one.select("ka").distinct(),
    "inner": lambda one, two: one.key_by("ka").join(two.key_by("kb")),
    "left": lambda one, two: one.key_by("ka").join(two.key_by("kb"), how="left"),
}  # fmt: skip


@pytest.mark.parametrize("ddl", [*NESTED, "float", "decimal(38,18)", "binary"])
def test_keys(spark, ddl):
    given = [table_of(*rows_by_key(ddl, name, 14)) for name in "ab"]
    frames = [spark.createDataFrame(table, to_ddl(table.schema)) for table in given]
    one, two = frames
    of_spark = {
        "count": one.groupBy("ka").agg(F.count("*").alias("n"), F.sum("a").alias("m")),
        "distinct": one.select("ka").distinct(),
        "inner": one.join(two, one.ka == two.kb),
        "left": one.join(two, one.ka == two.kb, "left"),
    }
    for kind, build in OF_KEYS.items():
        job = clonos.Job(parallelism=2)
        streams = [
            job.source(clonos.sources.from_batches(table.to_batches(max_chunksize=5)))
            for table in given
        ]
        made = build(*streams)
        tasks, expected = (
            bag(in_tasks(made).select(of_spark[kind].columns)),
            of_spark[kind].toArrow(),
        )
        assert tasks == bag(expected), kind
        if ddl in NESTED:
            plan = made.to_dataframe(spark, execution="spark").toArrow()
            assert tasks == bag(plan.select(expected.schema.names)), kind
