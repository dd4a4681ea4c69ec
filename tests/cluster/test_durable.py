"""The driver's journal and output on a real disk, which refuses now and then."""

from __future__ import annotations

import errno
import os
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

import clonos
from clonos.cluster.durable import DeliveredOutputs, JournalFile, house_keeper
from clonos.core.housekeeper import Deliver
from clonos.core.messages import Dependency, Item, Kind
from clonos.core.plan import Incarnation
from clonos.core.program import Batch
from clonos.errors import JournalInUse, OtherContent
from clonos.nodes.events import JournalFailed, OutsideFailed
from clonos.runtime.memory_left import MemoryLeft
from clonos.sinks.delivered import DeliveredStore
from clonos.sinks.outputs import Consumers
from clonos.storage.files import LocalFiles
from clonos.storage.journal import Journal
from clonos.transport.inbox import Inbox

LIFE = Incarnation(1, 0)


@pytest.fixture
def inbox():
    with closing(Inbox()) as made:
        yield made


def compiled(seen: list[int] | None = None) -> Any:
    job = clonos.Job("numbers")
    source = clonos.sources.from_batches([[(1,), (2,)]], schema="n long")

    def take(batch: pa.RecordBatch) -> None:
        assert seen is not None
        seen.extend(batch.column("n").to_pylist())
        if 13 in seen:
            raise ValueError("unlucky")

    job.source(source, name="rows").sink(clonos.sinks.callback(take), name="out")
    return job.compile()


def output(plan: Any, seq: int, number: int) -> Deliver:
    (task,) = (t for t in plan.tasks if t.is_sink)
    rows = pa.RecordBatch.from_pydict({"n": [number]})
    item = Item(seq, Kind.BATCH, 0, 0, Batch(rows, 1, 8, 0), {task.id: Dependency(LIFE, seq)}, 0)
    return Deliver(task.outputs[0], task.id, 0, item)


def refuse(*_: Any) -> None:
    raise OSError(errno.ENOSPC, "no space left")


def test_a_disk_that_refuses_is_told_and_a_new_segment_makes_it_good(tmp_path, inbox, monkeypatch):
    plan = compiled().plan
    journal = JournalFile(tmp_path / "journal", "fsync", inbox.put)
    keeper = house_keeper(plan)
    journal.recover(keeper)
    keeper.begin_term(1)
    assert journal.append(keeper.take_records())
    assert journal.append(())  # vouches
    keeper.begin_term(2)
    records = keeper.take_records()

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", refuse)
        assert not journal.append(records)
    (failed,) = inbox.take()
    assert isinstance(failed, JournalFailed)
    assert "no space left" in failed.error.what
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", refuse)
        assert not journal.rotate(keeper.snapshot(records))
    (failed,) = inbox.take()
    assert isinstance(failed, JournalFailed)
    assert journal.rotate(keeper.snapshot(records))
    keeper.finish()
    assert journal.append(keeper.take_records())
    journal.close()
    again = JournalFile(tmp_path / "journal", "fsync", inbox.put)
    found = house_keeper(plan)
    again.recover(found)
    again.close()
    assert (found.term, found.complete) == (2, True)


def test_after_a_consumer_has_failed_it_gets_no_more(tmp_path, inbox):
    seen: list[int] = []
    job = compiled(seen)
    sinks = {name: sink for name, (sink, _) in job.sinks.items()}
    store = DeliveredStore(tmp_path, "process")
    outputs = DeliveredOutputs(job.plan, store, Consumers(job.plan, sinks), inbox.put)
    for seq, number in enumerate((1, 13, 2), 1):
        outputs.take(output(job.plan, seq, number))
    assert seen == [1, 13]
    (failed,) = inbox.take()
    assert isinstance(failed, OutsideFailed)
    assert "unlucky" in failed.error.what
    assert outputs.flush() is failed.error, "the next run finds what it has not got in the journal"


