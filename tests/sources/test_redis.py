"""Redis Streams as a source: what is read, and what is read again."""

from __future__ import annotations

import itertools
import os
import signal
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest

import clonos
from clonos.blame import users_traceback
from clonos.errors import BadSchema, OperatorError, SourceError, WrongType
from clonos.sources import outage, redis_reader
from clonos.sources import redis as redis_source
from clonos.sources.redis_reader import RedisReader, Span, decode, encode, forget
from clonos.testing.harness import Source, StepHarness

redis = pytest.importorskip("redis")
_numbers = itertools.count()


class Server:
    """A server, and the streams of a test."""

    def __init__(self, url: str) -> None:
        self.url, self.client = url, redis.Redis.from_url(url)
        self.names = [f"s{next(_numbers)}" for _ in range(3)]

    def add(self, stream: str, *numbers: int, **more: Any) -> None:
        for n in numbers:
            self.client.xadd(stream, {"n": n, **more})

    def opened(
        self, index: int = 0, parallelism: int = 1, cut: bytes = b"", **options: Any
    ) -> RedisReader:
        given: dict[str, Any] = {"schema": "n long", "metadata": True, **options}
        reader: Any = redis_source(self.url, self.names, **given).reader(index, parallelism)
        reader.open(0, cut)
        return reader  # type: ignore[no-any-return]


@pytest.fixture
def server(redis_url):
    made = Server(redis_url)
    yield made
    made.client.delete(*made.names)
    made.client.close()


def read(reader: RedisReader, max_rows: int = 1000) -> pa.RecordBatch:
    for _ in range(100):
        batch = reader.read(max_rows, 0.1)
        if batch is not None and batch.num_rows:
            return batch
    raise AssertionError("nothing came")


def numbers(*batches: pa.RecordBatch) -> list[int]:
    return [int(value) for batch in batches for value in batch.column("n").to_pylist()]


def test_the_first_batch_has_no_rows_and_says_where_the_reader_begins(server):
    server.add(server.names[0], 1)
    reader = server.opened(start="latest")
    assert reader.read(10, 0.1).num_rows == 0
    server.add(server.names[0], 2)
    server.add(server.names[1], 3)
    found = [read(reader)]
    if found[0].num_rows == 1:
        found.append(read(reader))
    assert sorted(numbers(*found)) == [2, 3]
    reader.close()


def test_entries_come_with_what_they_have_beside_their_fields(server):
    before = datetime.now(timezone.utc) - timedelta(seconds=1)
    server.add(server.names[0], 5, unknown="x")
    reader = server.opened()
    (row,) = read(reader).to_pylist()
    assert (row["n"], row["stream"]) == (b"5", server.names[0])
    assert server.client.xrange(server.names[0])[0][0].decode() == row["id"]
    assert before < row["timestamp"] < datetime.now(timezone.utc) + timedelta(seconds=1)
    reader.close()


def test_streams_are_shared_out(server):
    for n, name in enumerate(server.names):
        server.add(name, *range(10 * n, 10 * n + 10))
    readers = [server.opened(index, 2) for index in range(2)]
    found = []
    for reader in readers:
        reader.read(10, 0.01)
        while (batch := reader.read(100, 0.05)) is not None:
            found += numbers(batch)
        reader.close()
    assert sorted(found) == list(range(30))


def test_a_stream_that_is_added_begins_where_the_source_says_and_stays_there(server):
    names, server.names = server.names, server.names[:1]
    first = server.opened(start="latest")
    assert first.read(10, 0.01).num_rows == 0
    first.close()
    server.names = names
    server.add(names[0], 1)
    server.add(names[1], 2)
    both = server.opened(cut=first.cut, start="latest")
    assert both.read(10, 0.01).num_rows == 0
    both.close()
    server.add(names[1], 3)
    again = server.opened(cut=first.cut, start="latest")
    assert again.read_cut(both.cut).num_rows == 0
    found: list[int] = []
    while len(found) < 2:
        found += numbers(read(again))
    assert sorted(found) == [1, 3]
    again.close()


