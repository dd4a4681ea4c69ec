"""Expressions as users write them: read by Spark, computed in tasks, or refused by name."""

from __future__ import annotations

import datetime as dt
import threading
from functools import reduce
from operator import add, and_, or_
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import cloudpickle
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

import clonos
from clonos.errors import ExpressionFailed, NeedsSpark, NotInTasks, UnknownColumn, WrongType
from clonos.testing import StepHarness, rows
from clonos.testing.in_memory import InMemoryRun

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

SCHEMA = (
    "n int, l long, s string, d double, t timestamp, day date, dec decimal(10,2), "
    "pair struct<x: int, y: string>, many array<int>"
)
START = dt.datetime(2024, 2, 29, 12, 30, 45, tzinfo=dt.timezone.utc)


def stream(given: list[list[Any]] | None = None, schema: Any = SCHEMA, **options: Any) -> Any:
    return clonos.Job(**options).source(clonos.sources.from_batches(given or [], schema))


def result(made: Any, **how: Any) -> list[tuple[Any, ...]]:
    made.sink(clonos.sinks.collect(), name="out")
    table = InMemoryRun(made._job.compile(), **how).run()["out"]
    return sorted(zip(*table.to_pydict().values(), strict=True))


ROWS = [(i, 100 * i, "Abc"[: i % 4], START) for i in range(10)]
NARROW = "n int, l long, s string, t timestamp"


def test_no_session(monkeypatch):
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    monkeypatch.setattr(SparkSession, "_instantiatedSession", None)
    with pytest.raises(NeedsSpark, match="get_or_create"):
        stream().where("n > 1")


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda s: s.where("n > 3 and s = 'A'").select("n"), [(5,), (9,)]),
        (lambda s: s.filter((F.col("n") > 3) & (F.col("s") == "A")).select("n"), [(5,), (9,)]),
        (lambda s: s.filter("n = 1").select("s", "n"), [("A", 1)]),
        (lambda s: s.filter(lambda row: row.n == 1).selectExpr("n + 1"), [(2,)]),
        (
            lambda s: s.where("n = 7").select("n", F.upper("s").alias("S"), F.col("l") + 1),
            [(7, "ABC", 701)],
        ),
        (lambda s: s.where("n = 1").select("*", F.lit("x")), [(1, 100, "A", START, "x")]),
        (lambda s: s.where("n = 1").withColumn("n", F.col("n") * 2), [(2, 100, "A", START)]),
        (lambda s: s.where("n = 1").withColumn("m", F.lit(0)), [(1, 100, "A", START, 0)]),
        (
            lambda s: s.where("n = 1").withColumns({"n": F.col("l"), "l": F.col("n")}),
            [(100, 1, "A", START)],
        ),
        (
            lambda s: s.where("n = 2").selectExpr("year(t) as y", "t + interval 1 day as u"),
            [(2024, START + dt.timedelta(days=1))],
        ),
        (lambda s: s.where("case when n <> 0 then 10 div n end = 5").select("n"), [(2,)]),
        (lambda s: s.where("n = 0").drop(F.col("t"), F.col("s")), [(0, 0)]),
    ],
)  # fmt: skip
def test_what_users_write(build, expected):
    assert result(build(stream([ROWS], NARROW)), restore=0.3, batch_rows=3) == expected


def test_what_slots_are_sent_computes_the_same():
    made = (
        stream([ROWS], NARROW).where("n % 2 = 1 and s <> 'x'").selectExpr("l div n as q", "hour(t)")
    )
    made.sink(clonos.sinks.collect())
    (code,) = made._job.compile().codes
    sent = cloudpickle.loads(cloudpickle.dumps(code))
    outputs = [StepHarness(one.program()).source(ROWS, NARROW).batches for one in (code, sent)]
    given, expected = ([rows(batch) for batch in output.values()] for output in outputs)
    assert given == expected == [[(100, 12)] * 5]


def test_any_thread_may_define_a_job():
    made = []
    thread = threading.Thread(target=lambda: made.append(stream().where("n > 1").columns))
    thread.start()
    thread.join()
    assert made == [stream().columns]


