"""Invariants of rows of one key that wait for calls, and jobs that check them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

import pyarrow as pa

from clonos.api.streams import Stream
from clonos.core.task import TaskMachine
from clonos.operators.calls.map_async import CallOperator
from clonos.operators.chain import ChainProgram
from clonos.operators.process.process import Process, ProcessContext
from clonos.simulator.checks.violations import require
from clonos.simulator.world.service import MARK_BIT


def with_order(
    stream: Stream, schema: pa.Schema | str, fn: Callable[..., Any], random: Random
) -> Stream:
    """Rows are numbered within their key, wait for calls, and must leave in the order of these
    numbers."""
    calls: dict[str, Any] = {
        "in_flight": random.choice((2, 5, 10)),
        "per_key": random.choice((None, 1, 1, 2)),
        "ordered": random.choice(("key", "key", True)),
        "on_error": lambda *_: -1,
    }
    numbered = stream.key_by("key").process(Numbering(), schema, name="in line")
    asked = numbered.key_by("key").with_column_async("id", fn, "key", name="by key", **calls)
    return asked.key_by("key").process(InLine(), schema, name="still in line")


class Numbering(Process):
    """Replaces each row's amount by its number within its key."""

    def open(self, ctx: ProcessContext) -> None:
        self.last = ctx.state("last", "double")

    def on_row(self, row: Any, ctx: ProcessContext) -> Iterable[Any]:
        number = self.last.get(0.0) + 1
        self.last.set(number)
        return [(row.id, row.key, row.at, number)]


class InLine(Numbering):
    """Checks that rows come in this order."""

    def on_row(self, row: Any, ctx: ProcessContext) -> Iterable[Any]:
        in_line(row.key, row.amount, self.last.get(0.0))
        return super().on_row(row, ctx)


def in_line(key: str, number: float, last: float) -> None:
    """Invariant 3 for rows that wait for calls: those of a key leave in order, once each."""
    require(number == last + 1, "order per key", f"row {number} of {key} after row {last}")


def answered_by(service: str, answer: int, mark: int) -> None:
    """An answer comes from the service that was asked."""
    require(answer >> MARK_BIT == mark, "calls", f"{service} has not given the answer {answer}")


def calls_of_keys(machine: TaskMachine) -> None:
    """Invariant 7 for calls of one key: no more are open than the limit."""
    program = machine.program
    for operator in program.operators.values() if isinstance(program, ChainProgram) else ():
        if not isinstance(operator, CallOperator) or operator.per_key is None:
            continue
        keys = Counter(request.arguments for request in operator.open_calls().values())
        most = max(keys.values(), default=0)
        require(most <= operator.per_key, "order per key", f"{most} calls of a key in {keys}")
