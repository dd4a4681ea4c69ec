"""Messages of Kafka: how many a second a reader takes, and how soon they are delivered."""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

import clonos
from clonos.errors import ClonosError
from clonos_bench import run
from clonos_bench.report import PERCENTILES, Aim, Report
from clonos_bench.statistics import Series, percentile, spread, summarize

PARTITIONS: Final = 4
ROUNDS: Final = 5
MARKS: Final = "clonos-marks"
SCHEMA: Final = "n long, sent_us long"
ALONE: Final = Aim(5.0)
DELIVERED: Final = Aim(10.0)
HOP: Final = Aim(30.0)
WAIT_S: Final = 120.0

MOCK: Final = """
import sys
from confluent_kafka import Producer
cluster = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "mock", "log_level": 0})
(broker,) = cluster.list_topics(timeout=10).brokers.values()
print(f"{broker.host}:{broker.port}", flush=True)
sys.stdin.read()
"""
"""librdkafka's mock cluster. It keeps the newest 5 MB of each of a topic's four partitions."""

FETCH: Final = {"fetch.wait.max.ms": 5}
"""The mock answers a fetch when its time is over, whatever has come; brokers answer at once."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``clonos-bench kafka``."""
    run.report_arguments(parser)
    add = parser.add_argument
    add("--servers", default="", help="a cluster; without it librdkafka's mock is started")
    add("--rows", type=int, default=120_000, help="as fast as possible; the mock keeps so many")
    add("--rate", type=float, default=1000.0, help="messages per second, for latency")
    add("--seconds", type=float, default=5.0, help="how long latency is measured")


def measure(arguments: argparse.Namespace) -> Report:
    """Messages per second of a reader alone; then latency at a steady rate, in a job."""
    report = Report("kafka", "Kafka", [])
    with contextlib.ExitStack() as stack:
        servers = arguments.servers or stack.enter_context(mock())
        report.parts = [_throughput(arguments, servers)]
        spark = stack.enter_context(run.session("local[4]"))
        report.parts.append(_latency(arguments, servers, spark))
    report.ok = all(part.ok for part in report.parts)
    if not arguments.servers:
        report.parts[-1].notes.append(
            "the broker is librdkafka's mock, which gets slower with each message that it has"
        )
    return report


@contextlib.contextmanager
def mock() -> Iterator[str]:
    """Librdkafka's mock, in a process of its own; where it listens."""
    command = [sys.executable, "-c", MOCK]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        servers = process.stdout.readline().strip()
        if not servers:
            raise ClonosError("the mock cluster has not started", remedy="give --servers")
        yield servers
        process.communicate()


def new_topic(arguments: argparse.Namespace, servers: str, name: str) -> str:
    """A new topic of four partitions: the mock makes it when a producer asks about it."""
    from confluent_kafka.admin import AdminClient, NewTopic

    topic = f"{name}-{time.time_ns()}"
    if arguments.servers:
        admin = AdminClient({"bootstrap.servers": servers})
        admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
    else:
        producer_of(servers).list_topics(topic, timeout=10)
    return topic


def producer_of(servers: str) -> Any:
    """... that sends at once."""
    from confluent_kafka import Producer

    return Producer({"bootstrap.servers": servers, "linger.ms": 0})


# --- as fast as possible -------------------------------------------------------------------------


def _throughput(arguments: argparse.Namespace, servers: str) -> Report:
    rows, topic = arguments.rows, new_topic(arguments, servers, "rows")
    producer = producer_of(servers)
    value = b'{"n": 4711, "sent_us": 1700000000000000, "word": "%s"}' % (b"x" * 40)
    for n in range(rows):
        producer.produce(topic, value, partition=n % PARTITIONS)
        if n % 10_000 == 0:
            producer.flush()
    producer.flush()
    report = Report("rows", f"{rows:,} messages of {len(value)} bytes", ["", "rows/s [low, high]"])
    for what, read in (
        ("a consumer in a loop, nothing else", _plain),
        ("the reader: Arrow batches, and what the log keeps of them", _read),
    ):
        rates = [rows / read(servers, topic, rows) for _ in range(ROUNDS)]
        report.add(what, spread(rates))
        report.data[what] = rates
    report.notes.append(f"{ROUNDS} times each; from the first message on")
    return report


def _plain(servers: str, topic: str, rows: int) -> float:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": servers, "group.id": "bench"})
    consumer.assign([TopicPartition(topic, n, 0) for n in range(PARTITIONS)])
    taken, began = 0, 0.0
    while taken < rows:
        messages = consumer.consume(10_000, 0.1)
        began = began or (time.monotonic() if messages else 0.0)
        taken += sum(message.value() is not None for message in messages)
    consumer.close()
    return time.monotonic() - began


def _read(servers: str, topic: str, rows: int) -> float:
    reader = clonos.sources.kafka(servers, topic, value="bytes").reader(0, 1)
    reader.open(0)
    taken, began = 0, 0.0
    while taken < rows:
        batch = reader.read(8192, 0.1)
        if batch is not None and batch.num_rows:
            began = began or time.monotonic()
            taken += batch.num_rows
    reader.close()
    return time.monotonic() - began


# --- at a steady rate ----------------------------------------------------------------------------


