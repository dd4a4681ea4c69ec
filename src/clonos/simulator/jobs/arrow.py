"""Real compiled jobs for the simulator: Arrow batches through the operators that users get."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from random import Random
from typing import Any

import pyarrow as pa

from clonos import sinks, sources
from clonos.api.aggregates import count
from clonos.api.aggregates import sum as total
from clonos.api.job import Job
from clonos.api.keyed import KeyedStream
from clonos.api.streams import Stream
from clonos.api.windows import session, sliding, tumbling
from clonos.columns.batches import concat, empty, seal
from clonos.core.program import Batch, Program
from clonos.graph.compile import CompiledJob
from clonos.operators.by_key.outer_join import HOWS
from clonos.operators.process.asking import Reply
from clonos.operators.process.process import Process, ProcessContext
from clonos.simulator.checks.key_order import answered_by, with_order
from clonos.simulator.jobs.programs import Rows
from clonos.sources.readers import EndOfInput, Reader
from clonos.state.deltas import merge_deltas

SCHEMA = "id long, key string, at timestamp, amount double"
_START = datetime(2026, 1, 1, tzinfo=timezone.utc)


def look_up(number: int) -> int:
    """Stands for an external service; the simulated world answers in its place."""
    raise AssertionError(number)


def price(number: int) -> int:
    """The same for a second service."""
    raise AssertionError(number)


PRICES = 1
price.mark = PRICES  # type: ignore[attr-defined]  # marks the answers of this service


def enrich(row: Any, ctx: Any) -> tuple[Any, ...]:
    """Uses the clock, random numbers and a call that may fail."""
    try:
        answer = ctx.call(look_up, row.id) % 1000
    except ValueError:
        answer = -1
    noise = float(ctx.random.random())
    return row.id, row.key, row.at, row.amount + noise + answer + ctx.clock.now_ms() % 7


def picky(row: Any) -> bool:
    """Raises for one row in four."""
    return bool(8 // (row.id % 4))


class Running(Process):
    """Keeps a sum and a set per key, and reports them now and then by a timer."""

    def open(self, ctx: ProcessContext) -> None:
        self.sum = ctx.state("sum", "double")
        self.seen = ctx.state("seen")

    def on_row(self, row: Any, ctx: ProcessContext) -> Iterable[Any]:
        self.sum.set(self.sum.get(0.0) + row.amount)
        seen = self.seen.get(set())
        if not seen:
            ctx.timers.processing_time(ctx.clock.now_ms() + 5)
        self.seen.set(seen | {row.id})
        return [(row.id, row.key, row.at, self.sum.get())]

    def on_timer(self, key: Any, due: int, ctx: ProcessContext) -> Iterable[Any]:
        ids = list(self.seen.get(set()))
        self.seen.set(set())
        return [(sum(ids), str(key), _START, float(len(ids)))]


class Asking(Process):
    """Makes two calls for each row, one after the other, and returns it with the answers."""

    def __init__(self, **together: Any) -> None:
        self._together = together

    def open(self, ctx: ProcessContext) -> None:
        self.service = ctx.service("look up", look_up, **self._together)
        self.answers = ctx.state("answers", "long")

    def on_row(self, row: Any, ctx: ProcessContext) -> None:
        self.service.ask(*row, then="on_first")

    def on_first(self, reply: Reply, ctx: ProcessContext) -> None:
        self.answers.set(self.answers.get(0) + 1)
        self.service.ask(*reply.arguments, then="on_second")

    def on_second(self, reply: Reply, ctx: ProcessContext) -> Iterable[Any]:
        number, key, at, amount = reply.arguments
        try:
            amount += reply.get() % 1000
        except ValueError:
            amount = -1.0
        return [(number, key, at, amount + self.answers.get())]


class AskingTwo(Asking):
    """Also asks a second service about each row, once.

    Both may wait for more questions, each for its own time, and therefore read the clock.
    """

    def __init__(self, prices: Mapping[str, Any], **together: Any) -> None:
        super().__init__(**together)
        self._prices = prices

    def open(self, ctx: ProcessContext) -> None:
        super().open(ctx)
        self.prices = ctx.service("prices", price, **self._prices)

    def on_row(self, row: Any, ctx: ProcessContext) -> None:
        super().on_row(row, ctx)
        self.prices.ask(*row, then="on_price")

    def on_first(self, reply: Reply, ctx: ProcessContext) -> None:
        _answer_of(reply, 0)
        super().on_first(reply, ctx)

    def on_second(self, reply: Reply, ctx: ProcessContext) -> Iterable[Any]:
        _answer_of(reply, 0)
        return super().on_second(reply, ctx)

    def on_price(self, reply: Reply, ctx: ProcessContext) -> Iterable[Any]:
        number, key, at, amount = reply.arguments
        self.answers.set(self.answers.get(0) + 1)
        return [(number, key, at, amount + _answer_of(reply, PRICES) + self.answers.get())]


def _answer_of(reply: Reply, mark: int) -> int:
    """The answer in a reply, if any; it must come from the service with this mark."""
    try:
        answer: int = reply.get()
    except ValueError:
        return -1
    answered_by(reply.service, answer, mark)
    return answer % 1000


class FixedRows:
    """The rows of one source task."""

    def __init__(self, rows: pa.RecordBatch) -> None:
        self.rows = rows

    def read(self, offset: int, number: int) -> Batch:
        return seal(self.rows.slice(offset, number))


def made_rows(first_id: int, rows: int, schema: pa.Schema) -> FixedRows:
    """Rows of :data:`SCHEMA`, as a source needs them."""
    ids = range(first_id, first_id + rows)
    made = pa.RecordBatch.from_pydict(
        {
            "id": pa.array(ids, pa.int64()),
            "key": [f"key {i * 7 % 5}" for i in ids],
            "at": [_START + timedelta(seconds=i % 40) for i in ids],
            "amount": [i * 0.37 for i in ids],
        }
    )
    table = pa.Table.from_batches([made]).cast(schema)
    (fitted,) = table.combine_chunks().to_batches()
    return FixedRows(fitted)


def random_state(random: Random, keyed: KeyedStream) -> Stream:
    """One of the operators whose state is in columns."""
    kinds = ("sliding", "session", "rows", "top", "join", "deduplicate", "last", "in_order")
    kind = random.choice(kinds)
    if kind == "sliding":
        return keyed.window(sliding("10 seconds", "4 seconds", on="at")).agg(rows=count())
    if kind in ("session", "rows"):
        sessions = keyed.window(session("2 seconds", on="at"))
        return sessions.rows() if kind == "rows" else sessions.agg(total=total("amount"))
    if kind == "top":
        return keyed.window(tumbling("10 seconds", on="at")).top(2, "amount", "id")
    if kind == "join":
        # Drawn separately, so that the rest of a seed stays as it was.
        how = Random(random.getstate()[1][3]).choice(tuple(HOWS))
        names = {"id": "other", "key": "key_of_other", "at": "other_at"}
        some = keyed if how == "inner" else keyed.filter(lambda row: row.id % 5 == 0)
        right = some.select(*names).withColumnsRenamed(names).key_by("key_of_other")
        return keyed.join(right, keep="3 seconds", on=("at", "other_at"), how=how)
    if kind == "deduplicate":
        return keyed.deduplicate("5 seconds", on="at")
    if kind == "last":
        return keyed.last(3, total=total("amount"))
    return keyed.in_order("at", "id")


def with_calls(stream: Stream, random: Random) -> Stream:
    """Perhaps rows wait for calls; drawn separately, so that the rest of a seed stays as it was."""
    how: dict[str, Any] = {"in_flight": random.choice((1, 3, 10)), "on_error": lambda *_: -1}
    if random.random() < 0.4:
        how["ordered"] = random.random() < 0.5
        stream = stream.with_column_async("id", look_up, "id", name="numbered", **how)
    if random.random() < 0.3:
        how["ordered"] = random.random() < 0.5
        stream = stream.with_column_async("amount double", look_up, "id", name="priced", **how)
    if random.random() < 0.3:
        in_flight = random.choice((1, 3, 10))
        together: dict[str, Any] = {}
        if random.random() < 0.5:
            within = random.choice((None, "5 ms"))
            together = {"batch": random.choice((2, 4)), "batch_within": within}
        asking = Asking(**together)
        if random.random() < 0.5:
            batch = together.get("batch", random.choice((None, 3)))
            within = random.choice((None, "2 ms", "8 ms")) if batch else None
            asking = AskingTwo({"batch": batch, "batch_within": within}, **together)
        stream = stream.key_by("key").process(asking, SCHEMA, name="asking", in_flight=in_flight)
    return stream


class ReaderSource:
    """The rows of one source task, from its real reader."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def read(self, offset: int, number: int) -> Batch:
        self._reader.open(offset)
        batches: list[pa.RecordBatch] = []
        while number:
            try:
                batch = self._reader.read(number, 0.0)
            except EndOfInput:
                break
            if batch is not None:
                batches.append(batch)
                number -= batch.num_rows
        return seal(concat(batches) if batches else empty(self._reader.schema))


