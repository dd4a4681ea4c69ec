"""Delivered output comes back in order, once, with its numbers."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from clonos.errors import ProtocolError, UnreadableOutput
from clonos.sinks.delivered import DeliveredStore


def batch(*values):
    return pa.RecordBatch.from_pydict({"n": list(values)})


def read(store, operator="out"):
    return [
        (d.generation, d.task_index, d.seq, d.batch.to_pydict()["n"]) for d in store.read(operator)
    ]


@pytest.fixture
def store(tmp_path):
    return DeliveredStore(tmp_path)


def test_order_is_generation_task_seq(store):
    store.write("out", 1, 0, 1, 1, [batch(3)])
    store.write("out", 0, 1, 9, 9, [batch(5)])
    store.write("out", 0, 0, 10, 11, [batch(1), batch(2, 2)])
    store.write("out", 0, 0, 9, 9, [batch(0)])
    store.write("other", 0, 0, 1, 1, [batch(7)])
    assert read(store) == [
        (0, 0, 9, [0]),
        (0, 0, 10, [1]),
        (0, 0, 11, [2, 2]),
        (0, 1, 1, [3]),
        (1, 0, 9, [5]),
    ]
    assert [file.first_seq for file in store.files("out")] == [9, 10, 1, 9]
    assert read(store, "none") == []


def test_numbers_may_have_gaps_where_markers_were(store):
    store.write("out", 0, 0, 1, 9, [batch(1), batch(2)], seqs=[2, 7])
    assert read(store) == [(0, 0, 2, [1]), (0, 0, 7, [2])]


def test_the_same_name_is_the_same_content(store):
    path = Path(store.write("out", 0, 0, 1, 1, [batch(1)]))
    stamp = path.stat().st_mtime_ns
    assert store.write("out", 0, 0, 1, 1, [batch(1)]) == str(path)
    assert path.stat().st_mtime_ns == stamp
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_the_same_rows_laid_out_otherwise_are_the_same_content(store):
    """To Arrow, NaN is not NaN, and no bytes are defined under a null."""
    values = pa.array([float("nan"), None])
    under = pa.py_buffer(np.array([np.nan, 7.0]))
    again = pa.Array.from_buffers(pa.float64(), 2, [values.buffers()[0], under])
    first, second = (
        store.write("out", 0, 0, 1, 1, [pa.record_batch({"x": x})]) for x in (values, again)
    )
    assert first == second


def test_output_is_not_put_where_earlier_output_has_gone(store, tmp_path):
    store.write("out", 0, 0, 1, 1, [batch(1)])
    shutil.rmtree(tmp_path / "out")
    with pytest.raises(UnreadableOutput, match="deleted"):
        store.write("out", 0, 0, 2, 2, [batch(2)])
    assert not (tmp_path / "out").exists()
    store.write("other", 0, 0, 1, 1, [batch(1)])


def test_overlapping_files_are_read_once(store):
    store.write("out", 0, 0, 1, 3, [batch(1), batch(2), batch(3)])
    store.write("out", 0, 0, 2, 3, [batch(2), batch(3)])
    store.write("out", 0, 0, 3, 5, [batch(3), batch(4), batch(5)])
    assert [seq for _, _, seq, _ in read(store)] == [1, 2, 3, 4, 5]


LONG = "注文" * 100


@pytest.mark.parametrize("name", ["..", ".", "a/b", "Wörter zählen", "%2E", LONG, "x" * 255])
def test_any_operator_name_is_a_folder_of_its_own(tmp_path, name):
    store = DeliveredStore(tmp_path / "inside")
    path = Path(store.write(name, 0, 0, 1, 1, [batch(1)]))
    assert path.parent.parent == tmp_path / "inside"
    assert read(store, name) == [(0, 0, 1, [1])]


@pytest.mark.parametrize(
    ("first", "last", "count", "seqs"),
    [(1, 1, 0, None), (1, 3, 2, None), (1, 3, 2, [2, 2]), (1, 3, 2, [0, 2]), (1, 3, 1, [4])],
)
def test_wrong_numbers_are_refused(store, first, last, count, seqs):
    with pytest.raises(ProtocolError, match="numbered"):
        store.write("out", 0, 0, first, last, [batch(1)] * count, seqs=seqs)


def test_damage_is_a_typed_error(store):
    path = Path(store.write("out", 0, 0, 1, 1, [batch(1)]))
    content = path.read_bytes()
    for damaged in (b"", content[:20], content[: len(content) // 2], b"x" * 100):
        path.write_bytes(damaged)
        with pytest.raises(UnreadableOutput) as caught:
            read(store)
        assert caught.value.where == str(path)


def test_a_foreign_arrow_file_is_a_typed_error(store):
    path = Path(store.write("out", 0, 0, 1, 1, [batch(1)]))
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, batch(1).schema) as writer:
        writer.write_batch(batch(1))
    with pytest.raises(UnreadableOutput):
        read(store)
