"""Jobs as users have them, for the simulator: what they call, draw and remember."""

from __future__ import annotations

import itertools
import random
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import clonos

SCHEMA = "user string, cents long"
ORDERS = "id long, at timestamp"
PAYMENTS = "order long, paid_at timestamp, cents long"
COUNTER = itertools.count()


def ask(user: str) -> str:
    raise AssertionError("a simulation calls no service")


async def score(user: str) -> float:
    raise AssertionError("a simulation calls no service")


@clonos.effect(idempotent=True)
async def charge(row: Any, *, call: Any) -> str:
    raise AssertionError("a simulation charges nobody")


@clonos.effect(idempotent=True, keys_kept="24 hours")
async def charge_today(row: Any, *, call: Any) -> str:
    raise AssertionError("a simulation charges nobody")


@clonos.effect
async def mail(row: Any) -> str:
    raise AssertionError("a simulation writes to nobody")


def judge(row, ctx):
    return row.user, row.cents, ctx.call(ask, row.user)


def noisy(row):
    return row.user, row.cents + random.randrange(1000)


def counting(row):
    return row.user, next(COUNTER)


def failing(row):
    return row.user, 100 // (row.cents - 7)


class Total(clonos.Process):
    def on_row(self, row, ctx):
        total = ctx.state("total", "long")
        total.set(total.get(0) + row.cents)
        ctx.timers.processing_time(ctx.clock.now_ms() + 60_000)
        yield row.user, total.get()

    def on_timer(self, key, due, ctx):
        yield key, -1


class Forgetful(Total):
    """Keeps its totals in the object, which dies with the process."""

    def open(self, ctx):
        self.totals = {}

    def on_row(self, row, ctx):
        self.totals[row.user] = self.totals.get(row.user, 0) + row.cents
        yield row.user, self.totals[row.user]


def payments(parallelism=1):
    """A source that needs a broker."""
    job = clonos.Job("fraud", parallelism=parallelism)
    source = clonos.sources.kafka("broker:9092", "payments", schema=SCHEMA)
    return job, job.source(source, name="payments")


def mapped(function):
    job, rows = payments()
    rows.map(function, SCHEMA, name="change").key_by("user").sink(
        clonos.sinks.collect(), name="out"
    )
    return job


def totals(process=Total, parallelism=1):
    job, rows = payments(parallelism)
    by_user = rows.key_by("user").process(process(), SCHEMA, name="total")
    by_user.sink(clonos.sinks.collect(), name="out")
    return job


def calling():
    job, rows = payments()
    judged = rows.map(judge, f"{SCHEMA}, verdict string")
    scored = judged.with_column_async("score double", score, "user", in_flight=3)
    scored.sink(clonos.sinks.collect(), name="out")
    return job


class Talk(clonos.Process):
    """Asks twice about each row."""

    def open(self, ctx):
        self.score = ctx.service("score", score)

    def on_row(self, row, ctx):
        self.score.ask(f"{row.user} {row.cents}", then="on_first")

    def on_first(self, reply, ctx):
        self.score.ask(f"{reply.arguments[0]}!", then="on_second")

    def on_second(self, reply, ctx):
        yield reply.arguments[0], reply.get()


def talking(in_flight=2):
    job, rows = payments()
    talks = rows.key_by("user").process(Talk(), "said string, score double", in_flight=in_flight)
    talks.sink(clonos.sinks.collect(), name="out")
    return job


async def scores(users: list[str]) -> list[float]:
    raise AssertionError("a simulation calls no service")


@clonos.effect(idempotent=True)
async def charge_all(rows: list[Any], *, call: Any) -> list[str]:
    raise AssertionError("a simulation charges nobody")


class TalkTogether(Talk):
    """... together with others."""

    def __init__(self, within):
        self._within = within

    def open(self, ctx):
        self.score = ctx.service("score", scores, batch=3, batch_within=self._within)


def talking_together(in_flight=2, within=None):
    job, rows = payments()
    keyed = rows.key_by("user")
    talks = keyed.process(TalkTogether(within), "said string, score double", in_flight=in_flight)
    talks.sink(clonos.sinks.collect(), name="out")
    return job


