"""Rows into PostgreSQL and Kafka: how many a second, with exactly-once and without.

One task reads rows that need no work, and writes them. Beside it the same rows are written by a
loop that knows nothing of failures. Each kind of run takes turns with the others, and what is there
in the end is compared with what was to be written.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, Final, NamedTuple

import clonos
from clonos.errors import ClonosError
from clonos.sources.spec import SourceSpec
from clonos_bench import kafka, postgres, run
from clonos_bench.report import Aim, Report
from clonos_bench.statistics import paired_ratio, percentile, spread

RATE: Final = Aim(100_000.0, at_least=True)
"""Rows per second into PostgreSQL, exactly once."""
LOOK_S: Final = 0.01
WAIT_S: Final = 600.0
IN_TRANSACTIONS: Final = "in transactions, exactly once"
READ_BACK: Final = 50_000
"""So many messages the mock keeps: they are read back before the measured runs."""


class Kind(NamedTuple):
    """A way to write the rows: what it is, and how it is done; returns seconds."""

    what: str
    write: Callable[[], float]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``clonos-bench sinks``."""
    run.report_arguments(parser)
    add = parser.add_argument
    add("--parts", nargs="+", choices=("postgres", "kafka"), default=("postgres", "kafka"))
    add("--dsn", default="", help="a PostgreSQL server; without it one is started")
    add("--servers", default="", help="a Kafka cluster; without it librdkafka's mock is started")
    add("--rows", type=int, default=8_000_000, help="per run into PostgreSQL")
    add("--messages", type=int, default=2_000_000, help="per run into Kafka")
    add("--rounds", type=int, default=5, help="runs of each kind")


def measure(arguments: argparse.Namespace) -> Report:
    """Rows per second of one task."""
    report = Report("sinks", "sinks", [])
    parts = {"postgres": _postgres, "kafka": _kafka}
    with run.session("local[4]") as spark:
        report.parts = [parts[name](arguments, spark) for name in arguments.parts]
    return report


def _compared(report: Report, kinds: list[Kind], rows: int, rounds: int) -> Report:
    seconds: dict[str, list[float]] = {kind.what: [] for kind in kinds}
    for _ in range(rounds):
        for kind in kinds:
            seconds[kind.what].append(kind.write())
    for what, took in seconds.items():
        report.add(what, spread([rows / s for s in took]), spread(took))
    *_, (plain, exact) = pairwise(seconds)
    more = paired_ratio(list(zip(seconds[exact], seconds[plain], strict=True))).percent_more()
    report.add(
        "time of the last beside the one before",
        f"{more.value:+.0f} % [{more.low:+.0f}, {more.high:+.0f}]",
        "",
    )
    report.data = dict(seconds)
    report.notes.append(
        f"{rounds} runs each, in turns; one task, no standby, all on this machine. A job's time is "
        "from when its tasks are live until it has ended. The rows were compared after each run"
    )
    return report


def _timed(rows: int, sink: Any, guarantee: Any, spark: Any) -> float:
    """From when the tasks of a job are live until it has ended, with all rows written."""
    reader = partial(postgres.DueReader, rows, 0.0, 0.0)
    source = SourceSpec("due", postgres.SCHEMA, reader, True, postgres.SCHEMA)
    job = clonos.Job("sinks", parallelism=1, standbys=0, guarantee=guarantee)
    job.source(source, name="rows").sink(sink, name="out")
    running = job.start(spark)
    while not all(t.phase in {"live", "finished"} for t in running.tasks()):
        time.sleep(LOOK_S)
    began = time.monotonic()
    running.wait(WAIT_S)
    return time.monotonic() - began


