"""What the measurement of calls counts, of books that say what happened."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from clonos.errors import ClonosError
from clonos_bench import call_jobs, call_kills
from clonos_bench.call_flink import require_each_once
from clonos_bench.call_jobs import Outs
from clonos_bench.call_kills import Found
from clonos_bench.flink.async_calls import Outs as FlinkOuts

KILLED, NEXT = 11, 12
CALL = [("key", "<i8"), ("at", "<f8"), ("answered", "?")]


def outs(*batches):
    """Rows that were out at these moments."""
    found = Outs()
    for at_s, ids in batches:
        found.came.append((at_s, pa.record_batch({"id": pa.array(ids, pa.int64())})))
    return found


@pytest.fixture
def folder(tmp_path):
    """1 is answered before the kill, and asked again; 2 is open then; 3 comes afterwards."""
    before = [(1, 0.1, False), (2, 0.2, False), (1, 0.3, True)]
    after = [(1, 1.1, False), (2, 1.2, False), (3, 1.3, False)]
    after += [(key, at + 1, True) for key, at, _ in after]
    np.array(before, CALL).tofile(tmp_path / f"{KILLED}.calls")
    np.array(after, CALL).tofile(tmp_path / f"{NEXT}.calls")
    return tmp_path


def test_what_was_open_and_what_was_answered_are_told_apart(folder):
    found = Found(1)
    call_kills.count_calls(found, str(folder), [(0.5, (KILLED,))], outs((1.0, [2]), (1.5, [1, 3])))
    assert (found.open, found.open_again, found.answered_again) == (1, 1, 1)
    assert (found.first_ms, found.last_ms) == ([500.0], [500.0])
    assert found.share == 100.0


@pytest.mark.parametrize(
    ("is_known", "told", "twice"),
    [
        (True, [(1, "a"), (2, "b"), (1, "a")], 0),  # it knows the name
        (True, [(1, "a"), (2, "b"), (1, "c")], 1),
        (False, [(1, "a"), (2, "b"), (1, "a")], 1),
    ],
)
def test_what_is_done_twice(folder, is_known, told, twice):
    np.array(told, [("key", "<i8"), ("name", "S24")]).tofile(folder / f"{NEXT}.names")
    found = Found(1, unknown=2)
    call_kills.count_effects(found, str(folder), outs((1.0, [1, 2, 3])), is_known=is_known)
    assert found.twice == twice
    assert found.unknown_done == 1, "3 was not done, so one of the two was"


def test_a_delivered_row_is_known_by_its_id():
    two = outs((10.0, [1, 2]), (10.5, [3]))
    assert two.after_ms(np.array([2, 3]), 9.5).tolist() == [500.0, 1000.0]


def test_the_oldest_row_of_an_output_is_split_into_before_in_and_behind_its_call(tmp_path):
    books = [(4, 1.0, False), (3, 1.1, False), (4, 1.2, True), (3, 1.4, True)]
    np.array(books, CALL).tofile(tmp_path / f"{KILLED}.calls")
    keys, came_s = outs((0.9, [1]), (1.5, [4, 3]), (1.6, [4]), (2.0, [5])).oldest(1.0, 2.0)
    assert (keys.tolist(), came_s.tolist()) == ([3, 4], [1.5, 1.6])
    asked_s, answered_s = call_jobs.asked_and_answered(str(tmp_path), keys)
    assert (asked_s.tolist(), answered_s.tolist()) == ([1.1, 1.0], [1.4, 1.2])


def test_a_row_of_flink_is_there_for_good_with_the_first_checkpoint_behind_it(tmp_path):
    """3 was made again: its process had begun no checkpoint behind it when all went back."""
    begin = -(1 << 63)
    book = [(begin, 0.0, False), (1, 0.1, False), (-1, 0.2, False), (2, 0.3, False)]
    book += [(-1, 0.4, True), (-2, 0.5, False), (-2, 0.6, True), (3, 0.7, False)]
    book += [(-3, 0.8, False), (begin, 1.0, False), (3, 1.1, False), (-4, 1.2, False)]
    book += [(-4, 1.3, True), (4, 1.4, False)]
    np.array(book, [("id", "<i8"), ("at", "<f8"), ("is_complete", "?")]).tofile(tmp_path / "1.outs")
    outs = FlinkOuts.read(str(tmp_path))
    assert outs.ids.tolist() == [1, 2, 3, 3, 4]
    assert outs.came_s.tolist() == [0.1, 0.3, 0.7, 1.1, 1.4]
    assert np.array_equal(outs.final_s, [0.4, 0.6, np.nan, 1.3, np.nan], equal_nan=True)


@pytest.mark.parametrize("ids", [[0, 1, 1], [0, 2, 3], [0, 1]])
def test_a_peer_with_wrong_output_has_no_figures(ids):
    require_each_once(np.array([2, 0, 1]), 3)
    with pytest.raises(ClonosError, match="wrong output"):
        require_each_once(np.array(ids), 3)