def batched(ordered=True):
    job, rows = payments()
    how = {"in_flight": 2, "batch": 3, "batch_within": "20 ms", "ordered": ordered}
    scored = rows.with_column_async("score double", scores, "user", **how)
    scored.sink(clonos.sinks.collect(), name="out")
    return job


def with_effect(effect, **how):
    job, rows = payments()
    receipts = rows.map_async(effect, "receipt string", in_flight=2, **how)
    receipts.sink(clonos.sinks.collect(), name="out")
    return job


def rounds(**how):
    """Each row goes round until its cents are used up, on one of two ways. It is scored in each
    round, and charged; rows of four cents are bad."""
    job = clonos.Job("fraud", parallelism=2, on_bad_record="keep")
    rows = job.source(
        clonos.sources.kafka("broker:9092", "payments", schema=SCHEMA), name="payments"
    )
    again = job.feedback(SCHEMA)
    less = rows.union(again).map(one_less, SCHEMA)
    scored = less.with_column_async("score double", score, "user", in_flight=3, **how)
    even = scored.filter(lambda row: row.cents % 2 == 0)
    odd = scored.filter(lambda row: row.cents % 2 == 1).map(tuple, f"{SCHEMA}, score double")
    on = even.union(odd)
    again.feed(on.filter(lambda row: row.cents > 0).map(lambda row: row[:2], SCHEMA))
    receipts = on.map_async(charge, "receipt string", in_flight=2)
    receipts.sink(clonos.sinks.collect(), name="paid")
    on.sink(clonos.sinks.collect(), name="out")
    job.bad_records.sink(clonos.sinks.collect(), name="bad")
    return job


def one_less(row):
    if row.cents == 4:
        raise ValueError("four")
    return row.user, row.cents - 1


class Visits(StatefulProcessor):
    """Counts, remembers and forgets, in all the ways that Spark knows."""

    def init(self, handle):
        self.handle = handle
        self.count = handle.getValueState("count", "n long")
        self.cents = handle.getListState("cents", "cents long")
        self.last = handle.getMapState("last", "odd boolean", "cents long")

    def handleInputRows(self, key, rows, timerValues):  # noqa: N802, N803 - PySpark's names
        for row in rows:
            self.count.update((1 + (self.count.get() or (0,))[0],))
            self.cents.appendValue((row.cents,))
            self.last.updateValue((row.cents % 2 == 1,), (row.cents,))
            for due in self.handle.listTimers():
                self.handle.deleteTimer(due)
            self.handle.registerTimer(timerValues.getCurrentWatermarkInMs() + 1 + row.cents)
            known = sum(cents for (cents,) in self.last.values())
            yield Row(user=key[0], cents=self.count.get()[0], known=known)

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):  # noqa: N802, N803 - PySpark's
        total = sum(cents for (cents,) in self.cents.get())
        yield Row(user=key[0], cents=-total, known=expiredTimerInfo.getExpiryTimeInMs() * 0)
        self.cents.clear()


def visits():
    job = clonos.Job("visits", parallelism=2)
    source = clonos.sources.kafka("broker:9092", "visits", schema=f"{SCHEMA}, at timestamp")
    rows = job.source(source, name="visits").withWatermark("at", "0 seconds")
    counted = rows.groupBy("user").transformWithState(
        Visits(), f"{SCHEMA}, known long", "Append", "EventTime", name="visited"
    )
    counted.sink(clonos.sinks.collect(), name="out")
    return job


def unpaid(how):
    """Orders with what was paid for them within ten seconds, or without."""
    job = clonos.Job("unpaid", parallelism=2)
    orders, payments = (
        job.source(
            clonos.sources.kafka("broker:9092", topic, schema=schema), name=topic
        ).with_watermark(schema.split()[2], "2 seconds")
        for topic, schema in (("orders", ORDERS), ("payments", PAYMENTS))
    )
    both = orders.key_by("id").join(
        payments.key_by("order"), keep=("10 seconds", "0 ms"), on=("at", "paid_at"), how=how
    )
    both.sink(clonos.sinks.collect(), name="out")
    return job


def job():
    return totals()


def shaky():
    return mapped(noisy)


def check(outputs):
    assert outputs["out"].num_rows == 12, "a row is missing"


def wrong_check(outputs):
    return outputs["out"].num_rows == 13
