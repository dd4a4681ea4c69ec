"""A task of a branch: changed code, with the input of the job's own code.

In step n of a branch, changed code handles entry n of the log. An ORDER stands for everything that
the branch's sender has made up to the step that the log names, be it more or less than the job's.
If a step makes more than it did, later steps keep their numbers.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from clonos.blame import in_short
from clonos.branch.answers import Answers
from clonos.branch.original import Asked, StepNote, asked_now, question_of
from clonos.columns.batches import seal
from clonos.columns.row_codec import RowCodec
from clonos.core.calls import CallId, Outcome, Request
from clonos.core.canonical import decode, decode_error
from clonos.core.determinants import Order, Outcomes, Source, SourceCut, SourceEnd, Timer
from clonos.core.messages import Item, Kind
from clonos.core.plan import HOUSE_KEEPER, Plan
from clonos.core.program import Batch
from clonos.core.sealed import Layer
from clonos.errors import ClonosError, OperatorError, Unanswered, UnreadableLayer
from clonos.graph.code import TaskCode
from clonos.operators.chain import ChainProgram


class Refused(BaseException):
    """A call has no answer. Not an :class:`Exception`, because user functions catch those."""

    def __init__(self, error: Unanswered) -> None:
        super().__init__()
        self.error = error


class Made(NamedTuple):
    """The output of a step on a channel: rows, the watermark behind them, or both."""

    step: int
    batch: Batch | None
    watermark: int | None


def made_of(item: Item, step: int) -> Made | None:
    """An item in the branch's form; None: it has no meaning there."""
    if item.kind is Kind.BATCH:
        return Made(step, item.batch, item.watermark)
    return Made(step, None, item.value) if item.kind is Kind.WATERMARK else None


