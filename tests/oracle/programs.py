"""Random programs, as text: what fails is printed as code that can be run as it is."""

from __future__ import annotations

import datetime as dt
import math
import re
from decimal import Decimal
from itertools import pairwise
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

import clonos
from clonos.columns.schema import parse_schema
from tests.oracle import sql

SCHEMA = parse_schema(
    "id long, k string, g int, x long, f double, r float, d decimal(12,2), t timestamp, u timestamp"
)
SPAN_MS = 40_000
FAR = dt.datetime(2100, 1, 1, tzinfo=dt.timezone.utc)
"""A row of this time ends all windows before it."""

FAR_ROW = (-1, "a", 1, 5, 1.5, 1.5, Decimal(1), FAR, FAR + dt.timedelta(seconds=1))
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
CITIES = pa.table(
    {"city": ["a", "b", "b", None], "n": [1, 2, 3, 4]},
    schema=pa.schema({"city": pa.string(), "n": pa.int64()}),
)
KNOWN = {"clonos": clonos, "F": F, "pa": pa, "pc": pc, "CITIES": CITIES}
"""What the text of a program may use."""

FLOATS = [None, math.nan, -0.0, 0.0, 0.25, -1.5, 2.75, 1e6, math.inf]  # sums of them are exact
AGGREGATES = {
    "n": "clonos.count()", "nf": "clonos.count('f')", "sx": "clonos.sum('x')",
    "sf": "clonos.sum('f')", "sr": "clonos.sum('r')", "sd": "clonos.sum('d')",
    "ax": "clonos.avg('x')", "af": "clonos.avg('f')", "ad": "clonos.avg('d')",
    "lf": "clonos.min('f')", "hf": "clonos.max('f')", "lk": "clonos.min('k')",
    "ht": "clonos.max('t')", "ld": "clonos.min('d')", "sg": "clonos.sum('g')",
}  # fmt: skip
STATELESS = (
    '.where("x % 2 = 1 or x is null")',
    '.where(F.col("f") > -1)',
    ".where(\"k in ('a', 'b') and not f <=> 0.25\")",
    '.withColumn("x", F.coalesce("x", F.lit(7)) * 3)',
    '.withColumn("x", F.col("x") + F.udf(lambda x: x and x % 5, "long")("x"))',
    '.withColumn("f", F.when(F.col("g") == 1, F.col("f")).otherwise(F.col("f") / 2))',
    '.selectExpr("id", "upper(k) as k", "g", "x", "f", "r", "d", "t", "u")',
    ".filter(lambda row: row.x is None or row.x % 3 != 0)",
    ".map(lambda row: {**row.asDict(), 'x': None if row.x is None else row.x + 1}, SCHEMA)",
    ".flat_map(lambda row: [row] * (row.g or 0), SCHEMA)",
    '.with_column("g", lambda g, x: (g or 0) + (x or 0) % 2, "g", "x")',
    '.map_batches(lambda rows: rows.filter(pc.not_equal(rows["k"], "c")))',
    '.look_up(CITIES, {"k": "city"}).drop("n")',
    '.look_up(CITIES, {"k": "city"}, how="left").drop("n")',
    ".rebalance()",
    ".start_new_chain()",
)
WINDOWS = (
    'clonos.tumbling("10 seconds", on="t")',
    'clonos.tumbling("1 ms", on="t")',
    'clonos.sliding("10 seconds", "5 seconds", on="t")',
    'clonos.sliding("7 seconds", "3 seconds", on="t")',
    'clonos.session("500 ms", on="t")',
    'clonos.session("3 seconds", on="t")',
    'clonos.between("t", "u")',
)
JOINED = {
    'window=clonos.tumbling("5 seconds"), on=("t", "t2")':
        "ms(l.t) - pmod(ms(l.t), 5000) = ms(r.t2) - pmod(ms(r.t2), 5000)",
    'keep=("2 seconds", "500 ms"), on=("t", "t2")':
        "ms(r.t2) <= ms(l.t) + 2000 and ms(l.t) <= ms(r.t2) + 500",
    'keep="1 second", on=("t", "t2")':
        "ms(r.t2) <= ms(l.t) + 1000 and ms(l.t) <= ms(r.t2) + 1000",
    'between=("t", "u"), on="t2"': "ms(l.t) <= ms(r.t2) and ms(r.t2) < ms(l.u)",
    "": "true",
}  # fmt: skip
"""How joins are bounded, and the same in SQL."""
BOUNDS = tuple(JOINED)
HOWS = ("inner", "left", "right_outer", "full", "left_semi", "anti")
KEYS = ('"k"', '"g"', '"f"', '"k", "g"', '"x"', '"d"')


