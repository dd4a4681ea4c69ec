"""What an operator is, where it runs, and how it deals with records it cannot handle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import pyarrow as pa

from clonos.columns.rows import describe, rows_of, short
from clonos.core.calls import CallId, Outcome, Request
from clonos.core.layer import UnreadableLayer
from clonos.errors import (
    BudgetSpent,
    ClonosError,
    Divergence,
    ExpressionFailed,
    OperatorError,
    ProtocolError,
)
from clonos.operators.bad_records import BadRecords
from clonos.operators.budget import Usage
from clonos.operators.effects import effect_key
from clonos.operators.shares import Heir, Join, Share, joined, total
from clonos.state.deltas import Frozen
from clonos.state.stores import Facts

if TYPE_CHECKING:
    from clonos.core.content import Shelf
    from clonos.core.program import Step
    from clonos.state.runs import Run


OnBadRecord = Literal["fail", "drop", "keep"]
"""What becomes of a record that a function cannot handle, and of the job."""


@dataclass(frozen=True, slots=True)
class OperatorInfo:
    """Which operator of which task this is.

    ``run``: its checkpoint, which restarts share; ``lineage``: what fresh runs may share, too.
    Both name effects.
    """

    job: str
    task: int
    task_name: str
    operator: str
    number: int
    index: int
    parallelism: int
    seed: int = 0
    on_bad_record: OnBadRecord = "fail"
    lineage: str = ""
    run: str = ""

    def effect_key(self, identity: Any, ordinal: int = 0) -> str:
        """The name of an effect of this operator, by what it is about."""
        return effect_key(self.lineage or self.job, self.operator, identity, ordinal)

    def numbered_effect_key(self, number: int, rewound: Sequence[Sequence[int]] = ()) -> str:
        """The name of the task's n-th effect. In another run that is another one, whatever its
        lineage; and so it is after the job went back in time.

        ``rewound``: how many calls had been asked each time, and the generation that began.
        """
        since = [generation for asked, generation in rewound if number > asked]
        identity = [self.index, number, *since[-1:]]
        return effect_key(self.run or self.job, self.operator, identity, 0)

    @property
    def where(self) -> str:
        """For error messages: ``"words[1]"``, with the task if that has another name."""
        own = f"{self.operator}[{self.index}]"
        return own if own == self.task_name else f"{own} in task {self.task_name}"


class Services:
    """The current step of a task and what its operators share within it.

    ``port``: by which input of the first operator rows come. ``bad_records``: those of the step, if
    they are kept. ``caller``: the operator whose function has made the newest call.
    """

    def __init__(self) -> None:
        self._step: Step | None = None
        self.caller: Operator | None = None
        self.port = 0
        self.bad_records = BadRecords()

    def begin(self, step: Step) -> None:
        """A new step begins."""
        self._step = step

    def ask(self, operator: Operator, number: int, request: Request) -> None:
        """Have a call made for an operator, which counts its calls."""
        self.step.ask(CallId(operator.info.number, number), request)

    def watermark_ms(self, operator: Operator) -> int | None:
        """How far event time has come for an operator, as its functions see it."""
        return operator.watermark_ms

    @property
    def step(self) -> Step:
        """The current step."""
        if self._step is None:
            raise OperatorError(
                "the clock, random numbers, calls and timers exist only while an event is handled",
                remedy="use them in on_row, on_timer or the function of the operator",
            )
        return self._step


class Operator:
    """One link of a chain: a deterministic function of its state and the event.

    Subclasses override what they need. Callbacks return the rows they produce, as one batch or
    None; the chain passes them on. ``facts`` holds small values that are part of the state.
    """

    joins: ClassVar[Mapping[str, Join]] = {}
    """What becomes of its facts, by name, if it has more or fewer tasks than before."""

    def __init__(self) -> None:
        self.facts = Facts()
        self.info: OperatorInfo
        self.services: Services

    def open(self, info: OperatorInfo, services: Services) -> None:
        """Called once, before anything else."""
        self.info = info
        self.services = services

    @property
    def watermark_ms(self) -> int | None:
        """The newest watermark that arrived here."""
        value: int | None = self.facts.get("watermark")
        return value

    def on_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        """Rows arrive."""
        raise NotImplementedError

    def on_watermark(self, watermark_ms: int) -> pa.RecordBatch | None:
        """Event time advances; whatever is returned goes out before the watermark."""
        del watermark_ms
        return None

    def outgoing_watermark(self, incoming_ms: int) -> int | None:
        """The watermark that goes on when `incoming_ms` arrives (None: it ends here)."""
        return incoming_ms

    def take_watermark(self) -> int | None:
        """A watermark that this operator makes of the rows just seen."""
        return None

    def on_timer(self, now_ms: int) -> pa.RecordBatch | None:
        """Processing time is `now_ms`; whatever is due happens."""
        del now_ms
        return None

    def next_due_ms(self) -> int | None:
        """When :meth:`on_timer` is wanted next."""
        return None

    @property
    def makes_calls(self) -> bool:
        """Whether it may ask calls that take a while; known once it is open."""
        return False

    def on_outcomes(self, outcomes: Sequence[Outcome]) -> pa.RecordBatch | None:
        """Calls are over that :meth:`Services.ask` has asked for."""
        raise NotImplementedError

    def open_calls(self) -> Mapping[int, Request]:
        """By number, the calls that were asked and not answered."""
        return {}

    @property
    def spent(self) -> Usage:
        """What its calls have come to."""
        return Usage()

    @property
    def is_full(self) -> bool:
        """Whether calls have to be answered before it wants more rows."""
        return False

    @property
    def waiting_bytes(self) -> int:
        """Of the rows that wait for calls."""
        return 0

    def on_end(self) -> pa.RecordBatch | None:
        """No more rows will come; of those that wait for calls, :meth:`on_outcomes` will hear."""
        return None

    def changes(self) -> Frozen:
        """Keyed state that changed since the last call, as it is now."""
        return tuple  # of nothing

    def restore(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """Take keyed state from a delta; deltas come oldest first."""
        del keys, values
        raise ProtocolError("this operator has no keyed state", where=self.info.where)

    def restore_columns(self, keys: pa.Array, values: pa.Array) -> None:
        """The same for operators that keep columns."""
        self.restore(keys.to_pylist(), values.to_pylist())

    has_values: ClassVar[bool] = False
    """Whether it has values or rows by key, which need not be in memory."""

    def use(self, shelf: Shelf, nbytes: int) -> None:
        """Take no more memory for them than that, about."""

    def restore_values(self, run: Run) -> None:
        """Take them from a delta."""
        raise ProtocolError("this operator has no values or rows by key", where=self.info.where)

    def adopt(self, shares: Sequence[Share], heir: Heir, where: str) -> None:
        """Begin with what the tasks of this operator have kept, as one of more or fewer tasks.

        Called instead of :meth:`open`. Rows that those have numbered get new numbers, in the order
        of the old ones; where two are equal, by task.

        Raises
        ------
        CannotUpgrade
            Something of it belongs to one of those tasks.
        """
        rules = {"bad_records": total, "late_rows": total, **self.joins}
        for name, value in joined(shares, rules, heir, where).items():
            self.facts.set(name, value)
        self.adopt_state(shares, where)

    def as_they_are(self, keys: pa.Array) -> pa.Array | None:
        """Which rows of its state by key are the same in any task: it need not adopt them. None:
        all of them have numbers of their task."""
        del keys
        return None

    def adopt_state(self, shares: Sequence[Share], where: str) -> None:
        """The same for what is kept by key; facts are there."""
        if any(len(share.keys) for share in shares):
            raise ProtocolError("this operator has no keyed state", where=where)

    def reject(self, error: Exception, record: Any, columns: Sequence[str] = ()) -> None:
        """A bad record, or a batch of them: fail, or count and perhaps keep it, as the job says.

        `columns`: of a batch, those that an error message shows; by default all.
        """
        if isinstance(error, (ProtocolError, Divergence, UnreadableLayer)):
            raise error
        is_batch = isinstance(record, pa.RecordBatch)
        if self.info.on_bad_record == "fail":
            if isinstance(error, BudgetSpent):
                what = f"{error.what} (for {_shown(record, columns)})"
                raise BudgetSpent(what, where=self.info.where) from error
            kind, what, remedy = OperatorError, describe(error), "correct the function"
            if isinstance(error, ExpressionFailed):
                kind, what, remedy = ExpressionFailed, error.what, "correct the expression"
            if isinstance(error, ClonosError):
                remedy = error.remedy or remedy
            raise kind(
                f"{what} (for {_shown(record, columns)})",
                where=self.info.where,
                remedy=f'{remedy}, or set on_bad_record="drop" to skip such records, or "keep" to '
                "have them as a stream, job.bad_records",
            ) from error
        if self.info.on_bad_record == "keep":
            step = self.services.step
            kept = self.services.bad_records
            kept.keep(step.clock_ms(), self.info.operator, error, record)
        count = record.num_rows if is_batch else 1
        self.facts.set("bad_records", self.facts.get("bad_records", 0) + count)


def _shown(record: Any, columns: Sequence[str]) -> str:
    if not isinstance(record, pa.RecordBatch):
        return short(record)
    if record.num_rows != 1:
        return f"a batch of {record.num_rows} rows"
    return short(rows_of(record.select(list(columns)) if columns else record)[0])
