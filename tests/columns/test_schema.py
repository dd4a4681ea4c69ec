from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import types

from clonos.columns.schema import parse_schema, parse_type, require_columns
from clonos.errors import BadSchema, UnknownColumn, WrongType


@pytest.mark.parametrize(
    ("ddl", "expected"),
    [
        ("word string, n bigint", [("word", pa.string()), ("n", pa.int64())]),
        ("a: int, b: DOUBLE", [("a", pa.int32()), ("b", pa.float64())]),
        ("a decimal, b decimal(12, 3)",
         [("a", pa.decimal128(10, 0)), ("b", pa.decimal128(12, 3))]),
        ("a array<struct<x: int, y: map<string, array<date>>>>",
         [("a", pa.list_(pa.struct([("x", pa.int32()),
                                    ("y", pa.map_(pa.string(), pa.list_(pa.date32())))])))]),
        ("t timestamp, u timestamp_ntz", [("t", pa.timestamp("us", "UTC")),
                                          ("u", pa.timestamp("us"))]),
        ("`odd ``name` tinyint comment 'it''s'" .replace("''", "\\'"),
         [("odd `name", pa.int8())]),
        ("struct<a: int, b: string>", [("a", pa.int32()), ("b", pa.string())]),
    ],
)  # fmt: skip
def test_ddl(ddl, expected):
    assert parse_schema(ddl) == pa.schema(expected)


def test_not_null():
    assert not parse_schema("a int not null").field("a").nullable


def test_agrees_with_spark():
    schema = (
        types.StructType()
        .add("a", types.LongType(), nullable=False)
        .add("t", types.TimestampType())
        .add("m", types.MapType(types.StringType(), types.ArrayType(types.ByteType())))
    )
    assert parse_schema(schema).types == parse_schema(
        "a long not null, t timestamp, m map<string, array<byte>>"
    ).types  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (types.StringType("UTF8_LCASE"), "'a' has a collation"),
        (types.ArrayType(types.StringType("UNICODE_CI")), "'a' has a collation"),
        (types.YearMonthIntervalType(), "Arrow has not all types"),
        (types.CalendarIntervalType(), "Arrow has not all types"),
    ],
)
def test_types_of_spark_that_streams_have_not(kind, what):
    with pytest.raises(BadSchema, match=what):
        parse_schema(types.StructType().add("b", types.LongType()).add("a", kind))


@pytest.mark.parametrize(
    "ddl",
    ["", "a", "a strng", "a int b", "a array<int", "a int, a int", "a decimal(50)", "a int;",
     "a decimal(2,3)", "a int,", "a map<int>", "1 2 3", "a int comment b", "a struct<>"],
)  # fmt: skip
def test_bad_ddl(ddl):
    with pytest.raises(BadSchema):
        parse_schema(ddl)


def test_suggestions():
    with pytest.raises(BadSchema, match="did you mean 'string'"):
        parse_schema("a strng")
    with pytest.raises(UnknownColumn, match="did you mean 'word'"):
        require_columns(parse_schema("word string"), ["wrod"], "key_by")
    with pytest.raises(BadSchema, match="dictionary"):
        parse_schema(pa.schema([("a", pa.dictionary(pa.int32(), pa.string()))]))
    with pytest.raises(BadSchema, match=r"'a' is string_view.*declare it as string"):
        parse_schema(pa.schema([("a", pa.string_view())]))
    with pytest.raises(BadSchema, match="int"):
        parse_schema(5)
    with pytest.raises(BadSchema, match="StringType"):
        parse_schema(types.StringType())
    assert parse_type("array<int>") == pa.list_(pa.int32())


@pytest.mark.parametrize("column", [5, None, ["word"], len])
def test_a_column_is_named_by_a_text(column):
    """PySpark takes columns in such places, and other libraries take functions."""
    with pytest.raises(WrongType, match=r"is no name of a column. To do: give texts"):
        require_columns(parse_schema("word string"), [column], "key_by")
