"""The first run of a task, and its repetitions: unchanged, restored, or with other batches."""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, NamedTuple

import pyarrow as pa

from clonos.blame import in_short
from clonos.columns.batches import concat
from clonos.columns.rows import short
from clonos.core.calls import CallId, Outcome, Request
from clonos.core.canonical import decode, decode_error, encode, encode_error
from clonos.core.plan import Incarnation
from clonos.core.program import Batch
from clonos.core.step import arguments_digest
from clonos.graph.code import TaskCode
from clonos.graph.compile import CompiledJob
from clonos.operators.chain import ChainProgram
from clonos.operators.process.process import ProcessOperator
from clonos.operators.router import Routing
from clonos.simulator.user_job.answers import Answers, names_of
from clonos.testing.determinism.traps import Refused, Watch, connections
from clonos.testing.harness import Batches, Event, Source, StepHarness, StepOutput, Tick, outcome_of
from clonos.testing.in_memory import InMemoryRun, Services

LIFE = Incarnation(1, 1)
Began = Callable[[int], object]


class Called(NamedTuple):
    """An answered call: the event of its task, the question, and the answer."""

    event: int
    name: str
    question: int
    ok: bool
    answer: bytes


@dataclass
class History:
    """The events of one task in the first run, with their times, and the answers to its calls."""

    events: list[tuple[int, Event]] = field(default_factory=list)
    calls: list[Called] = field(default_factory=list)


class Made(NamedTuple):
    """The output of one step, in a form that other processes can compare.

    ``rows``: by channel; ``others``: everything else as text: watermarks, calls made, when the task
    wants to be woken, the error that ended it.
    """

    rows: dict[int, pa.RecordBatch]
    others: tuple[str, ...]
    layer: bytes


@dataclass
class Run:
    """The result of running a task on a history.

    Attributes
    ----------
    first
        The number of its first event.
    steps
        The output for each event. The last may be an error.
    state
        The final state of functions, by key.
    watch
        What functions got from the world outside of ``ctx``, if that was watched.
    is_process
        Whether it is a :class:`clonos.Process`.
    asks_calls
        Whether outcomes of asynchronous calls came between the rows.
    refused
        The connection that a function wanted to open, and where.
    """

    first: int = 0
    steps: list[Made] = field(default_factory=list)
    state: dict[Any, dict[str, Any]] = field(default_factory=dict)
    watch: Watch = field(default_factory=Watch)
    asks_calls: bool = False
    is_process: bool = False
    refused: str = ""


# --- the first run --------------------------------------------------------------------------------


class FirstRun(InMemoryRun):
    """A run of a job with stand-ins for its services.

    Attributes
    ----------
    history
        The history of each task.
    task
        The running task.

    Parameters
    ----------
    began
        Called with the task when a step begins.
    """

    def __init__(
        self, compiled: CompiledJob, answers: Answers, began: Began, **options: Any
    ) -> None:
        super().__init__(compiled, services=_StandIns(self, answers), **options)
        self.history = {code.task.id: History() for code in compiled.codes}
        self.task, self._began = 0, began

    def _next(self, task: int, channel: int | None) -> Event | None:
        self._began(task)
        return super()._next(task, channel)

    def _take(self, task: int, event: Event, harness: StepHarness) -> None:
        self._began(task)
        self.task, before = task, harness.position
        super()._take(task, event, harness)
        if harness.position > before:  # a mere change of the clock is not an event
            self.history[task].events.append((harness.now_ms, event))


