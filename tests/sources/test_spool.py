"""The spool: batches that are offered, again and with crashes, and what readers make of them."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import clonos
from clonos.errors import OtherQuery, SourceError, StoreAway, Superseded
from clonos.sources import spool as spool_module
from clonos.sources.prefetch import PrefetchThread
from clonos.sources.readers import EndOfInput
from clonos.sources.spool import (
    Manifest,
    Part,
    Spool,
    SpoolClosed,
    write_parts,
)
from clonos.sources.spool_reader import SpoolReader
from clonos.storage import retry as retry_module
from clonos.storage import table_batches
from clonos.storage.files import LocalFiles
from clonos.storage.layers import LayerStore
from tests.simulated import delivered

WAIT_S = 60.0
"""Nothing depends on it but how long a test hangs that has failed."""

SCHEMA = pa.schema([("n", pa.int64())])


def batch(values):
    return pa.RecordBatch.from_pydict({"n": list(values)}, schema=SCHEMA)


def written(spool, number, partitions):
    """What Spark's tasks write of a micro-batch."""
    return [
        part
        for i, values in enumerate(partitions)
        for part in write_parts(spool.store, number, i, [batch(values)], SCHEMA)
    ]


def offer(spool, number, partitions, query="q", extent=""):
    return spool.take(query, number, written(spool, number, partitions), extent)


def reader(spool, index=0, tasks=1, rows=0):
    made = SpoolReader(spool.uri, SCHEMA, index, tasks)
    made.open(rows)
    return made


def read(source, max_rows=1000):
    """Everything that is there now."""
    values = []
    try:
        while (found := source.read(max_rows, 0.0)) is not None:
            assert 0 < found.num_rows <= max_rows
            values += found.column(0).to_pylist()
    except EndOfInput:
        values.append("end")
    return values


sizes = st.lists(st.lists(st.integers(0, 5), max_size=4), max_size=6)


@settings(max_examples=60)
@given(sizes, st.integers(1, 4), st.integers(1, 7))
def test_every_row_belongs_to_one_task_and_can_be_read_again_from_anywhere(
    tmp_path_factory, batches, tasks, max_rows
):
    spool = Spool(str(tmp_path_factory.mktemp("spool")), tasks, "process")
    numbers = iter(range(10_000))
    offered = [[[next(numbers) for _ in range(size)] for size in sizes] for sizes in batches]
    for number, partitions in enumerate(offered):
        assert offer(spool, number, partitions)
    spool.end()
    dealt = [part for partitions in offered for part in partitions if part]
    total = 0
    for i in range(tasks):
        mine = [value for part in dealt[i::tasks] for value in part]
        assert read(reader(spool, i, tasks), max_rows) == [*mine, "end"]
        for done in range(len(mine) + 1):
            again = reader(spool, i, tasks)
            again.skip(done)
            if done < len(mine):
                rest = again.read_exactly(len(mine) - done)
                assert rest.column(0).to_pylist() == mine[done:]
            assert read(again) == ["end"]
        total += len(mine)
    assert spool.rows == total


def test_files_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(table_batches, "FILE_BYTES", 100)
    spool = Spool(str(tmp_path), 1, "process")
    pieces = [batch(range(i, i + 10)) for i in range(0, 100, 10)]
    parts = list(write_parts(spool.store, 0, 0, pieces, SCHEMA))
    assert [part.rows for part in parts] == [20, 20, 20, 20, 20]
    spool.take("q", 0, parts)
    assert read(reader(spool)) == list(range(100))


class Crash(BaseException):
    """The process is gone."""


