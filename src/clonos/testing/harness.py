"""Runs one task's program on scripted events, and checks that it can be restored after any step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from random import Random
from typing import Any

import pyarrow as pa

from clonos.columns.batches import seal
from clonos.columns.rows import RowBuilder
from clonos.columns.schema import parse_schema
from clonos.core.calls import CallId, Outcome, Request
from clonos.core.canonical import decode, decode_error, encode, encode_error
from clonos.core.program import Batch, Program
from clonos.errors import UnencodableValue
from clonos.graph.code import TaskCode
from clonos.graph.compile import CompiledJob
from clonos.operators.bad_records import with_place
from clonos.operators.calls.effects import EffectCall
from clonos.operators.calls.service import Policy, ask_once
from clonos.operators.chain import ChainProgram
from clonos.simulator.processes.shelf import SlowShelf
from clonos.state.deltas import decode_delta, open_delta
from clonos.state.sessions import AWAY


@dataclass(frozen=True)
class Source:
    """Rows from the task's source."""

    batch: pa.RecordBatch


@dataclass(frozen=True)
class Batches:
    """Consecutive batches of an input channel, and the watermark behind them, if any."""

    channel: int
    batches: tuple[pa.RecordBatch, ...]
    watermark_ms: int | None = None


@dataclass(frozen=True)
class Watermark:
    """A watermark of an input channel."""

    channel: int
    ms: int


@dataclass(frozen=True)
class Tick:
    """The clock moves on to `ms`; the timer fires if it is due."""

    ms: int


@dataclass(frozen=True)
class End:
    """The end of an input channel, or of the source."""

    channel: int | None = None


@dataclass(frozen=True)
class Answers:
    """Outcomes of calls that the program has made."""

    outcomes: tuple[Outcome, ...]


Call = Callable[[Callable[..., Any], Sequence[Any], dict[str, Any]], Any]
"""Answers calls: (function, arguments, keyword arguments) -> return value."""


