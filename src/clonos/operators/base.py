"""The base class of operators, its environment, and how it rejects bad records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import pyarrow as pa

from clonos.columns.rows import FAR, describe, has_times, row_type, short, unreadable, value_of
from clonos.core.calls import CallId, Outcome, Request
from clonos.errors import (
    BudgetSpent,
    ClonosError,
    Divergence,
    ExpressionFailed,
    OperatorError,
    ProtocolError,
    UnreadableLayer,
)
from clonos.operators.bad_records import BadRecords
from clonos.operators.calls.budget import Usage
from clonos.operators.calls.effects import effect_key
from clonos.operators.shares import Heir, Join, Share, joined, total
from clonos.state.deltas import Frozen
from clonos.state.stores import Facts

if TYPE_CHECKING:
    from clonos.core.content import Shelf
    from clonos.core.program import Step
    from clonos.state.renumbered import Numbered
    from clonos.state.runs import Run
    from clonos.state.tiers import Tiered


OnBadRecord = Literal["fail", "drop", "keep"]
"""What happens when a function cannot handle a record."""


@dataclass(frozen=True, slots=True)
class OperatorInfo:
    """Which operator of which task this is.

    ``run``: the checkpoint, shared by restarts; ``lineage``: a name that fresh runs may share, too.
    Both are part of the names of effects.
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
        """The name of an effect of this operator, from the effect's identity."""
        return effect_key(self.lineage or self.job, self.operator, identity, ordinal)

    def numbered_effect_key(self, number: int, rewound: Sequence[Sequence[int]] = ()) -> str:
        """The name of the task's n-th effect. It differs in another run, even of the same lineage,
        and after a rewind.

        ``rewound``: for each rewind, how many calls had been made, and the generation that began.
        """
        since = [generation for asked, generation in rewound if number > asked]
        identity = [self.index, number, *since[-1:]]
        return effect_key(self.run or self.job, self.operator, identity, 0)

    @property
    def where(self) -> str:
        """For error messages: ``"words[1]"``, followed by the task if its name differs."""
        own = f"{self.operator}[{self.index}]"
        return own if own == self.task_name else f"{own} in task {self.task_name}"


