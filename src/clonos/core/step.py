"""One step, live or replayed: the place where every nondeterministic event enters and is logged."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from clonos.core.calls import CallId, Request
from clonos.core.canonical import decode, decode_error, encode, encode_error
from clonos.core.determinants import (
    Call,
    Clock,
    Determinant,
    LeftOut,
    Marker,
    Order,
    Outcomes,
    Source,
    SourceCut,
    SourceEnd,
    Timer,
)
from clonos.core.digest import content_digest
from clonos.core.events import World
from clonos.core.messages import Item, Kind
from clonos.core.plan import TaskSpec
from clonos.core.program import Batch, Program, Step
from clonos.errors import Divergence, ProtocolError, StepTooLarge, UnencodableValue

RECORD_BYTES_MAX: Final = 64 << 20
"""Limit on the answers of all calls of one step. They travel as one, and are kept until a floor."""
BATCH_BYTES_MAX: Final = 1 << 30
"""Limit on the size of a batch, because it is sent as a whole, too."""

D = TypeVar("D", Clock, Call)

Work = Callable[[], object]
"""The part of a step that user code does, between its two halves."""


def checked(record: bytes, position: int, where: str) -> bytes:
    """Return the log entry of a step; raise `StepTooLarge` if it cannot travel."""
    if len(record) > RECORD_BYTES_MAX:
        raise StepTooLarge(
            f"the calls of step {position} (or the rows of a source that cannot be read again) "
            f"take {len(record)} bytes in the log; at most {RECORD_BYTES_MAX} can travel as one",
            where=where,
            remedy="let a call answer less (keep large values in a store and return their names), "
            "or set a smaller batch_rows_max",
        )
    return record


class Abandoned(BaseException):  # user code may well catch every Exception
    """The life to which a step belongs is over: nobody waits for its result."""


def nothing() -> None:
    """Do the work of a step without user code."""


def end_all(program: Program, step: Step, ended: Sequence[int]) -> None:
    """These inputs end with this step. (All feedback ends at once.)"""
    for channel in ended:
        program.on_end(step, channel)


def work_of(
    program: Program,
    step: RunningStep,
    cause: Determinant,
    items: Sequence[Item],
    batches: Sequence[Batch],
) -> Work:
    """What a program has to do in a step; `batches`: the rows that it takes."""
    match cause:
        case SourceCut(rows=0):
            return nothing
        case Source() | SourceCut():
            return partial(program.on_source, step, batches[0])
        case SourceEnd():
            return partial(program.on_end, step, None)
        case Timer(now_ms=now_ms):
            return partial(program.on_timer, step, now_ms)
        case Outcomes(outcomes=outcomes):
            return partial(program.on_outcomes, step, outcomes)
        case Order(channel=channel):
            match items[0].kind:
                case Kind.BATCH:
                    mark = items[-1].watermark
                    return partial(program.on_batches, step, channel, batches, mark)
                case Kind.WATERMARK:
                    return partial(program.on_watermark, step, channel, items[0].value)
                case Kind.END:
                    return partial(end_all, program, step, step.ended or (channel,))
                case Kind.PROBE if step.ended:
                    return partial(end_all, program, step, step.ended)
    return nothing


def attempt(work: Work) -> Exception | None:
    """Do the work of a step; return what it has raised."""
    try:
        work()
    except Exception as error:  # noqa: BLE001 - the caller decides what it means
        return error
    except Abandoned:
        return None
    return None


def pick_rows(world: World, batches: Sequence[Batch], rows: Sequence[int]) -> list[Batch]:
    """These of the rows of all batches together, by number from 0, in ascending order."""
    picked, start = [], 0
    for batch in batches:
        end = start + batch.rows
        some = rows[bisect_left(rows, start) : bisect_left(rows, end)]
        if some:
            is_whole = len(some) == batch.rows
            picked.append(batch if is_whole else world.pick(batch, [n - start for n in some]))
        start = end
    return picked or [world.pick(batch, ()) for batch in batches[:1]]


class TaskTime:
    """Processing time of a task while it is live: it never goes back, and never stands still.

    It follows the wall clock. If that is set back by an hour, timers and windows still come in
    time: ``max(wall, last + ticks since)``. ``has_fired``: whether timers were the last choice.
    """

    has_fired = False

    def __init__(self, world: World) -> None:
        self._world = world
        self._last_ms = 0
        self._ticks_ms: int | None = None

    def begin(self, last_ms: int) -> None:
        """Continue after the last known reading, perhaps of an earlier life."""
        self._last_ms, self._ticks_ms = last_ms, None

    def now_ms(self) -> int:
        ticks_ms = self._world.ticks_ms()
        since_ms = 0 if self._ticks_ms is None else ticks_ms - self._ticks_ms
        self._last_ms = max(self._world.clock_ms(), self._last_ms + since_ms)
        self._ticks_ms = ticks_ms
        return self._last_ms


class RunningStep:
    """What a program sees of a step (see :class:`clonos.core.program.Step`).

    A live step asks `world` and appends to :attr:`record`; a replayed one takes every answer
    from `logged` and never touches the world.

    Between its two halves a step shares nothing with its machine: user code may run in one thread
    while the machine handles events in another.

    Attributes
    ----------
    marker, ends, ended
        The epoch of the marker that it takes (0: none); whether an input or the source ends with
        it; the inputs that end.
    left_out
        Rows that it takes and does not handle, because they kill the process.
    is_quiet
        Whether it takes nothing that could keep a loop going.
    has_called
        Whether it has called a service, live.
    is_abandoned
        Whether its life is over: any further call of user code raises :class:`Abandoned`.
    """

    def __init__(
        self,
        position: int,
        cause: Determinant,
        world: World,
        time: TaskTime,
        *,
        clock_ms: int,
        wake_ms: int | None,
        now_ms: int | None = None,
        logged: Sequence[Determinant] | None = None,
    ) -> None:
        self.position = position
        self.record: list[Determinant] = [cause]
        self.emitted: dict[int, Batch] = {}
        self.watermarks: dict[int, int] = {}
        self.left_out: Sequence[Batch] = ()
        self.asked: list[tuple[CallId, Request]] = []
        self.wake_ms = wake_ms
        self.floor_clock_ms = clock_ms if now_ms is None else now_ms  # time never goes back
        self._now_ms = now_ms
        self.marker = self.rows = 0
        self.ended: tuple[int, ...] = ()
        self.is_quiet = isinstance(cause, Marker)
        self.ends = self.is_abandoned = self.has_called = False
        self.is_live = logged is None
        self._world, self._time = world, time
        self._replayed = list(logged[::-1]) if logged is not None else None

    def _logged(self, kind: type[D]) -> D:
        assert self._replayed is not None
        if not self._replayed:
            raise Divergence(
                f"step {self.position} asks for {kind.__name__.upper()}, but the log has no more "
                "for it"
            )
        determinant = self._replayed.pop()
        if not isinstance(determinant, kind):
            raise Divergence(
                f"step {self.position} asks for {kind.__name__.upper()}, the log has {determinant}"
            )
        return determinant

    def clock_ms(self) -> int:
        if self._now_ms is None:
            if self._replayed is None:
                now = self._time.now_ms()
                self.record.append(Clock(now))
            else:
                now = self._logged(Clock).now_ms
            self._now_ms = now
        self.floor_clock_ms = self._now_ms
        return self._now_ms

    def clock_ms_if(self, *, reads: bool) -> int | None:
        if self._now_ms is None and self._replayed is not None:
            reads = bool(self._replayed) and isinstance(self._replayed[-1], Clock)
        return self.clock_ms() if reads else None

    def call(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        arguments = arguments_digest(args, kwargs)
        if self._replayed is None:
            self.has_called = True
            self._go_on()
            try:
                outcome = Call(arguments, True, encode(self._world.call(fn, args, kwargs)))
            except Exception as error:  # noqa: BLE001 - any failure of a call is an answer
                outcome = Call(arguments, False, encode_error(error))
            self._go_on()
            self.record.append(outcome)
        else:
            outcome = self._logged(Call)
            if outcome.arguments and outcome.arguments != arguments:  # 0: unknown
                raise Divergence(
                    f"step {self.position} calls {getattr(fn, '__name__', fn)} with other "
                    "arguments than the log says"
                )
        if outcome.ok:
            return decode(outcome.answer)
        raise decode_error(outcome.answer)

    def leave_out(self, rows: Sequence[int], batches: Sequence[Batch]) -> list[Batch]:
        """Do not handle these of the rows that are taken. Return the others."""
        if self.is_live:
            self.record.append(LeftOut(rows))
        self.left_out = pick_rows(self._world, batches, rows)
        rest = set(range(sum(batch.rows for batch in batches))).difference(rows)
        return pick_rows(self._world, batches, sorted(rest))

    def ask(self, call: CallId, request: Request) -> None:
        self.asked.append((call, request))

    def _go_on(self) -> None:
        if self.is_abandoned:
            raise Abandoned

    def wake_at(self, due_ms: int | None) -> None:
        self.wake_ms = due_ms

    def emit(self, channel: int, batch: Batch) -> None:
        if channel in self.emitted:
            raise ProtocolError(f"two batches for channel {channel} in step {self.position}")
        if batch.nbytes > BATCH_BYTES_MAX:
            raise StepTooLarge(
                f"a batch of {batch.rows} rows has {batch.nbytes} bytes; at most "
                f"{BATCH_BYTES_MAX} can travel as one",
                remedy="return fewer rows at once, or less in each: keep large values in a store "
                "and pass on their names",
            )
        self.emitted[channel] = batch

    def emit_watermark(self, channel: int, watermark_ms: int) -> None:
        self.watermarks[channel] = watermark_ms

    def finish(self) -> None:
        """The program has returned: on replay, nothing logged may be left."""
        if self._replayed:
            raise Divergence(
                f"step {self.position} did not ask for {self._replayed[-1]}, which the log has"
            )


class ImpliedStep(RunningStep):
    """A step of an implied task: it may ask nothing, because its log is shared with nobody."""

    def clock_ms(self) -> int:
        raise self._refusal("reads the clock")

    def call(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        del args, kwargs
        raise self._refusal(f"calls {getattr(fn, '__name__', fn)}")

    def ask(self, call: CallId, request: Request) -> None:
        del call, request
        raise self._refusal("asks a service")

    def wake_at(self, due_ms: int | None) -> None:
        if due_ms is not None:
            raise self._refusal("sets a timer")

    def _refusal(self, what: str) -> Divergence:
        return Divergence(
            f"step {self.position} {what}, but its task is taken to be deterministic and shares no "
            "log",
            remedy="leave out deterministic=True for a function that asks the world; it may use "
            "only ctx.random",
        )


def kind_of_step(spec: TaskSpec) -> type[RunningStep]:
    """The class of a task's steps."""
    return ImpliedStep if spec.is_implied else RunningStep


def arguments_digest(args: Sequence[Any], kwargs: dict[str, Any]) -> int:
    """Digest of a call's arguments; 0 for arguments that have no canonical form."""
    try:
        return content_digest(encode([list(args), kwargs]))
    except UnencodableValue:
        return 0
