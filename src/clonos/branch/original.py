"""Replays the job's own code from a point of its past, and records what a branch needs.

That is more than the log has: the kind of items that each step took, when a task wanted to be
woken, the rows of its sources, and the operator and arguments of each call. All this can be
observed while the job's own code repeats the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa

from clonos.branch.rows import Rows
from clonos.core.calls import CallId, Request
from clonos.core.determinants import (
    Call,
    Clock,
    Determinant,
    Order,
    Outcomes,
    Timer,
    decode_record,
)
from clonos.core.messages import Kind
from clonos.core.plan import HOUSE_KEEPER
from clonos.core.program import Batch
from clonos.core.step import arguments_digest
from clonos.errors import Divergence, NothingToReplay, OperatorError
from clonos.graph.replaced import function_name
from clonos.operators.chain import ChainProgram
from clonos.operators.process.process import ProcessOperator
from clonos.replay import Replay, ReplayedTask
from clonos.replay.past import Past
from clonos.replay.tasks import Watched

ENDLESS: Final = 1 << 62
"""A position that no task reaches."""


class Question(NamedTuple):
    """A question. Two are the same if operator, function, key and arguments are equal."""

    operator: str
    function: str
    key: bytes
    arguments: int


@dataclass
class Asked:
    """A question of the original and its answer.

    ``position``: the step that asked; ``came``: the step that took the answer (None: no step);
    ``rank``: the index of this answer among those that the step took.
    """

    question: Question
    task: int
    position: int
    came: int | None = None
    rank: int = 0
    ok: bool = True
    answer: bytes = b""


class StepNote(NamedTuple):
    """Facts about a step beyond its log entry: the kind of items that it took, the newest clock
    reading, when its task wants to be woken next, and which rows were left out, because they kill
    the process."""

    cause: Determinant
    kind: Kind | None
    clock_ms: int
    wake_ms: int | None
    left_out: tuple[pa.RecordBatch, ...] = ()


def question_of(program: ChainProgram, call: CallId, request: Request) -> Question:
    """An asynchronous call as a question."""
    name = list(program.operators)[call.operator]
    return Question(name, function_name(request.service.fn), b"", request.digest)


def asked_now(
    program: ChainProgram, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
) -> Question:
    """A blocking call of a step as a question."""
    caller = program.caller
    assert caller is not None
    key = caller.encoded_key if isinstance(caller, ProcessOperator) else b""
    digest = arguments_digest(args, kwargs)
    return Question(caller.info.operator, function_name(fn), key, digest)


class Listening:
    """A step that records the calls made in it."""

    def __init__(self, step: Any, program: Recorded) -> None:
        self._step, self._program = step, program

    def __getattr__(self, name: str) -> Any:
        return getattr(self._step, name)

    def call(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """A blocking call."""
        self._program.called.append(asked_now(self._program.program, fn, args, kwargs))
        return self._step.call(fn, args, kwargs)

    def ask(self, call: CallId, request: Request) -> None:
        """An asynchronous call."""
        self._program.asks.append((call, request))
        self._step.ask(call, request)


class Recorded(Watched):
    """A program that records the input and the questions of its newest step."""

    def __init__(self, program: ChainProgram) -> None:
        super().__init__(program)
        self.kind: Kind | None = None
        self.called: list[Question] = []
        self.asks: list[tuple[CallId, Request]] = []
        self.left_out: tuple[pa.RecordBatch, ...] = ()
        self._kills = ""

    def begin(self, kills: str = "") -> None:
        """Begin another step; ``kills``: a message about it, if it would kill this process."""
        self.kind, self.called, self.asks, self._kills = None, [], [], kills
        self.left_out = ()

    def _listened(self, step: Any) -> Listening:
        """The step for the program, unless it must not be taken."""
        if self._kills:
            raise OperatorError(self._kills)
        return Listening(step, self)

    def on_source(self, step: Any, batch: Batch) -> None:
        self.took, self.left_out = [batch], _payloads(step.left_out)
        self.program.on_source(self._listened(step), batch)

    def on_batches(
        self, step: Any, channel: int, batches: Sequence[Batch], watermark_ms: int | None = None
    ) -> None:
        self.kind = Kind.BATCH
        self.took, self.left_out = list(batches), _payloads(step.left_out)
        self.program.on_batches(self._listened(step), channel, batches, watermark_ms)

    def on_watermark(self, step: Any, channel: int, watermark_ms: int) -> None:
        """See :class:`clonos.core.program.Program`."""
        self.kind = Kind.WATERMARK
        self.program.on_watermark(self._listened(step), channel, watermark_ms)

    def on_timer(self, step: Any, now_ms: int) -> None:
        """See :class:`clonos.core.program.Program`."""
        self.program.on_timer(self._listened(step), now_ms)

    def on_outcomes(self, step: Any, outcomes: Any) -> None:
        """See :class:`clonos.core.program.Program`."""
        self.program.on_outcomes(self._listened(step), outcomes)

    def on_end(self, step: Any, channel: int | None) -> None:
        """See :class:`clonos.core.program.Program`."""
        self.kind = Kind.END
        self.program.on_end(self._listened(step), channel)


def _payloads(batches: Sequence[Batch]) -> tuple[pa.RecordBatch, ...]:
    return tuple(batch.payload for batch in batches)


class RecordedReplay(Replay):
    """A replay that is recorded for a branch.

    Raises
    ------
    NothingToReplay
        Some tasks are implied, so their logs are missing.
    """

    watch = Recorded

    def __init__(self, past: Past) -> None:
        for task in past.compiled.plan.tasks:
            if task.is_implied:
                raise NothingToReplay(
                    "its log, which a branch has to read, was left out",
                    where=task.name,
                    remedy="run the job with log='everything'; replays and bundles do without it",
                )
        super().__init__(past)


@dataclass
class Original:
    """The record of what happened.

    Attributes
    ----------
    order
        The tasks, in the order in which their steps were done.
    notes, rows
        By task: a note for each step; the rows of its source.
    asked
        All questions.
    outputs
        For each sink, its output by task and step.
    begins, ends
        By channel: items of the sender up to its step `begins` were taken before the past begins;
        those after its step `ends` are not taken in it.
    error
        The error that ended the job, if this past ends with it.
    """

    order: list[int] = field(default_factory=list)
    notes: dict[int, list[StepNote]] = field(default_factory=dict)
    rows: dict[int, Rows] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    outputs: dict[str, list[tuple[int, int, pa.RecordBatch]]] = field(default_factory=dict)
    begins: dict[int, int] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)
    error: OperatorError | None = None


def record(past: Past, until: Mapping[int, int] | None, folder: Path) -> Original:
    """Replay the past, and record it.

    Parameters
    ----------
    until
        The last step of each task; by default the ends of the logs.
    folder
        The folder for rows of sources.

    Raises
    ------
    Divergence
        The job's own code does something else than before.
    NothingToReplay
        Some tasks are implied, so their logs are missing.
    """
    with RecordedReplay(past) as replay:
        return Recording(past, replay, until, folder).run()


class Recording:
    """Runs a replay, and records its steps."""

    def __init__(
        self, past: Past, replay: Replay, until: Mapping[int, int] | None, folder: Path
    ) -> None:
        self._past, self._plan, self._replay = past, past.compiled.plan, replay
        self._tasks = {task.machine.id: task for task in replay}
        self._limits = past.ends(until, past.only)
        self._open: dict[tuple[int, CallId], Asked] = {}
        self._found = Original()
        for number, task in self._tasks.items():
            self._found.notes[number] = []
            self._found.rows[number] = Rows(folder / f"{number}.arrow")
            program = _recorded(task)
            for call, request in program.program.open_calls().items():
                self._ask(task, call, request)
        taken = {
            c: end.consumed for t in self._tasks.values() for c, end in t.machine.inputs.items()
        }
        if past.only is not None:
            taken = {}  # its items are in the bundle, and none was taken before
        self._to_come = {c: n for c, n in taken.items() if n > self._made(c)}

    def _made(self, channel: int) -> int:
        return self._tasks[self._plan.channels[channel].sender].machine.outputs[channel].log.last

    def run(self) -> Original:
        """Run the whole replay."""
        while self._step():
            pass
        self._require_complete()
        for channel in self._plan.channels:
            if self._past.only is None and channel.receiver != HOUSE_KEEPER:
                sender, receiver = self._tasks[channel.sender], self._tasks[channel.receiver]
                end = receiver.machine.inputs[channel.id]
                left = [*end.queue, *sender.items(channel.id, end.consumed + len(end.queue))]
                is_left = left[0].dep[channel.sender].position - 1 if left else ENDLESS
                self._found.ends[channel.id] = is_left
        return self._found

    def _require_complete(self) -> None:
        """Check that it has reached the end, or the step that failed."""
        for number, task in self._tasks.items():
            if self._found.error is None and task.position < self._limits[number]:
                raise Divergence(
                    f"the input of step {task.position + 1} is not made again", where=task.name
                )

    def _step(self) -> bool:
        """Do one step; receivers go first, so that no task works ahead of need."""
        for number in reversed(self._tasks):
            task = self._tasks[number]
            is_over = task.position >= self._limits[number]
            if is_over or (self._found.error is not None and task.position + 1 == task.failed_at):
                continue
            self._replay.feed(task)
            program = _recorded(task)
            is_fatal = bool(self._past.kills) and task.position + 1 == task.failed_at
            program.begin(self._past.kills if is_fatal else "")
            try:
                done = task.step(beyond=False)
            except OperatorError as error:
                if task.position + 1 != task.failed_at:
                    raise
                self._found.error = error
                self._note(task, task.position + 1)
                return True
            if done is not None:
                self._note(task, task.position)
                leaves = self._past.outputs(number)
                for name, batch in done.made.items():
                    if name in leaves:
                        output = number, task.position, batch
                        self._found.outputs.setdefault(name, []).append(output)
                return True
        return False

    def _note(self, task: ReplayedTask, position: int) -> None:
        machine, program, number = task.machine, _recorded(task), task.machine.id
        cause, *rest = decode_record(machine.book.record(number, position))
        self._found.order.append(number)
        read = [one.now_ms for one in (cause, *rest) if isinstance(one, Clock | Timer)]
        clock_ms = read[0] if read else machine.clock_ms
        note = StepNote(cause, program.kind, clock_ms, machine.wake_ms, program.left_out)
        self._found.notes[number].append(note)
        if program.took and not isinstance(cause, Order):
            for batch in program.took:
                self._found.rows[number].add(batch.payload)
        logged = [one for one in rest if isinstance(one, Call)]
        for question, call in zip(program.called, logged, strict=False):  # the last may have failed
            self._found.asked.append(
                Asked(question, number, position, position, ok=call.ok, answer=call.answer)
            )
        for asked, request in program.asks:
            self._ask(task, asked, request, position)
        for rank, outcome in enumerate(cause.outcomes if isinstance(cause, Outcomes) else ()):
            answered = self._open.pop((number, outcome.id))
            answered.came, answered.rank = position, rank
            answered.ok, answered.answer = outcome.ok, outcome.answer
        for channel in [c for c, n in self._to_come.items() if self._made(c) >= n]:
            if self._plan.channels[channel].sender == number:
                self._found.begins[channel] = position
                del self._to_come[channel]

    def _ask(
        self, task: ReplayedTask, call: CallId, request: Request, position: int | None = None
    ) -> None:
        question = question_of(_recorded(task).program, call, request)
        number = task.machine.id
        asked = Asked(question, number, task.position if position is None else position)
        asked = self._open[number, call] = self._asked(number, call, asked)
        self._found.asked.append(asked)

    def _asked(self, number: int, call: CallId, asked: Asked) -> Asked:
        """The question; `FollowedReplay` may know it already."""
        del number, call
        return asked


def _recorded(task: ReplayedTask) -> Recorded:
    assert isinstance(task.watched, Recorded)
    return task.watched
