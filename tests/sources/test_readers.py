from __future__ import annotations

import gzip
import socket
import threading
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import clonos
from clonos.errors import BadGraph, BadSchema, OperatorError, SourceError, UnknownColumn
from clonos.sources.readers import EndOfInput, IteratorReader, RateReader
from clonos.sources.socket_reader import SocketReader
from clonos.testing import InMemoryRun, StepHarness, check_restore, rows
from clonos.testing import Source as SourceEvent


def read_all(reader, max_rows=1000):
    reader.open(0)
    batches = []
    try:
        while True:
            batch = reader.read(max_rows, 0.01)
            if batch is not None:
                assert 0 < batch.num_rows <= max_rows
                batches.append(batch)
    except EndOfInput:
        reader.close()
        return [row for batch in batches for row in rows(batch)]


def check_replay(make, expected):
    for done in range(len(expected) + 1):
        reader = make()
        reader.open(done)
        if done < len(expected):
            batch = reader.read_exactly(len(expected) - done)
            assert rows(batch) == expected[done:]
        with pytest.raises(EndOfInput):
            reader.read(1, 0.0)
        reader.close()


lines_of_file = st.lists(st.sampled_from(["", "a", "bb", "ä", "long " * 3]), max_size=12)


@settings(max_examples=60)
@given(lines_of_file, st.booleans(), st.sampled_from(["\n", "\r\n"]), st.integers(1, 5))
def test_every_line_belongs_to_one_task(tmp_path_factory, lines, ends, end, parallelism):
    path = tmp_path_factory.mktemp("lines") / "x.txt"
    text = end.join(lines) + (end if ends and lines else "")
    path.write_bytes(text.encode())
    spec = clonos.sources.files(str(path))
    parts = [read_all(spec.reader(i, parallelism), 3) for i in range(parallelism)]
    expected = [(line.encode(),) for line in text.split(end)]
    if expected[-1] == (b"",):
        expected.pop()
    assert [row for part in parts for row in part] == expected
    for i in range(parallelism):
        check_replay(lambda i=i: spec.reader(i, parallelism), parts[i])


def test_small_chunks_do_not_matter(tmp_path, monkeypatch):
    path = tmp_path / "x.txt"
    path.write_text("".join(f"line {i}\n" for i in range(50)))
    monkeypatch.setattr("clonos.sources.files_reader._CHUNK_BYTES", 3)
    spec = clonos.sources.files(str(path))
    parts = [row for i in range(4) for row in read_all(spec.reader(i, 4))]
    assert parts == [(f"line {i}".encode(),) for i in range(50)]


def test_many_files_and_compressed_ones(tmp_path):
    for i in range(4):
        (tmp_path / f"{i}.txt").write_text(f"{i}\n")
    (tmp_path / "_hidden.txt").write_text("no\n")
    spec = clonos.sources.files(f"{tmp_path}/*.txt")
    assert read_all(spec.reader(1, 2)) == [(b"1",), (b"3",)]
    assert read_all(clonos.sources.files(str(tmp_path)).reader(0, 3)) == [(b"0",), (b"3",)]
    packed = tmp_path / "packed.txt.gz"
    packed.write_bytes(gzip.compress(b"x\ny"))
    spec = clonos.sources.files(packed.as_uri())
    assert read_all(spec.reader(0, 2)) == [(b"x",), (b"y",)]
    assert read_all(spec.reader(1, 2)) == []


def test_parquet(tmp_path):
    table = pa.table({"n": list(range(10))})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=3)
    spec = clonos.sources.files(str(tmp_path), format="parquet")
    assert spec.rows_schema.names == ["n"]
    parts = [read_all(spec.reader(i, 2), 2) for i in range(2)]
    assert [row[0] for row in parts[0]] == [0, 1, 2, 6, 7, 8]
    assert [row[0] for row in parts[1]] == [3, 4, 5, 9]
    check_replay(lambda: spec.reader(0, 2), parts[0])


