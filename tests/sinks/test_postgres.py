"""The PostgreSQL sink, beside a real server: what it writes, what it refuses, what it says."""

from __future__ import annotations

import itertools
import json
import math
import struct
import sys
import threading
import time
from datetime import date, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import clonos
from clonos.errors import MarkLost, OutputExists, RowRefused, SinkFailed, StoreAway
from clonos.sinks import postgres_transactions as postgres_sink
from clonos.sinks.lanes import Lane, Output, OutputKey
from clonos.sinks.postgres_session import MARKS
from clonos.sinks.writers import Claims
from clonos.testing import check_sink

psycopg = pytest.importorskip("psycopg")

SCHEMA = pa.schema([("id", pa.int64()), ("word", pa.string())])
_numbers = itertools.count()


def batch(*rows, schema=SCHEMA):
    columns = list(zip(*rows, strict=True))
    return pa.RecordBatch.from_arrays(
        [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema
    )


def output(seq, *rows, generation=0, schema=SCHEMA):
    return Output(OutputKey(generation, seq), batch(*rows, schema=schema))


class Place:
    """A table of a test's own, and jobs that write to it."""

    def __init__(self, dsn, name=None):
        self.dsn, self.name = dsn, name or f"t{next(_numbers)}"
        self.writers = []

    def sink(self, **options):
        return clonos.sinks.postgres(self.dsn, self.name, **options)

    def store(self, **options) -> Any:
        return self.sink(**options).store

    def claims(self, job="me", tasks=1, **options):
        return Claims({"out": self.sink(**options)}, "process", job, {"out": tasks})

    def begin(self, schema=SCHEMA, *, is_new=True, **options):
        claims = self.claims(**options)
        claims.begin({"out": schema}, is_new=is_new)
        return claims

    def writer(self, incarnation=1, number=0, **options):
        made = self.store(**options).writer(Lane("me", "out", number, incarnation))
        self.writers.append(made)
        return made

    def close(self):
        for writer in self.writers:
            writer.close()

    def sql(self, query, parameters=()):
        with psycopg.connect(self.dsn) as sql:
            cursor = sql.execute(query.replace("TABLE", self.name), parameters)
            return cursor.fetchall() if cursor.description else None

    def rows(self, columns="id, word", order="1, 2"):
        return self.sql(f"select {columns} from TABLE order by {order}")

    def mark(self):
        query = f"select incarnation, generation, seq from {MARKS} where target = %s order by lane"
        return self.sql(query, [self.name.rpartition(".")[2]])


@pytest.fixture
def place_of(postgres):
    made = []

    def make(name=None):
        made.append(Place(postgres, name))
        return made[-1]

    yield make
    for place in made:
        place.close()


@pytest.fixture
def place(place_of):
    return place_of()


# --- once ----------------------------------------------------------------------------------------


def test_groups_are_there_once_whoever_writes(place):
    place.begin()
    writer = place.writer()
    writer.write([output(1, (1, "a")), output(2, (2, ""), (3, None))])
    assert place.rows() == [(1, "a"), (2, ""), (3, None)]
    writer.write([output(2, (2, ""), (3, None)), output(3, (4, "d"))])  # offered again
    other = place.writer(incarnation=2)
    other.write([output(2, (2, ""), (3, None)), output(3, (4, "d")), output(4, (5, "e"))])
    assert place.rows() == [(1, "a"), (2, ""), (3, None), (4, "d"), (5, "e")]
    with pytest.raises(clonos.Fenced, match="later life"):
        writer.write([output(4, (5, "e"))])
    with pytest.raises(clonos.Fenced):
        place.writer(incarnation=1).write([output(4, (5, "e"))])
    assert place.mark() == [(2, 0, 4)]
    other.close()
    other.close()


def test_a_later_generation_goes_on(place):
    place.begin()
    place.writer(1).write([output(1, (1, "a")), output(2, (2, "b"))])
    place.writer(2).write(
        [output(2, (2, "again"), generation=1), output(3, (3, "c"), generation=1)]
    )
    assert [row[0] for row in place.rows()] == [1, 2, 2, 3]
    assert place.mark() == [(2, 1, 3)]


def test_two_lanes_have_two_marks(place):
    place.begin(tasks=2)
    place.writer(1, number=0).write([output(1, (1, "a"))])
    place.writer(5, number=1).write([output(1, (2, "b"))])
    assert place.rows() == [(1, "a"), (2, "b")]
    assert place.mark() == [(1, 0, 1), (5, 0, 1)]


def test_a_life_that_is_frozen_in_its_transaction_is_ended(place):
    """Its successor waits for its lock for a second, and not for its timeouts."""
    place.begin()
    frozen = place.writer(1)
    frozen.write([output(1, (1, "a"))])
    frozen._db.move_mark(OutputKey(0, 1), OutputKey(0, 2))  # and here it stands still
    place.writer(2).write([output(2, (2, "b"))])
    with pytest.raises(StoreAway):
        frozen.write([output(2, (2, "b"))])  # its connection is gone, ...
    with pytest.raises(clonos.Fenced):
        frozen.write([output(2, (2, "b"))])  # ... and so is its turn
    assert place.rows() == [(1, "a"), (2, "b")]


def test_a_life_that_wakes_up_in_its_transaction_begins_it_again(place):
    """The machine slept, and the server has ended the transaction: nobody has taken the turn."""
    place.begin()
    writer = place.writer()
    writer.write([output(1, (1, "a"))])
    sql = writer._db.sql
    sql.execute("set idle_in_transaction_session_timeout = 50")  # and a transaction has begun
    time.sleep(0.5)
    with pytest.raises(StoreAway, match="idle-in-transaction"):
        writer.write([output(2, (2, "b"))])
    writer.write([output(2, (2, "b"))])
    assert place.rows() == [(1, "a"), (2, "b")]


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_commit_whose_reply_is_lost(place, is_committed):
    place.begin()
    writer = place.writer()
    writer.write([output(1, (1, "a"))])
    sql = writer._db.sql

    class Lossy:
        def commit(self):
            if is_committed:
                sql.commit()
            place.sql("select pg_terminate_backend(%s)", [sql.info.backend_pid])
            sql.execute("select 1")

        def __getattr__(self, name):
            return getattr(sql, name)

    writer._db.sql = Lossy()
    with pytest.raises(StoreAway, match="connection"):
        writer.write([output(2, (2, "b"))])
    writer.write([output(2, (2, "b")), output(3, (3, "c"))])
    assert place.rows() == [(1, "a"), (2, "b"), (3, "c")]


def test_marks_that_are_gone_are_missed(place):
    place.begin()
    writer = place.writer()
    writer.write([output(1, (1, "a")), output(2, (2, "b"))])
    with pytest.raises(MarkLost, match="not the mark 5"):  # a checkpoint has seen 5 outputs
        place.writer(2).write([output(6, (6, "f"))])
    place.sql(f"delete from {MARKS} where target = %s", [place.name])
    for lost in (writer, place.writer(3)):
        with pytest.raises(MarkLost, match="gone"):
            lost.write([output(3, (3, "c"))])
    with pytest.raises(MarkLost, match="there is none"):
        place.begin(is_new=False)
    assert len(place.rows()) == 2


def test_a_store_that_forgets_what_it_had_acknowledged(place):
    """As a replica that takes over without the newest commits."""
    place.begin()
    writer = place.writer()
    writer.write([output(1, (1, "a"))])
    place.sql(f"update {MARKS} set seq = null, generation = null where target = %s", [place.name])
    with pytest.raises(clonos.Fenced):  # somebody else has moved it
        writer.write([output(2, (2, "b"))])
    with pytest.raises(MarkLost, match="no mark"):
        writer.write([output(2, (2, "b"))])


def test_nothing_is_left_out(place):
    place.begin()
    writer = place.writer()
    writer.write([output(1, (1, "a"))])
    with pytest.raises(clonos.errors.ProtocolError):
        writer.write([output(3, (1, "a"))])


# --- values --------------------------------------------------------------------------------------

LETTERS = st.characters(exclude_characters="\0", exclude_categories=["Cs"])
TYPES = {
    "yes": (pa.bool_(), st.booleans()),
    "tiny": (pa.int8(), st.integers(-128, 127)),
    "small": (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    "mid": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "large": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "single": (pa.float32(), st.floats(width=32)),
    "double": (pa.float64(), st.floats()),
    "money": (pa.decimal128(20, 4), st.decimals(-(10**15), 10**15, places=4)),
    "text": (
        pa.string(),
        st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
    ),
    "raw": (pa.binary(), st.binary()),
    "day": (pa.date32(), st.dates()),
    "at": (pa.timestamp("us", "UTC"), st.datetimes().map(lambda t: t.replace(tzinfo=timezone.utc))),
    "local": (pa.timestamp("us"), st.datetimes()),
}
ROWS = st.lists(st.tuples(*(st.none() | values for _, values in TYPES.values())), max_size=8)
ALL = pa.schema([(name, kind) for name, (kind, _) in TYPES.items()])


def same(left, right):
    if isinstance(left, float) and isinstance(right, float):
        return (math.isnan(left) and math.isnan(right)) or struct.pack("d", left) == struct.pack(
            "d", right
        )
    return left == right and type(left) is type(right)


def test_values_come_back_as_they_were(place):
    place.begin(schema=ALL)
    writer = place.writer()
    seqs = itertools.count(1)
    names = ", ".join(ALL.names)

    @settings(max_examples=60, suppress_health_check=list(HealthCheck))
    @given(ROWS)
    def check(rows):
        place.sql("truncate TABLE")
        rows = [*rows, (None,) * len(ALL)]
        writer.write([output(next(seqs), *rows, schema=ALL)])
        with psycopg.connect(place.dsn) as sql:
            sql.execute("set timezone = 'UTC'")
            found = sql.cursor(binary=True).execute(
                f"select {names} from {place.name} order by ctid"
            )
            for row, expected in zip(found.fetchall(), rows, strict=True):
                for name, got, value in zip(ALL.names, row, expected, strict=True):
                    assert same(got, value), f"{name}: {got!r}, not {value!r}"

    check()


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        st.none()
        | st.fixed_dictionaries(
            {
                "words": st.none() | st.lists(st.none() | st.text(st.characters(codec="utf-8"))),
                "counts": st.none()
                | st.dictionaries(st.text('ab"\\\n', max_size=3), st.integers(0, 9)),
                "one": st.none() | st.fixed_dictionaries({"x": st.none() | st.floats(-9, 9)}),
            }
        ),
        max_size=6,
    ),
    st.integers(0, 3),
)
def test_nested_values_are_json(values, start):
    from clonos.sinks.json_texts import as_json

    kind = pa.struct(
        [
            ("words", pa.list_(pa.string())),
            ("counts", pa.map_(pa.string(), pa.int64())),
            ("one", pa.struct([("x", pa.float64())])),
        ]
    )
    made = [v and {**v, "counts": v["counts"] and list(v["counts"].items())} for v in values]
    made = [
        v and {**v, "counts": [] if u["counts"] == {} else v["counts"]}
        for v, u in zip(made, values, strict=True)
    ]
    texts = as_json(pa.array(made, kind).slice(start)).to_pylist()
    assert [t and json.loads(t) for t in texts] == values[start:]