class ArrowJob:
    """The counterpart of :class:`clonos.simulator.jobs.programs.Job` for real operators.

    Sources have `rows` rows of :data:`SCHEMA`; None: the job's own rows. `has_order`: the job
    checks itself that no row is lost or comes twice, so no loss may be forgiven.
    """

    def __init__(
        self, compiled: CompiledJob, rows: int | None = None, *, has_order: bool = False
    ) -> None:
        self.compiled, self.has_order = compiled, has_order
        self.plan = compiled.plan
        self.stage_of: dict[int, int] = {}
        self.sources: dict[int, Rows] = {}
        for task, code in zip(self.plan.tasks, compiled.codes, strict=True):
            if code.source is not None and rows is None:
                self.sources[task.id] = ReaderSource(
                    code.source.reader(task.index, code.parallelism)
                )
            elif code.source is not None and rows is not None:
                self.sources[task.id] = made_rows(1 + 1000 * task.id, rows, code.source.schema)

    def program(self, task: int) -> Program:
        return self.compiled.codes[task].program()

    @staticmethod
    def merge(deltas: Sequence[bytes], *, is_base: bool) -> bytes:
        """See :meth:`clonos.simulator.jobs.programs.Job.merge`."""
        return merge_deltas(deltas, is_base=is_base)

    def arrivals(self, without: Collection[int] = ()) -> dict[int, dict[int, int]]:
        """Empty: rows are aggregated, so no single row can be followed to a sink."""
        return {}

    @staticmethod
    def encode(batch: Batch) -> bytes:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.payload.schema) as writer:
            writer.write_batch(batch.payload)
        content: bytes = sink.getvalue().to_pybytes()
        return content

    @staticmethod
    def decode(content: bytes) -> Any:
        with pa.ipc.open_stream(content) as reader:
            return reader.read_next_batch()

    def wrap(self, payload: Any) -> Batch:
        return seal(payload)

    def poison(self, task: int) -> int | None:
        return None

    def deadly_records(self) -> int:
        return 0