def parse(spec, lines, **options):
    """What the chain makes of lines, and the program."""
    job = clonos.Job(**options)
    job.source(spec, name="in").sink(clonos.sinks.collect())
    code = job.compile().codes[0]
    batch = pa.record_batch({"value": pa.array(lines, pa.binary())})
    outputs = check_restore(code.program, [SourceEvent(batch), SourceEvent(batch)])
    program = code.program()
    StepHarness(program).feed(SourceEvent(batch))
    return rows(outputs[0].batches[0]) if outputs[0].batches else [], program


def test_json(tmp_path):
    path = tmp_path / "x.json"
    path.write_text('{"a": 1, "b": "x"}\n\n{"b": "y", "c": 5}\n')
    guessed = clonos.sources.files(str(path), format="json")
    assert guessed.rows_schema.names == ["a", "b", "c"]
    spec = clonos.sources.files(str(path), format="json", schema="a int, b string")
    lines = [row[0] for row in read_all(spec.reader(0, 1))]
    assert parse(spec, lines)[0] == [(1, "x"), (None, "y")]
    broken = [b'{"a": 1}', b'{"a":', b"2}", b'{"a": "x"}', b"\xff", None, b"5", b'{"a": 3}{"a": 4}']
    with pytest.raises(OperatorError, match="a line cannot be read as json"):
        parse(spec, broken)
    parsed, program = parse(spec, broken, on_bad_record="drop")
    assert parsed == [(1, None)]
    assert program.statistics == {"in: bad_records": 7}


