"""A chain of operators as the program of one task.

Rows enter at the first operator (or leave any operator when a timer fires or event time advances),
pass through the rest, and are distributed to the output channels at the end of the step: first the
rows, then the watermark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from clonos.columns.batches import concat, seal, unseal
from clonos.core.calls import CallId
from clonos.errors import PoisonRecord
from clonos.operators.base import Operator, OperatorInfo, Services
from clonos.operators.router import Router
from clonos.operators.watermark import IDLE
from clonos.state.deltas import CHAIN, Changes, Delta, Frozen, decode_delta, open_delta
from clonos.state.stores import Facts

if TYPE_CHECKING:
    from clonos.core.calls import Outcome, Request
    from clonos.core.content import Content, Shelf
    from clonos.core.program import Batch, Step


@dataclass(frozen=True)
class ChainedOperator:
    """An operator and its place."""

    operator: Operator
    info: OperatorInfo


class ChainProgram:
    """Implements :class:`clonos.core.program.Program`.

    Parameters
    ----------
    operators
        At least one operator.
    inputs
        The input channels; empty for a source.
    routers
        They send the rows to the output channels.
    ports
        The input of the first operator to which a channel leads; 0 if not given.
    digests
        Whether its output may be compared with its output before a failure.
    bad_records
        Sends bad records on, if they are kept.
    feedback
        Feedback channels: they carry no watermarks, and event time does not wait for them.
    """

    def __init__(
        self,
        operators: Sequence[ChainedOperator],
        inputs: Sequence[int],
        routers: Sequence[Router],
        ports: Mapping[int, int] | None = None,
        *,
        digests: bool = True,
        bad_records: Router | None = None,
        feedback: Sequence[int] = (),
    ) -> None:
        self._operators = [chained.operator for chained in operators]
        self._names = [chained.info.operator for chained in operators]
        self._inputs = tuple(inputs)
        self._timed = tuple(c for c in inputs if c not in feedback)
        self._routers = tuple(routers)
        self._ports = dict(ports or {})
        self._seal = partial(seal, digests=digests)
        self._services = Services()
        self._bad_records = bad_records
        self._facts = Facts()
        self._produced: list[pa.RecordBatch] = []
        self._watermark_out: int | None = None
        # Numbers of rows before the first operator, between operators, and after the last.
        self._rows = [0] * (len(operators) + 1)
        self._batches_in = self._batches_out = 0
        self._given: Batch | None = None  # the input of this step, if it is one batch
        self._made: Batch | pa.RecordBatch | None = None  # the output of this step
        for chained in operators:
            chained.operator.open(chained.info, self._services)
        self._callers = [op for op in self._operators if op.makes_calls]

    @property
    def statistics(self) -> dict[str, int]:
        """What each operator dropped: ``{"words: bad_records": 3}``."""
        return {
            f"{name}: {fact}": operator.facts.get(fact)
            for name, operator in zip(self._names, self._operators, strict=True)
            for fact in ("bad_records", "late_rows")
            if operator.facts.get(fact)
        }

    @property
    def traffic(self) -> dict[str, int]:
        """Rows into and out of each operator, batches into and out of the chain.

        The counts are part of the state: they are restored from the last checkpoint, and replayed
        steps are counted once.
        """
        counts = {"batches_in": self._batches_in, "batches_out": self._batches_out}
        for i, name in enumerate(self._names):
            counts[f"{name}: rows_in"] = self._rows[i]
            counts[f"{name}: rows_out"] = self._rows[i + 1]
        for operator in self._callers:
            name = self._names[operator.info.number]
            spent = operator.spent._asdict()
            optional = ("hits", "tokens", "unknown")
            counts |= {f"{name}: {k}": n for k, n in spent.items() if n or k not in optional}
            if most := operator.most_answers:
                counts[f"{name}: most_answers"] = most
        return counts

    @property
    def operators(self) -> dict[str, Operator]:
        """The operators by name, in order; used to measure them."""
        return dict(zip(self._names, self._operators, strict=True))

    @property
    def caller(self) -> Operator | None:
        """The operator whose function made the newest call."""
        return self._services.caller

    @property
    def makes_calls(self) -> bool:
        """Whether some operator may make asynchronous calls."""
        return bool(self._callers)

    @property
    def is_full(self) -> bool:
        """Whether some operator wants no more rows until calls are answered."""
        return any(operator.is_full for operator in self._callers)

    @property
    def has_left_memory(self) -> bool:
        """Whether some operator has state that is not in memory."""
        return any(store.has_tiers for operator in self._operators for store in operator.stores)

    def let_go(self) -> None:
        """See :class:`~clonos.core.program.Program`."""
        for operator in self._operators:
            for store in operator.stores:
                store.let_go()

    @property
    def waiting_bytes(self) -> int:
        """The size of the rows that wait for calls."""
        return sum(operator.waiting_bytes for operator in self._callers)

    def open_calls(self) -> dict[CallId, Request]:
        """All unanswered calls."""
        return {
            CallId(operator.info.number, number): request
            for operator in self._callers
            for number, request in operator.open_calls().items()
        }

    def on_source(self, step: Step, batch: Batch) -> None:
        """Rows come from the task's source."""
        self._services.begin(step)
        if step.left_out:
            self._leave_out(step.left_out)
        self._batches_in += 1
        self._given = None if step.left_out else batch
        self._push(0, batch.payload)
        self._finish(step)

    def on_batches(
        self, step: Step, channel: int, batches: Sequence[Batch], watermark_ms: int | None = None
    ) -> None:
        """Consecutive batches of one channel, handled as one, and the watermark behind them."""
        self._services.begin(step)
        if step.left_out:
            self._leave_out(step.left_out)
        self._services.port = self._ports.get(channel, 0)
        self._batches_in += len(batches)
        self._given = batches[0] if len(batches) == 1 and not step.left_out else None
        self._push(0, unseal(batches))
        if watermark_ms is not None:
            self._mark(channel, watermark_ms)
        self._finish(step)

    def _leave_out(self, batches: Sequence[Batch]) -> None:
        """Rows that would kill the process are bad records of the first operator."""
        error = PoisonRecord("it kills the process that handles it")
        for batch in batches:
            self._rows[0] += batch.rows
            self._operators[0].reject(error, batch.payload)

    def on_watermark(self, step: Step, channel: int, watermark_ms: int) -> None:
        """The task's event time is that of the channel furthest behind; idle channels do not
        count."""
        self._services.begin(step)
        self._mark(channel, watermark_ms)
        self._finish(step)

    def on_outcomes(self, step: Step, outcomes: Sequence[Outcome]) -> None:
        """Each outcome goes to the operator that asked; its rows go on from there."""
        self._services.begin(step)
        of: dict[int, list[Outcome]] = {}
        for outcome in outcomes:
            of.setdefault(outcome.operator, []).append(outcome)
        for i in sorted(of):
            operator = self._operators[i]
            self._push(i + 1, operator.on_outcomes(of[i]))
            watermark = operator.take_watermark()
            if watermark is not None:
                self._advance(i + 1, watermark)
            if self._over == i + 1 and not operator.open_calls():
                self._end_from(i + 1)
        self._finish(step)

    def on_timer(self, step: Step, now_ms: int) -> None:
        """Every operator does what is due."""
        self._services.begin(step)
        for i, operator in enumerate(self._operators[self._over :], self._over):
            due = operator.next_due_ms()
            if due is not None and due <= now_ms:
                self._push(i + 1, operator.on_timer(now_ms))
                watermark = operator.take_watermark()
                if watermark is not None:
                    self._advance(i + 1, watermark)
        self._finish(step)

    def on_end(self, step: Step, channel: int | None) -> None:
        """After the last input has ended, operators release the rows that they still hold."""
        self._services.begin(step)
        if channel is not None:
            self._facts.set(f"ended {channel}", value=True)
        if all(self._facts.get(f"ended {c}") for c in self._inputs):
            self._end_from(0)
        else:
            self._advance_inputs()
        self._finish(step)

    @property
    def _over(self) -> int:
        """How many operators know that no more rows come; the last of them may have open calls."""
        over: int = self._facts.get("over", 0)
        return over

    def _end_from(self, start: int) -> None:
        for i in range(start, len(self._operators)):
            operator = self._operators[i]
            if self._callers:
                self._facts.set("over", i + 1)
            self._push(i + 1, operator.on_end())
            if operator.open_calls():
                return

    def delta(self) -> Delta:
        """The state that changed since the last call."""
        self._facts.set("traffic", [self._batches_in, self._batches_out, *self._rows])
        return Delta(self._names, self._changes())

    def use(self, shelf: Shelf, nbytes: int) -> None:
        """Use about this much memory for what need not fit into it; the rest goes on the shelf."""
        large = [operator for operator in self._operators if operator.has_values]
        for operator in large:
            operator.use(shelf, nbytes // len(large))

    def apply(self, delta: bytes | Content) -> None:
        """Apply a delta to the state."""
        opened = open_delta(delta)
        for number, is_fact, keys, values in decode_delta(self._names, opened):
            if number == CHAIN:
                self._facts.restore(keys.to_pylist(), values.to_pylist())
                counted = self._facts.get("traffic")
                if counted:
                    self._batches_in, self._batches_out, *self._rows = counted
            elif is_fact:
                facts = self._operators[number].facts
                facts.restore(keys.to_pylist(), values.to_pylist())
            else:
                self._operators[number].restore_columns(keys, values)
        for number, run in opened.runs:
            self._operators[number].restore_values(run)
        for operator in self._operators:
            operator.restored()

    def _changes(self) -> Iterator[tuple[int, Changes | Frozen]]:
        yield CHAIN, self._facts.changes()
        for i, operator in enumerate(self._operators):
            changes = operator.changes()  # before the facts: it may change one
            yield i, operator.facts.changes()
            yield i, changes

    def _push(self, start: int, batch: pa.RecordBatch | None) -> None:
        """Send rows through the operators from number `start` on."""
        made: list[tuple[int, int]] = []
        for i in range(start, len(self._operators)):
            if batch is None or not batch.num_rows:
                break
            operator = self._operators[i]
            self._rows[i] += batch.num_rows
            batch = operator.on_batch(batch)
            watermark = operator.take_watermark()
            if watermark is not None:
                made.append((i + 1, watermark))
        if batch is not None and batch.num_rows:
            self._rows[-1] += batch.num_rows
            self._produced.append(batch)
        # A watermark follows the rows from which it was derived.
        for position, watermark in made:
            self._advance(position, watermark)

    def _mark(self, channel: int, watermark_ms: int) -> None:
        fact = f"watermark {channel}"
        if watermark_ms == IDLE or watermark_ms > self._facts.get(fact, watermark_ms - 1):
            self._facts.set(fact, watermark_ms)
        self._advance_inputs()

    def _advance_inputs(self) -> None:
        facts = self._facts
        marks = [facts.get(f"watermark {c}") for c in self._timed if not facts.get(f"ended {c}")]
        if not marks or None in marks:
            return
        active = [mark for mark in marks if mark != IDLE]
        was_idle = facts.get("idle", False)
        facts.set("idle", not active)
        if not active:
            self._advance(0, IDLE)
        elif min(active) > facts.get("watermark", min(active) - 1):
            facts.set("watermark", min(active))
            self._advance(0, min(active))
        elif was_idle:
            # Tasks downstream must no longer treat this one as idle.
            self._advance(0, facts.get("watermark"))

    def _advance(self, start: int, watermark_ms: int) -> None:
        """Let event time advance from operator number `start` on."""
        mark: int | None = watermark_ms
        for i in range(start, len(self._operators)):
            if mark is None:
                return
            operator = self._operators[i]
            if mark != IDLE:
                operator.facts.set("watermark", mark)
                self._push(i + 1, operator.on_watermark(mark))
            mark = operator.outgoing_watermark(mark)
        if mark is not None:
            self._watermark_out = mark

    def _finish(self, step: Step) -> None:
        """End the step: rows, watermark, wake-up."""
        if self._produced:
            batch, self._produced = concat(self._produced), []
            given = self._given
            # A batch that passes unchanged has its digest already.
            self._made = given if given is not None and given.payload is batch else batch
            for router in self._routers:
                self._batches_out += router.emit(step, batch, self._whole, self._seal, self._facts)
            self._made = None
        self._given = None
        if self._bad_records is not None and self._services.bad_records:
            self._made = bad = self._services.bad_records.take()
            self._bad_records.emit(step, bad, self._whole, self._seal, self._facts)
            self._made = None
        if self._watermark_out is not None:
            for router in self._routers:
                for channel in router.channels:
                    step.emit_watermark(channel, self._watermark_out)
            self._watermark_out = None
        running = self._operators[self._over :] if self._callers else self._operators
        dues = [due for operator in running if (due := operator.next_due_ms()) is not None]
        step.wake_at(min(dues, default=None))

    @property
    def first_due_ms(self) -> int | None:
        """When something is due although no step has been taken yet."""
        dues = (operator.next_due_ms() for operator in self._operators)
        return min((due for due in dues if due is not None), default=None)

    def _whole(self) -> Batch:
        """The output of this step as one batch, sealed once for all outputs."""
        if isinstance(self._made, pa.RecordBatch):
            self._made = self._seal(self._made)
        assert self._made is not None
        return self._made
