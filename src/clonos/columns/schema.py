"""Schemas from DDL strings, as PySpark writes them, without a JVM.

``"word string, n bigint not null comment 'how often'"`` becomes an Arrow schema. Timestamps are
Arrow's ``timestamp('us', 'UTC')`` and without a zone for ``timestamp_ntz``, as Spark's are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from inspect import signature
from typing import Any, Final

import pyarrow as pa

from clonos.errors import BadSchema, UnknownColumn, WrongType

TIMESTAMP = pa.timestamp("us", "UTC")

_SIMPLE_TYPES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "tinyint": pa.int8(),
    "short": pa.int16(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": TIMESTAMP,
    "timestamp_ltz": TIMESTAMP,
    "timestamp_ntz": pa.timestamp("us"),
}

_OTHER_NAMES = {"tinyint", "smallint", "integer", "bigint", "real", "timestamp_ltz"}
_NAMES = {kind: name for name, kind in _SIMPLE_TYPES.items() if name not in _OTHER_NAMES}

_WORD = re.compile(r"\w+")
_TOKEN = re.compile(
    r"\s*(?:(?P<quoted>`(?:[^`]|``)*`)|(?P<text>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")"
    r"|(?P<word>\w+)|(?P<mark>[<>(),:]))"
)


def parse_schema(schema: Any) -> pa.Schema:
    """Turn a DDL string, a PySpark ``StructType`` or an Arrow schema into an Arrow schema.

    Raises
    ------
    BadSchema
        The text cannot be parsed, a column is named twice, or a type is not supported.

    Examples
    --------
    >>> parse_schema("word string, n bigint").names
    ['word', 'n']
    """
    if isinstance(schema, pa.Schema):
        parsed = schema.remove_metadata()
    elif isinstance(schema, str):
        parsed = pa.schema(_Parser(schema).columns())
    elif hasattr(schema, "simpleString") and hasattr(schema, "fields"):
        parsed = _from_spark(schema)
    else:
        raise BadSchema(
            f"a schema cannot be made of {type(schema).__name__}",
            remedy='write a DDL string such as "word string, n bigint"',
        )
    _check(parsed)
    return parsed


def parse_type(text: str) -> pa.DataType:
    """Parse one type, such as ``"map<string, array<int>>"``."""
    return _Parser(text).single_type()


def to_ddl(schema: pa.Schema) -> str:
    """A schema as a DDL string.

    Examples
    --------
    >>> to_ddl(parse_schema("n bigint not null, `the day` date, d decimal(4,2), a array<int>"))
    'n long not null, `the day` date, d decimal(4,2), a array<int>'
    """
    return ", ".join(
        f"{_named(f.name)} {type_name(f.type)}{'' if f.nullable else ' not null'}" for f in schema
    )


def type_name(data_type: pa.DataType) -> str:
    """A type as users write it; as Arrow does if they could not write it.

    Examples
    --------
    >>> type_name(pa.int64()), type_name(pa.map_(pa.string(), pa.float64())), type_name(pa.uint8())
    ('long', 'map<string, double>', 'uint8')
    """
    types = pa.types
    if types.is_decimal128(data_type):
        return f"decimal({data_type.precision},{data_type.scale})"
    if types.is_list(data_type):
        return f"array<{type_name(data_type.value_type)}>"
    if types.is_map(data_type):
        return f"map<{type_name(data_type.key_type)}, {type_name(data_type.item_type)}>"
    if types.is_struct(data_type):
        parts = ", ".join(f"{_named(f.name)}: {type_name(f.type)}" for f in data_type)
        return f"struct<{parts}>"
    return _NAMES.get(data_type, str(data_type))


def quoted(name: str) -> str:
    """A name quoted for SQL.

    Examples
    --------
    >>> quoted("a`b")
    '`a``b`'
    """
    return f"`{name.replace('`', '``')}`"


def _named(name: str) -> str:
    return name if _WORD.fullmatch(name) else quoted(name)


def require_columns(schema: pa.Schema, columns: Sequence[str], where: str) -> None:
    """Raise :class:`UnknownColumn`, with similar names as a hint, unless all columns exist."""
    for column in columns:
        if not isinstance(column, str):
            raise WrongType(
                f"{column!r} is no name of a column",
                where=where,
                remedy=f"give texts; the columns are {', '.join(schema.names)}. What is computed "
                "becomes a column first, with with_column",
            )
        if column not in schema.names:
            raise UnknownColumn(
                f"there is no column {column!r}", where=where, remedy=columns_like(schema, column)
            )


def has_maps(data_type: pa.DataType) -> bool:
    """Whether values of this type are maps or contain maps.

    Examples
    --------
    >>> has_maps(pa.struct([("x", pa.map_(pa.string(), pa.int8()))])), has_maps(pa.string())
    (True, False)
    """
    inner = (data_type.field(i).type for i in range(data_type.num_fields))
    return pa.types.is_map(data_type) or any(map(has_maps, inner))


def require_keys(schema: pa.Schema, columns: Sequence[str], where: str) -> None:
    """Raise unless all columns exist, and it can be told which of their values are equal."""
    require_columns(schema, columns, where)
    for column in columns:
        if has_maps(schema.field(column).type):
            raise WrongType(
                f"column {column!r} is a map, or has one inside: equal maps may be in different "
                "orders",
                where=where,
                remedy="make a text of it, or a sorted array of structs: with_column(...)",
            )


def require_sortable(schema: pa.Schema, columns: Sequence[str], where: str) -> None:
    """Raise unless all columns exist, and their values have an order: that of Spark."""
    require_columns(schema, columns, where)
    for column in columns:
        data_type = schema.field(column).type
        if pa.types.is_nested(data_type) or pa.types.is_float16(data_type):
            raise WrongType(
                f"column {column!r} is {type_name(data_type)}, which is not sorted",
                where=where,
                remedy="make columns of its parts, and sort by these",
            )


def columns_like(schema: pa.Schema, column: str) -> str:
    """What to do about a column that does not exist: similar names, and all names.

    Examples
    --------
    >>> columns_like(parse_schema("cents long, user string"), "cent")
    "did you mean 'cents'? the columns are cents, user"
    """
    same = [name for name in schema.names if name.lower() == column.lower()]
    close = same or get_close_matches(column, schema.names, n=3)
    hint = f"did you mean {' or '.join(map(repr, close))}? " if close else ""
    return f"{hint}the columns are {', '.join(schema.names)}"


def wider(a: pa.Schema, b: pa.Schema) -> pa.Schema | None:
    """The schema of rows of both: a column may be null if it may be in one of them.

    None if they differ in more than what may be null, at the top or nested.

    Examples
    --------
    >>> one = parse_schema("a long not null, b long")
    >>> other = parse_schema("a long, b long not null")
    >>> wider(one, other).equals(parse_schema("a long, b long"))
    True
    >>> wider(one, parse_schema("a long, b int")) is None
    True
    """
    fields = _wider_fields(list(a), list(b))
    return None if fields is None else pa.schema(fields)


def _wider_fields(a: Sequence[pa.Field], b: Sequence[pa.Field]) -> list[pa.Field] | None:
    if [field.name for field in a] != [field.name for field in b]:
        return None
    fields = []
    for one, other in zip(a, b, strict=True):
        data_type = _wider_type(one.type, other.type)
        if data_type is None:
            return None
        fields.append(pa.field(one.name, data_type, one.nullable or other.nullable))
    return fields


def _wider_type(a: pa.DataType, b: pa.DataType) -> pa.DataType | None:
    if a == b:
        return a
    if a.id != b.id:
        return None
    if pa.types.is_struct(a):
        return None if (fields := _wider_fields(list(a), list(b))) is None else pa.struct(fields)
    if pa.types.is_map(a):
        if a.keys_sorted != b.keys_sorted:
            return None
        found = [_wider_type(a.key_type, b.key_type), _wider_type(a.item_type, b.item_type)]
        if None in found:
            return None
        is_nullable = a.item_field.nullable or b.item_field.nullable
        value = pa.field(a.item_field.name, found[1], is_nullable)
        return pa.map_(found[0], value, keys_sorted=a.keys_sorted)
    if pa.types.is_list(a) or pa.types.is_large_list(a):
        if (value := _wider_type(a.value_type, b.value_type)) is None:
            return None
        is_nullable = a.value_field.nullable or b.value_field.nullable
        made = pa.list_ if pa.types.is_list(a) else pa.large_list
        return made(pa.field(a.value_field.name, value, is_nullable))
    return None


RENAME: Final = 'rename one, or set spark.sql.caseSensitive to "true"'
"""What to do about names that are alike."""


def alike(names: Iterable[str]) -> tuple[str, str] | None:
    """The first two names that a Spark session which ignores case does not tell apart.

    Examples
    --------
    >>> alike(["a", "b", "A"]), alike(["a", "b"])
    (('a', 'A'), None)
    """
    seen: dict[str, str] = {}
    for name in names:
        if (other := seen.setdefault(name.lower(), name)) != name:
            return other, name
    return None


def spark_type(data_type: pa.DataType) -> Any:
    """The Spark type that is equivalent to this Arrow type; None if there is none.

    Examples
    --------
    >>> spark_type(pa.int64()).simpleString(), spark_type(pa.uint8())
    ('bigint', None)
    """
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StructField, StructType

    try:
        known = from_arrow_type(data_type, prefer_timestamp_ntz=True)
        back = _from_spark(StructType([StructField("value", known)])).field("value").type
    except (BadSchema, PySparkException, TypeError):
        return None
    return known if back == data_type else None


def _check(schema: pa.Schema) -> None:
    if not schema.names:
        raise BadSchema("the schema has no columns", remedy="name at least one column")
    for field in schema:
        if schema.names.count(field.name) > 1:
            raise BadSchema(f"column {field.name!r} is there twice", remedy="rename one of them")
        if pa.types.is_dictionary(field.type):
            raise BadSchema(
                f"column {field.name!r} is dictionary-encoded",
                remedy=f"declare it as {field.type.value_type}",
            )
        if str(field.type) in ("string_view", "binary_view"):
            raise BadSchema(
                f"column {field.name!r} is {field.type}, which many of Arrow's functions lack",
                remedy=f"declare it as {str(field.type).removesuffix('_view')}",
            )


def _from_spark(schema: Any) -> pa.Schema:
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_schema

    for field in schema.fields:
        # The name of a type shows collations of nested types, too.
        if " collate " in field.dataType.simpleString():
            raise BadSchema(
                f"column {field.name!r} has a collation, and strings are compared byte by byte",
                remedy=f"select {field.name} collate UTF8_BINARY before",
            )
    # Newer versions need the zone as an argument, older ones always take UTC.
    has_zone = "timezone" in signature(to_arrow_schema).parameters
    zone: dict[str, Any] = {"timezone": "UTC"} if has_zone else {}
    try:
        return to_arrow_schema(schema, **zone).remove_metadata()
    except PySparkException as error:
        told = f"Arrow has not all types of {schema.simpleString()}: {error}"
        raise BadSchema(told, remedy="cast the column, or leave it out") from error


class _Parser:
    """Recursive descent over the tokens of a DDL string."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[tuple[str, str]] = []
        at = 0
        while at < len(text.rstrip()):
            match = _TOKEN.match(text, at)
            if match is None:
                raise self._error(f"unexpected {text[at : at + 10].strip()!r}")
            self._tokens.append((str(match.lastgroup), match.group(str(match.lastgroup))))
            at = match.end()
        self._at = 0

    def columns(self) -> list[pa.Field]:
        """The whole text as a list of columns."""
        if len(self._tokens) > 2 and [t[1].lower() for t in self._tokens[:2]] == ["struct", "<"]:
            struct = self.single_type()
            return [struct.field(i) for i in range(struct.num_fields)]
        fields = [self._field()]
        while self._skip(","):
            fields.append(self._field())
        self._expect_end()
        return fields

    def single_type(self) -> pa.DataType:
        """The whole text as one type."""
        parsed = self._type()
        self._expect_end()
        return parsed

    def _field(self) -> pa.Field:
        kind, name = self._next("a column name")
        if kind == "quoted":
            name = name[1:-1].replace("``", "`")
        elif kind != "word":
            raise self._error(f"a column name is expected, not {name!r}")
        self._skip(":")
        data_type = self._type()
        nullable = True
        if self._skip("not"):
            self._expect("null")
            nullable = False
        if self._skip("comment"):
            kind, comment = self._next("a comment")
            if kind != "text":
                raise self._error(f"a comment in quotes is expected, not {comment!r}")
        return pa.field(name, data_type, nullable)

    def _type(self) -> pa.DataType:
        _, word = self._next("a type")
        name = word.lower()
        if name in _SIMPLE_TYPES:
            return _SIMPLE_TYPES[name]
        if name in ("decimal", "dec", "numeric"):
            return self._decimal()
        if name in ("varchar", "char"):
            self._expect("(")
            self._number()
            self._expect(")")
            return pa.string()
        if name == "array":
            self._expect("<")
            element = self._type()
            self._expect(">")
            return pa.list_(element)
        if name == "map":
            self._expect("<")
            key = self._type()
            self._expect(",")
            value = self._type()
            self._expect(">")
            return pa.map_(key, value)
        if name == "struct":
            return self._struct()
        close = get_close_matches(name, [*_SIMPLE_TYPES, "decimal", "array", "map", "struct"])
        raise self._error(f"{word!r} is not a type", close[0] if close else "")

    def _decimal(self) -> pa.DataType:
        precision, scale = 10, 0
        if self._skip("("):
            precision = self._number()
            if self._skip(","):
                scale = self._number()
            self._expect(")")
        if not 0 <= scale <= precision <= 38 or precision == 0:
            raise self._error(f"decimal({precision},{scale}) does not exist")
        return pa.decimal128(precision, scale)

    def _struct(self) -> pa.DataType:
        self._expect("<")
        fields = [self._field()]
        while self._skip(","):
            fields.append(self._field())
        self._expect(">")
        return pa.struct(fields)

    def _number(self) -> int:
        _, text = self._next("a number")
        if not text.isdigit():
            raise self._error(f"a number is expected, not {text!r}")
        return int(text)

    def _next(self, wanted: str) -> tuple[str, str]:
        if self._at == len(self._tokens):
            raise self._error(f"{wanted} is missing at the end")
        self._at += 1
        return self._tokens[self._at - 1]

    def _skip(self, text: str) -> bool:
        if self._at < len(self._tokens) and self._tokens[self._at][1].lower() == text:
            self._at += 1
            return True
        return False

    def _expect(self, text: str) -> None:
        if not self._skip(text):
            found = self._tokens[self._at][1] if self._at < len(self._tokens) else "the end"
            raise self._error(f"{text!r} is expected, not {found!r}")

    def _expect_end(self) -> None:
        if self._at < len(self._tokens):
            raise self._error(f"unexpected {self._tokens[self._at][1]!r}")

    def _error(self, what: str, meant: str = "") -> BadSchema:
        hint = f"did you mean {meant!r}? " if meant else ""
        return BadSchema(
            f"{what} in the schema {self._text!r}",
            remedy=f'{hint}write it as in PySpark: "word string, n bigint"',
        )