def test_a_stream_that_is_not_named_any_more_is_neither_read_nor_forgotten(server):
    first = server.opened()
    assert first.read(10, 0.01).num_rows == 0
    first.close()
    names, server.names = server.names, server.names[:1]
    for n, name in enumerate(names):
        server.add(name, n)
    reader = server.opened(cut=first.cut)
    with pytest.raises(SourceError, match=f"has read {names[1]}, {names[2]}, too") as caught:
        read(reader)
    assert "drop_state=" in caught.value.remedy
    reader.close()
    reader = server.opened(cut=forget(first.cut, names[1:]))
    assert numbers(read(reader)) == [0]
    assert decode(reader.cut).keys() == {names[0]}
    reader.close()
    server.names = names


def test_a_task_begins_at_a_time(server):
    server.add(server.names[0], 1)
    late = server.opened(start=datetime.now(timezone.utc) + timedelta(hours=1))
    assert late.read(10, 0.1).num_rows == 0
    assert late.read(10, 0.1) is None
    late.close()
    early = server.opened(start=datetime(2001, 1, 1, tzinfo=timezone.utc))
    assert numbers(read(early)) == [1]
    early.close()


def test_cuts_are_read_again_exactly_and_then_what_follows(server):
    for n, name in enumerate(server.names):
        server.add(name, *range(100 * n, 100 * n + 50))
    first = server.opened()
    given = [(first.read(10, 0.1), first.cut)]
    given.extend((read(first, 17), first.cut) for _ in range(5))
    first.close()
    again = server.opened()
    assert [again.read_cut(cut) for _, cut in given] == [batch for batch, _ in given]
    assert again.cut == given[-1][1]
    standby = server.opened()
    standby.open(0, given[-1][1])
    rest, other = [], []
    while (batch := again.read(100, 0.05)) is not None:
        rest.append(batch)
    while (batch := standby.read(100, 0.05)) is not None:
        other.append(batch)
    assert numbers(*rest) == numbers(*other)
    every = numbers(*rest, *(batch for batch, _ in given))
    assert sorted(every) == sorted(n for k in range(3) for n in range(100 * k, 100 * k + 50))
    again.close()
    standby.close()


def test_a_busy_stream_leaves_room_for_the_others(server):
    busy, *others = sorted(server.names)
    server.add(busy, *range(200))
    for name in others:
        server.add(name, -1)
    reader = server.opened()
    given = [(reader.read(10, 0.1), reader.cut)]
    given += [(read(reader, 10), reader.cut) for _ in range(4)]
    assert numbers(*(batch for batch, _ in given)).count(-1) == len(others)
    for name in others:  # later, when it has asked for more of the busy one
        server.add(name, -2)
    given += [(read(reader, 10), reader.cut) for _ in range(4)]
    assert numbers(*(batch for batch, _ in given)).count(-2) == len(others)
    assert sum(batch.num_rows for batch, _ in given) > 70, "batches are full nevertheless"
    reader.close()
    again = server.opened()
    assert [again.read_cut(cut) for _, cut in given] == [batch for batch, _ in given]
    again.close()


def test_what_does_not_fit_into_a_batch_is_not_asked_for(server):
    server.names = [f"many{n}" for n in range(20)]
    for name in server.names:
        server.add(name, *range(100), pad="x" * 500)
    reader = server.opened()
    reader.read(100, 0.1)
    before = server.client.info()["total_net_output_bytes"]
    assert sum(read(reader, 100).num_rows for _ in range(20)) == 2000
    assert server.client.info()["total_net_output_bytes"] - before < 2 * 2000 * 600
    reader.close()


@pytest.mark.parametrize("deleted", [0, 2, 4])
def test_entries_that_are_gone_are_named(server, deleted):
    name = server.names[0]
    server.add(name, *range(5))
    first = server.opened()
    begin = (first.read(10, 0.1), first.cut)[1]
    read(first)
    cut = first.cut
    first.close()
    server.client.xdel(name, server.client.xrange(name)[deleted][0])
    again = server.opened(cut=begin)
    with pytest.raises(SourceError, match="4 of 5 are there") as caught:
        again.read_cut(cut)
    assert name in caught.value.what
    again.close()