def random_arrow_job(
    random: Random, rows: tuple[int, int] = (8, 30), *, has_markers: bool = True
) -> ArrowJob:
    """Windows in both times, processes with timers, calls, unions, shuffles."""
    # Drawn separately, so that the rest of a seed stays as it was.
    keeps_bad_records = Random(random.getstate()[1][1]).random() < 0.3
    depth: Any = random.choice((0, 1, 1, 2, "full"))
    job = Job(
        "simulated",
        parallelism=random.choice((1, 2)),
        sharing_depth=depth,
        checkpoints="marked" if has_markers else "uncoordinated",
        seed=7,
        on_bad_record="keep" if keeps_bad_records else "fail",
    )
    source = sources.from_batches([], schema=SCHEMA)
    stream: Stream = job.source(source, name="rows").with_watermark("at", "5 seconds")
    if random.random() < 0.5:
        stream = stream.map(enrich, SCHEMA, name="enrich")
    if keeps_bad_records:
        stream = stream.filter(picky, name="picky")
        job.bad_records.sink(sinks.collect(), name="bad")
    stream = with_calls(stream, Random(random.getstate()[1][0]))
    by_key = Random(random.getstate()[1][2])
    if has_order := by_key.random() < 0.4:
        stream = with_order(stream, SCHEMA, look_up, by_key)
    if random.random() < 0.4:
        stream = stream.union(stream.filter(lambda row: row.id % 3 == 0, name="third"))
    if random.random() < 0.5:
        stream = stream.key_by("key").process(Running(), SCHEMA, name="running")
    keyed = stream.key_by("key")
    kind = random.random()
    if kind < 0.2:
        window = keyed.window(tumbling("10 seconds", on="at"))
        out = window.agg(rows=count(), total=total("amount"))
    elif kind < 0.5:
        out = random_state(random, keyed)
    elif kind < 0.7:
        out = keyed.window(tumbling("20 ms")).agg(rows=count(), total=total("amount"))
    else:
        out = stream.rebalance()
    out.sink(sinks.collect(), name="out")
    return ArrowJob(job.compile(), rows=random.randint(*rows), has_order=has_order)
