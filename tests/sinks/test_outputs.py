"""Delivered output that is handed to functions in the driver."""

from __future__ import annotations

import sys

import pyarrow as pa
import pytest

from clonos.errors import OperatorError
from clonos.sinks.outputs import hand_over
from clonos.sinks.spec import SinkSpec

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