def test_entries_that_were_trimmed_before_they_were_read_are_mentioned(server, caplog):
    name = server.names[0]
    first = server.opened()
    first.read(10, 0.1)
    server.add(name, *range(3))
    assert numbers(read(first)) == [0, 1, 2]
    cut = first.cut
    first.close()
    server.add(name, *range(3, 10))
    server.client.xtrim(name, maxlen=2, approximate=False)
    again = server.opened(cut=cut)
    assert numbers(read(again)) == [8, 9]
    (said,) = caplog.messages
    assert name in said
    assert "(5 so far)" in said
    assert again.missed == 5, "which the job is told"
    assert decode(again.cut)[name].passed == 10, "and what is missing is not missing again"
    again.close()


@pytest.mark.parametrize(
    ("url", "reads"),
    [
        ("redis://cache", "s"),
        ("redis://cache/0", "s"),
        ("redis://cache/2", "s in database 2"),
        ("rediss://cache/1?db=3", "s in database 3"),
        ("unix:///tmp/7?db=4", "s in database 4"),
        ("unix:///tmp/7", "s"),
        ("redis://cache/x", "s"),
    ],
)
def test_the_number_of_the_database_is_found_as_the_client_finds_it(url, reads):
    source = redis_source(url, "s", schema="n long")
    assert source.reads == (reads,)
    connection = redis.Redis.from_url(url).connection_pool.connection_kwargs
    assert connection.get("db", 0) == int(reads.rpartition(" ")[2]) if " " in reads else True


@pytest.mark.parametrize("start", ["earliest", "latest", datetime(2001, 1, 1, tzinfo=timezone.utc)])
def test_what_is_trimmed_or_deleted_after_it_was_read_is_not_mentioned(
    server, monkeypatch, caplog, start
):
    monkeypatch.setattr(redis_reader, "CHECK_S", 0.0)
    name, other, late = server.names
    server.add(name, *range(9))
    server.client.xtrim(name, maxlen=4, approximate=False)
    reader = server.opened(start=start)
    reader.read(10, 0.1)
    for n in range(6):
        if n == 3:  # and created again: it counts from the beginning
            server.client.delete(late)
        for stream in server.names:
            server.add(stream, n)
        while reader.read(2, 0.02) is not None:
            pass
        if n % 2:
            server.client.xtrim(name, maxlen=n % 3, approximate=False)
            server.client.xdel(other, server.client.xrevrange(other)[0][0])
    reader.close()
    server.client.delete(other)
    later = server.opened(start=datetime.now(timezone.utc) + timedelta(seconds=1))
    later.read(10, 0.1)
    while later.read(10, 0.2) is None:
        server.add(name, 7)
        server.add(other, 7)
    later.read(10, 0.02)
    later.close()
    assert not caplog.messages


def test_a_stream_that_ends_before_what_was_read_is_mentioned_and_may_go_on(
    server, monkeypatch, caplog
):
    """As after a failover to a replica that lacked the last entries."""
    monkeypatch.setattr(redis_reader, "CHECK_S", 0.0)
    name = server.names[0]
    reader = server.opened()
    reader.read(10, 0.1)
    for n in (1, 2):
        server.client.xadd(name, {"n": n}, id=f"100-{n}")
    assert numbers(read(reader)) == [1, 2]
    server.client.delete(name)
    server.client.xadd(name, {"n": 1}, id="100-1")
    assert [reader.read(10, 0.02) for _ in range(3)] == [None] * 3
    (said,) = caplog.messages
    assert f"stream {name!r} ends at 100-1, before 100-2" in said
    assert reader.shrunk == 1, "which the job is told"
    server.add(name, 3)
    assert numbers(read(reader)) == [3]
    reader.read(10, 0.02)
    assert len(caplog.messages) == 1
    reader.close()