def _require(what: str, rows: int, found: tuple[int, int]) -> None:
    """How many rows there are, and the sum of their numbers.

    Raises
    ------
    ClonosError
        They are not those that were written.
    """
    if found != (rows, rows * (rows - 1) // 2):
        raise ClonosError(f"{what}: wrong rows: {found} (count and sum of {rows} rows)")


# --- PostgreSQL ----------------------------------------------------------------------------------


def _postgres(arguments: argparse.Namespace, spark: Any) -> Report:
    rows = arguments.rows
    columns = ["", "rows/s [low, high]", "seconds"]
    report = Report("postgres", f"PostgreSQL: {rows:,} rows", columns)
    with contextlib.ExitStack() as stack:
        dsn = arguments.dsn or stack.enter_context(postgres.server())

        def loop() -> float:
            table, size = "looped", 3 * postgres.BATCH_ROWS
            with postgres.connected(dsn) as sql:
                sql.execute(f"create table {table} ({postgres.DDL})")
                began = time.monotonic()
                for first in range(0, rows, size):
                    batch = postgres.made_rows(first, min(size, rows - first), 0, 0)
                    postgres.copy_rows(sql, table, batch)
                took = time.monotonic() - began
            _require_table(dsn, table, rows)
            return took

        def job(guarantee: str) -> float:
            took = _timed(rows, clonos.sinks.postgres(dsn, guarantee), guarantee, spark)
            _require_table(dsn, guarantee, rows)
            return took

        kinds = [
            Kind("COPY in a loop, nothing else", loop),
            Kind("the sink, at least once (no log)", partial(job, "at_least_once")),
            Kind("the sink, exactly once", partial(job, "exactly_once")),
        ]
        _compared(report, kinds, rows, arguments.rounds)
    rate = rows / percentile(report.data[kinds[-1].what], 50)
    report.notes.append(f"exactly once ({RATE}): {RATE.judge(rate)}")
    return report


def _require_table(dsn: str, table: str, rows: int) -> None:
    with postgres.connected(dsn) as sql:
        query = f"select count(*), count(distinct id), sum(id) from {table}"  # noqa: S608 - ours
        count, distinct, total = sql.execute(query).fetchone()
        sql.execute(f"drop table {table}")
    _require(table, rows, (count, int(total)))
    _require(table, rows, (distinct, int(total)))


# --- Kafka ---------------------------------------------------------------------------------------


def _kafka(arguments: argparse.Namespace, spark: Any) -> Report:
    columns = ["", "messages/s [low, high]", "seconds"]
    report = Report("kafka", f"Kafka: {arguments.messages:,} messages", columns)
    with contextlib.ExitStack() as stack:
        servers = arguments.servers or stack.enter_context(kafka.mock())
        if not arguments.servers:
            kafka.producer_of(servers).list_topics(kafka.MARKS, timeout=10)

        def written(what: str, rows: int) -> float:
            topic = kafka.new_topic(arguments, servers, "sinks")
            took = writers[what](rows, topic)
            _require_topic(servers, topic, rows, has_ends=what == IN_TRANSACTIONS)
            return took

        def loop(rows: int, topic: str) -> float:
            return _produce(servers, topic, rows)

        def job(guarantee: str, transactions: bool, rows: int, topic: str) -> float:
            sink = clonos.sinks.kafka(servers, topic, transactions=transactions)
            return _timed(rows, sink, guarantee, spark)

        writers: dict[str, Callable[[int, str], float]] = {
            "a producer in a loop, nothing else": loop,
            "without transactions, at least once (no log)": partial(job, "at_least_once", False),
            "without transactions, logged": partial(job, "exactly_once", False),
            IN_TRANSACTIONS: partial(job, "exactly_once", True),
        }
        for what in writers:
            written(what, READ_BACK)
        kinds = [Kind(what, partial(written, what, arguments.messages)) for what in writers]
        report = _compared(report, kinds, arguments.messages, arguments.rounds)
    report.notes.append(f"of more than {READ_BACK:,} messages only the number is compared")
    if not arguments.servers:
        report.notes.append(
            "the broker is librdkafka's mock: it keeps the newest messages in memory, copies them "
            "to nobody, and is no measure of a real broker"
        )
    return report


def _produce(servers: str, topic: str, rows: int) -> float:
    """The same messages, with nothing around them."""
    from confluent_kafka import Producer

    producer, size = Producer({"bootstrap.servers": servers}), postgres.BATCH_ROWS
    began = time.monotonic()
    for first in range(0, rows, size):
        batch = postgres.made_rows(first, min(size, rows - first), 0, 0)
        for value in batch.to_pylist():
            producer.produce(topic, json.dumps(value), partition=value["id"] % kafka.PARTITIONS)
        producer.flush()
    return time.monotonic() - began


def _require_topic(servers: str, topic: str, rows: int, *, has_ends: bool) -> None:
    """The messages of a topic, as far as they are kept. Ends of transactions have offsets, too."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer({
        "bootstrap.servers": servers, "group.id": "bench", "isolation.level": "read_committed",
        "auto.offset.reset": "error", "enable.auto.commit": False,
    })  # fmt: skip
    partitions = [TopicPartition(topic, n, OFFSET_BEGINNING) for n in range(kafka.PARTITIONS)]
    ends = [consumer.get_watermark_offsets(one, timeout=10)[1] for one in partitions]
    if rows <= READ_BACK:
        consumer.assign(partitions)
        found: list[int] = []
        while more := consumer.consume(10_000, timeout=5.0 if len(found) < rows else 0.5):
            found += [json.loads(message.value() or b"")["id"] for message in more]
        _require(topic, rows, (len(found), sum(found)))
        _require(topic, rows, (len(set(found)), sum(found)))
    elif sum(ends) < rows or (sum(ends) > rows and not has_ends):
        raise ClonosError(f"{topic}: {sum(ends)} messages instead of {rows}")
    consumer.close()
