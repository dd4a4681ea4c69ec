"""Programs such as are written for a living: in tasks, as a batch plan, some as a streaming plan.

The rows are equal, or the plan is refused: then the refusal names the operator and says what to
write instead. Each input ends with a row of the year 2100, with which event time ends; what comes
of it is left out, as windows of that year stay open in a stream.
"""

from __future__ import annotations

import datetime as dt
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.pandas import functions
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import clonos
from clonos.columns.schema import parse_schema
from clonos.dataframes.rows import spark_schema
from clonos.errors import NotInSpark
from clonos.testing import InMemoryRun

pytestmark = pytest.mark.spark

arrow_udf: Any = functions.arrow_udf
pandas_udf: Any = functions.pandas_udf
Rows = list[dict[str, Any]]
START = dt.datetime(2024, 3, 1, 9, tzinfo=dt.timezone.utc)
FAR = dt.datetime(2100, 1, 1, tzinfo=dt.timezone.utc)
FILES = 3
"""Micro-batches of an input; another one has the row that ends event time."""
ORDERS = "id long, customer string, cents long, price decimal(10,2), at timestamp"
CUSTOMERS = "customer string, country string, since timestamp"
CLICKS = "user string, url string, ad long, at timestamp"
PAYMENTS = "order_id long, paid decimal(10,2), paid_at timestamp"
EVENTS = "id long, kind string, value double, at timestamp"
BASKETS = """id long, buyer struct<name: string, city: string>, tags array<string>,
    lines array<struct<item: string, n: int>>, at timestamp"""
VAT = pa.table({"country": ["de", "fr", None], "rate": [Decimal("0.19"), Decimal("0.20"), None]})


def at(seconds: float) -> dt.datetime:
    return START + dt.timedelta(seconds=seconds)


def times(random: Random, count: int, *, disorder_s: float = 5.0) -> list[dt.datetime]:
    """One or so each 2 s, none later than the newest before it by more than `disorder_s`."""
    return [at(2 * i - random.choice((0.0, 0.0, 0.001, disorder_s))) for i in range(count)]


def orders(random: Random) -> Rows:
    return [
        {
            "id": i,
            "customer": random.choice(("ada", "bob", "cyd", None)),
            "cents": random.choice((None, *range(0, 5000, 250))),
            "price": random.choice((None, Decimal("19.99"), Decimal("-0.01"), Decimal("7.50"))),
            "at": time,
        }
        for i, time in enumerate(times(random, 60))
    ]


def customers(random: Random) -> Rows:
    found = zip(("ada", "bob", "dan", None), ("de", "fr", "de", "it"), strict=True)
    return [{"customer": c, "country": n, "since": at(random.choice((0, 30)))} for c, n in found]