def test_names_and_types_are_those_of_spark():
    made = stream().selectExpr("n + 1", "n / 2 as half", "pair.y", "many", "dec * 2 as twice")
    assert made.dtypes == [
        ("(n + 1)", "int"), ("half", "double"), ("y", "string"), ("many", "array<int>"),
        ("twice", "decimal(12,2)"),
    ]  # fmt: skip


def test_fields_of_structs():
    schema = "n int, pair struct<x: int, y: string>"
    given = [[(1, {"x": 5, "y": "a"}), (2, None), (3, {"x": None, "y": "b"})]]
    made = stream(given, schema).selectExpr(
        "n", "nvl(pair.x, -1)", "pair.y is null", "pair is null"
    )
    assert result(made) == [(1, 5, False, False), (2, -1, True, True), (3, -1, False, False)]


def test_a_whole_job_gives_what_spark_gives(spark):
    given = [[(i % 13, i, f"s{i % 7}", START) for i in range(k, k + 50)] for k in range(0, 200, 50)]
    columns = ["n % 5 as k", "case when n <> 0 then l div n end as q", "concat(s, '!') as s"]
    made = stream(given, NARROW, parallelism=2).where("n <> 3 or s like 's1%'").selectExpr(*columns)
    keyed = made.where("q is not null").key_by("k").window(clonos.tumbling("1 day"))
    keyed.agg(total=clonos.sum("q"), n=clonos.count()).sink(clonos.sinks.collect(), name="out")
    table = InMemoryRun(made._job.compile(), restore=0.3, batch_rows=17).run()["out"]
    ours = sorted(zip(*(table.column(c).to_pylist() for c in ("k", "total", "n")), strict=True))
    frame = spark.createDataFrame([row for batch in given for row in batch], NARROW)
    theirs = frame.where("n <> 3 or s like 's1%'").selectExpr(*columns).where("q is not null")
    totals = theirs.groupBy("k").agg(F.sum("q"), F.count("*")).collect()
    assert ours == sorted(map(tuple, totals))


def test_an_error_is_told_as_spark_tells_it():
    made = stream([[(1, 1, "", START), (2, 0, "", START)]], NARROW).selectExpr("n / l as q")
    with pytest.raises(ExpressionFailed, match="DIVIDE_BY_ZERO") as caught:
        result(made)
    assert "n AS DOUBLE" in caught.value.what
    assert "(for Row(l=0, n=2))" in caught.value.what
    made = stream([[(1, 1, "", START), (2, 0, "", START)]], NARROW, on_bad_record="drop")
    assert result(made.selectExpr("n / l as q")) == [(1.0,)]


REFUSED = {
    "rand() > 0.5": "ctx.random",
    "uuid()": "ctx.random",
    "t < current_timestamp()": "ctx.clock",
    "date_add(current_date(), 1)": "ctx.clock",
    "now()": "ctx.clock",
    "timestamp'now'": "ctx.clock",
    "s = '\U0001f600' and t < TIMESTAMP ' Today UTC'": "has another value each time",
    'date"yesterday"': "ctx.clock",
    "case when n = 1 then timestamp_ntz'tomorrow' else timestamp_ntz'2020-01-01' end": "ctx.clock",
    "t < cast('now' as timestamp)": "when it plans a query",
    "cast(concat('to', 'day') as date)": "when it plans a query",
    "to_timestamp('epoch')": "when it plans a query",
    "timestamp'12:30:00'": "ctx.clock",
    "t > '12:30'": "the day on which it reads it",
    "hour('T12:30')": "the day on which it reads it",
    "cast(time'12:30' as timestamp)": "the day on which it reads it",
    "date r'today'": "ctx.clock",
    "date'\\164oday'": "ctx.clock",
    "date/* as of */'today'": "ctx.clock",
    "cast(cast(1/0 as string) as date) = date'2020-01-01'": "apply it to the DataFrame before",
    "try_add(n, 1)": "try_ function",
    "try_divide(n, 0)": "try_ function",
    "try_cast(s as int)": "try_ function",
    "round(d, 2)": "no Round in tasks",
    "s rlike 'a+'": "no RLike in tasks",
    "regexp_replace(s, 'a', 'b')": "no RegExpReplace",
    "cast(d as string)": "double",
    "cast(s as double)": "string",
    "cast(s as date)": "string",
    "cast(t as string)": "timestamp",
    "dec / 2": "decimal",
    "cast(dec as decimal(5,1))": "decimal",
    "cast(dec as int)": "decimal",
    "floor(dec)": "decimal",
    "s like s": "constant",
    "s like 'a\\\\%'": "constant",
    "s like 'a/%' escape '/'": "escapes a character",
    "s ilike '%A_%' escape '_'": "escapes a character",
    "substring(s, n, 1)": "constant",
    "startswith(s, s)": "constant",
    "date_trunc(s, t)": "constant",
    "t < timestamp'20000-01-01'": "9999",
    "t + make_interval(1)": "",
    "t + interval 1 month": "no TimestampAddYMInterval",
    "t - t": "SubtractTimestamps",
    "array(n)": "no CreateArray",
    "many[0]": "no GetArrayItem",
    "size(many)": "no Size",
    "transform(many, x -> x + 1)": "no ArrayTransform",
    "many is null": "list",
    "coalesce(many, many)": "list",
    "pair = pair": "struct",
    "n in (1, l div n)": "",
    "sum(n)": "Aggregate",
    "row_number() over (order by n)": "Window",
    "explode(many)": "Generate",
    "collate(s, 'UNICODE') = 'a'": "",
    "hash(n)": "no Murmur3Hash",
    "null": "void",
}