def test_nested_columns_and_a_single_one_that_is_null(place, place_of):
    schema = pa.schema([("tags", pa.list_(pa.string())), ("pair", pa.struct([("n", pa.int64())]))])
    place.begin(schema=schema)
    place.writer().write([output(1, (["a", None], {"n": 1}), (None, None), schema=schema)])
    assert place.rows("tags, pair", "tags") == [(["a", None], {"n": 1}), (None, None)]
    single = place_of()
    one = pa.schema([("s", pa.string())])
    single.begin(schema=one)
    single.writer().write([output(1, (None,), ("",), ("\\.",), ("a\n\\.\nb",), schema=one)])
    assert single.rows("s", "ctid") == [(None,), ("",), ("\\.",), ("a\n\\.\nb",)]


def test_types_of_the_table_that_is_made(place):
    place.begin(schema=ALL.append(pa.field("more", pa.list_(pa.int64()))))
    found = dict(
        place.sql(
            "select attname, format_type(atttypid, atttypmod) from pg_attribute"
            " where attrelid = to_regclass(%s) and attnum > 0",
            [place.name],
        )
    )
    assert found["money"] == "numeric(20,4)"
    assert (found["at"], found["local"]) == (
        "timestamp with time zone",
        "timestamp without time zone",
    )
    assert (found["raw"], found["more"], found["tiny"]) == ("bytea", "jsonb", "smallint")


