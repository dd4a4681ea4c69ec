"""What is compared with Spark: edge values by type, and expressions over columns `a` and `b`."""

from __future__ import annotations

from decimal import Decimal
from random import Random
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from clonos.columns.schema import parse_type

RANDOM_ROWS: Final = 60

_NAN, _INF = float("nan"), float("inf")
_DAY: Final = 86_400_000_000
_INTS: Final = [None, 0, 1, -1, 2, -2, 3, 7, -7, 10, -10, 100, -100]


def _whole(bits: int) -> list[Any]:
    edge = 2 ** (bits - 1)
    return [*_INTS, edge - 1, -edge, edge - 2, 1 - edge, edge // 2, -edge // 2]


_FLOATS: Final = [
    None, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, -7.25, 0.1, 3.0, 1e-300, 5e-324, 1e300,
    _INF, -_INF, _NAN, 2.0**31, 2.0**31 - 0.5, -(2.0**31) - 0.5, 2.0**63, -(2.0**63), 2.0**53 + 2,
]  # fmt: skip
_STRINGS: Final = [
    None, "", " ", "a", "A", "abc", "aBc", " abc ", "\tabc\n", "%", "a%", "_", "abcabc", "ß", "É",
    "éa", "日本", "😀a", "ŉ", "ς Σ", "a\nb", "a\\b", "e\u0301a", "xaax", "a.c", "a+(b|c)", "[a]^$",
    "ΟΔΟΣ ΑΣ'Σ", "İı",
]  # fmt: skip
NUMERALS: Final = [
    None, "", " ", "0", "1", "-1", "+7", " 42 ", "\t8\n", "1.5", "1e3", "--1", "+-1", "+", "-0",
    "127", "128", "-128", "-129", "32768", "2147483647", "2147483648", "-2147483648", "-2147483649",
    "9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809",
    "0x1F", "\u00a012", "१", "00000000000000000000000000012", "-000000000000000000000000000012",
    "\x7f5", "\x1c5", "1 2", "5\x00", "1_000", "true", "\n", "3\n",
]  # fmt: skip
_DATES: Final = [
    None, 0, -1, 1, 59, 60, 365, 11_016, 11_017, -25_509, 19_722, 19_723, 19_358, 18_627, 18_628,
    -719_162, 2_932_896, -719_528, 2**31 - 1, -(2**31),
]  # fmt: skip
_MOMENTS: Final = [
    None, 0, 1, -1, 999_999, -999_999, 1_000_000, -1_000_000, _DAY, _DAY - 1, -_DAY, -_DAY - 1,
    951_825_599_999_999, 951_825_600_000_000, 1_704_067_199_999_999, 1_709_209_845_123_456,
    -62_135_596_800_000_000, 253_402_300_799_999_999, 2**63 - 1, -(2**63),
    -2_208_988_800_000_001, 1_000_000_000_000_000,
]  # fmt: skip
_BYTES: Final = [None, b"", b"\x00", b"a", b"ab", b"\xff", b"\x7f", b"\x80", b"\x00\x00"]


def _decimals(digits: int, scale: int) -> list[Any]:
    edge = 10**digits - 1
    numbers = [0, 1, -1, 5, 50, 150, 12345, -12345, edge, -edge, 10 ** (digits - 1)]
    return [None, *(Decimal(n).scaleb(-scale) for n in numbers if abs(n) <= edge)]


EDGES: Final[dict[str, list[Any]]] = {
    "boolean": [None, True, False],
    "byte": _whole(8),
    "short": _whole(16),
    "int": _whole(32),
    "long": [*_whole(64), 2**53 + 1, 2**31],
    "float": _FLOATS,
    "double": _FLOATS,
    "string": _STRINGS,
    "binary": _BYTES,
    "date": _DATES,
    "timestamp": _MOMENTS,
    "timestamp_ntz": _MOMENTS,
    "decimal(10,2)": _decimals(10, 2),
    "decimal(5,0)": _decimals(5, 0),
    "decimal(20,4)": _decimals(20, 4),
}


def _drawn(ddl: str, random: Random) -> Any:
    """A value of a type, or of the middle of it."""
    bits = {"byte": 8, "short": 16, "int": 32, "long": 64, "date": 18, "timestamp": 56}
    bits["timestamp_ntz"] = bits["timestamp"]
    if ddl in bits:
        return random.randrange(-(2 ** (bits[ddl] - 1)), 2 ** (bits[ddl] - 1))
    if ddl in {"float", "double"}:
        return random.choice([random.gauss(0, 3), random.uniform(-1e12, 1e12)])
    if ddl == "string":
        return "".join(random.choices("aAbB %_é😀\n", k=random.randrange(6)))
    return random.choice(EDGES[ddl])


def column(ddl: str, values: list[Any]) -> pa.Array:
    """A column of a type; moments and dates are given as numbers, as Python has not all."""
    data_type = parse_type(ddl)
    if ddl == "date":
        return pa.array(values, pa.int32()).view(data_type)
    if ddl.startswith("timestamp"):
        return pa.array(values, pa.int64()).view(data_type)
    if ddl == "float":
        return pa.array(values, pa.float64()).cast(data_type, safe=False)
    return pa.array(values, data_type)


def laid_out_otherwise(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows as a slice, and with something else than zeros under nulls."""
    return pa.record_batch(
        {name: _laid_out_otherwise(name, batch.column(name)) for name in batch.schema.names}
    )


def _laid_out_otherwise(name: str, column: pa.Array) -> pa.Array:
    data_type = column.type
    some = column.drop_null().slice(0, 1)
    if not len(some):
        return column
    if pa.types.is_integer(data_type):
        lowest = -(2 ** (data_type.bit_width - 1))
        some = pa.array([lowest if name == "a" else 0], data_type)
    elif pa.types.is_floating(data_type):
        some = pa.array([_INF if name == "a" else 0.0], data_type)
    elif pa.types.is_temporal(data_type):
        some = pa.array([2 ** (data_type.bit_width - 1) - 1], f"int{data_type.bit_width}")
        some = some.view(data_type)
    parts = pa.concat_arrays([some, column, some])
    filled = pc.if_else(parts.is_null(), some[0], parts)
    bits = pc.cast(parts.is_valid(), pa.bool_()).buffers()[1]
    buffers = [bits, *filled.buffers()[1:]]
    return pa.Array.from_buffers(data_type, len(parts), buffers).slice(1, len(column))


def pairs(left: str, right: str, more: list[Any] | None = None) -> pa.Table:
    """All pairs of edge values, and some drawn ones; `more` stands for those of `left`."""
    random = Random(f"{left} {right}")
    edges = EDGES[left] if more is None else more
    chosen = [(a, b) for a in edges for b in EDGES[right]]
    if more is None:
        drawn = range(RANDOM_ROWS)
        chosen += [(_drawn(left, random), _drawn(right, random)) for _ in drawn]
    firsts, seconds = zip(*chosen, strict=True)
    return pa.table({"a": column(left, list(firsts)), "b": column(right, list(seconds))})


def small_pairs() -> pa.Table:
    """Pairs of a few longs, most of which can be computed with."""
    edges = [None, 0, 1, -1, 2, 11, -100, 2**63 - 1]
    firsts, seconds = zip(*((a, b) for a in edges for b in edges), strict=True)
    return pa.table({"a": column("long", list(firsts)), "b": column("long", list(seconds))})


_COMPARED: Final = [
    "a = b", "a <> b", "a < b", "a <= b", "a > b", "a >= b", "a <=> b", "a is distinct from b",
    "a in (b, a)", "greatest(a, b)", "least(a, b)", "least(a, b, a)", "coalesce(a, b)",
    "nvl(b, a)", "nullif(a, b)", "nvl2(a, b, a)", "ifnull(a, b)", "a is null", "a is not null",
    "a between b and a", "if(a = b, a, b)", "case when a < b then a when a > b then b end",
    "equal_null(a, b)",
]  # fmt: skip
_ADDED: Final = ["a + b", "a - b", "a * b", "-a", "+a", "abs(a)"]
_CONSTANTS: Final = [
    "5 - a", "5 * a", "5 div a", "5 % a", "pmod(5, a)", "1 / a", "a / null", "a + null", "a % null",
    "1 = a", "1 <=> a", "a <=> null", "a = null", "1 in (a, b)", "a in (null)", "null in (a)",
    "greatest(a, 1)", "least(1, a, b)", "greatest(a, null)", "coalesce(null, a)", "coalesce(a, 1)",
    "if(true, a, b)", "if(1 = null, a, b)", "case when 1 = null then a else b end", "nullif(1, a)",
    "a between null and b", "cast(null as int) + a", "-(a + null)",
]  # fmt: skip
_INTEGERS: Final = [
    *_COMPARED, *_ADDED, "a div b", "a % b", "pmod(a, b)", "mod(a, 3)", "a % -1", "a div -1",
    "a div 7", "a / b", "a / 100", "a & b", "a | b", "a ^ b", "~a", "floor(a)", "ceil(a)",
    "a in (1, 2, null)", "a in (1, -1)", "a * 89 div 100", "a + 1 > b",
    "cast(a as byte)", "cast(a as short)", "cast(a as int)", "cast(a as long)", "cast(a as float)",
    "cast(a as double)", "cast(a as string)", "cast(a as boolean)", "cast(a as decimal(20,1))",
    "case when b <> 0 then a div b end", "if(b = 0, 0, a % b)", "b <> 0 and a div b > 1",
    "b = 0 or a % b > 1", "coalesce(a, b div 0)", "a + 1 / b", "a + (b div 0)", "a = (b div 0)",
    "zeroifnull(a)", "nullifzero(a)", "a between -1 and 10", "a not in (1, 2)",
]  # fmt: skip
_SMALL_INTEGERS: Final = [
    *_ADDED, "a = b", "a < b", "a div b", "a % b", "pmod(a, b)", "a / b", "a | b", "~a", "floor(a)",
    "a in (1, b)", "cast(a as byte)", "cast(a as int)", "cast(a as double)", "cast(a as string)",
    "a * 89 div 100", "case when b <> 0 then a div b end",
]  # fmt: skip
_FLOATING: Final = [
    *_COMPARED, *_ADDED, "a / b", "a / 4", "a % b", "a % 2", "floor(a)", "ceil(a)", "sqrt(a)",
    "isnan(a)", "nanvl(a, b)", "a in (0.0, 1)", "a in (double('NaN'), b)", "a > 0", "a < 0.5",
    "a >= double('NaN')", "a <= double('NaN')", "cast(a as byte)", "cast(a as short)",
    "cast(a as int)", "cast(a as long)", "cast(a as float)", "cast(a as double)",
    "cast(a as boolean)", "case when b <> 0 then a / b end", "coalesce(a, 1 / b)",
]  # fmt: skip
_TEXTS: Final = [
    *_COMPARED, "length(a)", "char_length(a)", "octet_length(a)", "concat(a, b)", "a || '-' || b",
    "substring(a, 1, 2)", "substring(a, 2)", "substring(a, 0, 2)", "substring(a, -2, 1)",
    "substring(a, -3, 2)", "substring(a, -2)", "substring(a, 2, 0)", "substring(a, 2, -1)",
    "substr(a, 3, 10)", "substring(a, -9, 8)", "left(a, 2)", "right(a, 2)", "left(a, 0)",
    "left(a, -1)", "right(a, -1)", "trim(a)", "ltrim(a)", "rtrim(a)", "trim(both 'a' from a)",
    "trim(leading 'xa' from a)", "trim(trailing 'b' from a)", "upper(a)", "lower(a)",
    "replace(a, 'a', 'x')", "replace(a, 'ab', '')", "replace(a, '', 'x')", "reverse(a)",
    "startswith(a, 'a')", "endswith(a, 'c')", "contains(a, 'b')", "contains(a, '')",
    "startswith(a, '')", "startswith(a, null)", "a like 'a%'", "a like '%a'", "a like '_'",
    "a like '%b%'", "a like '__'", "a like 'abc'", "a like ''", "a like '%'", "a like '_%_'",
    "a like '%.%'", "a like 'a.c'", "a like 'a+(%'", "a like '[a]%'", "a like '_a_^$'",
    "a like '%|c)'", "a like '日_'", "a like '%😀%'", "a like 'a_b'", "a like 'a%' escape '/'",
    "a ilike 'A%'", "a not like 'a%'", "btrim(a)", "trim(both '' from a)", "concat(a)",
    "substring(a, -2147483648, 5)", "substring(a, 2147483647, 9)", "substring(a, -3, 2147483647)",
 "a in ('a', 'abc', null)", "a in ('a', 'b')", "a > 'a'",
    "'x' || a", "concat(a, null)", "'a' in (a, b)", "greatest('b', a)", "'a' = a", "a like null",
    "substring(a, null)", "substring(a, 1, null)", "trim(both null from a)",
    "replace(a, null, 'x')",
    "replace(a, 'a', null)", "contains(a, null)", "left(a, null)",
    "coalesce(a, 'none')", "case when a like 'a%' then upper(a) else lower(b) end",
]  # fmt: skip
_PARTS: Final = [
    "year(a)", "quarter(a)", "month(a)", "day(a)", "dayofmonth(a)", "dayofyear(a)",
    "dayofweek(a)", "weekday(a)", "extract(year from a)",
]  # fmt: skip
_TIMES: Final = [
    *_COMPARED, *_PARTS, "hour(a)", "minute(a)", "second(a)", "cast(a as date)",
    "a + interval 5 minutes", "a - interval 1 day", "a + interval '1 02:03:04.5' day to second",
    "a > timestamp'2024-01-01 00:00:00'", "datediff(a, b)",
    "a in (timestamp'1970-01-01 00:00:00', timestamp'2000-02-29 12:00:00')",
]  # fmt: skip
_TRUNCATED: Final = [
    f"date_trunc('{unit}', a)"
    for unit in ("microsecond", "MILLISECOND", "second", "minute", "hour", "day", "dd", "week",
                 "month", "mon", "quarter", "year", "yy")
]  # fmt: skip

CASES: Final[dict[tuple[str, str], list[str]]] = {
    ("boolean", "boolean"): [
        *_COMPARED, "a and b", "a or b", "true and a",
        "false or a", "a or null", "null and a", "null or not a", "a = true", "a <=> null",
        "not a", "a and not b", "cast(a as int)",
        "cast(a as byte)", "cast(a as double)", "cast(a as string)", "if(a, 1, 2)",
        "case when a then b else not b end", "a in (true, null)", "a in (false)",
    ],
    ("byte", "byte"): _SMALL_INTEGERS,
    ("short", "short"): _SMALL_INTEGERS,
    ("int", "int"): _INTEGERS,
    ("long", "long"): _INTEGERS,
    ("int", "long"): [*_COMPARED, "a + b", "a * b", "a div b", *_CONSTANTS],
    ("long", "double"): [*_COMPARED, "a + b", "a / b", "a % b"],
    ("double", "int"): ["1.5D - a", "1 / a", "2.5D % a", "greatest(1.5D, a)", "a in (1.5D, null)",
        "double('NaN') = a", "double('NaN') > a", "a <=> double('NaN')", "a % null", "b / a"],
    ("float", "float"): _FLOATING,
    ("double", "double"): _FLOATING,
    ("string", "string"): _TEXTS,
    ("binary", "binary"): [*_COMPARED, "length(a)", "octet_length(a)", "a = X'61'",
        "a in (X'61', X'00', null)", "a > X'7f'"],
    ("date", "date"): [*_COMPARED, *_PARTS, "datediff(a, b)", "a > date'2024-01-01'",
        "datediff(date'2024-01-01', a)", "datediff(a, null)", "greatest(a, date'2024-01-01')",
        "cast(a as timestamp)", "cast(a as timestamp_ntz)", "a = '2024-01-01'",
        "a in (date'1970-01-01', date'2023-12-31', null)"],
    ("date", "int"): ["date_add(a, b)", "date_sub(a, b)", "a + b", "a - b", "date_add(a, 1)",
        "date_add(date'2024-01-01', b)", "date_sub(a, null)", "date_add(null, b)"],
    ("timestamp", "timestamp"): [*_TIMES, *_TRUNCATED, "unix_micros(a)", "unix_millis(a)",
        "unix_seconds(a)", "cast(a as timestamp_ntz)", "a < '2024-01-01'",
        "a + cast(null as interval day)", "greatest(a, timestamp'2024-01-01')"],
    ("timestamp_ntz", "timestamp_ntz"): [*_TIMES, "cast(a as timestamp)"],
    ("decimal(10,2)", "decimal(10,2)"): [*_COMPARED, *_ADDED, "a * 2", "a + 1", "a > 1",
        "a in (1, 2.5)", "cast(a as decimal(12,2))", "cast(a as decimal(14,4))"],
    ("decimal(20,4)", "decimal(5,0)"): [*_COMPARED, *_ADDED],
    ("decimal(10,2)", "int"): ["a + b", "a * b", "a > b", "a - cast(b as decimal(10,0))"],
}  # fmt: skip
"""By the types of `a` and `b`."""

NUMERAL_CASES: Final = [f"cast(a as {t})" for t in ("byte", "short", "int", "long")]

_LEAVES: Final = {
    "number": ["a", "b"],
    "truth": ["(a > b)", "(a = 0)", "(b is null)", "(a < 5)"],
    "text": ["cast(a as string)", "cast(b as string)", "concat('a', cast(a as string))"],
}
"""None is constant: Spark's optimizer would compute it, and leave out what it decides."""
_NODES: Final = {
    "number": [
        "({number} + {number})", "({number} - {number})", "({number} * {number})",
        "({number} + 1)", "({number} % 7)",
        "({number} div {number})", "({number} % {number})", "pmod({number}, {number})",
        "(- {number})", "abs({number})", "if({truth}, {number}, {number})",
        "case when {truth} then {number} when {truth} then {number} end",
        "coalesce({number}, {number})", "greatest({number}, {number})",
        "cast(length({text}) as long)", "({number} & {number})",
        "cast(floor({number} / {number}) as long)",
    ],
    "truth": [
        "({number} < {number})", "({number} = {number})", "({number} <=> {number})",
        "({truth} and {truth})", "({truth} or {truth})", "(not {truth})", "({number} is null)",
        "({number} in (1, a, null))", "({text} like 'a%')", "({text} < {text})",
        "coalesce({truth}, {truth})",
        "startswith({text}, '1')",
    ],
    "text": [
        "cast({number} as string)", "concat({text}, {text})", "upper({text})", "trim({text})",
        "substring({text}, 2, 3)", "replace({text}, '1', 'a')", "if({truth}, {text}, {text})",
        "coalesce({text}, {text})", "reverse({text})", "cast({truth} as string)",
    ],
}  # fmt: skip


def composed(random: Random, kind: str, depth: int) -> str:
    """A drawn expression over two columns of longs."""
    if depth == 0:
        return random.choice(_LEAVES[kind])
    node = random.choice(_NODES[kind])
    while "{" in node:
        inner = node[node.index("{") + 1 : node.index("}")]
        part = composed(random, inner, random.randrange(depth))
        node = node.replace(f"{{{inner}}}", part, 1)
    return node
