"""The names of calls: whatever fails, a service that deduplicates gives each row its own answer."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import clonos
from clonos.cluster.directory import JobDirectory
from clonos.cluster.shipping import ship
from clonos.columns.batches import seal
from clonos.core import events as ev
from clonos.core import messages as msg
from clonos.core.plan import Incarnation
from clonos.core.task import TaskMachine
from clonos.errors import OperatorError, WrongType
from clonos.operators.chain import ChainProgram
from clonos.simulator.world.virtual import NoWorld
from clonos.testing import Source, StepHarness
from clonos.transport.secret import JobSecret

CUSTOMERS = 8


class Cashier:
    """Charges each key once; whoever comes with a known key gets the receipt that it has."""

    def __init__(self) -> None:
        self.receipts: dict[str, int] = {}

    def charge(self, customer: int, key: str) -> int:
        return self.receipts.setdefault(key, customer)


class World(NoWorld):
    """Calls are really made."""

    def clock_ms(self) -> int:
        return 1_000

    def ticks_ms(self) -> int:
        return 0

    def call(self, fn: Any, args: Any, kwargs: Any) -> Any:
        return fn(*args, **kwargs)


def compiled(cashier: Cashier, **settings: Any) -> Any:
    def charge(row: Any, ctx: clonos.Context) -> tuple[int, int]:
        key = ctx.idempotency_key(row.customer)
        return row.customer, ctx.call(cashier.charge, row.customer, key)

    job = clonos.Job("shop", **settings)
    customers = job.source(clonos.sources.from_batches([], "customer long"), name="customers")
    customers.map(charge, "customer long, receipt long", name="charge").sink(
        clonos.sinks.collect(), name="out"
    )
    return job.compile()


def live(job: Any, lineage: str, cuts: list[int], n: int = 0) -> list[tuple[int, int]]:
    """A life of the only task that begins at the first row; nobody hears of its steps."""
    activate = msg.Activate(0, Incarnation(1, n), (), (), (), ())
    program = job.codes[0].program(lineage)
    machine = TaskMachine(job.plan, activate, program, (), World(seal))
    machine.start()
    (out,) = machine.outputs.values()
    first = 0
    for rows in cuts:
        values = {"customer": range(first, first + rows)}
        batch = pa.RecordBatch.from_pydict(values, schema=job.codes[0].source.schema)
        machine.handle(ev.SourceRows(seal(batch), None))
        assert machine.step() is not None
        first += rows
    items = [out.log.item(seq) for seq in range(1, out.log.last + 1)]
    return [tuple(row.values()) for i in items if i.batch for row in i.batch.payload.to_pylist()]


def cuts_of(rows: int) -> st.SearchStrategy[list[int]]:
    """All ways to cut so many rows into batches."""
    ends = st.sets(st.integers(1, rows - 1)).map(lambda inner: [0, *sorted(inner), rows])
    return ends.map(lambda marks: [b - a for a, b in pairwise(marks)])


@given(cuts_of(CUSTOMERS), st.integers(1, CUSTOMERS), cuts_of(CUSTOMERS))
def test_who_is_charged_again_gets_the_own_receipt(before, steps, after):
    """A task dies after calls in steps that nobody knows of; then the input is cut otherwise."""
    cashier = Cashier()
    job = compiled(cashier)
    live(job, "run", before[:steps])
    assert live(job, "run", after, n=1) == [(i, i) for i in range(CUSTOMERS)]
    assert len(cashier.receipts) == CUSTOMERS, "nobody is charged twice"


def test_a_fresh_run_charges_again_unless_it_continues_another():
    cashier = Cashier()
    job = compiled(cashier)
    live(job, "monday", [CUSTOMERS])
    live(job, "tuesday", [CUSTOMERS])
    assert len(cashier.receipts) == 2 * CUSTOMERS
    live(job, "tuesday", [1] * CUSTOMERS)
    assert len(cashier.receipts) == 2 * CUSTOMERS


def keys(lineage: str, operator: str, *asked: tuple[Any, ...]) -> list[str]:
    given: list[str] = []

    def ask(row: Any, ctx: clonos.Context) -> int:
        given.extend(ctx.idempotency_key(*identity) for identity in asked)
        return int(row.n)

    job = clonos.Job("keys", parallelism=2)
    rows = job.source(clonos.sources.from_batches([], "n long"), name="in", parallelism=1)
    rows.map(ask, "n long", name=operator).sink(clonos.sinks.collect(), name="out")
    program = job.compile().codes[0].program(lineage)
    call_with_one_row(program)
    return given


def call_with_one_row(program: ChainProgram) -> None:
    StepHarness(program).feed(Source(pa.RecordBatch.from_pydict({"n": [1]})))


def test_what_tells_calls_apart():
    asked = (1,), (2,), ("1",), ((1, 2),), (1, 1), (b"1",)
    first = keys("a", "op", *asked)
    assert len(set(first)) == len(asked)
    assert keys("a", "op", *asked) == first
    others = [*keys("b", "op", *asked), *keys("a", "other", *asked)]
    assert not set(first) & set(others)
    assert all(len(key) == 24 and key.isalnum() and key == key.lower() for key in first)


def test_a_call_without_a_name_has_no_key():
    with pytest.raises(OperatorError, match="identity"):
        keys("a", "op", ())


def test_the_lineage_reaches_the_slots(tmp_path):
    cashier = Cashier()
    ids = []
    for folder in ("one", "one", "two"):
        directory = JobDirectory(str(tmp_path / folder), None, on_one_machine=True)
        ids.append(directory.checkpoint_id)
    assert ids[0] == ids[1] != ids[2]
    shipment = ship(
        compiled(cashier),
        "run-1",
        JobSecret.new(),
        "nowhere",
        "layers",
        layers_durability="process",
        run="me",
        began={},
        lineage=ids[0],
    )
    program: Any = shipment.programs[0]()
    assert {operator.info.lineage for operator in program.operators.values()} == {ids[0]}


def test_a_lineage_is_a_name():
    for lineage in ("", 7):
        with pytest.raises(WrongType, match="lineage"):
            clonos.Job(lineage=lineage)  # type: ignore[arg-type]