class _StandIns(Services):
    """Answers calls, and records the answers."""

    def __init__(self, run: FirstRun, answers: Answers) -> None:
        self._run, self._answers = run, answers

    def call(
        self, task: int, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        name, question = _question(fn, args, kwargs)
        history = self._run.history[task]
        try:
            with connections():
                answer = self._answers.call(task, LIFE, fn, args, kwargs)
        except Exception as error:
            said = encode_error(error)
            history.calls.append(Called(len(history.events), name, question, False, said))
            raise
        said = encode(answer)
        history.calls.append(Called(len(history.events), name, question, True, said))
        return answer

    def outcome(self, task: int, call: CallId, request: Request) -> Outcome:
        try:
            with connections():
                answer = self._answers.answer(task, LIFE, call, request)
        except Exception as error:  # noqa: BLE001 - user code
            answer = error
        return outcome_of(call, request, answer)


def _question(fn: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[str, int]:
    return names_of(fn)[0], arguments_digest(args, kwargs)


# --- the same again -------------------------------------------------------------------------------


class Unasked(BaseException):  # users' functions may well catch every Exception
    """A function asks a question that it did not ask in the first run."""


class _Known:
    """Answers questions of the first run, and no others."""

    def __init__(self, calls: Iterable[Called]) -> None:
        self._answers: defaultdict[tuple[str, int], deque[Called]] = defaultdict(deque)
        for called in calls:
            self._answers[called.name, called.question].append(called)
        self.asked: list[str] = []

    def __call__(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        name, question = _question(fn, args, kwargs)
        shown = f"calls {name.partition(':')[2]}{short(tuple(args))}"
        self.asked.append(shown)
        if not self._answers[name, question]:
            raise Unasked(shown)
        called = self._answers[name, question].popleft()
        if called.ok:
            return decode(called.answer)
        raise decode_error(called.answer)

    def take(self) -> list[str]:
        """The questions since the last call."""
        asked, self.asked = self.asked, []
        return asked


def again(
    code: TaskCode,
    history: History,
    began: Began,
    *,
    layers: Sequence[bytes] = (),
    recut: Random | None = None,
    is_watched: bool = False,
) -> Run:
    """Run a task again, alone.

    Parameters
    ----------
    began
        Called with the task when a step begins.
    layers
        Begin with the state in these layers, after the step at which they were sealed.
    recut
        Cut the same rows into other batches.
    """
    began(code.task.id)
    program = _alone(code).program()
    for layer in layers:
        program.apply(layer)
    operator = next(iter(program.operators.values()))
    run = Run(first=len(layers), is_process=isinstance(operator, ProcessOperator))
    known = _Known(called for called in history.calls if called.event >= run.first)
    harness = StepHarness(program, position=run.first, call=known)
    events = history.events[run.first :]
    for now_ms, event in events if recut is None else other_cuts(events, recut):
        harness.now_ms = now_ms
        began(code.task.id)
        if isinstance(event, Tick):  # otherwise it would not be an event
            harness.wake_ms = event.ms
        try:
            with run.watch.watching() if is_watched else nullcontext():
                output = harness.feed(event)
        except Refused as refused:
            run.refused = str(refused)
            return run
        except (Exception, Unasked) as error:  # noqa: BLE001 - user code
            said = str(error) if isinstance(error, Unasked) else in_short(error)
            run.steps.append(Made({}, (*known.take(), said), b""))
            return run
        run.steps.append(_made(output, known.take(), program))
        run.asks_calls |= bool(output.asked)
    if isinstance(operator, ProcessOperator):
        run.state = operator.state()
    return run


def _alone(code: TaskCode) -> TaskCode:
    """The same task with a single output for all rows, and one for bad records."""
    routers = [
        replace(router, routing=Routing.FORWARD, channels=router.channels[:1])
        for router in (*code.routers[:1], *([code.bad_records] if code.bad_records else []))
    ]
    given = code.bad_records is not None
    return replace(
        code,
        routers=tuple(routers[:-1] if given else routers),
        bad_records=routers[-1] if given else None,
        digests=True,
    )


def _made(output: StepOutput, called: list[str], program: ChainProgram) -> Made:
    marks = [f"the watermark {mark}" for mark in sorted(set(output.watermarks.values()))]
    wake = [] if output.wake_ms is None else [f"wants to be woken at {output.wake_ms} ms"]
    asks = [f"asks {_shown(call, request)}" for call, request in output.asked]
    rows = {channel: _rows(batch) for channel, batch in output.batches.items()}
    return Made(rows, (*called, *asks, *marks, *wake), bytes(program.delta()))


def _rows(batch: Batch) -> pa.RecordBatch:
    payload: pa.RecordBatch = batch.payload
    return payload


def _shown(call: CallId, request: Request) -> str:
    return f"{request.service.name}{short(tuple(request.arguments))}, call {call.number}"


def other_cuts(events: Sequence[tuple[int, Event]], random: Random) -> Iterator[tuple[int, Event]]:
    """The same events, with rows in other batches."""
    group: list[tuple[int, Source | Batches]] = []
    for now_ms, event in events:
        is_rows = isinstance(event, (Source, Batches))
        if group and not (is_rows and _belong(group[-1][1], event)):
            yield from _recut(group, random)
            group = []
        if isinstance(event, (Source, Batches)):
            group.append((now_ms, event))
        else:
            yield now_ms, event
    yield from _recut(group, random)


def _belong(one: Source | Batches, following: Event) -> bool:
    """Whether the rows of two events are adjacent."""
    if isinstance(one, Source) or isinstance(following, Source):
        return isinstance(one, Source) and isinstance(following, Source)
    is_same = isinstance(following, Batches) and following.channel == one.channel
    return is_same and one.watermark_ms is None


def _recut(
    group: Sequence[tuple[int, Source | Batches]], random: Random
) -> Iterator[tuple[int, Event]]:
    if not group:
        return
    now_ms, last = group[-1]
    whole = concat([batch for _, event in group for batch in _batches(event)])
    rows = whole.num_rows
    several = min(rows, max(2, len(group))) if rows > 1 else 1
    cuts = [0, *sorted(random.sample(range(1, rows), several - 1)), rows]
    parts = [whole.slice(a, b - a) for a, b in itertools.pairwise(cuts)]
    for part in parts[:-1]:
        yield now_ms, replace(last, **_content(last, part, None))
    mark = None if isinstance(last, Source) else last.watermark_ms
    yield now_ms, replace(last, **_content(last, parts[-1], mark))


def _batches(event: Source | Batches) -> tuple[pa.RecordBatch, ...]:
    return (event.batch,) if isinstance(event, Source) else event.batches


def _content(event: Source | Batches, rows: pa.RecordBatch, mark: int | None) -> dict[str, Any]:
    if isinstance(event, Source):
        return {"batch": rows}
    return {"batches": (rows,), "watermark_ms": mark}