@dataclass
class BranchStep:
    """A step as the program sees it (:class:`clonos.core.program.Step`)."""

    position: int
    now_ms: int
    asks: Callable[[Callable[..., Any], Sequence[Any], dict[str, Any]], tuple[bool, bytes]]
    is_live: bool = False
    left_out: Sequence[Batch] = ()
    batches: dict[int, Batch] = field(default_factory=dict)
    watermarks: dict[int, int] = field(default_factory=dict)
    asked: list[tuple[CallId, Request]] = field(default_factory=list)
    wake_ms: int | None = None

    def clock_ms(self) -> int:
        """The logged reading of this step, or the last one before."""
        return self.now_ms

    def clock_ms_if(self, *, reads: bool) -> int | None:
        """See :class:`clonos.core.program.Step`."""
        return self.clock_ms() if reads else None

    def call(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """The answer, from the log or elsewhere."""
        try:
            ok, answer = self.asks(fn, args, kwargs)
        except Unanswered as error:
            raise Refused(error) from error
        if ok:
            return decode(answer)
        raise decode_error(answer)

    def ask(self, call: CallId, request: Request) -> None:
        """Ask; the answer comes in this or a later step."""
        self.asked.append((call, request))

    def wake_at(self, due_ms: int | None) -> None:
        """See :class:`clonos.core.program.Step`."""
        self.wake_ms = due_ms

    def emit(self, channel: int, batch: Batch) -> None:
        """See :class:`clonos.core.program.Step`."""
        self.batches[channel] = batch

    def emit_watermark(self, channel: int, watermark_ms: int) -> None:
        """See :class:`clonos.core.program.Step`."""
        self.watermarks[channel] = watermark_ms


class BranchedTask:
    """One task of a branch.

    Parameters
    ----------
    layers
        The state with which it begins.
    begin_ms
        The time before the first clock reading.
    rows
        The rows of its source.
    put
        Takes its output, by channel.
    """

    def __init__(
        self,
        plan: Plan,
        code: TaskCode,
        program: ChainProgram,
        layers: Sequence[Layer],
        begin_ms: int,
        rows: Iterator[pa.RecordBatch],
        answers: Answers,
        put: Callable[[int, Made], None],
    ) -> None:
        self.id, self.name = code.task.id, code.task.name
        self._plan, self._program, self._rows = plan, program, rows
        self._answers, self._put = answers, put
        floor = _apply(program, layers, self.name)
        self.position = floor.position if floor else 0
        self._clock_ms = max(floor.clock_ms if floor else 0, begin_ms)
        self._wake_ms = self._wake_then_ms = floor.wake_ms if floor else program.first_due_ms
        self._queues: dict[int, deque[Made]] = {c: deque() for c in code.task.inputs}
        self._waiting: list[tuple[Asked, CallId, Request]] = []  # for answers in later entries
        for call, request in program.open_calls().items() if program.makes_calls else ():
            self._expect(call, request)

    def take(self, channel: int, made: Made) -> None:
        """Take output of a sender."""
        self._queues[channel].append(made)

    # --- steps ----------------------------------------------------------------------------------

    def step(self, note: StepNote) -> None:
        """Handle the next entry of the log.

        Raises
        ------
        OperatorError
            A function has raised; its own exception is the cause.
        Unanswered
            It asks a question without an answer.
        """
        self._fire_before(note)
        self.position += 1
        self._clock_ms = max(self._clock_ms, note.clock_ms)
        if isinstance(note.cause, SourceEnd) or note.kind is Kind.END:
            self.settle()
        program, cause = self._program, note.cause
        match cause:
            case Source(rows=rows) | SourceCut(rows=rows):
                if rows:
                    batch = seal(next(self._rows))
                    left_out = [seal(deadly) for deadly in note.left_out]
                    self._do(program.on_source, batch, left_out=left_out)
            case SourceEnd():
                self._do(program.on_end, None)
            case Order(channel=channel, position=position):
                self._take_up_to(channel, position, note.left_out)
                if note.kind is Kind.END:
                    self._do(program.on_end, channel)
            case Timer(now_ms=now_ms):
                if self._wake_ms is not None and self._wake_ms <= now_ms:
                    self._do(program.on_timer, now_ms)
            case Outcomes():
                due = [one for one in self._waiting if one[0].came == self.position]
                if due:
                    due.sort(key=lambda one: one[0].rank)
                    self._waiting = [one for one in self._waiting if one[0].came != self.position]
                    self._do(program.on_outcomes, [_outcome(*one) for one in due])
        self._wake_then_ms = note.wake_ms

    def _fire_before(self, note: StepNote) -> None:
        """Fire timers that the job did not have. The log has the times of the others."""
        while (
            self._wake_ms is not None
            and self._wake_ms != self._wake_then_ms
            and self._wake_ms <= note.clock_ms
            and not isinstance(note.cause, Timer)
        ):
            due_ms = self._wake_ms
            self._clock_ms = max(self._clock_ms, due_ms)
            self._do(self._program.on_timer, self._clock_ms)
            if self._wake_ms == due_ms:
                break  # the program keeps the same timer

    def drain(self, ends: Mapping[int, int]) -> None:
        """Take output that the senders made beyond the job's."""
        for channel in self._queues:
            self._take_up_to(channel, ends[channel])
        self.settle()

    def settle(self) -> None:
        """Wait for all open calls, and for calls that these lead to."""
        while over := self._answers.answered(self.id):
            self._do(self._program.on_outcomes, over)

    def _take_up_to(
        self, channel: int, position: int, left_out: Sequence[pa.RecordBatch] = ()
    ) -> None:
        """Take consecutive batches as one, up to a watermark, as the job does, without the rows
        that it has left out."""
        queue, program = self._queues[channel], self._program
        deadly = Counter(row for batch in left_out for row in _encoded(batch))
        while queue and queue[0].step <= position:
            batches: list[Batch] = []
            mark: int | None = None
            while queue and queue[0].step <= position and mark is None:
                if queue[0].batch is None and batches:
                    break
                made = queue.popleft()
                mark = made.watermark
                if made.batch is None:
                    break
                batches.append(made.batch)
            if batches:
                batches, apart = _parted(batches, deadly) if deadly else (batches, [])
                self._do(program.on_batches, channel, batches, mark, left_out=apart)
            elif mark is not None:
                self._do(program.on_watermark, channel, mark)

    def _do(self, handle: Callable[..., None], *given: Any, left_out: Sequence[Batch] = ()) -> None:
        """Let the program handle an event in a part of a step, and then immediate answers."""
        while True:
            step = BranchStep(self.position, self._clock_ms, self._asked_now, left_out=left_out)
            try:
                handle(step, *given)
            except Refused as refused:
                raise refused.error from None
            except ClonosError:
                raise
            except Exception as error:
                raise OperatorError(in_short(error), where=self.name) from error
            self._wake_ms = step.wake_ms
            self._emit(step)
            over = self._answered_at_once(step)
            if not over:
                return
            handle, given, left_out = self._program.on_outcomes, (over,), ()

    def _emit(self, step: BranchStep) -> None:
        for channel in {**step.batches, **step.watermarks}:
            to_world = self._plan.channels[channel].receiver == HOUSE_KEEPER
            batch = step.batches.get(channel)
            mark = None if to_world else step.watermarks.get(channel)
            if batch is not None or mark is not None:
                self._put(channel, Made(self.position, batch, mark))

    # --- calls ----------------------------------------------------------------------------------

    def _asked_now(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> tuple[bool, bytes]:
        question = asked_now(self._program, fn, args, kwargs)
        known = self._answers.match(question, self.id, self.position, can_wait=False)
        if known is not None:
            return known.ok, known.answer
        return self._answers.answer(question, fn, args, kwargs)

    def _expect(self, call: CallId, request: Request) -> Asked | None:
        """The log's answer, now or in a later entry; None: the log has none."""
        question = question_of(self._program, call, request)
        known = self._answers.match(question, self.id, self.position)
        if known is not None and (known.came is None or known.came > self.position):
            self._waiting.append((known, call, request))
        return known

    def _answered_at_once(self, step: BranchStep) -> list[Outcome]:
        """The answers that no later entry brings."""
        over: list[Outcome] = []
        others = []
        for call, request in step.asked:
            known = self._expect(call, request)
            if known is None:
                others.append((call, request, question_of(self._program, call, request)))
            elif known.came is not None and known.came <= self.position:
                over.append(_outcome(known, call, request))
        return over + self._answers.ask(self.id, others)


def _encoded(batch: pa.RecordBatch) -> list[bytes]:
    """Each row, as bytes that are equal if the rows are."""
    rows: list[bytes] = RowCodec(batch.schema).encode(batch.columns).to_pylist()
    return rows


def _parted(batches: Sequence[Batch], deadly: Counter[bytes]) -> tuple[list[Batch], list[Batch]]:
    """The rows without those that are equal to deadly ones, which are taken off the count; and
    these."""
    kept, apart = list[Batch](), list[Batch]()
    for batch in batches:
        is_deadly = []
        for row in _encoded(batch.payload):
            is_deadly.append(deadly[row] > 0)
            deadly[row] -= is_deadly[-1]
        if any(is_deadly):
            apart.append(seal(batch.payload.filter(pa.array(is_deadly))))
            kept.append(seal(batch.payload.filter(pa.array([not one for one in is_deadly]))))
        else:
            kept.append(batch)
    return kept, apart


def _apply(program: ChainProgram, layers: Sequence[Layer], where: str) -> Layer | None:
    floor = None
    try:
        for layer in layers:
            program.apply(layer.delta)
            floor = layer
    except UnreadableLayer:
        raise
    except Exception as error:
        raise OperatorError(
            f"the state of the job does not fit the changed code: {in_short(error)}",
            where=where,
            remedy="begin with the oldest point, or keep what the operators remember as it was",
        ) from error
    return floor


def _outcome(known: Asked, call: CallId, request: Request) -> Outcome:
    return Outcome(*call, request.digest, known.ok, known.answer)
