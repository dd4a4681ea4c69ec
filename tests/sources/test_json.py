from __future__ import annotations

import json
import math
from collections.abc import Callable
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import clonos
from clonos.columns.schema import _SIMPLE_TYPES, parse_schema
from clonos.errors import BadSchema, OperatorError, WrongType
from clonos.sinks.json_texts import as_json
from clonos.sources.json_lines import _by_arrow, parse_json
from clonos.sources.lines import PARSERS
from clonos.testing import Source as SourceEvent
from clonos.testing import StepHarness
from tests.sources.test_readers import parse, read_all

UTC = timezone.utc

VALUES: dict[str, list[Any]] = {
    "boolean": [True, False],
    "byte": [-128, 127],
    "short": [-(2**15), 2**15 - 1],
    "int": [-(2**31), 2**31 - 1],
    "long": [-(2**63), 2**63 - 1],
    "float": [0.1, -0.0, 1e38, 1e-45, math.nan, math.inf, -math.inf],
    "double": [0.1, 1e308, 5e-324, math.nan, math.inf, -math.inf],
    "string": ["", 'a"\\\n\r\t\x00\u2028é😀', "NaN"],
    "binary": [b"", b"\x00\xff\\x", b"text"],
    "date": [date(1, 1, 1), date(2024, 1, 31), date(9999, 12, 31)],
    "timestamp": [datetime(1, 1, 1, tzinfo=UTC), datetime(2024, 1, 31, 1, 2, 3, 456789, UTC)],
    "timestamp_ntz": [datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999)],  # noqa: DTZ001
    "decimal(38,0)": [Decimal(10**38 - 1), Decimal(-1)],
    "decimal(38,38)": [Decimal("1e-38"), Decimal(0)],
}
OTHER_NAMES = {"tinyint", "smallint", "integer", "bigint", "real", "timestamp_ltz"}
HOSTILE = [
    "{}",
    '{"n": 1}',
    '{"n": -0}',
    '{"n": 1.0}',
    '{"n": 1e2}',
    '{"n": 2147483648}',
    '{"n": "1"}',
    '{"n": true}',
    '{"n": 1, "n": 2}',
    '{"n": null}',
    '{"x": 1e999, "n": 1}',
    '{"x": 1, "x": 2, "n": 1}',
    '{"x": {"n": [{}]}, "n": 1}',
    '{"f": 3.4028235e38}',
    '{"f": 3.5e38}',
    '{"f": 16777217}',
    '{"f": NaN}',
    '{"f": "NaN"}',
    '{"f": -Infinity}',
    '{"f": "Infinity"}',
    '{"f": "inf"}',
    '{"f": "1"}',
    '{"c": 1.5}',
    '{"c": "1.5"}',
    '{"c": 1.555}',
    '{"c": 1e1}',
    '{"c": 1e99}',
    '{"t": "2024-01-31T01:02:03Z"}',
    '{"t": "2024-01-31T01:02:03"}',
    '{"t": "2024-01-31 01:02:03.123456+02:00"}',
    '{"t": "2024-01-31"}',
    '{"t": "2024-01-31T01:02:03.123456789Z"}',
    '{"t": 1706662923}',
    '{"z": "2024-01-31T01:02:03"}',
    '{"z": "2024-01-31T01:02:03Z"}',
    '{"d": "2024-01-31"}',
    '{"d": "2024-02-31"}',
    '{"d": "2024-01-31T00:00:00"}',
    '{"d": 19753}',
    '{"s": "\\ud800"}',
    '{"s": "\\u0000"}',
    '{"s": "\x01"}',
    '{"s": 1}',
    '{"l": [{"d": "2024-01-31", "f": 1}, null, {}]}',
    '{"l": [{"f": 1e39}]}',
    '{"l": {}}',
    '{"l": [1]}',
    '{"n": 1} {"n": 2}',
    '{"n": 1,}',
    "{'n': 1}",
    '{"n": 01}',
    '{"n": 1}//',
    '[{"n": 1}]',
    "  ",
]
SCHEMA = (
    "n int, f float, c decimal(10,2), t timestamp, z timestamp_ntz, d date, s string,"
    " l array<struct<d: date, f: float>>"
)


def written(values, data_type):
    """Rows of one column as our sinks write them."""
    rows = pa.StructArray.from_arrays([pa.array(values, data_type)], ["c"])
    return [text.encode() for text in as_json(rows).to_pylist()]


def read(lines, schema):
    return PARSERS["json"](pa.array(lines, pa.binary()), parse_schema(schema))