def _really(fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    return fn(*args, **kwargs)


Event = Source | Batches | Watermark | Tick | Answers | End


@dataclass
class StepOutput:
    """The output of a step, by channel; also the step that the program sees."""

    position: int
    now_ms: int
    batches: dict[int, Batch] = field(default_factory=dict)
    watermarks: dict[int, int] = field(default_factory=dict)
    wake_ms: int | None = None
    calls: list[Any] = field(default_factory=list)
    asked: list[tuple[CallId, Request]] = field(default_factory=list)
    is_live: bool = True
    left_out: Sequence[Batch] = ()
    answer: Call = _really
    has_read_clock: bool = False

    def clock_ms(self) -> int:
        """See :class:`clonos.core.program.Step`."""
        self.has_read_clock = True
        return self.now_ms

    def clock_ms_if(self, *, reads: bool) -> int | None:
        """See :class:`clonos.core.program.Step`."""
        return self.clock_ms() if reads else None

    def call(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """See :class:`clonos.core.program.Step`."""
        self.calls.append((fn, tuple(args)))
        try:
            answer = self.answer(fn, args, kwargs)
        except Exception as error:
            raise decode_error(encode_error(error)) from error
        return decode(encode(answer))

    def ask(self, call: CallId, request: Request) -> None:
        """See :class:`clonos.core.program.Step`."""
        self.asked.append((call, request))

    def wake_at(self, due_ms: int | None) -> None:
        """See :class:`clonos.core.program.Step`."""
        self.wake_ms = due_ms

    def emit(self, channel: int, batch: Batch) -> None:
        """See :class:`clonos.core.program.Step`."""
        assert channel not in self.batches, f"two batches for channel {channel} in one step"
        assert batch.rows, "an empty batch"
        self.batches[channel] = batch

    def emit_watermark(self, channel: int, watermark_ms: int) -> None:
        """See :class:`clonos.core.program.Step`."""
        self.watermarks[channel] = watermark_ms

    @property
    def seen(self) -> tuple[Any, ...]:
        """The visible effects of the step, to compare it with another."""
        # As text, because NaN is not equal to itself; the digest compares it bit by bit.
        contents = {c: (b.digest, repr(b.payload.to_pylist())) for c, b in self.batches.items()}
        asked = [(call, request.digest) for call, request in self.asked]
        # Clock readings are logged, so reading the clock at another step breaks replay.
        return contents, self.watermarks, self.wake_ms, asked, self.has_read_clock


class StepHarness:
    """Feeds events to a program, one step each.

    Parameters
    ----------
    program
        The program, such as ``job.compile().codes[0].program()``.
    now_ms
        The time at the beginning; only :class:`Tick` moves it.
    call
        Answers ``ctx.call``; by default the function itself is called.

    Attributes
    ----------
    is_live
        False: the events fed now are a replay.
    """

    def __init__(
        self,
        program: Program,
        *,
        position: int = 0,
        now_ms: int = 1_000_000,
        call: Call = _really,
    ) -> None:
        self.program = program
        self._call = call
        self.position = position
        self.now_ms = now_ms
        self.wake_ms: int | None = getattr(program, "first_due_ms", None)
        self.is_live = True

    def feed(self, event: Event) -> StepOutput:
        """Handle one event. (A tick at which nothing is due is not a step and emits nothing.)"""
        if isinstance(event, Tick):
            return self.tick(event.ms)
        step = self._step()
        match event:
            case Source(batch):
                self.program.on_source(step, seal(batch))
            case Batches(channel, batches, mark):
                self.program.on_batches(step, channel, [seal(batch) for batch in batches], mark)
            case Watermark(channel, ms):
                self.program.on_watermark(step, channel, ms)
            case Answers(outcomes):
                self.program.on_outcomes(step, outcomes)
            case End(channel):
                self.program.on_end(step, channel)
        self.wake_ms = step.wake_ms
        return step

    def source(self, given: Iterable[Any], schema: Any) -> StepOutput:
        """Rows from the source."""
        return self.feed(Source(_batch(given, schema)))

    def input(self, channel: int, given: Iterable[Any], schema: Any) -> StepOutput:
        """Rows from an input channel."""
        return self.feed(Batches(channel, (_batch(given, schema),)))

    def watermark(self, channel: int, ms: int) -> StepOutput:
        """A watermark of an input channel."""
        return self.feed(Watermark(channel, ms))

    def end(self, channel: int | None = None) -> StepOutput:
        """The end of an input channel, or of the source."""
        return self.feed(End(channel))

    def answer(self, call: CallId, answer: Any) -> StepOutput:
        """Give a call its answer or exception."""
        return self.feed(Answers((outcome_of(call, self.program.open_calls()[call], answer),)))

    def tick(self, ms: int) -> StepOutput:
        """Move the clock; fires the timer once if it is due."""
        self.now_ms = max(ms, self.now_ms)
        if self.wake_ms is None or self.wake_ms > self.now_ms:
            return StepOutput(self.position, self.now_ms, wake_ms=self.wake_ms)
        step = self._step()
        self.program.on_timer(step, self.now_ms)
        step.has_read_clock = False  # the timer's entry has the time
        self.wake_ms = step.wake_ms
        return step

    def _step(self) -> StepOutput:
        self.position += 1
        return StepOutput(self.position, self.now_ms, is_live=self.is_live, answer=self._call)


def outcome_of(call: CallId, request: Request, answer: Any) -> Outcome:
    """The outcome of a call with this answer or exception."""
    is_error = isinstance(answer, BaseException)
    try:
        encoded = encode_error(answer) if is_error else encode(answer)
    except UnencodableValue as error:
        return outcome_of(call, request, error)
    if is_error:
        encoded = with_place(encoded, answer, request.service)
    return Outcome(*call, request.digest, not is_error, encoded)


def answered(call: CallId, request: Request) -> Outcome:
    """The outcome of a call that is made now, once, regardless of its policy."""
    policy: Policy = request.service
    is_told = policy.effect is not None and policy.effect.wants_call
    named = {"call": EffectCall(request.key, 1)} if is_told else {}
    try:
        answer = ask_once(policy, request.arguments, named)
    except Exception as error:  # noqa: BLE001 - user code
        answer = error
    return outcome_of(call, request, answer)


def rows(batch: Batch | pa.RecordBatch) -> list[tuple[Any, ...]]:
    """The rows of a batch as tuples."""
    payload = batch.payload if isinstance(batch, Batch) else batch
    return list(zip(*(column.to_pylist() for column in payload.columns), strict=True))


def task_code(compiled: CompiledJob, name: str) -> TaskCode:
    """The code of the task of this name, such as ``"count[0]"``."""
    return next(code for code in compiled.codes if code.task.name == name)


def check_restore(
    make_program: Callable[[], Program],
    events: Sequence[Event],
    *,
    merge: Callable[[list[bytes]], bytes] | None = None,
    state_memory: int | None = None,
) -> list[StepOutput]:
    """Assert that a program restored after any step behaves exactly like one that continued.

    After every prefix of `events`, state is sealed; a fresh program applies all deltas so far (or
    their result by `merge`) and handles the rest. Outputs, wake-ups and deltas must be equal.

    Parameters
    ----------
    make_program
        Makes a fresh program.
    events
        The events to feed.
    merge
        Merges deltas.
    state_memory
        So many bytes of memory the restored program has for values, timers and rows; the rest is on
        a disk.

    Returns
    -------
    list of StepOutput
        The output of the uninterrupted run.
    """
    reference = StepHarness(make_program())
    outputs, deltas, clocks = [], [], []
    for event in events:
        outputs.append(reference.feed(event))
        deltas.append(bytes(reference.program.delta()))
        clocks.append((reference.position, reference.now_ms, reference.wake_ms))
    for done in range(1, len(events)):
        program = make_program()
        if state_memory is not None and isinstance(program, ChainProgram):
            program.use(SlowShelf(Random(done)), state_memory)
        layers = deltas[:done] if merge is None else [merge(deltas[:done])]
        for layer in layers:
            program.apply(layer)
        position, now_ms, wake_ms = clocks[done - 1]
        restored = StepHarness(program, position=position, now_ms=now_ms)
        restored.wake_ms = wake_ms
        assert not bytes(program.delta()), "a restored program has changed nothing yet"
        is_elsewhere = False
        for i in range(done, len(events)):
            output = restored.feed(events[i])
            where = f"restored after step {done}, at event {i}: {events[i]}"
            assert output.seen == outputs[i].seen, where
            delta = bytes(program.delta())
            is_equal = delta == deltas[i]
            if state_memory is not None and not is_equal:
                is_elsewhere |= _have_gone(delta)
                is_equal = is_elsewhere or _changes(delta) == _changes(deltas[i])
            assert is_equal, f"delta {where}"
    return outputs


def _have_gone(delta: bytes) -> bool:
    """Whether a delta says that sessions have left the memory: from then on layers have them
    elsewhere."""
    opened = open_delta(delta)
    return any(
        is_fact and AWAY.encode() in keys.to_pylist()
        for _, is_fact, keys, _ in decode_delta(opened.names, opened)
    )


def _changes(delta: bytes) -> list[Any]:
    """What a delta says, but for the pieces that have been combined: with less memory, these may be
    fewer. Rows of one key have no order."""
    opened = open_delta(delta)
    said: list[Any] = [
        (of.operator, sorted(of.run.items(), key=itemgetter(0))) for of in opened.runs
    ]
    for operator, is_fact, keys, values in decode_delta(opened.names, opened):
        pairs = zip(keys.to_pylist(), values.to_pylist(), strict=True)
        kept = {k: v for k, v in pairs if not is_fact or k != b"combined"}
        said += [(operator, is_fact, kept)] if kept else []
    return said


def _batch(given: Iterable[Any], schema: Any) -> pa.RecordBatch:
    parsed = parse_schema(schema)
    builder = RowBuilder(parsed)
    arrays = list(zip(*(builder.as_tuple(row) for row in given), strict=True))
    columns = [pa.array(values, f.type) for values, f in zip(arrays, parsed, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=parsed)