@pytest.mark.parametrize("is_seen_away", [True, False])
@pytest.mark.parametrize("protocol", [2, 3])
def test_a_stream_that_is_made_again_with_lower_ids_is_an_error(
    server, monkeypatch, is_seen_away, protocol
):
    monkeypatch.setattr(redis_reader, "CHECK_S", 0.0)
    server.url += f"?protocol={protocol}"
    name = server.names[0]
    server.add(name, 1, 2)
    reader = server.opened()
    reader.read(10, 0.1)
    assert numbers(read(reader)) == [1, 2]
    server.client.delete(name)
    if is_seen_away:
        reader.read(10, 0.02)
    server.client.xadd(name, {"n": 3}, id="1-1")
    if not is_seen_away:
        assert reader.read(10, 0.02) is None
        server.client.xadd(name, {"n": 4}, id="1-2")
    with pytest.raises(SourceError, match="was made again with lower ids") as caught:
        reader.read(10, 0.02)
    assert name in caught.value.what
    assert "drop_state=" in caught.value.remedy
    reader.close()


def with_five_read(server) -> tuple[str, Any]:
    """A stream whose five entries were read, and its reader."""
    name, reader = server.names[0], server.opened()
    reader.read(10, 0.1)
    for n in range(1, 6):
        server.client.xadd(name, {"n": n}, id=f"100-{n}")
    assert numbers(read(reader)) == [1, 2, 3, 4, 5]
    return name, reader


def test_a_replica_that_lags_is_no_stream_that_was_made_again(server, monkeypatch, caplog):
    monkeypatch.setattr(redis_reader, "CHECK_S", 0.0)
    name, reader = with_five_read(server)
    server.client.delete(name)  # the next server that answers at the same address
    monkeypatch.setattr(redis_reader, "_connection_of", lambda hello: None)
    for n in range(1, 7):
        server.client.xadd(name, {"n": n}, id=f"100-{n}")
        if n < 6:
            assert reader.read(10, 0.02) is None
    assert numbers(read(reader)) == [6]
    assert len(caplog.messages) == 1
    reader.close()


@pytest.mark.parametrize("said", [[None, None, 5, 5], [5, 6, 6, 7], [5, None, 6, 6]])
def test_another_server_that_has_more_has_not_made_the_stream_again(
    server, monkeypatch, caplog, said
):
    """A replica is promoted when it has caught up, or a primary that was restarted gives way to one
    that has lost less."""
    monkeypatch.setattr(redis_reader, "CHECK_S", 0.0)
    name, reader = with_five_read(server)
    server.client.delete(name)
    answers = iter(said)
    monkeypatch.setattr(redis_reader, "_connection_of", lambda hello: next(answers))
    for n, before in enumerate([None, *said[:-1]], 1):
        if before is None or before != said[n - 1]:
            server.client.xadd(name, {"n": n}, id=f"100-{n}")
        assert reader.read(10, 0.02) is None
    assert len(caplog.messages) == 1
    reader.close()


@pytest.mark.parametrize(
    ("hello", "connection"),
    [
        ([b"server", b"redis", b"id", 7, b"role", b"master"], 7),
        ({b"role": b"master", b"id": 8}, 8),
        ({b"role": b"replica", b"id": 9}, None),
        ([b"role", b"slave"], None),
        (ValueError("unknown command"), None),
    ],
)
def test_who_says_that_it_takes_writes(hello, connection):
    assert redis_reader._connection_of(hello) == connection


def test_what_is_said_of_a_server_that_is_away(server):
    reader: Any = redis_source("redis://:secret@127.0.0.1:1", "s", schema="n long").reader(0, 1)
    assert "secret" not in repr(redis_source("redis://:secret@a", "s", schema="n long"))
    reader.open(0)
    with pytest.raises(SourceError, match="does not answer") as caught:
        reader.read(10, 0.1)
    assert caught.value.where == "Redis at 127.0.0.1:1"
    assert "secret" not in str(caught.value)
    assert not users_traceback(caught.value), "a library of ours is no code of the user's"
    later = encode({"s": Span("0-0", "1-1", 1)})
    reader.open(1, later)
    assert reader.read(10, 0.1) is None  # it has begun: it waits
    reader.close()
    server.client.set(server.names[0], "no stream")
    wrong = server.opened()
    wrong.read(10, 0.1)
    with pytest.raises(SourceError, match="WRONGTYPE"):
        wrong.read(10, 0.1)
    wrong.close()


