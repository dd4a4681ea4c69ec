"""Spark's ``StatefulProcessor`` objects in tasks: ``transformWithState``.

The user's object calls PySpark's names, so the objects that it is given here look like PySpark's
own. A batch of a task corresponds to Spark's micro-batch: the object is called once for each key
with rows in it. Values, lists and maps by key are values of the operator, like those of a
:class:`~clonos.operators.process.process.Process`. So are, for each key, the times of timers and
expiries.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa

from clonos.columns.keys import DistinctKeys, distinct_keys
from clonos.columns.rows import results_of, values_of
from clonos.core.canonical import decode
from clonos.errors import NotInTasks, WrongType
from clonos.operators.base import OperatorInfo, Services
from clonos.operators.process.process import Process, ProcessOperator
from clonos.operators.process.states import PROCESSING, TIMERS, TTL, HiddenState, States
from clonos.operators.watermark import event_ms
from clonos.state.timers import EVENT_TIME, PROCESSING_TIME, Timer

NONE: Final = "none"
EVENT: Final = "eventtime"
MODES: Final = {NONE: "None", PROCESSING: "ProcessingTime", EVENT: "EventTime"}
"""The time modes, and how PySpark spells them."""

_SWEEP: Final = b"t"
"""Key prefix of the timers that remove expired states."""


class StatefulHandle:
    """The argument of a processor's ``init``: PySpark's ``StatefulProcessorHandle``.

    Parameters
    ----------
    operator
        None while the job is being defined, when only the declarations matter.
    mode
        One of :data:`MODES`.
    where
        The operator, for errors.
    """

    def __init__(self, operator: StatefulOperator | None, mode: str, where: str) -> None:
        self._operator = operator
        self._mode = mode
        self._where = where
        self._states = States(operator, mode, where)
        self.getValueState = self._states.value
        self.getListState = self._states.list
        self.getMapState = self._states.map

    @property
    def declared(self) -> tuple[tuple[Any, ...], ...]:
        """Kind, name, types and time to live of each state, in order of declaration."""
        return tuple(self._states.declared)

    def sweep(self, now_ms: int) -> int | None:
        """Remove expired state of the current key; return when the next state expires, if any."""
        return self._states.sweep(now_ms)

    def registerTimer(self, expiryTimestampMs: int) -> None:
        """Have ``handleExpiredTimer`` called for the current key at this time."""
        operator = self._timed()
        due = int(expiryTimestampMs)
        if self._mode == EVENT and due <= operator.passed_ms:
            raise WrongType(
                f"a timer at {due} ms, but the watermark is at {operator.passed_ms} ms",
                where=self._where,
                remedy="register it for a later time",
            )
        kind = operator.timer_kind
        operator.timers.set(kind, due, operator.encoded_key, operator.key_group)
        operator.note_timers({*operator.noted_timers(), due})

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        """Forget the current key's timer at this time, if there is one."""
        operator = self._timed()
        due = int(expiryTimestampMs)
        operator.timers.delete(operator.timer_kind, due, operator.encoded_key, operator.key_group)
        operator.note_timers({*operator.noted_timers()} - {due})

    def listTimers(self) -> Iterator[int]:
        """The times of the current key's timers, the earliest first."""
        return iter(self._timed().noted_timers())

    def deleteIfExists(self, stateName: str) -> None:
        """Refused, because it would affect all keys at once."""
        raise NotInTasks(
            f"deleteIfExists({stateName!r}) would remove a state of all keys whenever a task "
            "begins",
            where=self._where,
            remedy="clear() it for each key, or give the state another name",
        )

    def _timed(self) -> StatefulOperator:
        if self._mode == NONE:
            raise WrongType(
                'there are no timers with timeMode="None"',
                where=self._where,
                remedy='say timeMode="ProcessingTime" or "EventTime"',
            )
        if self._operator is None:
            raise WrongType(
                "a timer belongs to a key, and in init there is none",
                where=self._where,
                remedy="register timers in handleInputRows and handleExpiredTimer",
            )
        return self._operator


class TimerValues:
    """PySpark's ``TimerValues``: the time of a call. The clock is read only on demand."""

    def __init__(self, operator: StatefulOperator) -> None:
        self._operator = operator

    def getCurrentProcessingTimeInMs(self) -> int:
        """The time of the step; -1 without timers."""
        return -1 if self._operator.mode == NONE else self._operator.services.step.clock_ms()

    def getCurrentWatermarkInMs(self) -> int:
        """The watermark; -1 if time is not event time."""
        return self._operator.passed_ms if self._operator.mode == EVENT else -1


class ExpiredTimerInfo:
    """PySpark's ``ExpiredTimerInfo``: the timer that has expired."""

    def __init__(self, due: int) -> None:
        self._due = due

    def getExpiryTimeInMs(self) -> int:
        """When it was to expire."""
        return self._due