def same(one, other):
    """Whether two values are alike, NaN and the sign of zero included."""
    return repr(one) == repr(other)


def test_every_type_has_values():
    assert _SIMPLE_TYPES.keys() - OTHER_NAMES == {name for name in VALUES if "(" not in name}


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize(
    "form", ["{}", "array<{}>", "struct<x: {}>", "map<string, {}>", "map<{}, int>"]
)
def test_what_a_sink_writes_a_source_reads(name, form):
    wraps: dict[str, Callable[[Any], Any]] = {
        "{}": lambda v: v,
        "array<{}>": lambda v: [v, None],
        "struct<x: {}>": lambda v: {"x": v},
        "map<string, {}>": lambda v: [("a", v), ("b", None)],
        "map<{}, int>": lambda v: [(v, 1)],
    }
    wrap = wraps[form]
    (field,) = parse_schema(f"c {form.format(name)}")
    values = [*map(wrap, VALUES[name]), None]
    expected = pa.array(values, field.type).to_pylist()
    lines = written(values, field.type)
    together = read(lines, f"c {form.format(name)}").column(0).to_pylist()
    alone = [read([line], f"c {form.format(name)}").column(0)[0].as_py() for line in lines]
    assert same(together, expected)
    assert same(alone, expected)


def test_what_a_line_says_does_not_depend_on_its_neighbours():
    schema = parse_schema(SCHEMA)

    def outcome(how, lines):
        try:
            return how(pa.array([line.encode() for line in lines]), schema).to_pylist()
        except (pa.ArrowException, ValueError):
            return None

    both = 0
    for line in HOSTILE:
        alone = outcome(parse_json, [line])
        for other in ('{"n": 7}', '{"f": "NaN"}'):
            beside = outcome(parse_json, [line, other])
            assert same(alone, beside and beside[:1]), line
        by_arrow = outcome(_by_arrow, [line])
        assert by_arrow is None or same(by_arrow, alone), line
        both += by_arrow is not None
    assert both > 15


@pytest.mark.parametrize(
    "line",
    [
        b'{"f": 1e300}',
        b'{"f": -1e39}',
        b'{"l": [{"f": 1e39}]}',
        b'{"f": "1e300"}',
        b'{"f": "inf"}',
        b'{"z": "2024-01-31T01:02:03+02:00"}',
        b'\xef\xbb\xbf{"n": 1}',
        '{"n": 1}'.encode("utf-16"),
        b'{"s": "\xff"}',
    ],
)
def test_what_would_be_changed_without_a_word_is_a_bad_record(line):
    source = clonos.sources.kafka("host:1", "topic", schema=SCHEMA)
    lines = [b'{"n": 1}', line, b'{"n": 2}']
    found, program = parse(source, lines, on_bad_record="drop")
    assert [row[0] for row in found] == [1, 2]
    assert program.statistics == {"in: bad_records": 1}


def test_bytes_that_are_no_digits_are_the_text():
    lines = [b'{"b": "abc"}', b'{"b": "\\\\x6162"}']
    assert read(lines, "b binary").column(0).to_pylist() == [b"abc", b"ab"]
    with pytest.raises(ValueError, match="hex"):
        read([b'{"b": "\\\\x6"}'], "b binary")


def test_a_reason_is_not_as_long_as_a_line():
    source = clonos.sources.kafka("host:1", "topic", schema="n int")
    with pytest.raises(OperatorError) as caught:
        parse(source, [b'{"n": %s}' % (b"9" * 100_000)])
    assert len(str(caught.value)) < 5000


def test_a_map_has_each_key_once():
    with pytest.raises(ValueError, match="m: the key 'a' is there twice"):
        read([b'{"m": {"a": 1, "a": 2}}'], "m map<string, int>")


def test_depth():
    for n in (499, 100_000):
        line = b'{"x": ' + b"[" * n + b'"[[["' + b"]" * n + b', "n": 1}'
        assert read([line], "n int").to_pylist() == [{"n": 1}]
        if n < 500:
            assert read([line], "n int, b binary").to_pylist() == [{"n": 1, "b": None}]
        else:
            with pytest.raises(ValueError, match="in each other"):
                read([line], "n int, b binary")
    text = json.dumps({"b": "[{" * 1000})
    assert read([text.encode()], "b binary").column(0)[0].as_py() == b"[{" * 1000