class Mortal:
    """Makes the process die before or after any write to the store, of one file or another."""

    def __init__(self, monkeypatch, lives):
        self.lives = list(lives)
        self.done = 0
        put, create, delete = LayerStore.put, LayerStore.create, LayerStore.delete
        monkeypatch.setattr(LayerStore, "put", lambda *a: self.act(put, *a))
        monkeypatch.setattr(LayerStore, "create", lambda *a: self.act(create, *a))
        monkeypatch.setattr(
            LayerStore,
            "delete",
            lambda store, paths: [self.act(delete, store, [path]) for path in list(paths)],
        )

    def act(self, do, *args):
        self.done += 1
        at, after = self.lives[0] if self.lives else (0, False)
        if self.done == at:
            self.done = 0
            self.lives.pop(0)
            if after:
                do(*args)
            raise Crash
        return do(*args)


def test_rows_that_somebody_may_look_back_at_stay_and_are_no_backlog(tmp_path):
    spool = Spool(str(tmp_path), 1, "process", backlog_bytes_max=0)
    for number in range(4):
        offer(spool, number, [[10 * number, 10 * number + 1]])
    reader = SpoolReader(spool.uri, SCHEMA, 0, 1)
    nbytes = spool.kept_bytes
    spool.truncate([8], [0])
    assert (spool.backlog_bytes, spool.kept_bytes) == (0, nbytes)
    spool.wait_for_room()
    reader.open(0)
    assert read(reader)[:2] == [0, 1]
    spool.truncate([8], [4])
    assert 0 < spool.kept_bytes < nbytes
    reader = SpoolReader(spool.uri, SCHEMA, 0, 1)
    reader.open(4)
    assert read(reader)[:2] == [20, 21]
    again = Spool(spool.uri, 1, "process")
    assert again.kept_bytes == spool.kept_bytes
    spool.truncate([8])
    assert spool.kept_bytes == 0


class History:
    """What outlives the driver: Spark's commits, the job's floor, a task that goes on reading."""

    BATCHES = 4

    def __init__(self, uri):
        self.uri = uri
        self.committed = -1
        self.attempt = 0
        self.floor = 0
        self.seen: list[int] = []
        self.task = SpoolReader(uri, SCHEMA, 0, 1)
        self.task.open(0)

    def read(self):
        self.task._look_at = 0.0  # do not wait until it is time to look again
        return read(self.task)

    def run(self):
        """A driver, up to its end; what it offers again has other content."""
        self.attempt += 1
        spool = Spool(self.uri, 1, "process")
        spool.truncate([self.floor])
        while self.committed < self.BATCHES - 1:
            number = self.committed + 1
            first = 1000 * self.attempt + 10 * number
            offer(spool, number, [[first, first + 1], [first + 2]])
            self.committed = number
            self.seen += self.read()
            spool.truncate([self.floor])
            self.floor = len(self.seen) - 1  # what the task has just read is not below a floor yet
        spool.end()
        return spool