class Program:
    """One of them.

    Attributes
    ----------
    text
        Sets ``out`` to a stream, and uses ``source(0)``, ``source(1)``, ... as they are given.
    sql
        The same for DuckDB; empty if it was not written.
    """

    def __init__(self, seed: int, *, streams: bool, kind: str | None = None) -> None:
        self._random = Random(seed)
        self._streams = streams
        self._sources = 0
        self.sql = ""
        lines = ["out = " + self._input()]
        steps = self._steps(self._random.randint(0, 2))
        lines += steps
        kinds = ("window", "window", "window", "join", "union", "distinct", "")
        kind = self._random.choice(kinds) if kind is None else kind
        if kind == "union":
            lines.append(f"out = out.union({self._input()})")
            lines += self._steps(self._random.randint(0, 0 if streams else 1))
            kind = "window"
        if kind == "window":
            lines += self._window(is_plain=not steps and self._sources == 1)
        elif kind == "join":
            lines += self._join(is_plain=not steps)
        elif kind == "distinct":
            lines += ['out = out.select("k", "f").key_by("k", "f").deduplicate()']
        self.text = "\n".join(lines)

    def _input(self) -> str:
        self._sources += 1
        return f'source({self._sources - 1}).with_watermark("t", "1 hour")'

    def _steps(self, count: int) -> list[str]:
        return [f"out = out{self._random.choice(STATELESS)}" for _ in range(count)]

    def _window(self, *, is_plain: bool) -> list[str]:
        lines, told = self._window_and_sql()
        self.sql = told if is_plain else ""
        return lines

    def _window_and_sql(self) -> tuple[list[str], str]:
        draw = self._random
        window = draw.choice(WINDOWS[:-1] if self._streams else WINDOWS)
        is_session = "session" in window
        key = f".key_by({draw.choice(KEYS)})"
        if not is_session and draw.random() < 0.2:
            key = ""
        kinds = ["agg", "agg", "rows"] if is_session else ["agg", "agg", "top", "top", "rows"]
        kind = draw.choice(kinds)
        if kind == "rows" and (("tumbling" not in window and not is_session) or not key):
            kind = "agg"
        keys = re.findall(r'"(\w+)"', key)
        if kind == "rows":
            told = sql.rows_of_windows(window, keys)
            return [f"out = out{key}.window({window}).rows()"], told
        if kind == "top":
            ranking = self._ranking()
            told = sql.rows_of_windows(window, keys, ranking)
            return [f"out = out{key}.window({window}).top({ranking})"], told
        of = {name: AGGREGATES[name] for name in draw.sample(sorted(AGGREGATES), 3)} | {
            "n": AGGREGATES["n"]
        }
        made = ", ".join(f"{name}={each}" for name, each in of.items())
        told = sql.aggregates(window, keys, of)
        lines = [f"out = out{key}.window({window}).agg({made})"]
        if "between" not in window and draw.random() < 0.4:
            condition = "n > 1 or n is null" if draw.random() < 0.5 else ""
            if condition:
                lines.append(f'out = out.where("{condition}")')
            told = told and sql.most(told, condition)
            again = 'out.window(clonos.between("window_start", "window_end"))'
            lines.append(f'out = {again}.top(1, "n", ties=True)')
        return lines, told

    def _ranking(self) -> str:
        draw = self._random
        by = [draw.choice((f'"{name}"', f'clonos.asc("{name}")')) for name in
              draw.sample(("x", "f", "k", "t", "d", "r"), draw.randint(1, 2))]  # fmt: skip
        if draw.random() < 0.5:
            return f"{draw.randint(1, 3)}, {', '.join(by)}, ties=True"
        return f'{draw.randint(1, 3)}, {", ".join(by)}, "id"'

    def _join(self, *, is_plain: bool) -> list[str]:
        draw = self._random
        renames = {name: f"{name}2" for name in SCHEMA.names}
        key = draw.choice(("k", "g", "f"))
        bound = draw.choice(BOUNDS[:3] if self._streams else BOUNDS)
        how = draw.choice(HOWS)
        given = ", ".join(filter(None, (bound, f"how={how!r}")))
        other = f"{self._input()}.withColumnsRenamed({renames!r})"
        lines = [f'out = out.key_by("{key}").join({other}.key_by("{key}2"), {given})']
        condition = "x > 0" if how in ("left_semi", "anti") else "x + x2 > 0"
        wanted = draw.random() < 0.3
        if is_plain:
            self.sql = sql.join(f"l.{key} = r.{key}2 and {JOINED[bound]}", how)
            self.sql += f" where {condition}" if wanted else ""
        return [*lines, f'out = out.where("{condition}")'] if wanted else lines

    @property
    def sources(self) -> int:
        """How many it has."""
        return self._sources


