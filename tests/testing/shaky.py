"""Jobs whose functions do not do the same twice, each for another reason; and some that do."""

from __future__ import annotations

import datetime as dt
import itertools
import logging
import os
import random
import re
import socket
import time
import uuid

import numpy as np
import pyarrow as pa

import clonos

SCHEMA = "user string, cents long"
ROWS = [(f"user {i % 5}", i) for i in range(40)]
COUNTER = itertools.count()
SEEN: dict[str, int] = {}


def steady(row):
    return row.user, row.cents + 1


def of_a_set(row):
    return ",".join({row.user, "some", "other", "words"}), row.cents


def by_identity(row):
    return row.user, id(row) % 1000


def by_clock(row):
    return row.user, int(time.time())


def by_day(row):
    return dt.date.today().isoformat(), row.cents  # noqa: DTZ011 - what is tested


def by_chance(row):
    return row.user, row.cents + random.randrange(10**9)


def by_numpy(row):
    return row.user, int(np.random.randint(10**9))  # noqa: NPY002 - what is tested


def by_uuid(row):
    return str(uuid.uuid4()), row.cents


def by_urandom(row):
    return os.urandom(4).hex(), row.cents


def by_environment(row):
    return os.environ["TZ"], row.cents


def counted(row):
    return row.user, next(COUNTER)


def seen(row):
    SEEN[row.user] = SEEN.get(row.user, 0) + row.cents
    return row.user, SEEN[row.user]


def sum_of_batch(batch):
    """Depends on which rows come together."""
    total = sum(batch.column("cents").to_pylist())
    return pa.RecordBatch.from_pylist([{"user": "all", "cents": total}], batch.schema)


def float_sum(row):
    """Floats are added in the order of a set."""
    parts = {f"{row.user} {i}": 0.1 * 3**i for i in range(12)}
    return row.user, int.from_bytes(
        np.float64(sum(parts[k] for k in set(parts))).tobytes()[:4], "big"
    )


def connecting(row):
    with socket.create_connection(("127.0.0.1", 9)) as link:
        link.sendall(b"?")
    return row


def timed(row):
    started = time.perf_counter()
    result = row.user, row.cents + 1
    SEEN["took"] = int(time.perf_counter() - started)
    return result


def logged(row):
    logging.getLogger("shaky").info("a row: %s", row)
    return row.user, row.cents


def of_ctx(row, ctx):
    return row.user, int(ctx.random.integers(1000)) + ctx.clock.now_ms() % 7


def ask(user):
    raise AssertionError("nobody is asked")


def asked(row, ctx):
    return row.user, ctx.call(ask, row.user)


# The process decides for which rows it asks. By chance, both runs might ask for the same rows.
def asked_at_will(row, ctx):
    return row.user, ctx.call(ask, row.user) if row.cents % 2 == len(os.environ["TZ"]) % 2 else 0


def ending(row):
    if row.cents == 20 and os.environ["TZ"] == "Pacific/Pago_Pago":
        os._exit(7)
    return row.user, row.cents


def hanging(row):
    while row.cents == 20:
        time.sleep(0.01)
    return row.user, row.cents


def hanging_elsewhere(row):
    return hanging(row) if os.environ["TZ"] == "Pacific/Pago_Pago" else (row.user, row.cents)


def matching(row):
    return row.user, bool(re.match("(a+)+b", "a" * 40))


def failing(row):
    return row.user, 1 // (row.cents - 9)


class Total(clonos.Process):
    def on_row(self, row, ctx):
        total = ctx.state("total", "long")
        total.set(total.get(0) + row.cents)
        yield row.user, total.get()


class Forgetful(clonos.Process):
    def open(self, ctx):
        self.totals = {}

    def on_row(self, row, ctx):
        self.totals[row.user] = self.totals.get(row.user, 0) + row.cents
        yield row.user, self.totals[row.user]


class Disorderly(clonos.Process):
    """What it gives is the same; what it keeps is in the order of a set."""

    def on_row(self, row, ctx):
        ctx.state("words").set(list({row.user, "some", "other", "words"}))
        yield row.user, row.cents


GOOD = (steady, timed, logged, of_ctx, asked)
BAD = (
    of_a_set,
    by_identity,
    by_clock,
    by_day,
    by_chance,
    by_numpy,
    by_uuid,
    by_urandom,
    by_environment,
    counted,
    seen,
    float_sum,
    asked_at_will,
    ending,
)


def many(functions=(*GOOD, *BAD), processes=(Total, Forgetful, Disorderly), *, batches=True):
    """One job of all of them: each is looked at alone."""
    job = clonos.Job("shaky")
    rows = job.source(clonos.sources.from_batches([ROWS], SCHEMA), name="payments")
    made = [rows.map(function, SCHEMA, name=function.__name__) for function in functions]
    made += [
        rows.key_by("user").process(process(), SCHEMA, name=process.__name__)
        for process in processes
    ]
    if batches:
        made.append(rows.map_batches(sum_of_batch, SCHEMA, name="sum_of_batch"))
    united = made[0].union(*made[1:]) if len(made) > 1 else made[0]
    united.sink(clonos.sinks.collect(), name="out")
    return job


def command_job():
    return many([steady, timed, by_uuid], [], batches=False)