@pytest.mark.parametrize("again", [None, (1, False), (2, True), (3, False)], ids=str)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", range(1, 20))
def test_a_crash_anywhere(tmp_path, at, after, again):
    """The driver dies, is started again, and perhaps dies again a few writes later."""
    history = History(str(tmp_path))
    crashes = 0
    with pytest.MonkeyPatch.context() as patch:
        mortal = Mortal(patch, [(at, after), *([again] if again else [])])
        while True:
            try:
                spool = history.run()
                break
            except Crash:
                crashes += 1
    assert crashes == 2 - len(mortal.lives) - (again is None)
    assert crashes, "nothing was tried"
    recovered = reader(spool, rows=history.floor)
    assert read(recovered) == [*history.seen[history.floor :], *history.read()]
    seen = history.seen
    assert [value % 1000 for value in seen] == [
        10 * number + i for number in range(History.BATCHES) for i in range(3)
    ]
    for number in range(History.BATCHES):  # each batch is that of one attempt, whole
        assert len({value // 1000 for value in seen[3 * number : 3 * number + 3]}) == 1
    named = {part.path for manifest in spool._kept for part in manifest.parts}
    kept = {path for path in Spool(str(tmp_path), 1).store.list() if path.startswith("rows/")}
    assert kept <= named, "what nobody names is swept"


def test_a_batch_that_was_taken_is_not_taken_again(tmp_path):
    spool = Spool(str(tmp_path), 1)
    assert offer(spool, 3, [[1, 2]])
    before = spool.store.list()
    assert not offer(spool, 3, [[8, 9], [7]])
    assert spool.store.list() == before
    assert read(reader(spool)) == [1, 2]
    assert offer(spool, 4, [])  # nothing in it: nobody will ask for it
    assert spool.newest is not None
    assert spool.newest.batch == 3


def test_another_query_is_refused(tmp_path):
    offer(Spool(str(tmp_path), 1), 0, [[1]])
    spool = Spool(str(tmp_path), 1)
    with pytest.raises(OtherQuery, match="come from other"):
        offer(spool, 0, [[2]], query="other")
    assert read(reader(spool)) == [1]


@pytest.mark.parametrize(
    ("number", "extent", "told"),
    [(4, "rows 20 to 25", "began or ended elsewhere"), (2, "rows 0 to 10", "is at batch 2")],
)
def test_a_query_that_went_back_is_refused(tmp_path, number, extent, told):
    """By its number a batch with new rows would be taken for an old one."""
    offer(Spool(str(tmp_path), 1), 4, [[1, 2]], extent="rows 20 to 22")
    spool = Spool(str(tmp_path), 1)
    with pytest.raises(OtherQuery, match=told):
        offer(spool, number, [[1, 2, 3]], extent=extent)
    assert not offer(spool, 4, [[1, 2]], extent="rows 20 to 22")
    assert offer(spool, 5, [[3]], extent="rows 22 to 23")
    assert read(reader(spool)) == [1, 2, 3]


@pytest.mark.parametrize("is_there", [True, False])
def test_a_store_that_fails_for_a_while_holds_up_a_batch_and_changes_nothing(
    tmp_path, monkeypatch, caplog, is_there
):
    """Making a manifest durable fails after it has got its name, and readers have seen it; or
    before."""
    monkeypatch.setattr(retry_module, "FIRST_PAUSE_S", 0.001)
    spool = Spool(str(tmp_path), 1)
    sync_folder = LocalFiles.sync_folder
    failures: list[str] = []

    def failing(files, path):
        is_named = (tmp_path / "batch-000000000001").exists()
        if is_named is is_there and len(failures) < 5 and any(tmp_path.rglob("*")):
            failures.append(path)
            raise OSError("no space left on device")
        sync_folder(files, path)

    monkeypatch.setattr(LocalFiles, "sync_folder", failing)
    assert offer(spool, 0, [[1]])
    assert len(failures) == 5
    assert "no space left" in caplog.text
    assert read(reader(spool)) == [1]
    assert not offer(spool, 0, [[1]])
    assert offer(spool, 1, [[3]])
    assert read(reader(spool)) == [1, 3]
    assert [m.batch for m in Spool(str(tmp_path), 1)._kept] == [-1, 0, 1, 1], "two of them fences"


def test_a_store_that_is_away_does_not_hold_up_the_end(tmp_path, monkeypatch):
    spool = Spool(str(tmp_path), 1)
    begun = threading.Event()

    def away(*_):
        begun.set()
        raise OSError("unreachable")

    monkeypatch.setattr(LocalFiles, "write", away)
    with ThreadPoolExecutor(1) as pool:
        taken = pool.submit(offer, spool, 0, [[1]])
        assert begun.wait(WAIT_S)
        spool.close()
        with pytest.raises((StoreAway, SpoolClosed)):
            taken.result(10)


def test_a_batch_that_another_driver_took_is_an_error(tmp_path):
    """One that was frozen while its successor went on."""
    frozen = Spool(str(tmp_path), 1)
    assert offer(Spool(str(tmp_path), 1), 0, [[1]])
    with pytest.raises(Superseded, match="another driver"):
        offer(frozen, 0, [[2]])
    assert read(reader(frozen)) == [1]


def test_the_end_is_for_ever(tmp_path):
    spool = Spool(str(tmp_path), 2)
    spool.end()
    assert Spool(str(tmp_path), 2).is_ended
    assert not offer(spool, 0, [[1]])
    assert [read(reader(spool, i, 2)) for i in (0, 1)] == [["end"], ["end"]]


def test_what_is_below_all_floors_goes(tmp_path):
    spool = Spool(str(tmp_path), 2)
    for number in range(4):
        offer(spool, number, [[10 * number], [10 * number + 1]])
    spool.truncate([3, 2])
    assert [m.batch for m in spool._kept] == [2, 3]
    assert spool.backlog_bytes == sum(m.nbytes for m in spool._kept)
    assert read(reader(spool, 0, 2, rows=2)) == [20, 30]
    with pytest.raises(SourceError, match="row 1 is not there any more"):
        read(reader(spool, 0, 2, rows=1))
    standby = reader(spool, 0, 2, rows=0)
    standby.skip(2)
    standby.skip(1)
    assert read(standby) == [30]
    spool.truncate([4, 4])
    assert spool.backlog_bytes == 0
    # The newest manifest stays, so that a restarted driver goes on counting.
    spool = Spool(str(tmp_path), 2)
    assert not offer(spool, 3, [[99]])
    offer(spool, 4, [[40], [41]])
    assert read(reader(spool, 1, 2, rows=4)) == [41]
    assert spool.rows == 10


def test_a_reader_that_is_ahead_of_the_spool(tmp_path):
    spool = Spool(str(tmp_path), 1)
    offer(spool, 0, [[1, 2]])
    with pytest.raises(SourceError, match="it ends 1 rows before row 3"):
        read(reader(spool, rows=3))
    with pytest.raises(SourceError, match="1 rows behind row 2 are missing"):
        reader(spool).read_exactly(3)
    with pytest.raises(SourceError, match="it ends 5 rows before row 5"):
        read(reader(Spool(str(tmp_path / "empty"), 1), rows=5))


def test_damage_is_found(tmp_path):
    spool = Spool(str(tmp_path), 1)
    offer(spool, 0, [[1, 2]])
    assert spool.newest is not None
    path = tmp_path / spool.newest.parts[0].path
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(SourceError, match="checksum"):
        read(reader(spool))
    offer(spool, 1, [[1]])
    other = SpoolReader(spool.uri, pa.schema([("m", pa.int64())]), 0, 1)
    other.open(2)
    with pytest.raises(SourceError, match="columns"):
        read(other)
    for junk in (b"x", b"\x93\x01\x02\x03"):
        spool.store.put("batch-000000000001", junk)
        with pytest.raises(SourceError, match="manifest"):
            Spool(str(tmp_path), 1)
    spool.store.delete(["batch-000000000001"])
    spool.store.put("batch-000000000002", Manifest(2, "q", 2, "", 1, (2,)).encode())
    with pytest.raises(SourceError, match="missing"):
        Spool(str(tmp_path), 1)


def test_rows_must_fit(tmp_path):
    spool = Spool(str(tmp_path), 1)
    with pytest.raises(SourceError, match="other columns"):
        list(write_parts(spool.store, 0, 0, [pa.record_batch({"m": [1]})], SCHEMA))


def test_a_full_spool_makes_the_query_wait(tmp_path):
    spool = Spool(str(tmp_path), 1, backlog_bytes_max=1)
    spool.wait_for_room()
    offer(spool, 0, [[1, 2]])
    came = threading.Event()

    def wait() -> None:
        spool.wait_for_room()
        came.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert not came.wait(0.1)
    assert spool.is_waiting
    spool.truncate([1])
    assert not came.wait(0.1)
    spool.truncate([2])
    waiting.join(5)
    assert came.is_set()
    assert not spool.is_waiting


def test_a_closed_spool_takes_nothing_and_lets_go_of_who_waits(tmp_path):
    spool = Spool(str(tmp_path), 1, backlog_bytes_max=1)
    offer(spool, 0, [[1]])
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            spool.wait_for_room()
        except SpoolClosed as error:
            errors.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.05)
    spool.close()
    waiting.join(5)
    assert errors
    with pytest.raises(SpoolClosed):
        offer(spool, 1, [[2]])
    spool.end()
    assert not Spool(str(tmp_path), 1).is_ended


def test_a_store_that_hangs_does_not_hold_up_the_end(tmp_path, monkeypatch):
    spool = Spool(str(tmp_path), 1)
    offer(spool, 0, [[1], [2], [3]])
    offer(spool, 1, [[4]])
    began, go_on = threading.Event(), threading.Event()
    deleted: list[str] = []

    def hang(*_):
        began.set()
        return go_on.wait(WAIT_S)

    def delete(store, paths):
        deleted.extend(paths)
        hang()

    monkeypatch.setattr(LayerStore, "delete", delete)
    deleting = threading.Thread(target=spool.truncate, args=[[3]])
    deleting.start()
    assert began.wait(WAIT_S)
    assert offer(spool, 2, [[5]]), "meanwhile batches are taken"
    began.clear()
    parts = written(spool, 3, [[6]])
    monkeypatch.setattr(LayerStore, "create", hang)
    monkeypatch.setattr(spool_module, "CLOSE_S", 0.05)
    taking = threading.Thread(target=spool.take, args=["q", 3, parts])
    taking.start()
    assert began.wait(WAIT_S)
    since = time.monotonic()
    spool.close()
    assert time.monotonic() - since < WAIT_S / 2
    go_on.set()
    for thread in (deleting, taking):
        thread.join(WAIT_S)
        assert not thread.is_alive()
    assert len(deleted) == 1, "it stops where the spool is closed"
    monkeypatch.undo()
    assert [m.batch for m in Spool(str(tmp_path), 1)._kept] == [-1, 0, 1, 2, 2]


def test_a_reader_finds_new_batches_without_being_told(tmp_path):
    spool = Spool(str(tmp_path), 1, "process")
    woken = threading.Event()
    prefetch = PrefetchThread(reader(spool), woken.set, batch_rows_max=100, linger_s=0.01)
    prefetch.advance(0)
    assert prefetch.take() is None
    delays = []
    for number in range(10):
        time.sleep(0.03)
        woken.clear()
        offer(spool, number, [[number]])
        since = time.monotonic()
        assert woken.wait(WAIT_S)
        delays.append(time.monotonic() - since)
        ready = prefetch.take()
        assert ready is not None
    assert sorted(delays)[5] < 0.1
    prefetch.close()


def test_files_are_dealt_out_over_all_batches():
    parts = tuple(Part(str(i), 1, 1) for i in range(3))
    manifest = Manifest(7, "q", 7, "0-9", first=4, before=(2, 1, 1), parts=parts)
    assert [[part.path for part in manifest.dealt(i)] for i in range(3)] == [["2"], ["0"], ["1"]]
    assert manifest.after == (3, 2, 2)
    assert Manifest.decode(manifest.encode()) == manifest


def test_a_folder_is_a_uri(tmp_path: Path):
    spool = Spool((tmp_path / "a b").as_uri(), 1)
    offer(spool, 0, [[1]])
    assert read(reader(spool)) == [1]


def test_tasks_that_read_a_spool_are_killed(tmp_path):
    """In the simulated cluster: every row arrives once."""
    deaths = 0
    for seed in range(8):
        random = Random(seed)
        spool = Spool(str(tmp_path / str(seed)), 2, "process")
        for number in range(10):
            offer(spool, number, [[10 * number + i for i in range(j, 10, 3)] for j in range(3)])
        spool.end()
        source = clonos.sources.from_batches([], SCHEMA)
        job = clonos.Job("spooled", parallelism=2)
        rows = job.source(replace(source, factory=partial(SpoolReader, spool.uri, SCHEMA)))
        rows.key_by("n").sink(clonos.sinks.collect(), name="out")
        table, died = delivered(job, seed, random, rows_at_once=7)
        deaths += died
        assert sorted(table["n"].to_pylist()) == list(range(100))
    assert deaths