def test_what_only_looks_like_a_time_of_now_is_computed():
    columns = ["s = 'now' as a", "t > timestamp'epoch' as b", "t > timestamp r' 2020-01-01' as c"]
    given = [[(1, 1, "now", START), (2, 1, "today", None)]]
    found = result(stream(given, NARROW).selectExpr(*columns))
    assert set(found) == {(True, True, True), (False, None, None)}


@pytest.mark.parametrize("expression", REFUSED)
def test_what_is_not_exact_is_refused_by_name(expression):
    with pytest.raises(NotInTasks) as caught:
        stream().selectExpr(f"{expression} as x", name="op")
    assert REFUSED[expression] in str(caught.value)
    assert caught.value.where == "op"
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("build", "error", "what", "remedy"),
    [
        (lambda s: s.where("dey > 1"), UnknownColumn, "name `dey` cannot", "or 'day'?"),
        (lambda s: s.select(F.col("xyz")), UnknownColumn, "name `xyz` cannot", "the columns are n"),
        (
            lambda s: s.where("n + 1"),
            WrongType,
            "[DATATYPE_MISMATCH.FILTER_NOT_BOOLEAN]",
            "correct",
        ),
        (lambda s: s.where("n >"), WrongType, "[PARSE_SYNTAX_ERROR] Syntax error", "correct"),
        (lambda s: s.withColumn("m", F.expr("n >")), WrongType, "[PARSE_SYNTAX_ERROR]", "correct"),
        (lambda s: s.selectExpr("nothing(n)"), WrongType, "[UNRESOLVED_ROUTINE]", "correct"),
    ],
)
def test_what_spark_cannot_read_is_a_mistake_in_the_definition(build, error, what, remedy):
    """It is told in Spark's words."""
    with pytest.raises(error) as caught:
        build(stream())
    assert what in caught.value.what
    assert remedy in caught.value.remedy
    assert "\n" not in str(caught.value)
    assert "SQLSTATE" not in str(caught.value)
    assert isinstance(caught.value.__cause__, AnalysisException)


def test_a_column_of_a_dataframe_is_none_of_the_stream(spark):
    frame = spark.createDataFrame([(1, "a")], "n int, other string")
    wrong = [
        lambda s: s.where(frame.n > 0),
        lambda s: s.select(frame.n, frame["other"]),
        lambda s: s.withColumn("m", frame.n + F.col("l")),
    ]
    for build in wrong:
        with pytest.raises(UnknownColumn, match="MISSING_ATTRIBUTES") as caught:
            build(stream())
        assert caught.value.remedy == 'write F.col("n"): a stream has no DataFrame\'s columns'
        assert caught.value.where in ("where", "select", "withColumn")


