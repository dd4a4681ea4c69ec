"""Tables as a source: what is read, what is read again, and what is still needed."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

import clonos
from clonos.errors import BadSchema, NoTable, SourceError, UnknownColumn
from clonos.sources.readers import EndOfInput
from clonos.sources.tables import Cut, TableReader, passed
from clonos.storage.segments import Position
from clonos.storage.tables import Table

SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string())])


def rows_of(values):
    columns = {"n": list(values), "s": [str(v) for v in values]}
    return pa.RecordBatch.from_pydict(columns, schema=SCHEMA)


class Written:
    """A table that a query or a job's sink writes, with numbers that grow."""

    def __init__(self, path: Path, *, of_query: bool) -> None:
        self.table = Table(str(path))
        self.of_query, self.rows, self.batch = of_query, 0, 0

    def create(self) -> None:
        self.table.create(SCHEMA, "query q" if self.of_query else "job")

    def put(self, *sizes: int) -> None:
        """A batch with so many files, or outputs of as many tasks."""
        pieces = []
        for size in sizes:
            pieces.append(rows_of(range(self.rows, self.rows + size)))
            self.rows += size
        if self.of_query:
            staged = [
                file
                for number, piece in enumerate(pieces)
                for file in self.table.stage(self.batch, number, [piece], SCHEMA)
            ]
            self.table.take(self.batch, staged)
        else:
            for task, piece in enumerate(pieces):
                self.table.write(task, 0, self.batch, piece)
        self.batch += 1


@pytest.fixture(params=[True, False], ids=["query", "job"])
def written(request, tmp_path):
    return Written(tmp_path / "t", of_query=request.param)


def reader(written, index=0, parallelism=1, cut=b"", **how) -> TableReader:
    how.setdefault("schema", "n long, s string")
    source = clonos.sources.table(written.table.path, **how)
    made = source.reader(index, parallelism)
    assert isinstance(made, TableReader)
    made.open(0, cut)
    return made


def read(made: TableReader, max_rows: int = 1000) -> pa.RecordBatch | None:
    """What is there now."""
    made._look_at = 0.0
    return made.read(max_rows, 0.0)


def all_of(made: TableReader, max_rows: int = 1000) -> list[int]:
    found: list[int] = []
    while (batch := read(made, max_rows)) is not None:
        found += batch.column("n").to_pylist()
    return found


def test_a_reader_may_be_there_before_the_table(written):
    early = reader(written)
    assert read(early) is None
    written.create()
    assert read(early) is None
    written.put(3, 2)
    assert sorted(all_of(early)) == [0, 1, 2, 3, 4]
    written.put(1)
    assert all_of(early) == [5]
    written.table.end()
    with pytest.raises(EndOfInput):
        read(early)


@pytest.mark.parametrize("parallelism", [1, 2, 3])
@pytest.mark.parametrize("seed", range(8))
def test_whoever_dies_reads_the_same_batches_again(written, parallelism, seed):
    """Rows come while tasks read, are replaced, and replay from any of their cuts."""
    random = Random(f"{parallelism} {seed}")
    written.create()
    logs: list[list[tuple[bytes, pa.RecordBatch]]] = [[] for _ in range(parallelism)]
    readers = [reader(written, i, parallelism) for i in range(parallelism)]
    for _ in range(60):
        if random.random() < 0.3:
            written.put(*random.choices([1, 2, 7, 40], k=random.randint(1, 4)))
        index = random.randrange(parallelism)
        log = logs[index]
        if random.random() < 0.2:  # its successor begins at a floor, and replays the rest
            floor = random.randint(0, len(log))
            cut = log[floor - 1][0] if floor else b""
            readers[index] = again = reader(written, index, parallelism, cut)
            for logged, rows in log[floor:]:
                assert again.read_cut(logged) == rows
        batch = read(readers[index], random.choice([1, 3, 10, 100]))
        if batch is not None:
            log.append((readers[index].cut, batch))
    for index, made in enumerate(readers):
        while (batch := read(made, 10)) is not None:
            logs[index].append((made.cut, batch))
    found = [n for log in logs for _, rows in log for n in rows.column("n").to_pylist()]
    assert sorted(found) == list(range(written.rows))