def _latency(arguments: argparse.Namespace, servers: str, spark: Any) -> Report:
    title = f"from sent to there, {arguments.rate:,.0f}/s for {arguments.seconds:g} s (ms)"
    report = Report("latency", title, PERCENTILES)
    rows = int(arguments.rate * arguments.seconds)
    for what, measured, aim in (
        ("topic -> reader, no job", _alone, ALONE),
        ("topic -> job -> driver", _delivered, DELIVERED),
        ("topic -> job -> topic, in transactions", _hop, HOP),
    ):
        late = measured(arguments, servers, spark, rows)
        report.summary(what, summarize(late[~np.isnan(late)]), p50=aim)
        report.ok &= not np.isnan(late).any()
        report.data[what] = percentile(late, 50)
    report.notes.append("standbys=1; every message is there once, or the output counts as wrong")
    return report


class Arrivals:
    """How late each message is; one that comes twice makes the result wrong."""

    def __init__(self, rows: int) -> None:
        self.late: Series = np.full(rows, np.nan)
        self.taken = 0
        self.all_there = threading.Event()

    def take(self, numbers: Any, sent_us: Any) -> None:
        """Some have come."""
        now_us = time.time() * 1e6
        for n, sent in zip(numbers, sent_us, strict=True):
            is_new = bool(np.isnan(self.late[n]))
            self.late[n] = (now_us - sent) / 1000 if is_new else np.inf
            self.taken += 1
        if self.taken >= len(self.late):
            self.all_there.set()

    def take_batch(self, batch: pa.RecordBatch) -> None:
        """Some have come, as the driver gets them."""
        self.take(*(batch.column(name).to_pylist() for name in ("n", "sent_us")))


def _alone(arguments: argparse.Namespace, servers: str, spark: Any, rows: int) -> Series:
    del spark
    arrivals, topic, over = Arrivals(rows), new_topic(arguments, servers, "in"), threading.Event()
    watcher = threading.Thread(target=_watch, args=(arguments, servers, topic, arrivals, over))
    watcher.start()
    _send(servers, topic, rows, arguments.rate)
    arrivals.all_there.wait(WAIT_S)
    over.set()
    watcher.join()
    return arrivals.late


def _options(arguments: argparse.Namespace) -> dict[str, int]:
    return {} if arguments.servers else FETCH


def _job(arguments: argparse.Namespace, servers: str, topic: str, sink: Any) -> clonos.Job:
    job = clonos.Job("kafka", parallelism=1, standbys=1)
    options = _options(arguments)
    source = clonos.sources.kafka(servers, topic, schema=SCHEMA, options=options)
    job.source(source, name="messages").sink(sink, name="out")
    return job


def _delivered(arguments: argparse.Namespace, servers: str, spark: Any, rows: int) -> Series:
    arrivals, topic = Arrivals(rows), new_topic(arguments, servers, "in")
    job = _job(arguments, servers, topic, clonos.sinks.callback(arrivals.take_batch))
    return _run(arguments, servers, spark, topic, job, arrivals)


def _hop(arguments: argparse.Namespace, servers: str, spark: Any, rows: int) -> Series:
    arrivals, topic, out = (
        Arrivals(rows),
        new_topic(arguments, servers, "in"),
        new_topic(arguments, servers, "out"),
    )
    if not arguments.servers:
        producer_of(servers).list_topics(MARKS, timeout=10)
    job = _job(arguments, servers, topic, clonos.sinks.kafka(servers, out))
    over = threading.Event()
    watcher = threading.Thread(target=_watch, args=(arguments, servers, out, arrivals, over))
    watcher.start()
    try:
        return _run(arguments, servers, spark, topic, job, arrivals)
    finally:
        over.set()
        watcher.join()


def _watch(
    arguments: argparse.Namespace,
    servers: str,
    topic: str,
    arrivals: Arrivals,
    over: threading.Event,
) -> None:
    options = _options(arguments)
    reader = clonos.sources.kafka(servers, topic, value="bytes", options=options).reader(0, 1)
    reader.open(0)
    while not over.is_set():
        batch = reader.read(8192, 0.1)
        if batch is not None and batch.num_rows:
            rows = [json.loads(value) for value in batch.column("value").to_pylist()]
            arrivals.take([row["n"] for row in rows], [row["sent_us"] for row in rows])
    reader.close()


def _run(
    arguments: argparse.Namespace,
    servers: str,
    spark: Any,
    topic: str,
    job: clonos.Job,
    arrivals: Arrivals,
) -> Series:
    """Send at a steady rate once the tasks are live, and wait until all is there."""
    running = job.start(spark)
    try:
        until = time.monotonic() + WAIT_S
        while not _is_live(running) and time.monotonic() < until:
            time.sleep(0.05)
        _send(servers, topic, len(arrivals.late), arguments.rate)
        arrivals.all_there.wait(WAIT_S)
        return arrivals.late
    finally:
        running.stop()


def _is_live(running: Any) -> bool:
    kept = [name for slot in running.slots() for name in slot.keeps]
    tasks = running.tasks()
    return bool(tasks) and all(t.phase == "live" and t.name in kept for t in tasks)


def _send(servers: str, topic: str, rows: int, rate: float) -> None:
    producer, began = producer_of(servers), time.monotonic()
    for n in range(rows):
        wait_s = began + n / rate - time.monotonic()
        if wait_s > 0:
            producer.poll(wait_s)
            time.sleep(max(began + n / rate - time.monotonic(), 0))
        value = {"n": n, "sent_us": int(time.time() * 1e6)}
        producer.produce(topic, json.dumps(value), partition=n % PARTITIONS)
    producer.flush()
