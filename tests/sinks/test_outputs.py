"""Delivered output that is handed to functions in the driver."""

from __future__ import annotations

import sys

import pyarrow as pa
import pytest

from clonos.errors import OperatorError
from clonos.sinks.outputs import hand_over
from clonos.sinks.spec import SinkSpec

FAR = pa.array([0, 4_000_000], pa.date32())
ROWS = pa.RecordBatch.from_pydict({"n": [1]})


def fail(rows: pa.RecordBatch) -> None:
    raise ValueError("no")


def leave(rows: pa.RecordBatch) -> None:
    sys.exit(3)


@pytest.mark.parametrize(("fn", "said"), [(fail, "ValueError: no"), (leave, "SystemExit: 3")])
def test_a_callback_that_raises_ends_the_job_and_says_so(fn, said):
    """``SystemExit`` ends a thread without a word, and the driver is one."""
    with pytest.raises(OperatorError, match=f"the callback raised {said}") as caught:
        hand_over("out", SinkSpec("callback", fn=fn), ROWS)
    assert caught.value.where == "out"
    assert fn.__name__ in caught.value.trace


def test_rows_with_times_that_python_lacks_are_named_if_a_callback_raises():
    def read(rows: pa.RecordBatch) -> None:
        rows.to_pylist()

    rows = pa.record_batch({"day": FAR})
    with pytest.raises(OperatorError, match="the callback raised OverflowError") as caught:
        hand_over("out", SinkSpec("callback", fn=read), rows)
    assert "only the years 1 to 9999. Cast such columns to text" in caught.value.remedy
    hand_over("out", SinkSpec("callback", fn=len), rows)  # one that reads none of them


def test_the_console_shows_times_that_python_lacks(capsys):
    hand_over("out", SinkSpec("console"), pa.record_batch({"day": FAR}))
    assert "{'day': '12921-08-18'}" in capsys.readouterr().out
