"""map_async, with_column_async: each row waits for its own call; many calls are open at a time.

Waiting rows are state. So are answers that wait for the answers of earlier rows. The calls are made
outside of steps (:class:`clonos.nodes.ports.Calls`); their outcomes are logged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice, takewhile
from typing import Any, ClassVar, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from clonos.columns.rows import RowBuilder, describe, rows_of, short, values_of
from clonos.core.calls import Outcome, Request
from clonos.core.canonical import decode, decode_error
from clonos.core.step import arguments_digest
from clonos.errors import (
    BudgetSpent,
    ClonosError,
    EffectUnknown,
    OperatorError,
    OtherArguments,
    PoisonRecord,
)
from clonos.operators.base import Operator, OperatorInfo, Services
from clonos.operators.calls.budget import Usage
from clonos.operators.calls.cuts import Cuts
from clonos.operators.calls.identities import Identities
from clonos.operators.calls.lanes import Lanes
from clonos.operators.calls.marks import JOINS, Marks
from clonos.operators.calls.purse import Purse
from clonos.operators.calls.service import Policy, columns_of
from clonos.operators.shares import (
    CALLS,
    REWOUND,
    Share,
    highest,
    may_be_made,
    nothing,
    require_answered,
)
from clonos.operators.stateless.with_column import with_values, without
from clonos.state.deltas import WHOLE_TASK, Frozen, both
from clonos.state.pieces import groups_of
from clonos.state.row_store import RowStore
from clonos.state.stores import ADDRESS, KeyedStore

_ANSWER: Final = b"a"
_ASKED: Final = b"t"
_NUMBER_BYTES: Final = 8
"""The key of a row in layers is its number; the key of an answer has one byte more."""

OnError = Callable[..., Any]


class CallOperator(Operator):
    """Makes a call per row, or per batch of rows, and turns the answers into rows.

    Rows are numbered in order of arrival and ask in that order, except for rows that are held
    because of `per_key`. A call has the number of its first row. A watermark waits until all rows
    before it have left.

    Parameters
    ----------
    policy
        The function, and how it is called.
    given, keys
        Schema of the incoming rows, and their key columns.
    ordered
        True: rows leave in order of arrival; "key": those of one key do.
    per_key
        How many calls of a key may be open.
    on_error
        Called with a row's arguments and the error; returns an answer to use instead. None: the row
        is a bad record.
    identity
        Columns with the identity of an effect; if empty, it is the row's number in its task.
    """

    joins: ClassVar = {
        **JOINS,
        **CALLS,
        "came": highest,
        "waits since": nothing,
    }

    def __init__(
        self,
        policy: Policy,
        given: pa.Schema,
        keys: Sequence[str],
        *,
        ordered: bool | Literal["key"],
        on_error: OnError | None,
        identity: Sequence[str] = (),
        per_key: int | None = None,
    ) -> None:
        super().__init__()
        self._policy = replace(policy, shares=bool(identity))
        self._identity = tuple(identity)
        self._ordered = ordered
        self._on_error = on_error
        self._keys = tuple(keys)
        self._store = RowStore(given, keys)
        self._answers = KeyedStore()
        self._cuts = Cuts(policy, self.facts, self._answers)
        has_lanes = ordered == "key" or per_key is not None
        self._lanes = Lanes(keys, per_key, self._answers) if has_lanes else None
        self._answered: dict[int, Outcome] = {}
        self._pending: dict[int, Request] | None = None  # of rows that have not left
        self._marks = Marks(self.facts)
        self._identities: Identities | None = None

    def open(self, info: OperatorInfo, services: Services) -> None:
        super().open(info, services)
        fails = self._on_error is None and info.on_bad_record == "fail"
        self._policy = self._policy.of_task(
            info.index,
            info.parallelism,
            tells_trace=fails,
            tells_place=info.on_bad_record == "keep",
        )
        self._purse = Purse(self._policy, self.facts, info.where)
        if self._identity:
            self._identities = Identities(self._policy, self._answers)

    # --- for subclasses ---------------------------------------------------------------------------

    def arguments_of(self, rows: pa.RecordBatch) -> Sequence[tuple[Any, ...]]:
        """The arguments of the call of each row."""
        raise NotImplementedError

    def rows_with(self, rows: pa.RecordBatch, answers: list[Any]) -> pa.RecordBatch | None:
        """The output rows for rows with these answers."""
        raise NotImplementedError

    # --- state --------------------------------------------------------------------------------

    @property
    def _came(self) -> int:
        came: int = self.facts.get("came", 0)
        return came

    @property
    def _asked(self) -> int:
        asked: int = self.facts.get("asked", 0)
        return asked

    @property
    def _waiting(self) -> dict[int, Request]:
        """Calls of rows that have asked and not left, ordered by number."""
        if self._pending is None:
            self._pending = self._restored()
        return self._pending

    def _restored(self) -> dict[int, Request]:
        orders = self._store.orders
        for number in orders.tolist():
            if known := self._answers.get(ADDRESS.pack(_ANSWER, number)):
                _, ok, answer = known
                self._answered[number] = Outcome(self.info.number, number, 0, ok, answer)
        if self._lanes is None:
            orders = orders[orders <= self._asked]
        else:
            rows = self._store.at(orders)
            orders = self._lanes.restore(rows, orders, self._asked, self._answered)
        found = self._requests(self._cuts.calls(orders))
        return found if self._identities is None else self._identities.restored(found)

    @property
    def _in_line(self) -> dict[int, Any]:
        """Rows, in order, that have asked or are held, and have not left."""
        waiting = self._waiting
        return waiting if self._lanes is None else self._lanes.rows

    def _requests(
        self, calls: Sequence[int], rows: pa.RecordBatch | None = None
    ) -> dict[int, Request]:
        """``rows``: those that they are about, if they are at hand."""
        if not calls:
            return {}
        if rows is None:
            rows = self._store.at(self._cuts.rows(calls))
        given = self.arguments_of(rows)
        if self._policy.batch is not None:
            each = iter(given)
            sizes = (self._cuts.last(call) - call + 1 for call in calls)
            given = [columns_of(list(islice(each, n))) for n in sizes]
        effect, doubtful = self._policy.effect, set[int]()
        keys = [""] * len(calls)
        if effect is not None:
            keys = self._keys_of_effects(calls, rows)
            rewound = self.facts.get(REWOUND, ())
            if self._identity or not effect.idempotent:  # else its name is new to the service
                doubtful = {number for number in calls if may_be_made(number, rewound)}
        asked = zip(calls, given, keys, strict=True)
        return {
            number: Request(
                self._policy,
                given,
                arguments_digest(given, {}),
                key,
                number in doubtful,
                (self._answers.get(ADDRESS.pack(_ASKED, number)) or 0) if effect is not None else 0,
            )
            for number, given, key in asked
        }

    def _keys_of_effects(self, calls: Sequence[int], rows: pa.RecordBatch) -> list[str]:
        """The effect names of these calls."""
        if self._identity:
            columns = [values_of(rows.column(name)) for name in self._identity]
            return [self.info.effect_key(list(values)) for values in zip(*columns, strict=True)]
        rewound = self.facts.get(REWOUND, ())
        return [self.info.numbered_effect_key(n, rewound) for n in calls]

    @property
    def makes_calls(self) -> bool:
        return True

    @property
    def per_key(self) -> int | None:
        """How many calls of a key may be open; None: any number."""
        return None if self._lanes is None else self._lanes.per_key

    def open_calls(self) -> dict[int, Request]:
        found = {n: r for n, r in self._waiting.items() if n not in self._answered}
        if self._policy.budget is None or self._policy.effect is not None:
            return found  # an effect may have been made already: only the service can tell
        asked = enumerate(found.items())
        return {n: r._replace(service=self._purse.policy(i)) for i, (n, r) in asked}

    @property
    def spent(self) -> Usage:
        return self._purse.usage

    @property
    def is_full(self) -> bool:
        is_enough = self._cuts.is_enough(self._came - self._asked)
        waiting = len(self._waiting)
        if self._lanes is not None:
            waiting = max(waiting, self._lanes.held)
        return is_enough or waiting >= self._policy.in_flight

    @property
    def waiting_bytes(self) -> int:
        return self._store.nbytes

    def changes(self) -> Frozen:
        return both(self._store.changes(), self._answers.changes())

    def restore_columns(self, keys: pa.Array, values: pa.Array) -> None:
        is_row = pc.equal(pc.binary_length(keys), _NUMBER_BYTES)
        self._store.restore(keys.filter(is_row), values.filter(is_row))
        is_answer = pc.invert(is_row)
        answers = keys.filter(is_answer).to_pylist(), values.filter(is_answer).to_pylist()
        self._answers.restore(*answers)

    def adopt_state(self, shares: Sequence[Share], where: str) -> None:
        require_answered(sum(len(share.keys) for share in shares), where)

    # --- events -------------------------------------------------------------------------------

    def on_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        came = self._came
        if self._identity:
            batch = self._with_identity(batch)
        if self._pending is None:  # first the calls that an earlier life left open
            self._pending = self._restored()
        if self._lanes is not None:
            self._lanes.came(batch, came + 1)
        self._store.append(batch, came + 1)
        self.facts.set("came", came + batch.num_rows)
        self._cuts.rows_came(came - self._asked, self.services.step)
        self._marks.rows_came()
        self._ask(batch)
        return None

    def _with_identity(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows whose identity has no NULL; all rows with NULL would be the same effect."""
        missing = np.zeros(batch.num_rows, bool)
        for name in self._identity:
            missing |= batch.column(name).is_null().to_numpy(zero_copy_only=False)
        for row in np.flatnonzero(missing).tolist():
            self.reject_row(ValueError(f"NULL in {', '.join(self._identity)}"), batch, row)
        return batch.filter(pa.array(~missing)) if missing.any() else batch

    def _ask(self, newest: pa.RecordBatch | None = None) -> None:
        """Make as many calls as the limit allows. ``newest``: the rows that have just come."""
        asked, came = self._asked, self._came
        rows = None
        room = self._policy.in_flight - len(self._waiting)
        if self._lanes is not None:
            calls, asked = self._lanes.next(asked, came, room)
        elif came <= asked or room <= 0:
            return
        else:
            *calls, behind = self._cuts.cut(asked, came, room, self.services.step).tolist()
            if newest is not None and asked == came - newest.num_rows:  # usually none has waited
                rows = newest.slice(0, behind - 1 - asked)
            asked = behind - 1
        self.facts.set("asked", asked)
        self._keep_time(calls)
        under_way = len(self._waiting) - len(self._answered)
        for number, request in self._requests(calls, rows).items():
            if self._identities is not None:
                request = self._identities.asked(number, request)  # noqa: PLW2901
            self._waiting[number] = request
            if request.service is self._policy:
                request = request._replace(service=self._purse.policy(under_way))  # noqa: PLW2901
                under_way += 1
            self.services.ask(self, number, request)

    def _keep_time(self, calls: Sequence[int]) -> None:
        """Remember when these effects are asked for, if their keys may be forgotten."""
        effect = self._policy.effect
        if calls and effect is not None and (now_ms := effect.asked_ms(self.services.step)):
            for number in calls:
                self._answers.put(ADDRESS.pack(_ASKED, number), WHOLE_TASK, now_ms)

    def on_outcomes(self, outcomes: Sequence[Outcome]) -> pa.RecordBatch | None:
        waiting, lanes = self._waiting, self._lanes
        self._fail_at_once(outcomes)
        self._purse.pay(outcomes)
        if lanes is not None:
            lanes.answered(outcome.number for outcome in outcomes)
        ready = self._in_order(outcomes) if self._ordered else list(outcomes)
        calls = [outcome.number for outcome in ready]
        orders = self._cuts.rows(calls)
        batch = self._gone_on(orders, ready) if ready else None
        for number in calls:
            request = waiting.pop(number)
            if self._policy.effect is not None and self._answers.get(ADDRESS.pack(_ASKED, number)):
                self._answers.put(ADDRESS.pack(_ASKED, number), WHOLE_TASK, None)
            if self._identities is not None:
                self._identities.gone(number, request)
        self._cuts.forget(calls)
        if lanes is not None:
            lanes.gone(calls)
        self._store.remove(orders)
        self._ask()
        self._marks.release(next(iter(self._in_line), self._asked + 1))
        return batch

    def on_end(self) -> pa.RecordBatch | None:
        self._cuts.rows_are_over()
        self._ask()
        return None

    def _in_order(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """The answers that no unanswered earlier row holds back; the others are kept."""
        self._answered.update((outcome.number, outcome) for outcome in outcomes)
        if self._lanes is not None and self._ordered == "key":
            of = (outcome.number for outcome in outcomes)
            numbers = self._lanes.unblocked(of, self._answered)
        else:
            numbers = list(takewhile(self._answered.__contains__, self._in_line))
        ready = [self._answered.pop(number) for number in numbers]
        for number in numbers:
            if known := self._answers.get(ADDRESS.pack(_ANSWER, number)):
                self._answers.put(ADDRESS.pack(_ANSWER, number), known[0], None)
        kept = [outcome for outcome in outcomes if outcome.number in self._answered]
        if kept:
            rows = self._store.at(np.array([outcome.number for outcome in kept], np.int64))
            for outcome, group in zip(kept, groups_of(rows, self._keys).tolist(), strict=True):
                value = [group, outcome.ok, outcome.answer]
                self._answers.put(ADDRESS.pack(_ANSWER, outcome.number), group, value)
        return ready

    def _gone_on(
        self, orders: np.ndarray[Any, Any], outcomes: Sequence[Outcome]
    ) -> pa.RecordBatch | None:
        answers: list[Any] = []
        bad: list[int] = []
        rows = self._store.at(orders)
        for i, (is_answered, said) in enumerate(self._each(outcomes)):
            try:
                answers.append(said if is_answered else self._instead(int(orders[i]), said))
            except Exception as error:  # noqa: BLE001 - user code
                self.reject_row(error, rows, i)
                bad.append(i)
                answers.append(None)
        if bad:
            answers, rows = without(answers, rows, bad)
        return self.rows_with(rows, answers) if answers else None

    def reject_row(self, error: Exception, rows: pa.RecordBatch, row: int) -> None:
        """Reject a row whose call failed or whose answer cannot be used."""
        self.reject(error, rows.slice(row, 1))

    def unfit(self, error: Exception) -> Exception:
        """The error of an answer that does not fit the declared columns: it says whose it is."""
        whose = self._policy.called + (" or on_error" if self._on_error is not None else "")
        made = "the effect was made, but " if self._policy.effect is not None else ""
        return ValueError(f"{made}what {whose} has returned does not fit: {error}")

    def _each(self, outcomes: Sequence[Outcome]) -> Iterator[tuple[bool, Any]]:
        """For each row, whether its call succeeded, and the answer or the error."""
        for outcome in outcomes:
            rows = range(outcome.number, self._cuts.last(outcome.number) + 1)
            if not outcome.ok:
                error = decode_error(outcome.answer)
                yield from ((False, error) for _ in rows)
                continue
            answer = decode(outcome.answer)
            answers = [answer] if self._policy.batch is None else answer
            yield from ((True, one) for _, one in zip(rows, answers, strict=True))

    def _instead(self, row: int, error: Exception) -> Any:
        """The answer that on_error makes of an error."""
        if self._on_error is None:
            raise error
        # Computed from the row again: the call may have changed a list among its arguments.
        given = self._store.at(np.array([row], np.int64))
        return self._on_error(*self.arguments_of(given)[0], error)

    def _fail_at_once(self, outcomes: Sequence[Outcome]) -> None:
        """An error that ends the job does so before it is logged, so that the next start makes the
        call again. On replay nothing is raised: a logged error did not end the job, although the
        policy may have changed since."""
        if not self.services.step.is_live:
            return
        errors = ((o, decode_error(o.answer)) for o in outcomes if not o.ok)
        ends = ((o, e) for o, e in errors if self._policy.tells_trace or self._policy.is_fatal(e))
        failed, error = next(ends, (None, None))
        if failed is None or error is None:
            return
        row = rows_of(self._store.at(np.array([failed.number], np.int64)))[0]
        if isinstance(error, EffectUnknown):
            what = f"{error.what} (for {short(row)})"
            trace, remedy = failed.trace, error.remedy
            raise EffectUnknown(what, where=self.info.where, remedy=remedy, trace=trace)
        if isinstance(error, BudgetSpent | OtherArguments | PoisonRecord):
            what = f"{error.what} (for {short(row)})"
            raise type(error)(what, where=self.info.where, remedy=error.remedy)
        times = f" after {failed.attempts} attempts" if failed.attempts > 1 else ""
        remedy = (
            "give on_error=, a function that gives an answer for a row whose call has failed, or "
            'set on_bad_record="drop" to skip such rows, or "keep" to have them as a stream, '
            "job.bad_records"
        )
        if isinstance(error, ClonosError) and error.remedy:
            remedy = f"{error.remedy}; or {remedy}"
        raise OperatorError(
            f"{describe(error)}{times} (for {short(row)})",
            where=self.info.where,
            remedy=remedy,
            trace=failed.trace,
        ) from error

    # --- event time ---------------------------------------------------------------------------

    @property
    def _newest(self) -> int | None:
        """The newest waiting row."""
        if self._came > self._asked:
            return self._came
        newest = next(reversed(self._in_line), None)
        return None if newest is None else self._cuts.last(newest)

    @property
    def _waits(self) -> bool:
        """Whether any row waits."""
        return bool(self._in_line) or self._came > self._asked

    def outgoing_watermark(self, incoming_ms: int) -> int | None:
        return self._marks.came(incoming_ms, self._came, self._newest)

    def next_due_ms(self) -> int | None:
        if self._came > self._asked and not self.is_full:  # rows wait for a full batch
            return self._cuts.due_ms()
        return self._marks.due(waits=self._waits)

    def on_timer(self, now_ms: int) -> pa.RecordBatch | None:
        del now_ms
        self._marks.on_timer(waits=self._waits)
        self._ask()
        return None

    def take_watermark(self) -> int | None:
        return self._marks.take()


class ForEachAsyncOperator(CallOperator):
    """Calls ``fn(value, ...)`` with values of some columns, or ``fn(row)``; no rows leave."""

    def __init__(self, policy: Policy, given: pa.Schema, of: Sequence[str], **how: Any) -> None:
        is_read = callable(policy.cost) or callable(policy.tokens)
        super().__init__(replace(policy, forgets=not is_read), given, **how)
        self._of = tuple(of)

    def on_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        return super().on_batch(self.readable(batch, self._of))

    def arguments_of(self, rows: pa.RecordBatch) -> Sequence[tuple[Any, ...]]:
        return _columns_of(rows, self._of) if self._of else [(row,) for row in rows_of(rows)]

    def rows_with(self, rows: pa.RecordBatch, answers: list[Any]) -> None:
        del rows, answers


class MapAsyncOperator(CallOperator):
    """Calls ``fn(row)`` and makes a row of the answer."""

    def __init__(self, policy: Policy, given: pa.Schema, schema: pa.Schema, **how: Any) -> None:
        super().__init__(policy, given, **how)
        self._builder = RowBuilder(schema)

    def on_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        return super().on_batch(self.readable(batch))

    def arguments_of(self, rows: pa.RecordBatch) -> Sequence[tuple[Any, ...]]:
        return [(row,) for row in rows_of(rows)]

    def rows_with(self, rows: pa.RecordBatch, answers: list[Any]) -> pa.RecordBatch | None:
        made = []
        for i, answer in enumerate(answers):
            try:
                made.append(self._builder.as_tuple(answer))
            except Exception as error:  # noqa: BLE001 - of what user code has returned
                self.reject_row(self.unfit(error), rows, i)
        return self._builder.build(made, lambda error, row: self.reject(self.unfit(error), row))


class WithColumnAsyncOperator(CallOperator):
    """Calls ``fn(value, ...)`` with the values of some columns; the answer is a column."""

    def __init__(
        self,
        policy: Policy,
        given: pa.Schema,
        of: Sequence[str],
        column: str,
        schema: pa.Schema,
        **how: Any,
    ) -> None:
        super().__init__(policy, given, **how)
        self._of = tuple(of)
        self._schema = schema
        self._field = schema.field(column)

    def on_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        return super().on_batch(self.readable(batch, self._of) if self._of else batch)

    def arguments_of(self, rows: pa.RecordBatch) -> Sequence[tuple[Any, ...]]:
        return _columns_of(rows, self._of) if self._of else [()] * rows.num_rows

    def rows_with(self, rows: pa.RecordBatch, answers: list[Any]) -> pa.RecordBatch | None:
        return with_values(self._schema, self._field, answers, rows, self._reject_answer)

    def _reject_answer(self, error: Exception, rows: pa.RecordBatch, row: int) -> None:
        self.reject_row(self.unfit(error), rows, row)


def _columns_of(rows: pa.RecordBatch, of: Sequence[str]) -> list[tuple[Any, ...]]:
    return list(zip(*(values_of(rows.column(name)) for name in of), strict=True))
