"""process: user-defined logic per key, with state and timers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, ClassVar, Final

import pyarrow as pa

from clonos.columns.instants import to_ms
from clonos.columns.keys import DistinctKeys, distinct_keys
from clonos.columns.rows import RowBuilder, results_of, rows_of
from clonos.columns.schema import parse_type
from clonos.core.calls import Outcome, Request
from clonos.core.canonical import decode, encode, split
from clonos.errors import OperatorError, WrongType
from clonos.operators.base import Operator, OperatorInfo, Services
from clonos.operators.calls.budget import Usage
from clonos.operators.calls.effects import Effect
from clonos.operators.calls.marks import JOINS, Marks
from clonos.operators.calls.service import (
    Declared,
    Policy,
    PolicyOptions,
    Service,
    of_several,
    policy_of,
    undeclared,
)
from clonos.operators.context import Context, require_takes
from clonos.operators.process.asking import Asked, Call, CallTable, Reply, method_of
from clonos.operators.process.declared import IN_USE, DeclaredStates
from clonos.operators.shares import (
    CALLS,
    Share,
    all_of_them,
    highest,
    nothing,
    require_answered,
)
from clonos.options import require_known
from clonos.state.deltas import Frozen, both
from clonos.state.stores import KeyedStore, Undo, kept_as
from clonos.state.timers import EVENT_TIME, PROCESSING_TIME, Timer, TimerTable, place_of
from clonos.state.values import ValueStore

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from clonos.core.content import Shelf
    from clonos.operators.calls.service import Duration
    from clonos.state.runs import Run

_STATE = b"s"

CALLBACKS: Final = {"open": ("ctx",), "on_row": ("row", "ctx"), "on_timer": ("key", "due", "ctx")}
"""The methods of a :class:`Process` that may be overridden, and what they get."""

_PYTHON_TYPES: tuple[tuple[Callable[[pa.DataType], bool], tuple[type, ...]], ...] = (
    (pa.types.is_boolean, (bool,)),
    (pa.types.is_integer, (int,)),
    (pa.types.is_floating, (float, int)),
    (pa.types.is_string, (str,)),
    (pa.types.is_binary, (bytes,)),
    (pa.types.is_timestamp, (datetime,)),
    (pa.types.is_date, (date,)),
    (pa.types.is_decimal, (Decimal,)),
    (pa.types.is_list, (list, tuple)),
    (pa.types.is_map, (dict,)),
)


class Process:
    """Base class for logic per key: override :meth:`on_row`, and other methods as needed.

    One object serves all keys of a task. Keep nothing that depends on the input in its attributes;
    use ``ctx.state(...)``, which belongs to the current key and survives failures.

    Slow services are called through ``ctx.service(...)``: meanwhile other rows are processed, even
    of the same key, and one of your methods gets the reply.

    Examples
    --------
    >>> class CountPerUser(Process):
    ...     def open(self, ctx):
    ...         self.seen = ctx.state("seen", "long")
    ...
    ...     def on_row(self, row, ctx):
    ...         self.seen.set((self.seen.get() or 0) + 1)
    ...         return [(row.user, self.seen.get())]
    >>> class Assistant(Process):
    ...     def open(self, ctx):
    ...         self.model = ctx.service("model", complete, timeout="30 seconds", attempts=3)
    ...         self.talk = ctx.state("talk")
    ...
    ...     def on_row(self, row, ctx):
    ...         self.talk.set([*self.talk.get([]), row.text])
    ...         self.model.ask(self.talk.get(), then="on_reply")
    ...
    ...     def on_reply(self, reply, ctx):
    ...         self.talk.set([*self.talk.get(), reply.get()])
    ...         return [(ctx.key, reply.get())]
    """

    def open(self, ctx: ProcessContext) -> None:
        """Called once per task, before the first event: declare state here."""

    def on_row(self, row: Any, ctx: ProcessContext) -> Iterable[Any] | None:
        """A row of the current key (``ctx.key``); returns rows of the declared schema."""
        raise NotImplementedError  # never called: a job whose process lacks it is refused

    def on_timer(self, key: Any, due: int, ctx: ProcessContext) -> Iterable[Any] | None:
        """A timer of this key is due (`due` in ms since the epoch)."""


def prefix_of(state: str) -> bytes:
    """How the addresses of all values of a state begin."""
    return _STATE + encode(state)


class ValueState:
    """One value per key.

    :meth:`get` returns a copy: changing it in place has no effect until :meth:`set`.
    """

    def __init__(self, name: str, data_type: str | None, operator: ProcessOperator) -> None:
        self._name = name
        self._operator = operator
        self._is_in_use = False
        self.prefix = prefix_of(name)
        self._classes: tuple[type, ...] | None = None
        if data_type is not None:
            parsed = parse_type(data_type)
            self._classes = next((c for matches, c in _PYTHON_TYPES if matches(parsed)), None)

    def get(self, default: Any = None) -> Any:
        """The current key's value, or `default` if it has none."""
        operator = self._operator
        value = operator.values.get(self.prefix + operator.encoded_key)
        return default if value is None else value

    def set(self, value: Any) -> None:
        """Replace the current key's value (None clears it)."""
        kept = kept_as(value)
        if self._classes is not None and kept is not None:
            given = decode(kept) if type(kept) is bytes else kept
            if not isinstance(given, self._classes):
                wanted = " or ".join(cls.__name__ for cls in self._classes)
                raise WrongType(
                    f"state {self._name!r} is set to a {type(value).__name__}, not {wanted}",
                    where=self._operator.info.where,
                    remedy="set what was declared in ctx.state(name, type)",
                )
        operator = self._operator
        operator.values.put_kept(self.prefix + operator.encoded_key, operator.key_group, kept)
        if not self._is_in_use and kept is not None:
            self._is_in_use = True
            operator.declared.use(self._name)

    def clear(self) -> None:
        """Forget the current key's value."""
        if self.prefix + self._operator.encoded_key in self._operator.values:
            self.set(None)