def clicks(random: Random) -> Rows:
    """Users come for a while, go for longer, and come back."""
    made = []
    for i, time in enumerate(times(random, 60)):
        user = ("u1", "u2")[i // 20 % 2] if i % 7 else "u3"
        url = random.choice(("/", "/buy", "/Help?q=1", None))
        made.append({"user": user, "url": url, "ad": random.randrange(8), "at": time})
    return made


def payments(random: Random) -> Rows:
    """Most orders are paid, some twice, some late."""
    made = []
    for i, time in enumerate(times(random, 60, disorder_s=1.0)):
        for _ in range(random.choice((0, 1, 1, 2))):
            late = dt.timedelta(seconds=random.choice((0, 3, 10, 10.001, 25)))
            made.append({"order_id": i, "paid": Decimal(i) / 4, "paid_at": time + late})
    return sorted(made, key=lambda row: row["paid_at"])


def events(random: Random) -> Rows:
    """With duplicates, NaN and -0.0."""
    values = (None, float("nan"), -0.0, 0.0, 0.25, 2.5, float("inf"))
    return [
        {"id": i // 2, "kind": "abc"[i // 2 % 3], "value": random.choice(values), "at": time}
        for i, time in enumerate(times(random, 60))
    ]


def timeless(random: Random) -> Rows:
    """Some events have no time."""
    return [{**row, "at": random.choice((row["at"], row["at"], None))} for row in events(random)]


def baskets(random: Random) -> Rows:
    made = []
    for i, time in enumerate(times(random, 40)):
        items = [{"item": random.choice("xyz"), "n": random.choice((1, 2, None))} for _ in "12"]
        buyer = random.choice((None, {"name": "ada", "city": "Ulm"}, {"name": "bob", "city": None}))
        tags = random.choice((None, [], ["a"], ["a", None, "b"]))
        lines = random.choice((None, [], items, items[:1]))
        made.append({"id": i, "buyer": buyer, "tags": tags, "lines": lines, "at": time})
    return made


INPUTS: dict[Callable[[Random], Rows], str] = {
    orders: ORDERS,
    customers: CUSTOMERS,
    clicks: CLICKS,
    payments: PAYMENTS,
    events: EVENTS,
    timeless: EVENTS,
    baskets: BASKETS,
}


# --- the programs --------------------------------------------------------------------------------


def enriched(orders: Any) -> Any:
    """A stream and a small table, then money per country and minute."""
    countries = pa.table({"customer": ["ada", "bob"], "country": ["de", "fr"]})
    named = orders.look_up(countries, "customer", how="left").look_up(VAT, "country", how="left")
    taxed = named.withColumn("tax", F.col("price") * F.coalesce("rate", F.lit(0)))
    grouped = taxed.withWatermark("at", "6 seconds").groupBy("country", F.window("at", "1 minute"))
    return grouped.agg(F.sum("tax").alias("tax"), F.count("*").alias("orders"))


def of_known_customers(orders: Any, customers: Any) -> Any:
    """Two streams: what a customer orders within a minute from when it was told of."""
    known = customers.withWatermark("since", "1 minute").withColumnRenamed("customer", "name")
    return (
        orders.withWatermark("at", "6 seconds")
        .key_by("customer")
        .join(known.key_by("name"), keep=("30 seconds", "1 minute"), on=("at", "since"))
        .where("cents > 500 or country = 'de'")
    )


def visits(clicks: Any) -> Any:
    """Sessions, and of each only what is worth telling."""
    grouped = clicks.withWatermark("at", "6 seconds").groupBy(
        "user", F.session_window("at", "15 seconds")
    )
    made = grouped.agg(F.count("url").alias("pages"), F.min("at").alias("first"))
    return made.where("pages > 1").selectExpr("user", "pages", "first", "session_window.end as end")


def best(orders: Any) -> Any:
    """The two dearest orders of each half minute, and all that cost the same."""
    window = clonos.tumbling("30 seconds", on="at")
    return orders.with_watermark("at", "6 seconds").window(window).top(2, "price", ties=True)


def dearest(orders: Any) -> Any:
    """The same, by number where the price is the same, per customer and sliding."""
    window = clonos.sliding("20 seconds", "10 seconds", on="at")
    keyed = orders.with_watermark("at", "6 seconds").key_by("customer").window(window)
    return keyed.top(1, "price", clonos.asc("id"))


def ids_once(events: Any) -> Any:
    return events.select("id", "kind").dropDuplicates()


def disordered(events: Any) -> Any:
    """Rows come up to 5 s late, and all are counted."""
    kept = events.withWatermark("at", "5 seconds").where("not value <=> 'NaN' and kind <> 'c'")
    return kept.groupBy(F.window("at", "10 seconds", "5 seconds"), "kind").agg(
        F.count("*").alias("n"), F.max("value").alias("most"), F.avg("value").alias("mean")
    )


def paid(how: str) -> Callable[..., Any]:
    """Orders and what was paid for them within 10 s."""

    def build(orders: Any, payments: Any) -> Any:
        paid = payments.withWatermark("paid_at", "30 seconds").key_by("order_id")
        keyed = orders.withWatermark("at", "6 seconds").key_by("id")
        return keyed.join(paid, keep=("10 seconds", "0 ms"), on=("at", "paid_at"), how=how)

    return build


def money(orders: Any) -> Any:
    """Decimals: products and differences; sums, means and extremes of windows."""
    made = orders.selectExpr(
        "at",
        "customer",
        "price * 1.19 as gross",
        "price - price * 0.3 as rest",
        "cast(cents as decimal(22, 2)) * 0.01 as euros",
    )
    grouped = made.withWatermark("at", "6 seconds").groupBy("customer", F.window("at", "1 minute"))
    return grouped.agg(
        F.sum("gross").alias("gross"), F.avg("rest").alias("rest"), F.max("euros").alias("euros")
    )


def of_known_time(events: Any) -> Any:
    """Rows without a time are left out before the window."""
    return disordered(events.where("at is not null"))


def per_city(baskets: Any) -> Any:
    """Structs and arrays: lines become rows, which are counted by a column of a struct."""

    def lines(row: Any) -> list[Any]:
        return [(row.at, row.city, line["item"], line["n"]) for line in row.lines or ()]

    flat = baskets.selectExpr("at", "lower(buyer.city) as city", "lines").flat_map(
        lines, "at timestamp, city string, item string, n int"
    )
    counted = flat.with_watermark("at", "6 seconds").key_by("city", "item")
    return counted.window(clonos.tumbling("20 seconds", on="at")).agg(n=clonos.sum("n"))


def whole_baskets(baskets: Any) -> Any:
    """Nested columns go through a function and a window as they are, and are a key."""
    same = baskets.map_batches(lambda rows: rows.filter(pc.less(rows["id"], 30)))
    keyed = same.with_watermark("at", "6 seconds").key_by("buyer")
    return keyed.window(clonos.tumbling("20 seconds", on="at")).rows()


def scored(events: Any) -> Any:
    """Spark's functions of the user: of rows, of Arrow's arrays, of pandas' series."""
    word = F.udf(lambda kind, n: f"{kind}{n}" if n % 5 else None, "string")
    double = pandas_udf(lambda value: value * 2, "double")
    more = arrow_udf(lambda ids: pc.add(ids, 1), "long")
    made = events.withColumn("word", word("kind", "id")).withColumn("twice", double("value"))
    return made.withColumn("more", more("id") + 1).where("word is not null")


class Total(StatefulProcessor):
    """Sums the values of a key."""

    def init(self, handle):
        self.total = handle.getValueState("total", "total long")

    def handleInputRows(self, key, rows, timerValues):  # noqa: N802, N803 - PySpark's names
        total = (self.total.get() or (0,))[0] + sum(row.id for row in rows)
        self.total.update((total,))
        yield from ()


def processed(events: Any) -> Any:
    return events.groupBy("kind").transformWithState(
        Total(), "kind string, total long", "Append", "None", name="total"
    )


def in_turn(events: Any) -> Any:
    return events.with_watermark("at", "6 seconds").key_by("kind").in_order("at", name="turn")


def dated(clicks: Any) -> Any:
    """Texts and times: what is made of a log's lines."""
    return clicks.selectExpr(
        "coalesce(lower(url), 'none') as page",
        "hour(at) as hour",
        "date_trunc('minute', at) as minute",
        "cast(at as date) as day",
        "substring(url, 2, 3) as piece",
        "url like '/%?%' as asks",
        "concat(user, ':', cast(ad as string)) as who",
        "case when ad > 4 then ad % 3 when ad > 2 then -ad end as part",
    )


def both(orders: Any, events: Any) -> Any:
    """Two kinds of rows as one stream, per 10 s, and the busiest of each window's keys."""
    some = orders.selectExpr("at", "customer as who", "cast(cents as double) as value")
    rest = events.selectExpr("at", "kind as who", "value").where("value < 2")
    all_ = some.union(rest).with_watermark("at", "1 hour").key_by("who")
    counted = all_.window(clonos.tumbling("10 seconds", on="at")).agg(n=clonos.count())
    return counted.window(clonos.between("window_start", "window_end")).top(1, "n", ties=True)


# --- what becomes of them ------------------------------------------------------------------------


@dataclass(frozen=True)
class Program:
    """How a program is written, what it reads, and who refuses it.

    ``refused``: by the kind of plan, the operator that is named, and part of what to do instead.
    """

    build: Callable[..., Any]
    reads: tuple[Callable[[Random], Rows], ...]
    refused: dict[str, tuple[str, str]] = field(default_factory=dict)

    def inputs(self) -> list[list[pa.RecordBatch]]:
        """Of each input the batches, of which the last ends event time."""
        made, random = [], Random(7)
        for read in self.reads:
            schema, rows = parse_schema(INPUTS[read]), read(random)
            size = -(-len(rows) // FILES)
            parts = [rows[i : i + size] for i in range(0, len(rows), size)]
            time = next(f.name for f in schema if pa.types.is_timestamp(f.type))
            parts.append([{**rows[0], time: FAR}])
            made.append([pa.RecordBatch.from_pylist(part, schema) for part in parts])
        return made

    def stream(self, sources: list[Any]) -> Any:
        job = clonos.Job("program", parallelism=2)
        return self.build(*(job.source(s, name=f"in{i}") for i, s in enumerate(sources)))


BATCH, STREAM = "batch plan", "streaming plan"
PROGRAMS = {
    "enrichment": Program(enriched, (orders,)),
    "join of streams": Program(of_known_customers, (orders, customers)),
    "sessions": Program(visits, (clicks,)),
    "top with ties": Program(best, (orders,)),
    "top per key": Program(dearest, (orders,)),
    "duplicates": Program(ids_once, (events,)),
    "disorder": Program(disordered, (events,)),
    **{f"{how} join": Program(paid(how), (orders, payments))
       for how in ("left", "right", "full", "semi", "anti")},
    "decimals": Program(money, (orders,)),
    "null times left out": Program(of_known_time, (timeless,)),
    "nested, flattened": Program(per_city, (baskets,)),
    "nested, as it is": Program(whole_baskets, (baskets,)),
    "UDFs": Program(scored, (events,)),
    "texts and times": Program(dated, (clicks,)),
    "union, busiest": Program(both, (orders, events)),
    "StatefulProcessor": Program(
        processed, (events,), {BATCH: ("total", "let Spark run it")}
    ),
    "order within a key": Program(
        in_turn, (events,), {BATCH: ("turn", "run the job with execution=")}
    ),
}  # fmt: skip
SHORT = ("decimals", "nested, flattened", "nested, as it is", "UDFs", "texts and times",
    "StatefulProcessor", "order within a key")  # fmt: skip
"""What random programs do not have: their batch plans are not left to the soak tests."""


def in_tasks(program: Program) -> pa.Table:
    sources = [clonos.sources.from_batches(batches) for batches in program.inputs()]
    stream = program.stream(sources)
    stream.sink(clonos.sinks.collect(), name="out")
    return InMemoryRun(stream._job.compile(), seed=7, batch_rows=7, restore=0.1).run()["out"]


def as_batch(program: Program, spark: Any, _: Path) -> pa.Table:
    sources = [clonos.sources.from_batches(batches) for batches in program.inputs()]
    return program.stream(sources).to_dataframe(spark, execution="spark").toArrow()


def as_stream(program: Program, spark: Any, folder: Path) -> pa.Table:
    frames = []
    for number, batches in enumerate(program.inputs()):
        path = folder / f"in{number}"
        path.mkdir()
        for i, rows in enumerate(batches):
            pq.write_table(pa.Table.from_batches([rows]), path / f"{i}.parquet")
            os.utime(path / f"{i}.parquet", (1_000_000 + i, 1_000_000 + i))
        reader = spark.readStream.schema(spark_schema(batches[0].schema))
        frames.append(reader.option("maxFilesPerTrigger", 1).parquet(str(path)))
    frame = program.stream(frames).to_dataframe(spark, execution="spark")
    query = (
        frame.writeStream.format("memory").queryName("programs").trigger(availableNow=True)
        .option("checkpointLocation", str(folder / "checkpoint")).start()
    )  # fmt: skip
    assert query.awaitTermination(600)
    found = spark.table("programs").toArrow()
    spark.catalog.dropTempView("programs")
    return found


def bag(table: pa.Table) -> Counter[str]:
    """The rows as texts (NaN is equal to itself, -0.0 is not 0.0) but those of the year 2100."""
    rows = Counter(str(tuple(row.items())) for row in table.to_pylist())
    return Counter({row: n for row, n in rows.items() if "datetime(2100" not in row})


EXECUTIONS = {BATCH: as_batch, STREAM: as_stream}


STREAMED = ("enrichment", "join of streams", "sessions", "top with ties", "top per key",
    "duplicates", "left join", "right join", "full join", "semi join", "anti join")  # fmt: skip
"""Their streaming plans are run, too. Of the others, some leave out the row that ends event time:
then a plan's last windows stay open."""
CASES = [
    *(
        pytest.param(name, BATCH, marks=() if name in SHORT else pytest.mark.soak)
        for name in PROGRAMS
    ),
    *(pytest.param(name, STREAM, marks=pytest.mark.soak) for name in STREAMED),
]


@pytest.mark.parametrize(("name", "how"), CASES)
def test_the_rows_are_the_same(spark, tmp_path, name, how):
    program = PROGRAMS[name]
    if how in program.refused:
        with pytest.raises(NotInSpark) as caught:
            EXECUTIONS[how](program, spark, tmp_path)
        operator, remedy = program.refused[how]
        assert operator in str(caught.value.where)
        assert remedy in str(caught.value.remedy)
        return
    expected, found = bag(in_tasks(program)), bag(EXECUTIONS[how](program, spark, tmp_path))
    assert expected
    assert found == expected, f"only tasks: {expected - found}\nonly the plan: {found - expected}"
