"""PySpark's names on streams, and what is said where a stream has none of them."""

import datetime as dt
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, GroupedData
from pyspark.sql.functions import udf
from pyspark.sql.pandas import functions
from pyspark.sql.types import LongType, StringType

import clonos
from clonos.api import grouped
from clonos.api.frames import INSTEAD
from clonos.columns.schema import parse_schema
from clonos.errors import BadGraph, OperatorError, UnknownColumn, WrongType
from clonos.testing import InMemoryRun, simulate

arrow_udf: Any = functions.arrow_udf
pandas_udf: Any = functions.pandas_udf

START = dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc)
ROWS = [(n % 3, f"w{n}", START + dt.timedelta(seconds=n)) for n in range(9)]


def stream():
    return clonos.Job("named").source(
        clonos.sources.from_batches([ROWS[:5], ROWS[5:]], "id long, word string, at timestamp")
    )


def rows_of(made):
    made.sink(clonos.sinks.collect(), name="out")
    table = InMemoryRun(made._job.compile()).run()["out"]
    return sorted(tuple(row.values()) for row in table.to_pylist())


def test_duplicates():
    ids = stream().select("id")
    assert rows_of(ids.dropDuplicates()) == [(0,), (1,), (2,)]
    words = stream().dropDuplicates(["id"]).select("word")
    assert rows_of(words) == [("w0",), ("w1",), ("w2",)]
    for wrong in (stream().dropDuplicates, stream().dropDuplicatesWithinWatermark):
        with pytest.raises(WrongType, match=r"\['id'\]"):
            wrong("id")
    timed = stream().withWatermark("at", "1 second")
    assert len(rows_of(timed.drop_duplicates(["id"]))) == 3
    with pytest.raises(BadGraph, match="no watermark"):
        stream().dropDuplicatesWithinWatermark()
    with pytest.raises(BadGraph, match="column was dropped"):
        timed.select("id").dropDuplicatesWithinWatermark(["id"])


def test_union_by_name():
    one = stream()
    other = one._job.source(
        clonos.sources.from_batches([[("x", START, 7)]], "word string, at timestamp, id long")
    )
    assert (7, "x", START) in rows_of(one.unionByName(other))
    with pytest.raises(UnknownColumn):
        one.unionByName(other.select("id"))
    with pytest.raises(UnknownColumn, match="also has word, at"):
        other.select("id").unionByName(other)


ONE = "id long, at struct<x: int not null, tags: array<string>>"
OTHER = "id long not null, at struct<x: int, tags: array<string>> not null"
BOTH = "id long, at struct<x: int, tags: array<string>>"


def two_streams():
    """Streams of rows in which something else may be null."""
    job = clonos.Job("two", parallelism=2)
    rows = [(n, {"x": n, "tags": ["a"]}) for n in range(4)]
    more = [(n, {"x": None, "tags": None}) for n in range(4, 8)]
    one = job.source(clonos.sources.from_batches([rows, [(None, None)]], ONE), name="one")
    return one, job.source(clonos.sources.from_batches([more], OTHER), name="other")


def united(how):
    one, other = two_streams()
    return getattr(one, how)(other) if how != "turned" else other.union(one)


def keyed(how):
    made = united(how)
    made.key_by("id").deduplicate().sink(clonos.sinks.collect(), name="out")
    return made._job


@pytest.mark.parametrize("how", ["union", "unionAll", "unionByName", "turned"])
def test_a_union_of_streams_in_which_something_else_may_be_null(how):
    """The result has the columns that may be null in either, also nested, behind a shuffle."""
    job = keyed(how)
    run = InMemoryRun(job.compile(), seed=3, batch_rows=2, restore=0.3)
    table = run.run()["out"]
    assert table.schema.equals(parse_schema(BOTH))
    expected: list[Any] = [(n, {"x": n, "tags": ["a"]}) for n in range(4)]
    expected += [(n, {"x": None, "tags": None}) for n in range(4, 8)] + [(None, None)]
    found = [tuple(row.values()) for row in table.to_pylist()]
    assert sorted(found, key=str) == sorted(expected, key=str)


def test_a_simulated_union_of_streams_in_which_something_else_may_be_null():
    assert simulate(keyed("union"), seeds=3).steps > 0


def test_other_types_are_no_union():
    one, other = two_streams()
    with pytest.raises(WrongType, match=r"a union of \(id int64\) and \(id int32\)"):
        one.select("id").union(other.with_column("id int", len, "id").select("id"))


@pytest.mark.spark
@pytest.mark.parametrize("execution", ["tasks", "spark"])
def test_a_union_with_a_range(spark, execution):
    """Spark says of a range that it is never null."""
    job = clonos.Job("range")
    rows = job.source(spark.createDataFrame([(7,), (None,)], "id long"), name="rows")
    both = rows.union(job.source(spark.range(3), name="range"))
    assert both.schema.field("id").nullable
    made = both.to_dataframe(spark, execution=execution)
    assert sorted((row.id for row in made.collect()), key=str) == [0, 1, 2, 7, None]