def test_rows_of_a_sink_task_come_in_its_order(tmp_path):
    written = Written(tmp_path / "t", of_query=False)
    written.create()
    for _ in range(5):
        written.put(2, 3, 4)
    for index in (0, 1):
        made = reader(written, index, 2)
        found = all_of(made, 3)
        for task in range(index, 3, 2):
            of_task = [n for n in found if _task(n) == task]
            assert of_task == sorted(of_task)
            assert len(of_task) == 5 * (2 + task)


def _task(n: int) -> int:
    return 0 if n % 9 < 2 else 1 if n % 9 < 5 else 2


def test_what_is_passed_is_what_no_task_asks_for_again(written):
    written.create()
    for _ in range(6):
        written.put(10, 10)
    readers = [reader(written, i, 2) for i in range(2)]
    source = clonos.sources.table(written.table.path)
    assert passed(source, [b"", b""]) == {}
    for _ in range(3):
        read(readers[0], 15)
    read(readers[1], 15)
    cuts = [one.cut for one in readers]
    written.table.note_reader("me", passed(source, cuts))
    assert written.table.remove_read() > 0
    for index, cut in enumerate(cuts):
        made, before = reader(written, index, 2, cut), readers[index]
        assert all_of(made) == all_of(before)


def test_removed_rows_are_missed_or_left_out(written):
    written.create()
    written.put(2)
    late = reader(written)
    written.table.remove(0.0)
    written.put(1)
    with pytest.raises(SourceError, match="removed before"):
        read(late)
    assert all_of(reader(written, fail_on_data_loss=False)) == [2]


def test_an_idle_task_does_not_miss_what_was_not_its(tmp_path):
    written = Written(tmp_path / "t", of_query=True)
    written.create()
    readers = [reader(written, i, 2) for i in range(2)]
    written.put(1)
    assert [all_of(made) for made in readers] == [[0], []]
    written.table.remove(0.0)
    written.put(1)
    assert sorted(n for made in readers for n in all_of(made)) == [1]


def test_only_some_columns(written):
    written.create()
    written.put(2)
    source = clonos.sources.table(written.table.path, "s string")
    made = source.reader(0, 1)
    made.open(0)
    assert isinstance(made, TableReader)
    found = read(made)
    assert found is not None
    assert found.to_pydict() == {"s": ["0", "1"]}
    whole = clonos.sources.table(written.table.path)
    assert whole.narrow is not None
    assert whole.narrow(["n"]).rows_schema.names == ["n"]


def test_what_is_there_now(written):
    written.create()
    written.put(2)
    source = clonos.sources.table(written.table.path, available_now=True)
    written.put(3)
    assert source.ends
    made = source.reader(0, 1)
    made.open(0)
    batch = made.read(10, 0.0)
    assert batch is not None
    assert batch.num_rows == 2
    with pytest.raises(EndOfInput):
        made.read(10, 0.0)


def test_how_long_its_file_system_is_away_is_known(written, monkeypatch):
    written.create()
    written.put(2)
    made, known = reader(written), []

    def away(_: float) -> bool:
        known.append(made.away_s)
        monkeypatch.undo()
        return False

    made._retry._wait = away
    monkeypatch.setattr(Table, "exists", property(lambda _: _raise(OSError("timed out"))))
    assert all_of(made)
    assert known
    assert known[0] > 0
    assert made.away_s == 0


def _raise(error: Exception) -> bool:
    raise error


def test_mistakes(written, tmp_path):
    with pytest.raises(NoTable, match="its columns are not known"):
        clonos.sources.table(written.table.path)
    early = reader(written, schema="n string")
    written.create()
    with pytest.raises(SourceError, match="is int64, not string"):
        early.read(1, 0.0)
    with pytest.raises(BadSchema, match="is int64, not string"):
        clonos.sources.table(written.table.path, "n string")
    with pytest.raises(UnknownColumn):
        clonos.sources.table(written.table.path, "missing long")
    written.put(2)
    made = reader(written)
    read(made)
    other = Written(tmp_path / "other", of_query=written.of_query)
    other.create()
    other.put(2)
    with pytest.raises(SourceError, match="another table"):
        read(reader(other, cut=made.cut))
    with pytest.raises(SourceError, match="another table"):
        reader(other).read_cut(made.cut)
    with pytest.raises(SourceError, match="do not say"):
        reader(written, cut=b"nonsense")
    ahead = Cut(written.table.id, 3, {0: Position(9, 0)})
    with pytest.raises(SourceError, match=r"2 of 3 rows"):
        reader(written).read_cut(ahead.encode())
