"""What a job that goes back in time may not do, and what nothing is named again."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import clonos
from clonos.cluster.directory import JobDirectory
from clonos.cluster.durable import JournalFile
from clonos.errors import CannotRewind, OtherJob, WrongType
from clonos.operators.base import OperatorInfo
from clonos.replay import NothingToReplay
from clonos.simulator.command import main
from clonos.simulator.runs.kinds import Kind
from clonos.simulator.runs.seeds import simulate
from clonos.sinks.delivered import DeliveredStore
from clonos.sinks.lanes import Lane, Output, OutputKey, OutputWriter
from clonos.sinks.outputs import as_dataframe, read_all
from clonos.sinks.taken_back import take_back
from clonos.sinks.writers import writer_of
from clonos.storage.segments import Position
from clonos.storage.tables import Table
from clonos.upgrade.section import borders, section_of

INFO = OperatorInfo("job", 3, "pay[1]", "pay", 0, 1, 2)


@pytest.mark.parametrize("first", [0, pytest.param(100, marks=pytest.mark.soak)])
def test_no_seed_violates_an_invariant(first):
    assert main(6 if first == 0 else 400, first, kind=Kind(rewind=True)) == 0


def test_a_section_goes_back_twice_before_anybody_has_done_anything():
    """What those before it carry for it since the first time, they send the second time, too."""
    assert simulate(327, Kind(rewind=True)).verdict == "ok"


def test_what_a_section_is_sent_once_more_does_not_say_when_it_was_made_again():
    """That would be the clock of whoever takes the job back: no latency of its rows, and a seed
    would not be repeatable."""
    assert simulate(1, Kind(rewind=True)).digest == simulate(1, Kind(rewind=True)).digest


def test_calls_asked_before_keep_their_names_and_later_ones_get_others():
    """Whatever a job goes back to, and how often: a key names one row for ever."""
    once = [[7, 3]]
    assert INFO.numbered_effect_key(7, once) == INFO.numbered_effect_key(7)
    assert INFO.numbered_effect_key(8, once) != INFO.numbered_effect_key(8)
    again = [[7, 3], [9, 5]]  # a point behind the first time
    assert INFO.numbered_effect_key(9, again) == INFO.numbered_effect_key(9, once)
    further = [[4, 5]]  # a point before it
    keys = [
        {INFO.numbered_effect_key(n, rewound) for n in range(10, 99)}
        for rewound in ((), once, again, further)
    ]
    assert not set.intersection(*keys)
    assert len(set.union(*keys)) == sum(map(len, keys[:3])), "of one generation, one row"


def test_lives_never_share_a_name():
    """A tree of lives: each begins at some number of an earlier one; what a number means is fixed
    by the life that asked it."""
    draw = random.Random(1)
    lives: list[tuple[list[list[int]], dict[int, int]]] = [([], {})]
    meant: dict[str, tuple[int, int]] = {}
    for generation in range(1, 60):
        rewound, mine = draw.choice(lives)
        asked = draw.randint(0, max(mine, default=0))
        rewound = [[n, g] for n, g in rewound if n <= asked] + [[asked, generation]]
        mine = {n: life for n, life in mine.items() if n <= asked}
        mine |= dict.fromkeys(range(asked + 1, asked + draw.randint(2, 9)), generation)
        lives.append((rewound, mine))
        for number, life in mine.items():
            key = INFO.numbered_effect_key(number, rewound)
            assert meant.setdefault(key, (life, number)) == (life, number)


def job() -> clonos.Job:
    found = clonos.Job("counting")
    rows = found.source(clonos.sources.from_batches([], "n long"), name="rows")
    rows.sink(clonos.sinks.console(), name="out")
    return found


def test_where_nothing_was_nobody_goes_back(tmp_path):
    with pytest.raises(NothingToReplay, match="has no checkpoint_dir"):
        job().rewind(at="oldest")
    with pytest.raises(NothingToReplay, match="ever been started"):
        job().rewind(at="oldest", checkpoint_dir=str(tmp_path / "none"))


def test_what_another_has_written_until_the_journal_is_ours_counts(tmp_path, monkeypatch):
    """Someone else may have changed the job, or taken it back, between our look and our lock."""

    def opened(directory: JobDirectory) -> JournalFile:
        other = clonos.Job("other")
        rows = other.source(clonos.sources.from_batches([], "n long"), name="rows")
        rows.sink(clonos.sinks.collect(), name="elsewhere")
        JobDirectory(str(tmp_path), None, on_one_machine=True).claim(other.compile())
        return JournalFile(directory.journal_root, "fsync", tell)

    tell: Any = pytest.fail
    directory = JobDirectory(str(tmp_path), None, on_one_machine=True)
    assert directory.checkpoint_id
    JournalFile(directory.journal_root, "fsync", tell).close()
    directory.claim(job().compile())
    monkeypatch.setattr("clonos.replay.rewind._journal", opened)
    with pytest.raises(OtherJob):
        job().rewind(at="oldest", checkpoint_dir=str(tmp_path))


def test_what_cannot_be_taken_back_is_said_first(tmp_path):
    with pytest.raises(WrongType, match="outputs='drop'"):
        job().rewind(at="oldest", checkpoint_dir=str(tmp_path), outputs="drop")
    with pytest.raises(CannotRewind, match="kind console cannot take"):
        job().rewind(at="oldest", checkpoint_dir=str(tmp_path), outputs="supersede")


def test_times_count_from_the_version_that_began_with_them(tmp_path):
    """Whoever dies between the announcement and the record has not gone back."""
    compiled = job().compile()
    directory = JobDirectory(str(tmp_path), None, on_one_machine=True)
    directory.claim(compiled, 0)
    for point in (4, 3):
        directory.announce(compiled, 1, {"out": 7}, rewound={"point": point})
    again = JobDirectory(str(tmp_path), None, on_one_machine=True)
    again.read()
    assert again.rewound(0) == []
    assert again.rewound(1) == [{"version": 1, "point": 3}]
    assert again.numbers == {"out": 7}
    lanes = {"out": {"0": 17, "1": 4}}
    directory.announce(compiled, 1, rewound={"point": 3, "lanes": lanes})
    again.read()
    assert again.lanes_began == {("out", 0): 17, ("out", 1): 4}


def test_a_rewind_that_was_not_made_is_forgotten_when_another_graph_goes_on(tmp_path):
    """Its version is that of the graph now: what was delivered since would be deleted."""
    compiled = job().compile()
    directory = JobDirectory(str(tmp_path), None, on_one_machine=True)
    directory.claim(compiled, 0)
    directory.announce(compiled, 1, rewound={"point": 3, "lanes": {"out": {"0": 17}}})
    again = JobDirectory(str(tmp_path), None, on_one_machine=True)
    again.read()
    again.announce(compiled, 1)
    again.claim(compiled, 1)
    again.read()
    assert again.rewound(1) == []
    assert again.lanes_began == {}


def numbered(store: DeliveredStore) -> Iterator[tuple[int, int, int]]:
    return ((one.generation, one.task_index, one.seq) for one in store.read("out"))


def test_delivered_output_is_taken_back(tmp_path):
    """Also half of a file; what the new generation delivers stays, and twice is once."""
    store = DeliveredStore(tmp_path)
    batch = pa.RecordBatch.from_pydict({"n": [1, 2]})
    for generation, task, first, last in [(0, 0, 1, 4), (0, 0, 5, 6), (0, 1, 1, 2), (1, 0, 7, 8)]:
        store.write("out", task, generation, first, last, [batch] * (last - first + 1))
    store.write("out", 2, 0, 3, 9, [batch], seqs=[8])
    store.write("out", 3, 0, 1, 1, [batch])  # the sink had more tasks once
    for _ in range(2):
        store.take_back("out", 1, {0: 3, 1: 2, 2: 5})
        found = list(numbered(store))
        assert found == [
            *((0, 0, n) for n in (1, 2, 3)), (0, 1, 1), (0, 1, 2), (0, 3, 1), (1, 0, 7), (1, 0, 8),
        ]  # fmt: skip


def test_rows_of_a_table_are_taken_back(tmp_path):
    table = Table(str(tmp_path))
    batch = pa.RecordBatch.from_pydict({"n": [1]})
    table.create(batch.schema)
    for generation, seq in [(0, 1), (0, 300), (0, 301), (1, 302)]:
        table.write(0, generation, seq, batch)
    table.write(1, 0, 7, batch)  # the sink had more tasks once
    for _ in range(2):
        table.take_back(1, {0: 300})
        found = [(s.task, *s.position) for s in table.segments()]
        assert found == [(0, 0, 1), (0, 0, 300), (0, 1, 302), (1, 0, 7)]


def life(path: str, incarnation: int) -> OutputWriter:
    """The writer of a life of the only task that writes a table."""
    make = writer_of(clonos.sinks.table(path), "process", Lane("job", "out", 0))
    assert make is not None
    return make(incarnation)


def test_a_segment_that_comes_too_late_does_not_count(tmp_path):
    """Its writer was frozen while the job went back, so it appears after all others were deleted.
    Who reads the table by its files alone has it until the next start, or the end."""
    path, batch = str(tmp_path), pa.RecordBatch.from_pydict({"n": [1]})
    table = Table(path)
    table.create(batch.schema)
    frozen = life(path, 1)
    frozen.write([Output(OutputKey(0, seq), batch) for seq in (1, 300, 301)])
    reader = Table(path)
    assert len(reader.segments()) == 3
    take_back({"out": clonos.sinks.table(path)}, "", "process", 1, {"out": {"0": 300}})
    successor = life(path, 2)
    successor.write([Output(OutputKey(1, 303), batch)])
    frozen.write([Output(OutputKey(0, 302), batch)])
    stays = [(0, 1), (0, 300), (1, 303)]
    for one in (reader, Table(path)):
        assert [tuple(s.position) for s in one.segments()] == stays
        assert [tuple(s.position) for s in one.segments({0: Position(0, 300)})] == stays[2:]
    table.take_back(2, {0: 300})  # back once more, beyond what the first time has left
    successor.write([Output(OutputKey(1, 304), batch)])
    table.write(0, 2, 305, batch)
    stays[2:] = [(2, 305)]
    assert [tuple(s.position) for s in reader.segments()] == stays
    table.end()
    assert len(list(tmp_path.rglob("*.arrow"))) == len(stays)


class OneTask:
    """A session whose only task is this process."""

    def __init__(self, count: int) -> None:
        self._numbers = pa.record_batch({"id": range(count)})

    def range(self, *_: int) -> OneTask:
        return self

    def mapInArrow(self, read: Any, _: Any) -> list[pa.RecordBatch]:  # noqa: N802 - Spark's name
        return list(read([self._numbers]))


def test_delivered_output_that_comes_too_late_does_not_count(tmp_path):
    """Its driver was frozen while it moved output from the journal to a file."""
    store = DeliveredStore(tmp_path)
    batch = pa.RecordBatch.from_pydict({"n": [1, 2]})
    store.write("out", 0, 0, 1, 3, [batch] * 3)
    store.take_back("out", 1, {0: 4})
    for generation, first, last in [(0, 4, 6), (0, 7, 7), (1, 8, 8)]:
        store.write("out", 0, generation, first, last, [batch] * (last - first + 1))
    stays = [(0, 0, 1), (0, 0, 2), (0, 0, 3), (0, 0, 4), (1, 0, 8)]
    assert list(numbered(store)) == stays
    session: Any = OneTask(len(store.files("out")))
    rows: Any = as_dataframe(session, store, "out", batch.schema)
    assert len(rows) == len(stays), "Spark's tasks read the same"
    assert read_all(store, "out", batch.schema).num_rows == 2 * len(stays)


def test_a_section_begins_where_a_task_begins():
    with pytest.raises(CannotRewind, match=r"no operator 'outt'.*begins with rows"):
        section_of(job().compile(), "outt")
    with pytest.raises(CannotRewind, match="same tasks as 'rows'"):
        section_of(job().compile(), "out")
    apart = clonos.Job("apart", parallelism=2)
    rows = apart.source(clonos.sources.from_batches([], "n long"), name="rows")
    once = rows.key_by("n").deduplicate(name="once")
    once.start_new_chain().sink(clonos.sinks.collect(), name="out")
    rows.start_new_chain().sink(clonos.sinks.collect(), name="all")
    compiled = apart.compile()
    tasks = compiled.plan.tasks
    found = {tasks[task].operator for task in section_of(compiled, "once")}
    assert found == {"once", "out"}
    into = {tasks[compiled.plan.channels[c].sender].operator
            for c in borders(compiled.plan, section_of(compiled, "once"))}  # fmt: skip
    assert into == {"rows"}