@pytest.mark.parametrize("is_rotation", [True, False])
def test_who_closes_a_journal_while_a_write_hangs_keeps_the_lock(
    tmp_path, inbox, monkeypatch, is_rotation
):
    """Else the write takes effect when another driver has read the journal and goes on with it."""
    hangs, gate = threading.Event(), threading.Event()

    file = JournalFile(tmp_path, "fsync", inbox.put)
    assert file.append([b"one"])
    assert file.append(())
    changed, act = (LocalFiles, "rename") if is_rotation else (os, "write")
    right = getattr(changed, act)

    def wait(*how: Any) -> Any:
        hangs.set()
        assert gate.wait(60)
        return right(*how)

    monkeypatch.setattr(changed, act, wait)
    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(file.rotate if is_rotation else file.append, [b"two"])
        assert hangs.wait(60)
        file.close()
        with pytest.raises(JournalInUse):
            Journal(tmp_path)
        gate.set()
        assert written.result(60)
    with Journal(tmp_path) as successor:
        assert list(successor.replay()) == ([b"two"] if is_rotation else [b"one", b"two"])


def test_what_waits_for_its_file_is_counted(tmp_path, inbox):
    job = compiled([])
    sinks = {name: sink for name, (sink, _) in job.sinks.items()}
    store = DeliveredStore(tmp_path, "process")
    outputs = DeliveredOutputs(job.plan, store, Consumers(job.plan, sinks), inbox.put)
    first, second = output(job.plan, 1, 7), output(job.plan, 2, 8)
    outputs.take(first)
    outputs.take(second)
    sizes = [o.item.batch.nbytes for o in (first, second) if o.item.batch is not None]
    assert outputs.nbytes > sum(sizes) > 0
    assert outputs.flush() is None
    assert outputs.nbytes == 0


@pytest.mark.parametrize("columns", [1, 5, 20])
def test_small_outputs_are_counted_with_the_memory_that_arrow_takes_for_them(
    tmp_path, inbox, columns
):
    """A row of a number per column takes 8 bytes a column, and some 3,000 bytes of memory."""
    job = compiled([])
    outputs = DeliveredOutputs(job.plan, DeliveredStore(tmp_path), lambda _: None, inbox.put)
    rows = pa.RecordBatch.from_pydict({f"n{n}": [n] for n in range(columns)})
    body, (before, _) = rows.serialize().to_pybytes(), MemoryLeft()()
    for seq in range(1, 5001):
        whole = output(job.plan, seq, 7)
        came = pa.ipc.read_record_batch(pa.py_buffer(bytes(bytearray(body))), rows.schema)
        item = replace(whole.item, batch=Batch(came, 1, rows.nbytes, 0))
        outputs.take(replace(whole, item=item))
    after, _ = MemoryLeft()()
    assert after - before < 1.3 * outputs.nbytes


def test_of_an_output_that_waits_for_its_file_only_the_rows_are_kept(tmp_path, inbox):
    class Dependencies(dict[int, Dependency]):
        """One that can be referred to weakly."""

    job = compiled([])
    outputs = DeliveredOutputs(job.plan, DeliveredStore(tmp_path), lambda _: None, inbox.put)
    whole = output(job.plan, 1, 7)
    dependencies = Dependencies(whole.item.dep)
    kept = weakref.ref(dependencies)
    outputs.take(replace(whole, item=replace(whole.item, dep=dependencies)))
    del dependencies
    assert kept() is None
    assert outputs.flush() is None


def test_outputs_that_cannot_be_put_into_files_yet_are_kept(tmp_path, inbox, monkeypatch):
    job = compiled([])
    sinks = {name: sink for name, (sink, _) in job.sinks.items()}
    store = DeliveredStore(tmp_path / "delivered", "process")
    outputs = DeliveredOutputs(job.plan, store, Consumers(job.plan, sinks), inbox.put)
    outputs.take(output(job.plan, 1, 7))

    with monkeypatch.context() as patched:
        patched.setattr(LocalFiles, "write", refuse)
        error = outputs.flush()
        assert error is not None
        assert "no space left" in error.what
        assert outputs.nbytes > 0
    assert not inbox.take(), "the job waits"
    assert outputs.flush() is None
    assert [row.batch.to_pydict() for row in store.read("out")] == [{"n": [7]}]


