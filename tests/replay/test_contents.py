"""What the contents of a checkpoint say of calls."""

from __future__ import annotations

import pytest

import clonos
from clonos.core.calls import Outcome
from clonos.core.canonical import encode, encode_error
from clonos.core.determinants import Outcomes, encode_record
from clonos.core.messages import Run
from clonos.core.plan import Incarnation
from clonos.errors import OperatorError
from clonos.replay.contents import TaskContents, costs_of, log_rows

RECORD = encode_record(
    [
        Outcomes(
            [
                Outcome(0, 1, 11, True, encode("four")),
                Outcome(0, 2, 12, True, encode("four"), 0),  # remembered
                Outcome(0, 3, 13, False, encode_error(ValueError("no"))),
            ]
        )
    ]
)
RUN = Run(0, Incarnation(1, 1), 1, (RECORD,))
TASK = TaskContents(0, (("asked", "MapAsync", ("ask",)),), {}, (), "", (RUN,))


def spent(costs):
    (batch,) = log_rows(TASK, costs=costs)
    return batch["cost"].to_pylist()


def test_only_good_answers_of_a_service_cost_something():
    assert spent({}) == [None] * 3
    assert spent({"asked": 0.25}) == [0.25, 0.0, 0.0]
    assert spent({"asked": len}) == [4.0, 0.0, 0.0]


def test_a_cost_that_is_no_number_is_told():
    with pytest.raises(OperatorError, match="cost= has no number"):
        spent({"asked": lambda answer: answer})


def test_which_operators_cost_something():
    async def ask(word):
        return word

    job = clonos.Job()
    rows = job.source(clonos.sources.from_batches([], "word string"))
    free = rows.with_column_async("a string", ask, "word", name="free")
    paid = clonos.service(cost=2)(ask)
    free.with_column_async("b string", paid, "word", name="paid").sink(clonos.sinks.collect())
    assert costs_of(job.graph) == {"paid": 2}