class Services:
    """The current step of a task, and the objects that its operators share in it.

    ``port``: the input of the first operator by which rows come. ``bad_records``: the bad records
    of the step, if they are kept. ``caller``: the operator whose function made the newest call.
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
        """Make a call for an operator, which numbers its calls itself."""
        self.step.ask(CallId(operator.info.number, number), request)

    def watermark_ms(self, operator: Operator) -> int | None:
        """The watermark that an operator's functions see."""
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
    """How its facts are combined, by name, when the number of its tasks changes."""

    def __init__(self) -> None:
        self.facts = Facts()
        self._has_times: bool | None = None  # whether rows that become Python's have some
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
        """Event time advances; returned rows go out before the watermark."""
        del watermark_ms
        return None

    def outgoing_watermark(self, incoming_ms: int) -> int | None:
        """The watermark to pass on when `incoming_ms` arrives (None: none)."""
        return incoming_ms

    def take_watermark(self) -> int | None:
        """A watermark that this operator derives from the rows just seen."""
        return None

    def on_timer(self, now_ms: int) -> pa.RecordBatch | None:
        """Processing time is `now_ms`; do everything that is due."""
        del now_ms
        return None

    def next_due_ms(self) -> int | None:
        """When :meth:`on_timer` must be called next."""
        return None

    @property
    def makes_calls(self) -> bool:
        """Whether it may make asynchronous calls; known once it is open."""
        return False

    def on_outcomes(self, outcomes: Sequence[Outcome]) -> pa.RecordBatch | None:
        """Calls that were made with :meth:`Services.ask` are over."""
        raise NotImplementedError

    def open_calls(self) -> Mapping[int, Request]:
        """The unanswered calls, by number."""
        return {}

    @property
    def spent(self) -> Usage:
        """What its calls have cost so far."""
        return Usage()

    @property
    def most_answers(self) -> int:
        """How many answers one row, or timer, that still waits for more has had at most."""
        return 0

    @property
    def is_full(self) -> bool:
        """Whether it wants no more rows until calls are answered."""
        return False

    @property
    def waiting_bytes(self) -> int:
        """The size of the rows that wait for calls."""
        return 0

    def on_end(self) -> pa.RecordBatch | None:
        """No more rows will come; rows that wait for calls go on in :meth:`on_outcomes`."""
        return None

    def changes(self) -> Frozen:
        """State by key that changed since the last call, frozen as it is now."""
        return tuple  # makes an empty one

    def restore(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """Restore state by key from a delta; deltas come oldest first."""
        del keys, values
        raise ProtocolError("this operator has no keyed state", where=self.info.where)

    def restore_columns(self, keys: pa.Array, values: pa.Array) -> None:
        """The same for operators that keep columns."""
        self.restore(keys.to_pylist(), values.to_pylist())

    has_values: bool = False
    """Whether it keeps values, rows by key or pieces of windows that need not be in memory."""

    @property
    def stores(self) -> Iterable[Tiered]:
        """Those of its stores that begin with files of layers, and use them where they lie."""
        return ()

    def use(self, shelf: Shelf, nbytes: int) -> None:
        """Use about this much memory for them; the rest goes on the shelf."""

    def restore_values(self, run: Run) -> None:
        """Restore them from a delta."""
        raise ProtocolError("this operator has no state in runs", where=self.info.where)

    def restored(self) -> None:
        """A delta was restored as a whole.

        Raises
        ------
        CannotUpgrade
            Something in it would be lost.
        """

    def adopt(self, shares: Sequence[Share], heir: Heir, where: str) -> None:
        """Begin with state of the operator's former tasks, after their number has changed.

        Called instead of :meth:`open`. What is in runs is shared out without it.

        Raises
        ------
        CannotUpgrade
            Some state belongs to one former task and cannot be redistributed.
        """
        rules = {"bad_records": total, "late_rows": total, **self.joins}
        for name, value in joined(shares, rules, heir, where).items():
            self.facts.set(name, value)
        self.adopt_state(shares, where)

    @property
    def numbered(self) -> Mapping[str, Numbered]:
        """By the fact that counts them, the rows or pieces in its runs. When the number of tasks
        changes, they get new numbers, in the order of the old ones; where two are equal, by task.
        Without any, what is in runs is the same in any task."""
        return {}

    def adopt_state(self, shares: Sequence[Share], where: str) -> None:
        """Adopt state by key; facts are adopted already."""
        if any(len(share.keys) for share in shares):
            raise ProtocolError("this operator has no keyed state", where=where)

    def readable(self, batch: pa.RecordBatch, columns: Sequence[str] = ()) -> pa.RecordBatch:
        """The rows whose values Python has; the others are rejected.

        `columns`: those that become Python's values; by default all.
        """
        if self._has_times is None:
            fields = [batch.schema.field(name) for name in columns] or batch.schema
            self._has_times = any(has_times(field.type) for field in fields)
        if not self._has_times:
            return batch
        found = unreadable(batch.select(list(columns)) if columns else batch)
        for row in found:
            error = ValueError(f"a {FAR}")
            self.reject(error, batch.slice(row, 1), columns)
        if not found:
            return batch
        return batch.filter(pa.array(np.isin(np.arange(batch.num_rows), found, invert=True)))

    def reject(self, error: Exception, record: Any, columns: Sequence[str] = ()) -> None:
        """Reject a bad record, or a batch of them: fail, or count and perhaps keep it, as the job
        is configured.

        `columns`: those that an error message shows; by default all.
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
    shown = record.select(list(columns)) if columns else record
    return short(row_type(tuple(shown.schema.names))(value_of(column[0]) for column in shown))