def test_files_of_outputs_are_begun_before_the_end(tmp_path, inbox):
    """What a driver has delivered is in files when it is asked to end, but for the last of it."""
    job = compiled([])
    sinks = {name: sink for name, (sink, _) in job.sinks.items()}
    store = DeliveredStore(tmp_path, "process")
    consumers = Consumers(job.plan, sinks)
    with ThreadPoolExecutor(1) as pool:
        outputs = DeliveredOutputs(job.plan, store, consumers, inbox.put, each=pool.map)
        for seq, number in enumerate((7, 8, 9), 1):
            outputs.take(output(job.plan, seq, number))
            if seq < 3:
                outputs.begin_flush()
                pool.submit(int).result()  # it has been written
                assert [file.last_seq for file in store.files("out")] == list(range(1, seq + 1))
                assert outputs.nbytes > 0, "until somebody has looked whether that went well"
        assert outputs.flush() is None
    assert outputs.nbytes == 0
    assert [row.batch.to_pydict() for row in store.read("out")] == [{"n": [n]} for n in (7, 8, 9)]


def test_who_gives_memory_back_is_called_when_there_is_some(tmp_path, inbox):
    class Rows:
        """A batch's; Arrow's own cannot be watched."""

    seen: list[int] = []
    job = compiled([])
    store = DeliveredStore(tmp_path, "process")
    rows = pa.RecordBatch.from_pydict({"n": [7]})
    kept: list[weakref.ref[Rows]] = []
    outputs = DeliveredOutputs(
        job.plan,
        store,
        lambda _: None,
        inbox.put,
        rows=lambda _: rows,
        size=lambda _: 1,
        freed=lambda: seen.append(sum(each() is not None for each in kept)),
    )
    assert outputs.flush() is None
    assert not seen
    for seq in (1, 2):
        delivered = output(job.plan, seq, 7)
        payload = Rows()
        kept.append(weakref.ref(payload))
        item = replace(delivered.item, batch=Batch(payload, 1, 8, 0))
        outputs.take(replace(delivered, item=item))
        del payload, item, delivered
    assert outputs.flush() is None
    assert seen == [0]


def test_what_was_begun_and_failed_is_written_again_in_order(tmp_path, inbox, monkeypatch):
    job = compiled([])
    sinks = {name: sink for name, (sink, _) in job.sinks.items()}
    store = DeliveredStore(tmp_path / "delivered", "process")
    outputs = DeliveredOutputs(job.plan, store, Consumers(job.plan, sinks), inbox.put)
    outputs.take(output(job.plan, 1, 7))
    outputs.begin_flush()

    with monkeypatch.context() as patched:
        patched.setattr(LocalFiles, "write", refuse)
        outputs.take(output(job.plan, 2, 8))
        outputs.begin_flush()
        assert not inbox.take(), "the job waits"
    outputs.take(output(job.plan, 3, 9))
    assert outputs.flush() is None
    assert outputs.nbytes == 0
    assert [row.batch.to_pydict() for row in store.read("out")] == [{"n": [n]} for n in (7, 8, 9)]


@pytest.mark.parametrize("how", ["other content", "no folder"])
def test_outputs_that_never_can_be_put_into_files_end_the_job(tmp_path, inbox, how):
    """Before, a job with a broken journal waited for ever; without, its journal grew for ever."""
    job = compiled([])
    sinks = {name: sink for name, (sink, _) in job.sinks.items()}
    directory = tmp_path / "delivered"
    store = DeliveredStore(directory, "process")
    if how == "other content":
        store.write("out", 0, 0, 1, 1, [pa.RecordBatch.from_pydict({"n": [8]})])
    else:
        directory.touch()
    outputs = DeliveredOutputs(job.plan, store, Consumers(job.plan, sinks), inbox.put)
    outputs.take(output(job.plan, 1, 7))
    error = outputs.flush()
    assert error is not None
    assert outputs.flush() is not None
    (failed,) = inbox.take()
    assert failed == OutsideFailed(error)
    assert isinstance(error, OtherContent) is (how == "other content")
    assert str(directory) in str(error)
