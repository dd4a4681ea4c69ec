"""The driver's journal and output on a real disk, which refuses now and then."""

from __future__ import annotations

import errno
import os
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest

import clonos
from clonos.cluster.durable import DeliveredOutputs, JournalFile
from clonos.core.housekeeper import Deliver
from clonos.core.messages import Dependency, Item, Kind
from clonos.core.plan import Incarnation
from clonos.core.program import Batch
from clonos.nodes.events import JournalFailed, OutsideFailed
from clonos.sinks.delivered import DeliveredStore
from clonos.sinks.outputs import Consumers
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


def test_a_disk_that_refuses_is_told_and_a_new_segment_makes_it_good(tmp_path, inbox, monkeypatch):
    plan = compiled().plan
    journal = JournalFile(tmp_path / "journal", "fsync", inbox)
    keeper, _ = journal.recover(plan)
    keeper.begin_term(1)
    assert journal.append(keeper.take_records())
    assert journal.append(())  # vouches
    keeper.begin_term(2)
    records = keeper.take_records()

    def refuse(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "no space left")

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
    again = JournalFile(tmp_path / "journal", "fsync", inbox)
    found, _ = again.recover(plan)
    again.close()
    assert (found.term, found.complete) == (2, True)


def test_after_a_consumer_has_failed_it_gets_no_more(tmp_path, inbox):
    seen: list[int] = []
    job = compiled(seen)
    sinks = {name: sink for name, (sink, _) in job.sinks.items()}
    store = DeliveredStore(tmp_path, "process")
    outputs = DeliveredOutputs(job.plan, store, Consumers(job.plan, sinks), inbox)
    for seq, number in enumerate((1, 13, 2), 1):
        outputs.take(output(job.plan, seq, number))
    assert seen == [1, 13]
    (failed,) = inbox.take()
    assert isinstance(failed, OutsideFailed)
    assert "unlucky" in failed.error.what


def test_outputs_that_cannot_be_put_into_files_are_kept(tmp_path, inbox):
    job = compiled([])
    sinks = {name: sink for name, (sink, _) in job.sinks.items()}
    in_the_way = tmp_path / "delivered"
    in_the_way.touch()
    store = DeliveredStore(in_the_way, "process")
    outputs = DeliveredOutputs(job.plan, store, Consumers(job.plan, sinks), inbox)
    outputs.take(output(job.plan, 1, 7))
    assert outputs.flush() is not None
    in_the_way.unlink()
    assert outputs.flush() is None
    assert [row.batch.to_pydict() for row in store.read("out")] == [{"n": [7]}]