def test_csv(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text('a,b\n1,x\n2,"y,z"\n')
    guessed = clonos.sources.files(str(path), format="csv")
    assert [str(t) for t in guessed.rows_schema.types] == ["int64", "string"]
    spec = clonos.sources.files(str(path), format="csv", schema="a int, b string")
    lines = [row[0] for i in range(2) for row in read_all(spec.reader(i, 2))]
    assert parse(spec, lines)[0] == [(1, "x"), (2, "y,z")]
    parsed, program = parse(spec, [b"1,x", b"1", b"q,x", b",", b"\xff,a"], on_bad_record="drop")
    assert parsed == [(1, "x"), (None, None)]
    assert program.statistics == {"in: bad_records": 3}


def test_bad_files(tmp_path):
    with pytest.raises(SourceError, match="no files"):
        clonos.sources.files(str(tmp_path / "none"))
    with pytest.raises(BadGraph, match="format"):
        clonos.sources.files(str(tmp_path), format="xml")
    (tmp_path / "x").write_text("{")
    with pytest.raises(BadSchema, match="guess"):
        clonos.sources.files(str(tmp_path), format="json")
    reader = clonos.sources.files(str(tmp_path)).reader(0, 1)
    with pytest.raises(SourceError, match="fewer rows than"):
        reader.open(5)
    reader.open(0)
    with pytest.raises(SourceError, match="before the 5"):
        reader.read_exactly(5)


@pytest.mark.parametrize(
    ("column", "schema", "said"),
    [
        ([1, 2**40], "n int", "1099511627776 not in range"),
        ([1.5], "n int", "truncated"),
        ([1e300], "n float", "too large for float"),
        (["x"], "n int", "'x'"),
        ([None], "n int not null", "not nullable"),
    ],
)
def test_a_parquet_file_that_does_not_fit_is_named(tmp_path, column, schema, said):
    pq.write_table(pa.table({"n": column}), tmp_path / "a.parquet")
    reader = clonos.sources.files(str(tmp_path), format="parquet", schema=schema).reader(0, 1)
    with pytest.raises(SourceError, match=said) as caught:
        read_all(reader)
    assert caught.value.where == f"{tmp_path}/a.parquet"
    other = clonos.sources.files(str(tmp_path), format="parquet", schema="m int").reader(0, 1)
    with pytest.raises(UnknownColumn, match="no column 'm'"):
        read_all(other)


def test_a_file_that_is_broken_is_named(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"PAR1xxxxPAR1")
    with pytest.raises(SourceError, match="cannot be read") as caught:
        clonos.sources.files(str(tmp_path), format="parquet")
    assert caught.value.where == f"{tmp_path}/a.parquet"
    cut = tmp_path / "b.txt.gz"
    cut.write_bytes(gzip.compress(b"line\n" * 1000)[:-10])
    with pytest.raises(SourceError, match="Truncated"):
        read_all(clonos.sources.files(str(cut)).reader(0, 1))


def test_batches_and_iterators():
    spec = clonos.sources.from_batches([[("a", 1)], [("b", 2)], [("c", 3)]], "w string, n long")
    assert read_all(spec.reader(0, 2)) == [("a", 1), ("c", 3)]
    batches = [pa.record_batch({"n": pa.array([i, i + 1], pa.int32())}) for i in (0, 2)]
    reader = IteratorReader(batches, pa.schema([("n", pa.int64())]))
    reader.open(3)
    assert rows(reader.read_exactly(1)) == [(3,)]
    with pytest.raises(SourceError, match="second time"):
        read_all(reader)


def test_rate_is_a_function_of_the_row_number():
    clock = [100.0]

    def sleep(seconds):
        clock[0] += seconds

    def make(index):
        return RateReader(10, 7, 0, index, 2, now=lambda: clock[0], sleep=sleep)

    parts = [read_all(make(index)) for index in range(2)]
    assert [row[1] for row in parts[0]] == [0, 2, 4, 6]
    assert [row[1] for row in parts[1]] == [1, 3, 5]
    assert parts[1][1][0].timestamp() == pytest.approx(0.3)
    check_replay(lambda: make(0), parts[0])
    reader = make(0)
    reader.open(1)
    reader.skip(2)
    assert reader.read_exactly(1).column(1).to_pylist() == [6]
    reader = make(0)
    reader.open(0)
    start = clock[0]
    assert reader.read(1, 1.0).num_rows == 1
    assert reader.read(10, 0.05) is None
    clock[0] = start + 0.45
    assert reader.read(10, 0.0).num_rows == 2


@contextmanager
def server(handler):
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            connection, _ = listener.accept()
            with connection:
                handler(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()
        thread.join()


def test_socket():
    def handler(connection):
        assert connection.recv(100) == b"RESUME 7\n"
        for part in (b"one\r\ntw", b"o\n\n", b"x" * 30, b"x" * 30, b"\nrest"):
            connection.sendall(part)

    with server(handler) as (host, port):
        reader = SocketReader(host, port, resume=True, line_bytes_max=20)
        assert not reader.replayable
        reader.open(7)
        lines: list[bytes | None] = []
        try:
            while True:
                batch = reader.read(2, 1.0)
                lines += [] if batch is None else batch.column(0).to_pylist()
        except EndOfInput:
            reader.close()
    assert lines == [b"one", b"two", b"", None, b"rest"]


def test_socket_waits_and_fails_with_a_reason():
    with server(lambda connection: connection.recv(1)) as (host, port):
        reader = SocketReader(host, port)
        reader.open(0)
        assert reader.read(1, 0.01) is None
        reader.close()
    with pytest.raises(SourceError, match="cannot connect"):
        reader.open(0)


def test_broken_utf8_is_a_bad_record():
    spec = clonos.sources.socket_lines("localhost", 1)
    lines, program = parse(spec, [b"ok", b"\xff", None], on_bad_record="drop")
    assert lines == [("ok",)]
    assert program.statistics == {"in: bad_records": 2}


def test_a_batch_may_have_no_rows():
    source = clonos.sources.from_batches([[(1,)], []], schema="n long")
    job = clonos.Job("job", parallelism=2)
    job.source(source).sink(clonos.sinks.collect(), name="out")
    assert InMemoryRun(job.compile()).run()["out"].to_pylist() == [{"n": 1}]