# --- upsert --------------------------------------------------------------------------------------


def test_the_last_row_of_a_key_wins(place):
    place.begin(upsert="id")
    writer = place.writer(upsert="id")
    writer.write([output(1, (1, "a"), (2, "b"), (1, "c")), output(2, (2, "d"), (3, None))])
    writer.write([output(3, (3, "e"), (1, "f")), output(4, (1, "g"))])
    assert place.rows() == [(1, "g"), (2, "d"), (3, "e")]


def test_upsert_of_keys_alone_and_of_two_columns(place):
    place.begin(upsert=("id", "word"))
    place.writer(upsert=("id", "word")).write([output(1, (1, "a"), (1, "a")), output(2, (1, "b"))])
    assert place.rows() == [(1, "a"), (1, "b")]


def test_upsert_needs_a_unique_index_and_its_columns(place):
    place.sql("create table TABLE (id bigint, word text)")
    with pytest.raises(clonos.errors.BadGraph, match="unique index"):
        place.begin(upsert="id")
    with pytest.raises(clonos.errors.UnknownColumn, match="'nope'"):
        place.sink(upsert="nope").with_schema(SCHEMA)


def test_tasks_that_upsert_the_same_keys_do_not_wait_crosswise(place):
    """Two transactions that take the same rows in opposite order would end in a deadlock."""
    place.begin(tasks=2, upsert="id")
    rows = [(i, "x") for i in range(200)]
    failed = []

    def write(number, rows):
        writer = place.writer(number=number, upsert="id")
        try:
            for seq in range(1, 21):
                writer.write([output(seq, *rows)])
        except Exception as error:  # noqa: BLE001 - it is what is looked for
            failed.append(error)

    threads = [threading.Thread(target=write, args=(n, rows[:: 1 - 2 * n])) for n in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert len(place.rows()) == 200


# --- whose the table is --------------------------------------------------------------------------


def test_a_table_is_of_one_sink_of_one_checkpoint(place):
    place.begin()
    place.begin()  # the driver died before it began to work
    for is_new in (True, False):
        with pytest.raises((OutputExists, MarkLost)):
            place.begin(job="another", is_new=is_new)
    place.writer().write([output(1, (1, "a"))])
    place.begin(is_new=False)
    with pytest.raises(OutputExists, match="another run"):
        place.begin()  # its journal was lost
    with pytest.raises(OutputExists, match="another job"):
        place.begin(job="another")
    place.begin(job="another", mode="append")
    assert len(place.mark()) == 2
    with pytest.raises(MarkLost, match="1 of 2 marks"):
        place.begin(is_new=False, tasks=2)


def test_a_sink_with_more_tasks_than_before_or_fewer(place):
    place.begin(tasks=2)
    place.writer().write([output(1, (1, "a"))])
    for tasks in (4, 4, 3, 1, 4):
        claims = place.claims(tasks=tasks)
        claims.begin({"out": SCHEMA}, is_new=False, added=[])
        assert len(place.mark()) == 4
    place.writer(2, number=3).write([output(1, (2, "b"), generation=1)])
    place.writer(3, number=0).write([output(2, (3, "c"), generation=1)])
    assert sorted(place.rows()) == [(1, "a"), (2, "b"), (3, "c")]


def test_the_table_of_a_job_that_wrote_nothing_is_free(place):
    place.begin().withdraw()
    other = place.begin(job="another")
    place.writer()
    place.claims().withdraw()
    other.check()
    other.end()
    place.sql("insert into TABLE values (1, 'mine')")
    with pytest.raises(OutputExists, match="another job"):
        place.begin()
    other.withdraw()
    with pytest.raises(OutputExists, match="has rows"):
        place.begin()


def test_who_goes_on_as_before_keeps_what_was_claimed_before(place):
    """A change of the graph that spells the server in another way is refused."""
    place.begin()
    again = place.begin()
    again.withdraw(only_fresh=True)
    place.begin(is_new=False)
    place.claims().withdraw()
    place.begin().withdraw(only_fresh=True)
    with pytest.raises(MarkLost):
        place.begin(is_new=False)


def test_a_schema_of_its_own(place_of):
    place = place_of(f"shop.t{next(_numbers)}")
    place.sql("create schema if not exists shop")
    place.begin()
    place.writer().write([output(1, (1, "a"))])
    assert place.rows() == [(1, "a")]
    assert place.sql(f"select count(*) from shop.{MARKS}")[0][0]


@pytest.mark.parametrize(
    ("columns", "error", "says"),
    [
        ("id bigint", clonos.errors.UnknownColumn, "no column 'word'"),
        ("id text, word text", clonos.errors.WrongType, "'id' is text"),
        ("id int, word text", clonos.errors.WrongType, "needs bigint"),
        ("id bigint, word text, at date not null", clonos.errors.UnknownColumn, "'at'"),
    ],
)
def test_a_table_that_does_not_fit(place, columns, error, says):
    place.sql(f"create table TABLE ({columns})")
    with pytest.raises(error, match=says):
        place.begin()


def test_a_table_with_more_columns(place):
    place.sql(
        "create table TABLE (n serial, word varchar(9), id numeric(20), at date default now())"
    )
    place.begin()
    place.writer().write([output(1, (7, "a"))])
    assert place.rows("n, id, word") == [(1, Decimal(7), "a")]
    assert isinstance(place.rows("at", "1")[0][0], date)


# --- what goes wrong -----------------------------------------------------------------------------


@pytest.mark.parametrize("upsert", [None, "id"])
def test_the_row_that_is_refused_is_named_and_nothing_is_lost(place, upsert):
    place.sql("create table TABLE (id bigint primary key, word text check (word <> 'bad'))")
    place.begin(upsert=upsert)
    writer = place.writer(upsert=upsert)
    writer.write([output(1, (0, "zero"))])
    rows = [(i, "bad" if i in {77, 90} else f"w{i}") for i in range(1, 200)]
    group = [output(2, *rows[:60]), output(3, *rows[60:])]
    with pytest.raises(RowRefused, match=r"check constraint.*'id': 77, 'word': 'bad'") as caught:
        writer.write(group)
    assert place.name in caught.value.where
    assert place.rows() == [(0, "zero")]
    assert place.mark()[0][2] == 1
    place.sql("alter table TABLE drop constraint " + place.name + "_word_check")
    writer.write(group)
    assert len(place.rows()) == 200


def test_a_key_that_is_there_already_is_a_refused_row(place):
    place.sql("create table TABLE (id bigint primary key, word text)")
    place.begin()
    with pytest.raises(RowRefused, match=r"duplicate key.*'id': 1, 'word': 'b'"):
        place.writer().write([output(1, (1, "a"), (2, "a"), (1, "b"), (3, "c"))])


def test_a_table_that_is_gone(place):
    place.begin()
    place.sql("drop table TABLE")
    with pytest.raises(SinkFailed, match="does not exist"):
        place.writer().write([output(1, (1, "a"))])


def test_no_password_is_told():
    secret = "hunter2/@x"
    dsn = "host=127.0.0.1 port=1 dbname=shop user=me password=hunter2/@x"
    sink = clonos.sinks.postgres(dsn, "orders")
    store = Place(dsn, "orders").store()
    texts = [repr(sink), repr(store), repr(store.transactions)]
    with pytest.raises(SinkFailed) as caught:
        Claims({"out": sink}, "process", "me", {"out": 1}).begin({"out": SCHEMA}, is_new=True)
    texts += [str(caught.value), repr(caught.value.__cause__), repr(caught.value.__context__)]
    with pytest.raises(StoreAway) as away:
        store.writer(Lane("me", "out", 0, 1)).write([output(1, (1, "a"))])
    texts.append(str(away.value))
    with pytest.raises(clonos.errors.DefinitionError) as unclear:
        Place(f"host=x {secret}").store().place  # noqa: B018
    texts.append(str(unclear.value))
    assert not [text for text in texts if "hunter2" in text]
    assert "127.0.0.1:1/shop" in str(caught.value)


def test_psycopg_is_asked_for(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(clonos.errors.DefinitionError, match="psycopg") as caught:
        Place("postgresql://x/y").store().place  # noqa: B018
    assert ".[postgres]" in caught.value.remedy


# --- the contract --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("upsert", "every"), [(None, 11), ("id", 17), pytest.param(None, 1, marks=pytest.mark.soak)]
)
def test_the_contract_is_kept(postgres, upsert, every, monkeypatch):
    monkeypatch.setattr(postgres_sink, "LOCKED_MS", 50)  # many lives are frozen with a lock

    def make():
        return clonos.sinks.postgres(postgres, f"t{next(_numbers)}", upsert=upsert)

    def read(sink):
        return Place(postgres, sink.store.transactions.target.table).rows()

    report = check_sink(make, read, patience="10 seconds", every=every, keyed=bool(upsert))
    assert report.passed, report
    lines = [f.points for f in report.findings if "every line" in f.scenario]
    assert min(lines) > 100 / every