class Timers:
    """Timers of the current key, in ms since the epoch or as datetimes.

    A timer is identified by its kind and time, so setting it twice has no further effect.
    """

    def __init__(self, operator: ProcessOperator) -> None:
        self._operator = operator

    def processing_time(self, due: int | datetime) -> None:
        """Call ``on_timer`` when the clock reaches `due`, unless the input ends before."""
        self._set(PROCESSING_TIME, due)

    def event_time(self, due: int | datetime) -> None:
        """Call ``on_timer`` when the watermark reaches `due`, or when the input ends.

        There is a watermark only if :meth:`Stream.with_watermark` comes before this operator.
        """
        self._set(EVENT_TIME, due)

    def delete(self, due: int | datetime) -> None:
        """Forget the current key's timers at `due`, of both kinds."""
        operator = self._operator
        for kind in (PROCESSING_TIME, EVENT_TIME):
            operator.timers.delete(kind, to_ms(due), operator.encoded_key, operator.key_group)

    def _set(self, kind: bytes, due: int | datetime) -> None:
        operator = self._operator
        if not operator.hears_timers:
            raise WrongType(
                "a timer is set, and nothing would happen when it is due",
                where=operator.info.where,
                remedy="write on_timer(self, key, due, ctx)",
            )
        operator.timers.set(kind, to_ms(due), operator.encoded_key, operator.key_group)


class ProcessContext(Context):
    """The context of a :class:`Process`, which adds state and timers of the current key."""

    def __init__(self, operator: ProcessOperator) -> None:
        super().__init__(operator)
        self._process = operator
        self.timers = Timers(operator)

    @property
    def key(self) -> Any:
        """The current key: a value, or a tuple if the stream is keyed by several columns."""
        return self._process.key

    def service(
        self,
        name: str,
        fn: Callable[..., Any] | Service | Effect | Declared,
        *,
        batch: int | None = None,
        batch_within: Duration | None = None,
        **how: Unpack[PolicyOptions],
    ) -> Asked:
        """Declare, in :meth:`Process.open`, a service that is called asynchronously.

        Parameters
        ----------
        name
            The service's name in the state; do not change it while calls may be open.
        fn
            A coroutine function, a plain function, a :class:`clonos.Service`, or, with
            ``process(..., effects=True)``, a :func:`clonos.effect`.
        batch
            How many questions, of any keys, one call may answer. The function gets a list of each
            argument, and returns a list with one answer for each question. Each question has its
            own reply. All other options apply to calls, not to questions.
        batch_within
            How long questions wait if there are fewer than `batch`. By default, a call takes the
            questions that are waiting when it is made.
        how
            ``timeout``, ``attempts``, ``backoff``, ``per_second``, ``hedge``: see
            :func:`clonos.operators.calls.service.policy_of`.
        """
        return self._process.declare(name, fn, how, batch, batch_within)

    def state(self, name: str, data_type: str | None = None) -> ValueState:
        """State of this name. With a `data_type` (such as ``"long"``), :meth:`ValueState.set`
        checks its values."""
        return self._process.value_state(name, data_type)