def test_a_frozen_server_is_waited_for_and_nothing_is_lost_or_comes_twice(
    server, monkeypatch, caplog
):
    monkeypatch.setattr(redis_reader, "ANSWER_S", 0.2)
    monkeypatch.setattr(outage, "SILENT_S", 0.0)
    server.add(server.names[0], 1)
    reader = server.opened()
    assert numbers(read(reader)) == [1]
    server.add(server.names[0], 2)
    pid = server.client.info("server")["process_id"]
    os.kill(pid, signal.SIGSTOP)
    try:
        while not reader.away_s:
            assert reader.read(10, 0.1) is None
    finally:
        os.kill(pid, signal.SIGCONT)
    server.add(server.names[0], 3)
    assert numbers(read(reader)) == [2, 3]
    reader.close()
    away, back = caplog.messages
    assert "it cannot be read: Timeout" in away
    assert back.endswith("it works again")


def test_a_server_that_stays_away_is_mentioned_once(monkeypatch, caplog):
    monkeypatch.setattr(outage, "SILENT_S", 0.2)
    reader: Any = redis_source("redis://:secret@127.0.0.1:1", "s", schema="n long").reader(0, 1)
    reader.open(1, encode({"s": Span("0-0", "1-1", 1)}))
    assert [reader.read(10, 0.1) for _ in range(8)] == [None] * 8
    reader.close()
    (said,) = caplog.messages
    assert said.startswith("Redis at 127.0.0.1:1: for ")
    assert "secret" not in said


@pytest.mark.parametrize("change", ["resetpass >y", "off", "-xread", "resetkeys"])
def test_a_user_who_may_not_read_any_more_is_an_error(server, change):
    server.client.execute_command("ACL SETUSER joe reset on >x ~* +@all")
    admin, server.url = server.url, server.url.replace("redis://", "redis://joe:x@")
    reader = server.opened()
    server.add(server.names[0], 1)
    assert numbers(read(reader)) == [1]
    server.client.execute_command(f"ACL SETUSER joe {change}")
    server.client.execute_command("CLIENT KILL USER joe")
    with pytest.raises(SourceError, match="cannot be read") as caught:
        read(reader)
    assert "user" in caught.value.remedy
    reader.close()
    server.url = admin


def test_bytes_that_are_no_cut():
    for wrong in (b"\xc1", b"\x81\xa1a\x01", b"\x01"):
        with pytest.raises(SourceError, match="do not say where"):
            decode(wrong)


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"schema": "id long", "metadata": True}, BadSchema),
        ({"schema": "n array<long>"}, BadSchema),
        ({"schema": "n long", "start": "yesterday"}, WrongType),
        ({"schema": "n long", "url": "redis://host:port"}, WrongType),
        ({"schema": "n long", "url": "redis://[::1"}, WrongType),
        ({"schema": "n long", "url": "redis://:12/3@host:6379"}, WrongType),  # rest of a password
        ({"schema": "n long", "streams": []}, WrongType),
    ],
)
def test_wrong_arguments(options, kind):
    with pytest.raises(kind) as caught:
        redis_source(**{"url": "redis://a", "streams": "s", **options})
    assert caught.value.remedy


def test_fields_become_columns_and_those_that_do_not_fit_are_bad_records():
    spec = redis_source("redis://a", "s", schema="n long, word string", metadata=True)
    rows = [
        (b"1", "é".encode(), "s", "1-1", None),
        (b"x", b"", "s", "1-2", None),
        (None, None, "s", "1-3", None),
    ]
    columns = zip(zip(*rows, strict=True), spec.schema, strict=True)
    batch = pa.RecordBatch.from_arrays(
        [pa.array(c, f.type) for c, f in columns], schema=spec.schema
    )

    def harness(bad: Any) -> StepHarness:
        job = clonos.Job(on_bad_record=bad)
        job.source(spec).sink(clonos.sinks.collect(), name="out")
        return StepHarness(job.compile().codes[0].program())

    (out,) = harness("drop").feed(Source(batch)).batches.values()
    assert [(r["n"], r["word"], r["id"]) for r in out.payload.to_pylist()] == [
        (1, "é", "1-1"),
        (None, None, "1-3"),
    ]
    with pytest.raises(OperatorError, match="does not fit the schema"):
        harness("fail").feed(Source(batch))