def build(text: str, sources: list[Any], lethal: tuple[Any, ...] = ()) -> Any:
    """The stream of a program, in a job of its own; perhaps between two functions that kill."""
    job = clonos.Job("program", parallelism=2)
    before, behind = lethal[:1], lethal[1:]

    def through(stream: Any, functions: tuple[Any, ...]) -> Any:
        for function in functions:
            stream = stream.map_batches(function)
        return stream

    def source(number: int) -> Any:
        return through(job.source(sources[number], name=f"in{number}"), before)

    known = {**KNOWN, "SCHEMA": SCHEMA, "source": source}
    exec(text, known)
    return through(known["out"], behind)


def rows_of(random: Random, *, nulls_in_time: bool, since_ms: int) -> list[tuple[Any, ...]]:
    """Rows with nulls, NaN, -0.0, equal times and times on edges."""
    made = []
    for number in range(random.choice((0, 3, 25, 25, 25, 40))):
        ms = random.choice((random.randrange(SPAN_MS), random.randrange(SPAN_MS) // 500 * 500))
        us = 1000 * (since_ms + ms) + random.choice((0, 0, 1, 999))
        time = EPOCH + dt.timedelta(microseconds=us)
        until = time + dt.timedelta(milliseconds=random.choice((1, 500, 10_000)))
        made.append((
            number,
            random.choice((None, "a", "b", "c", "")),
            random.choice((None, 0, 1, 2)),
            random.choice((None, *range(-6, 7), 2**40)),
            random.choice(FLOATS),
            random.choice(FLOATS),
            random.choice((None, Decimal("0.01"), Decimal("-2.50"), Decimal("9999999999.99"))),
            None if nulls_in_time and random.random() < 0.03 else time,
            until,
        ))  # fmt: skip
    return made


def batches_of(random: Random, rows: list[tuple[Any, ...]]) -> list[pa.RecordBatch]:
    """The rows in random batches, one of them perhaps empty."""
    if not rows:
        return [batch_of([])]
    cuts = sorted(random.randrange(len(rows) + 1) for _ in range(random.randint(0, 3)))
    edges = [0, *cuts, len(rows)]
    return [batch_of(rows[a:b]) for a, b in pairwise(edges)]


def batch_of(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    """Rows as a batch."""
    columns: list[Any] = list(zip(*rows, strict=True)) if rows else [[] for _ in SCHEMA]
    arrays = [pa.array(list(c), f.type) for c, f in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