class StatefulOperator(ProcessOperator):
    """Runs a ``StatefulProcessor``, one key's rows at a time, in order.

    Parameters
    ----------
    mode
        One of :data:`MODES`.
    time
        The column with the event time; late rows are dropped, as in Spark.
    """

    def __init__(
        self,
        processor: Any,
        keys: Sequence[str],
        schema: pa.Schema,
        mode: str,
        time: str | None,
    ) -> None:
        super().__init__(Process(), keys, schema)
        # Each program needs its own object, as in ProcessOperator.
        self._processor = copy.deepcopy(processor)
        self.mode = mode
        self._time = time
        self._times = TimerValues(self)
        self._declared: StatefulHandle
        self._noted = HiddenState(TIMERS, self)
        self._swept = HiddenState(TTL, self)
        self._row: Any = None

    def open(self, info: OperatorInfo, services: Services) -> None:
        super().open(info, services)
        from pyspark.sql import Row

        self._row = Row
        self._declared = StatefulHandle(self, self.mode, info.where)
        self._processor.init(self._declared)

    @property
    def passed_ms(self) -> int:
        """The watermark, which begins with 0 as in Spark."""
        mark = self.watermark_ms
        return 0 if mark is None else mark

    @property
    def timer_kind(self) -> bytes:
        """The kind of the processor's timers."""
        return EVENT_TIME if self.mode == EVENT else PROCESSING_TIME

    def state(self) -> dict[Any, dict[str, Any]]:
        return {
            key: shown
            for key, kept in super().state().items()
            if (shown := {name: value for name, value in kept.items() if name[:1] != "~"})
        }

    def noted_timers(self) -> list[int]:
        """The times of the current key's timers."""
        return list(self._noted.get() or ())

    def note_timers(self, dues: set[int]) -> None:
        """Record a key's timers, because the timers themselves are indexed by time, not by key."""
        self._noted.put(sorted(dues) or None)

    def sweep_by(self, due: int) -> None:
        """Some state of the current key expires at `due`. One timer per key is set to the earliest
        expiry."""
        known = self._swept.get()
        if known is not None and known <= due:
            return
        key = _SWEEP + self.encoded_key
        if known is not None:
            self.timers.delete(PROCESSING_TIME, known, key, self.key_group)
        self._swept.put(due)
        self.timers.set(PROCESSING_TIME, due, key, self.key_group)

    def on_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        batch = self.readable(self._in_time(batch))
        if not batch.num_rows:
            return None
        distinct: DistinctKeys = distinct_keys(batch, self._keys)
        self._expect(distinct.encoded)
        made = map(self._row(*batch.schema.names), *map(values_of, batch.columns))
        rows: list[list[Any]] = [[] for _ in distinct.encoded]
        for row, code in zip(made, distinct.codes.tolist(), strict=True):
            rows[code].append(row)
        results: list[tuple[Any, ...]] = []
        for code, encoded in enumerate(distinct.encoded):
            self._begin(encoded, distinct.groups[code])
            call = partial(self._processor.handleInputRows, self.key, iter(rows[code]), self._times)
            self._run(call, partial(_rows_of_key, batch, distinct.codes, code), results)
        return self._done(results)

    def _in_time(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that are not late."""
        mark = self.watermark_ms
        if self.mode != EVENT or self._time is None or mark is None:
            return batch
        times = event_ms(batch.column(self._time)).fill_null(mark + 1).to_numpy()
        is_late = times <= mark
        if not is_late.any():
            return batch
        self.facts.set("late_rows", self.facts.get("late_rows", 0) + int(np.sum(is_late)))
        return batch.filter(pa.array(~is_late))

    def on_end(self) -> pa.RecordBatch | None:
        made = super().on_end()
        try:
            self._processor.close()
        except Exception as error:  # noqa: BLE001 - user code
            self.reject(error, "close")
        return made

    def _fire(self, kind: bytes, until_ms: int | None) -> pa.RecordBatch | None:
        results: list[tuple[Any, ...]] = []
        for timer in self._due(kind, until_ms):
            self._begin(self._key_of(timer), timer.group)
            if timer.encoded_key.startswith(_SWEEP):
                self._sweep()
                continue
            call = partial(
                self._processor.handleExpiredTimer,
                key=self.key,
                timerValues=self._times,
                expiredTimerInfo=ExpiredTimerInfo(timer.due),
            )
            self._run(call, partial("timer of key {!r} at {}".format, self.key, timer.due), results)
            # Deleted after the call, even if the processor has registered it again, as in Spark.
            self._declared.deleteTimer(timer.due)
        return self._done(results)

    def _key_of(self, timer: Timer) -> bytes:
        return timer.encoded_key.removeprefix(_SWEEP)

    def _sweep(self) -> None:
        self._swept.put(None)
        following = self._declared.sweep(self.services.step.clock_ms())
        if following is not None:
            self.sweep_by(following)

    def _begin(self, encoded_key: bytes, group: int) -> None:
        self.key = tuple(decode(encoded_key))
        self.key_group = group
        self._encoded_key = encoded_key

    def _done(self, results: list[tuple[Any, ...]]) -> pa.RecordBatch | None:
        self._encoded_key = None
        self.values.require_sound()
        return self._builder.build(results, self.reject)

    def _run(
        self, call: Callable[[], Any], record: Callable[[], Any], results: list[tuple[Any, ...]]
    ) -> None:
        """Call the processor: its results and state changes take effect together or not at all."""
        as_tuple = self._builder.as_tuple
        self._undo.begin()
        try:
            made = results_of(call(), lambda result: as_tuple(_named(result)))
        except Exception as error:  # noqa: BLE001 - user code
            self._undo.roll_back()
            self.reject(error, record())
        else:
            self._undo.commit()
            results.extend(made)


def _rows_of_key(batch: pa.RecordBatch, codes: Any, code: int) -> pa.RecordBatch:
    return batch.filter(pa.array(codes == code))


def _named(result: Any) -> Any:
    """A result matched by names, as in Spark; a Row without names is matched by position."""
    if not hasattr(result, "asDict"):
        return result
    return result.asDict(True) if hasattr(result, "__fields__") else tuple(result)