def test_what_depends_on_the_zone_wants_utc(spark):
    spark.conf.set("spark.sql.session.timeZone", "Europe/Rome")
    try:
        assert stream().selectExpr("t > '2024-01-01'", "unix_micros(t)", "year(day)").columns
        for expression in ("hour(t)", "cast(t as date)", "date_trunc('day', t)", "year(t)"):
            with pytest.raises(NotInTasks, match="Europe/Rome"):
                stream().selectExpr(expression)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_what_can_raise_wants_ansi_mode(spark):
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        assert stream().selectExpr("d + 1.5D", "n > 1").columns
        for expression in (
            "n + 1",
            "n / l",
            "cast(s as int)",
            "-n",
            "abs(n)",
            "floor(d)",
            "ceil(d)",
        ):
            with pytest.raises(NotInTasks, match="ANSI"):
                stream().selectExpr(expression)
    finally:
        spark.conf.set("spark.sql.ansi.enabled", "true")


def test_columns_of_types_that_spark_has_not_pass():
    schema = pa.schema([("odd", pa.uint8()), ("n", pa.int64())])
    made = stream(schema=schema).withColumn("m", F.col("n") + 1)
    assert made.schema.field("odd").type == pa.uint8()
    with pytest.raises(NotInTasks, match="uint8"):
        stream(schema=schema).where("odd is null")


def test_sources_are_pruned_through_expressions(tmp_path):
    table = pa.table({"a": [1], "b": [2], "c": ["x"], "d": [0.5]})
    pq.write_table(table, tmp_path / "rows.parquet")
    files = clonos.sources.files(str(tmp_path), "parquet", "a long, b long, c string, d double")
    job = clonos.Job(parallelism=1)
    made = job.source(files).where("b > 1").withColumns({"x": F.col("a") + 1, "y": F.col("c")})
    made.where("x > 1").select("x").sink(clonos.sinks.collect())
    (code,) = job.compile().codes
    assert [name for name, _ in code.operators][1:] == ["where", "withColumns", "where_2",
        "select", "collect"]  # fmt: skip
    assert code.source is not None
    assert code.source.schema.names == ["a", "b"]
    assert InMemoryRun(job.compile()).run()["collect"].to_pylist() == [{"x": 2}]


def test_in_an_empty_list(spark):
    given = [[(1, 1, "a", START), (None, None, None, START)]]
    wanted = (F.col("l") + 1).isin([]), F.col("n").cast("double").isin([])
    made = stream(given, NARROW).select(*(each.alias(f"c{i}") for i, each in enumerate(wanted)))
    theirs = spark.createDataFrame(given[0], NARROW).select(*wanted)
    assert result(made) == sorted(map(tuple, theirs.collect())) == [(False, False)] * 2
    spark.conf.set("spark.sql.ansi.enabled", "false")  # there, it is null for null
    try:
        with pytest.raises(NotInTasks, match="ANSI mode is off"):
            stream().where(~F.col("n").isin([]))
    finally:
        spark.conf.set("spark.sql.ansi.enabled", "true")


def test_long_chains_and_deep_expressions():
    words = [F.col("s").contains(f"<{n}>") for n in range(150)]
    given = [[(n, 2, s, START) for n, s in enumerate(["<0>", "<149>", "<150>", "", None])]]
    made = stream(given, NARROW).select("n", reduce(or_, words).alias("found"))
    pickled = cloudpickle.dumps(made._vertex.operation.projection)
    assert len(pickled) < 200_000
    assert result(made) == [(0, True), (1, True), (2, False), (3, False), (4, None)]
    never = [(F.col("n") != n) & (F.lit(1) / (F.col("n") - n) != 0) for n in range(40)]
    assert result(stream(given, NARROW).select(reduce(and_, never).alias("x"))) == [(False,)] * 5

    def sum_of(number):
        return reduce(add, [F.col("l")] * number)

    made = stream(given, NARROW).select(sum_of(99).alias("many"))
    assert result(made) == [(198,)] * 5
    with pytest.raises(NotInTasks, match="more than 100 others"):
        stream(given, NARROW).select(sum_of(150).alias("many"))
    with pytest.raises(NotInTasks, match="StackOverflowError"):
        stream(given, NARROW).select(sum_of(2000).alias("many"))