def test_types_that_a_format_lacks_are_refused_where_the_job_is_defined(tmp_path):
    (tmp_path / "x").write_text("{}\n")
    times = pa.schema([("at", pa.list_(pa.time64("us")))])
    with pytest.raises(BadSchema, match=r"column 'at': time64\[us\] cannot be read from JSON"):
        clonos.sources.kafka("host:1", "topic", schema=times)
    with pytest.raises(BadSchema, match="cannot be read from JSON"):
        clonos.sources.webhook(8080, "/", schema="m map<struct<a: int>, int>")
    for schema in ("a array<int>", "a struct<b: int>", "a map<string, int>"):
        with pytest.raises(BadSchema, match=r"'a': .* cannot be read from CSV"):
            clonos.sources.files(str(tmp_path), format="csv", schema=schema)


@pytest.mark.parametrize(
    ("sink", "kind"),
    [
        (clonos.sinks.http("http://host/"), BadSchema),
        (clonos.sinks.kafka("host:1", "topic"), BadSchema),
        (clonos.sinks.postgres("postgresql://host/db", "t"), WrongType),
    ],
)
@pytest.mark.parametrize(
    "nested", ["map<struct<a: int>, int>", "map<array<int>, int>", "map<map<string, int>, int>"]
)
@pytest.mark.parametrize("form", ["{}", "array<{}>", "struct<x: {}>", "map<string, {}>"])
def test_a_sink_refuses_what_no_source_could_read_again(sink, kind, nested, form):
    """Two keys could become the same text, so a column of jsonb would keep one of two values."""
    job = clonos.Job("lost")
    rows = job.source(clonos.sources.from_batches([], f"n int, m {form.format(nested)}"))
    with pytest.raises(kind, match=r"map<") as caught:
        rows.sink(sink)
    assert "'m'" in str(caught.value) or caught.value.where == "m"
    assert caught.value.remedy


def test_a_sink_of_texts_does_not_mind_what_its_other_columns_are():
    job = clonos.Job("kept")
    rows = job.source(clonos.sources.from_batches([], "value string, m map<struct<a: int>, int>"))
    rows.sink(clonos.sinks.kafka("host:1", "topic", value="text"))
    rows.sink(clonos.sinks.collect())


def test_csv_loses_nothing_without_a_word(tmp_path):
    (tmp_path / "x").write_text("a,f\n")
    source = clonos.sources.files(str(tmp_path), format="csv", schema="a string, f float")
    good = [b"x,1", b'"x,""y""",inf', b'x"y,-Infinity', b'"x",nan', b'"",1']
    broken = [b'x,"1', b'"x,1', b"x,1e300", b"x,-3.5e38", b'x"y,"1', b"x,1\ry,2"]
    found, program = parse(source, [*good, *broken, b"end,1"], on_bad_record="drop")
    names = ["x", 'x,"y"', 'x"y', "x", "", "end"]
    assert [row[0] for row in found] == names
    assert program.statistics == {"in: bad_records": len(broken)}
    source = clonos.sources.files(str(tmp_path), format="csv", schema="a int, f string")
    pair = [b'1,"x', b'2",y', b"3,z\r4,u"]
    found, program = parse(source, pair, on_bad_record="drop")
    assert found == []
    assert program.statistics == {"in: bad_records": 3}


def test_a_field_that_is_too_large_is_a_bad_record():
    source = clonos.sources.redis("redis://host", "s", schema="f float, g double")
    job = clonos.Job(on_bad_record="drop")
    job.source(source, name="in").sink(clonos.sinks.collect())
    program = job.compile().codes[0].program()
    columns = {"f": [b"1", b"1e300", b"inf", b"1"], "g": [b"1", b"1", b"-Infinity", b"-1e999"]}
    StepHarness(program).feed(SourceEvent(pa.record_batch(columns)))
    assert program.statistics == {"in: bad_records": 2}


def test_a_file_with_a_mark_of_its_encoding_and_lines_that_are_too_long(tmp_path, monkeypatch):
    path = tmp_path / "x"

    def lines_of(parallelism):
        source = clonos.sources.files(str(path), format="json", schema="n int")
        parts = [read_all(source.reader(i, parallelism)) for i in range(parallelism)]
        return [line for part in parts for (line,) in part]

    path.write_bytes(b'\xef\xbb\xbf{"n": 1}\r\n{"n": 2}\r\n')
    for parallelism in (1, 2, 5):
        assert lines_of(parallelism) == [b'{"n": 1}', b'{"n": 2}']
    path.write_bytes(b"short\n" + b"x" * 100 + b"\nlast, and it is long")
    monkeypatch.setattr("clonos.sources.files_reader._LINE_BYTES_MAX", 10)
    monkeypatch.setattr("clonos.sources.files_reader._CHUNK_BYTES", 7)
    assert lines_of(1) == [b"short", None, None]