def test_what_dataframes_have_and_streams_have_not_is_said():
    rows = stream()
    with pytest.raises(AttributeError, match=r"no 'selec'$"):
        _ = rows.selec
    with pytest.raises(AttributeError, match=r"for the column write F.col\('word'\)"):
        _ = rows.word
    with pytest.raises(TypeError, match=r"write F.col\('word'\)"):
        _ = rows["word"]
    with pytest.raises(TypeError, match=r"write .select"):
        _ = list(rows)


@pytest.mark.parametrize(
    ("theirs", "ours", "instead"),
    [
        (DataFrame, stream, INSTEAD),
        (GroupedData, lambda: stream().groupBy("id"), grouped.INSTEAD),
    ],
)
def test_whatever_a_dataframe_has_is_there_or_it_is_said_what_to_write(theirs, ours, instead):
    rows = ours()
    names = {name for name in dir(theirs) if not name.startswith("_")}
    assert not {name for name in names if not hasattr(rows, name)} - instead.keys()
    assert not [name for name in instead if hasattr(rows, name)]
    for name, told in instead.items():
        with pytest.raises(AttributeError, match=name) as raised:
            getattr(rows, name)
        assert told in str(raised.value)


def test_names_that_are_short_for_others():
    rows = stream()
    assert rows.toDF("a", "b", "c").columns == ["a", "b", "c"]
    with pytest.raises(WrongType, match=r"2 names for 3 columns.*id, word, at"):
        rows.toDF("a", "b")
    again = rows.select("id").transform(lambda ids, n: ids.filter(lambda row: row.id != n), 2)
    both = again.unionAll(rows.select("id")).distinct()
    both.sink(clonos.sinks.collect(), name="out")
    found = InMemoryRun(both._job.compile()).run()["out"]
    assert sorted(found["id"].to_pylist()) == [0, 1, 2]


@pytest.mark.parametrize(
    ("spelled", "keys", "nullable"),
    [
        ("inner", ("id",), [False, False]),
        ("left_outer", ("id",), [False, True]),
        ("rightouter", ("key",), [True, False]),
        ("FULL_OUTER", ("id",), [True, True]),
        ("outer", ("id",), [True, True]),
        ("leftsemi", ("id",), [False]),
        ("left_anti", ("id",), [False]),
    ],
)
def test_joins_have_the_names_that_pyspark_knows(spelled, keys, nullable):
    job = clonos.Job()
    left = job.source(clonos.sources.from_batches([], "id long not null")).key_by("id")
    right = job.source(clonos.sources.from_batches([], "key long not null")).key_by("key")
    made = left.join(right, how=spelled)
    assert made.keys == keys
    assert [field.nullable for field in made.schema] == nullable
    for wrong in ("lft", "cross"):
        with pytest.raises(WrongType, match=f"how='{wrong}'.*'anti'"):
            left.join(right, how=wrong)


def test_grouping_needs_a_window():
    with pytest.raises(BadGraph, match=r"never complete.*F\.window"):
        stream().groupBy("id").count()
    with pytest.raises(UnknownColumn):
        stream().groupBy("missing")
    with pytest.raises(WrongType, match="7 is not a column"):
        stream().groupBy(7)


@udf(StringType())
def loud(word):
    return word.upper()


@udf(LongType(), useArrow=True)
def plus_one(n):
    return n + 1


def twice(words: pd.Series) -> pd.Series:
    return words * 2


def lengths(words: pa.Array) -> pa.Array:
    return pc.utf8_length(words)


def test_udf_objects_of_spark():
    both = pandas_udf(twice, StringType())
    size = arrow_udf(lengths, LongType())
    made = stream().with_column("loud", loud, "word").with_column("id", plus_one, "id")
    made = made.with_column("both", both, "word").with_column("size int", size, "word")
    assert made.dtypes[3:] == [("loud", "string"), ("both", "string"), ("size", "int")]
    found = rows_of(made.select("id", "loud", "both", "size"))
    assert found[0] == (1, "W0", "w0w0", 2)
    assert len(found) == 9


def test_udf_objects_that_are_refused():
    with pytest.raises(WrongType, match="use an arrow_udf"):
        stream().with_column("x", pandas_udf(twice, StringType()), "at")
    total = pandas_udf(_total, LongType())
    with pytest.raises(WrongType, match="is not a function of single rows"):
        stream().with_column("x", total, "id")
    short = arrow_udf(_short, LongType())
    with pytest.raises(OperatorError, match=r"1 values of \d rows"):
        rows_of(stream().with_column("x", short, "id"))


def _total(values: pd.Series) -> int:
    return int(np.sum(values))


def _short(values: pa.Array) -> pa.Array:
    return values.slice(0, 1)


def test_maps_are_no_keys():
    source = clonos.sources.from_batches([], "id long, s struct<m: array<map<string, int>>>")
    rows = clonos.Job().source(source)
    for define in (lambda: rows.key_by("s"), rows.distinct, lambda: rows.dropDuplicates(["s"])):
        with pytest.raises(WrongType, match="equal maps may be in different orders"):
            define()
    assert rows.dropDuplicates(["id"]).columns == ["id", "s"]