class ProcessOperator(Operator):
    """Runs a :class:`Process` row by row.

    ``in_flight``: how many calls may be open; further questions wait, and so does the input.
    ``effects``: its services may be effects.
    """

    has_values = True
    joins: ClassVar = {
        **JOINS,
        **CALLS,
        "timers": highest,
        "since": nothing,
        IN_USE: all_of_them,
    }

    def __init__(
        self,
        process: Process,
        keys: Sequence[str],
        schema: pa.Schema,
        in_flight: int = 100,
        *,
        effects: bool = False,
    ) -> None:
        super().__init__()
        self._in_flight = in_flight
        self._may_have_effects = effects
        # Several programs are made from one definition; each needs its own object.
        self._process = copy.deepcopy(process)
        self.hears_timers = type(process).on_timer is not Process.on_timer
        self._keys = tuple(keys)
        self._builder = RowBuilder(schema)
        self._ctx: ProcessContext
        self._is_open = False
        self._undo = Undo()
        self.values = ValueStore(self._undo, place_of)
        self.declared = DeclaredStates(self.facts)
        self._prefixes: list[bytes] = []  # of the values that it may look up
        self.timers = TimerTable(self.values, self.facts)
        self.store = KeyedStore(self._undo)
        self._calls = CallTable(self.store, in_flight)
        self._asks: list[bytes] = []  # questions of the running callback
        self._hears: set[str] = set()  # names of methods that can get a reply
        self._origin = 0  # of the callback's conversation
        self._marks = Marks(self.facts)
        self.key: Any = None
        self.key_group = 0
        self._encoded_key: bytes | None = None

    def open(self, info: OperatorInfo, services: Services) -> None:
        super().open(info, services)
        self._ctx = ProcessContext(self)
        self._process.open(self._ctx)
        self._is_open = True

    def state(self) -> dict[Any, dict[str, Any]]:
        """The values of each key, by name."""
        found: dict[Any, dict[str, Any]] = {}
        for address in [one for one in self.values if one.startswith(_STATE)]:
            name, encoded_key = split(address[len(_STATE) :])
            kept = found.setdefault(_decode_key(encoded_key), {})
            kept[name] = self.values.get(address)
        return found

    def value_state(self, name: str, data_type: str | None) -> ValueState:
        """Declare state of this name."""
        state = ValueState(name, data_type, self)
        self.expects(state.prefix)
        if not self._is_open:
            self.declared.add(name)
        return state

    def expects(self, prefix: bytes) -> None:
        """Look up values of this prefix together for all keys of a batch."""
        if prefix not in self._prefixes:
            self._prefixes.append(prefix)

    def _expect(self, keys: Iterable[bytes]) -> None:
        """Look up the values of these keys in advance."""
        self.values.relieve()
        if self.values.has_tiers:
            self.values.expect([prefix + key for key in keys for prefix in self._prefixes])

    @property
    def encoded_key(self) -> bytes:
        """The encoding of the current key."""
        if self._encoded_key is None:
            raise OperatorError(
                "state and timers belong to a key, and there is no current key",
                where=self.info.where,
                remedy="use them in on_row and on_timer; only declare them in open",
            )
        return self._encoded_key

    def on_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        batch = self.readable(batch)
        distinct: DistinctKeys = distinct_keys(batch, self._keys)
        keys = [_decode_key(encoded) for encoded in distinct.encoded]
        self._expect(distinct.encoded)
        results: list[tuple[Any, ...]] = []
        for row, code in zip(rows_of(batch), distinct.codes.tolist(), strict=True):
            self.key = keys[code]
            self.key_group = distinct.groups[code]
            self._encoded_key = distinct.encoded[code]
            self._handle(row, results, self._process.on_row, row)
        self._encoded_key = None
        self.values.require_sound()
        self._ask_due()
        return self._builder.build(results, self.reject)

    def on_watermark(self, watermark_ms: int) -> pa.RecordBatch | None:
        return self._fire(EVENT_TIME, watermark_ms)

    def on_timer(self, now_ms: int) -> pa.RecordBatch | None:
        rows = self._fire(PROCESSING_TIME, now_ms)
        self._marks.on_timer(waits=bool(self._calls))
        return rows

    def next_due_ms(self) -> int | None:
        idle = self._marks.due(waits=bool(self._calls))
        if idle is not None:
            return idle
        due = self.timers.next_due(PROCESSING_TIME), self._calls.next_due_ms()
        return min((ms for ms in due if ms is not None), default=None)

    def on_end(self) -> pa.RecordBatch | None:
        # Event time has reached its end. Processing time has not, so its timers never fire.
        self._calls.inputs_are_over()
        return self._fire(EVENT_TIME, None)

    def changes(self) -> Frozen:
        return both(self.values.changes(), self.store.changes())

    @property
    def stores(self) -> tuple[ValueStore]:
        return (self.values,)

    def use(self, shelf: Shelf, nbytes: int) -> None:
        self.values.use(shelf, nbytes)

    def restored(self) -> None:
        self.declared.require(self.info.operator)

    def restore_values(self, run: Run) -> None:
        self.timers.restore(self.values.restore(run))
        self.values.relieve()

    def restore(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        self.store.restore(keys, values)
        self._calls.restore(keys, values)

    def adopt_state(self, shares: Sequence[Share], where: str) -> None:
        # Values and timers are in runs. Timers of two tasks may have the same number: those due at
        # once fire by number and key.
        require_answered(sum(len(share.keys) for share in shares), where)

    # --- calls --------------------------------------------------------------------------------

    def declare(
        self,
        name: str,
        fn: Callable[..., Any] | Service | Effect | Declared,
        how: PolicyOptions,
        batch: int | None = None,
        within: Duration | None = None,
    ) -> Asked:
        """Declare a service."""
        if self._is_open or name in self._calls.policies:
            raise WrongType(
                f"the service {name!r} is declared outside of open"
                if self._is_open
                else f"two services are called {name!r}",
                where=self.info.where,
                remedy="declare each service once, in open(self, ctx), under a name of its own",
            )
        known = (*PolicyOptions.__annotations__, "batch", "batch_within")
        require_known(how, known, f"{self.info.where}: ctx.service({name!r})")
        fn, how = undeclared(fn, how)
        if isinstance(fn, Effect) and not self._may_have_effects:
            raise WrongType(
                f"the service {name!r} is an effect",
                where=self.info.where,
                remedy="say process(..., effects=True): then the log that leads to an effect is "
                "made safe first",
            )
        policy = policy_of(fn, name, in_flight=self._in_flight, **how)
        policy = of_several(policy, batch, within, f"{self.info.where}: {name}")
        fails = self.info.on_bad_record == "fail"
        policy = policy.of_task(self.info.index, self.info.parallelism, tells_trace=fails)
        self._calls.declare(name, policy, self.info, self.facts)
        return Asked(policy, self.ask)

    def ask(self, policy: Policy, arguments: Sequence[Any], then: str) -> None:
        """Ask when the running callback has returned; if it raises, nothing is asked."""
        if then not in self._hears:
            method_of(self._process, then, self.info.where)
            require_takes(self._process, then, ("reply", "ctx"), self.info.where)
            self._hears.add(then)
        if policy.batch is not None and not arguments:
            raise WrongType(
                "batch= makes lists of the arguments, and this question has none",
                where=f"{self.info.where}: {policy.name}",
                remedy="ask it something, or leave batch= out",
            )
        origin = self._origin
        key, group, kind = self.encoded_key, self.key_group, policy.fingerprint
        call = Call(policy.name, then, arguments, key, group, origin, kind)
        self._asks.append(call.kept())

    def _ask_now(self) -> None:
        self._marks.rows_came()
        asks, self._asks = self._asks, []
        for kept in asks:
            number = self.facts.get("asked", 0) + 1
            self.facts.set("asked", number)
            if (request := self._calls.add(number, kept, self.services.step)) is not None:
                self.services.ask(self, number, request)

    def _ask_due(self) -> None:
        """Make waiting calls that may be made now."""
        for number, request in self._calls.due(self.services.step):
            self.services.ask(self, number, request)

    @property
    def makes_calls(self) -> bool:
        return bool(self._calls.policies)

    @property
    def waiting_bytes(self) -> int:
        return self._calls.nbytes

    @property
    def is_full(self) -> bool:
        return self._calls.is_full

    @property
    def spent(self) -> Usage:
        return self._calls.spent

    @property
    def most_answers(self) -> int:
        return self._calls.most_answers

    def open_calls(self) -> dict[int, Request]:
        return self._calls.requests()

    def on_outcomes(self, outcomes: Sequence[Outcome]) -> pa.RecordBatch | None:
        results: list[tuple[Any, ...]] = []
        self._expect(self._calls.keys_of(outcomes))
        for outcome in outcomes:
            if self.services.step.is_live:
                self._calls.require_known(outcome)
            for call, said in self._calls.take(outcome):
                self._hear(call, said, results)
        self._encoded_key, self._origin = None, 0
        self.values.require_sound()
        self._ask_due()
        first = self._calls.first
        self._marks.release(self.facts.get("asked", 0) + 1 if first is None else first)
        return self._builder.build(results, self.reject)

    def _hear(self, call: Call, said: Outcome, results: list[tuple[Any, ...]]) -> None:
        self._encoded_key, self.key_group = call.encoded_key, call.group
        self.key = _decode_key(call.encoded_key)
        self._origin = call.origin or said.number
        reply = Reply(call.service, call.arguments, said)
        then = method_of(self._process, call.then, self.info.where)
        self._handle(f"the reply of {call.service} for key {self.key!r}", results, then, reply)

    def outgoing_watermark(self, incoming_ms: int) -> int | None:
        if not self.makes_calls:
            return incoming_ms
        return self._marks.came(incoming_ms, self.facts.get("asked", 0), self._calls.newest)

    def take_watermark(self) -> int | None:
        return self._marks.take()

    def _fire(self, kind: bytes, until_ms: int | None) -> pa.RecordBatch | None:
        results: list[tuple[Any, ...]] = []
        for timer in self._due(kind, until_ms):
            self.key = _decode_key(timer.encoded_key)
            self.key_group = timer.group
            self._encoded_key = timer.encoded_key
            record = f"timer of key {self.key!r} at {timer.due}"
            self._handle(record, results, self._process.on_timer, self.key, timer.due)
        self._encoded_key = None
        self.values.require_sound()
        self._ask_due()
        return self._builder.build(results, self.reject)

    def _due(self, kind: bytes, until_ms: int | None) -> Iterator[Timer]:
        """The timers that are due, each removed when its turn comes."""
        # What a timer sets while it fires is for a later step: nobody can loop for ever here.
        for some in self.timers.due(kind, until_ms):
            self._expect({self._key_of(timer): None for timer in some})
            # Else it was deleted by one that fired before it.
            yield from filter(self.timers.remove, some)

    def _key_of(self, timer: Timer) -> bytes:
        """The key whose values a timer is about."""
        return timer.encoded_key

    def _handle(
        self,
        record: Any,
        results: list[tuple[Any, ...]],
        callback: Callable[..., Iterable[Any] | None],
        *args: Any,
    ) -> None:
        """Run one callback: its results and state changes take effect together or not at all."""
        self._undo.begin()
        try:
            made = results_of(callback(*args, self._ctx), self._builder.as_tuple)
        except Exception as error:  # noqa: BLE001 - user code
            self._undo.roll_back()
            self._asks.clear()
            self.reject(error, record)
        else:
            self._undo.commit()
            results += made
            if self._asks:
                self._ask_now()


def _decode_key(encoded: bytes) -> Any:
    key = decode(encoded)
    return key[0] if len(key) == 1 else tuple(key)


def described(address: bytes) -> str:
    """What an address of a process's store holds, for error messages.

    Examples
    --------
    >>> described(_STATE + encode("total") + encode(["user 1"]))
    "state 'total' of key 'user 1'"
    """
    if address.startswith(_STATE):
        name, encoded_key = split(address[len(_STATE) :])
        return f"state {name!r} of key {_decode_key(encoded_key)!r}"
    return "a timer" if address[:1] in (PROCESSING_TIME, EVENT_TIME) else "what it keeps"
