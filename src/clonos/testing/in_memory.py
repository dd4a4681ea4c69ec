"""A whole job in one thread, without Spark and without the protocol, to test its results.

The order in which tasks take steps is drawn from a seed, as are the cuts of sources and the number
of batches taken at once. Tasks can be restored from their layers in between, as if they had been
killed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any, Final

import pyarrow as pa

from clonos.core.calls import CallId, Outcome, Request
from clonos.core.plan import HOUSE_KEEPER
from clonos.graph.compile import CompiledJob
from clonos.operators.chain import ChainProgram
from clonos.sources.readers import EndOfInput
from clonos.testing.harness import (
    Answers,
    Batches,
    End,
    Event,
    Source,
    StepHarness,
    StepOutput,
    Tick,
    Watermark,
    answered,
)


class Services:
    """Answers the calls of tasks; by default the functions themselves are called."""

    def call(
        self, task: int, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        """Return the answer of a ``ctx.call``, or raise its exception."""
        del task
        return fn(*args, **kwargs)

    def outcome(self, task: int, call: CallId, request: Request) -> Outcome:
        """The outcome of an asynchronous call."""
        del task
        return answered(call, request)


CALLS: Final = -1
"""Stands for the task's own calls in place of a channel."""


class InMemoryRun:
    """One run of a job with replayable sources.

    Parameters
    ----------
    compiled
        The compiled job, such as ``job.compile()``.
    batch_rows
        The largest cut of a source.
    restore
        The probability that a task is restored from its layers before a step.
    step_ms
        The average time between steps.
    services
        Answers calls.

    Examples
    --------
    >>> import clonos
    >>> job = clonos.Job()
    >>> numbers = job.source(clonos.sources.from_batches([[(1,), (2,)]], "n long"))
    >>> numbers.filter(lambda row: row.n > 1).sink(clonos.sinks.collect(), name="out")
    >>> InMemoryRun(job.compile()).run()["out"].to_pylist()
    [{'n': 2}]
    """

    def __init__(
        self,
        compiled: CompiledJob,
        *,
        seed: int = 0,
        batch_rows: int = 1000,
        restore: float = 0.0,
        step_ms: float = 1.0,
        services: Services | None = None,
    ) -> None:
        self._compiled = compiled
        self._random = Random(seed)
        self._batch_rows = batch_rows
        self._restore = restore
        self._step_ms = step_ms
        self._services = services or Services()
        self._now_ms = 1_000_000.0
        self._queues: dict[int, deque[Event]] = {c.id: deque() for c in compiled.plan.channels}
        self._tasks = {
            code.task.id: StepHarness(
                code.program(), call=partial(self._services.call, code.task.id)
            )
            for code in compiled.codes
        }
        self._layers: dict[int, list[bytes]] = {task: [] for task in self._tasks}
        self._open = {task.id: set(task.inputs) for task in compiled.plan.tasks}
        self._calls: dict[int, dict[CallId, Request]] = {task: {} for task in self._tasks}
        self._has_ended: set[int] = set()
        self._readers = {}
        for code in compiled.codes:
            if code.source is not None:
                reader = code.source.reader(code.task.index, code.parallelism)
                reader.open(0)
                self._readers[code.task.id] = reader
        self._delivered: dict[str, list[pa.RecordBatch]] = {}
        self.events: dict[int, list[tuple[int, Event]]] = {task: [] for task in self._tasks}
        """For each task, its events with their times (in ms)."""

    def run(self) -> dict[str, pa.Table]:
        """Run until all input has ended; returns the rows of each sink by name."""
        while runnable := self._runnable() or self._go_round():
            self._now_ms += self._step_ms * 2 * self._random.random()
            for task, harness in self._tasks.items():
                self._take(task, Tick(int(self._now_ms)), harness)
            task, channel = self._random.choice(runnable)
            event = self._next(task, channel)
            if event is not None:
                self._take(task, event, self._tasks[task])
        return {
            name: pa.Table.from_batches(self._delivered.get(name, []), schema)
            for name, (_, schema) in self._compiled.sinks.items()
        }

    def statistics(self) -> dict[str, dict[str, int]]:
        """By task, the counts of what its operators dropped."""
        return {
            code.task.name: program.statistics
            for code in self._compiled.codes
            if isinstance(program := self._tasks[code.task.id].program, ChainProgram)
        }

    def _runnable(self) -> list[tuple[int, int | None]]:
        """Tasks that can take a step, and the channel for each."""
        full = {task for task, harness in self._tasks.items() if harness.program.is_full}
        found: list[tuple[int, int | None]] = [(t, None) for t in self._readers if t not in full]
        found += [(task, CALLS) for task, calls in self._calls.items() if calls]
        for task, channels in self._open.items():
            if task not in full:
                found += [(task, channel) for channel in sorted(channels) if self._queues[channel]]
        return found

    def _go_round(self) -> list[tuple[int, int | None]]:
        """No items are on their way: move time to the next timer, or end the loops."""
        plan = self._compiled.plan
        back = [c for task in plan.loops for c in self._open[task] if plan.channels[c].is_feedback]
        if not back:
            return []
        due = [h.wake_ms for t, h in self._tasks.items() if t in plan.loops and h.wake_ms]
        if due:
            self._now_ms = max(self._now_ms, float(min(due)))
            return self._fired()
        for channel in back:
            self._queues[channel].append(End(channel))
        return self._runnable()

    def _fired(self) -> list[tuple[int, int | None]]:
        """Fire due timers; returns the tasks that can take a step then."""
        for task, harness in self._tasks.items():
            self._take(task, Tick(int(self._now_ms)), harness)
        return self._runnable() or self._go_round()

    def _next(self, task: int, channel: int | None) -> Event | None:
        if channel is None:
            return self._read(task)
        return self._answer(task) if channel == CALLS else self._receive(channel)

    def _answer(self, task: int) -> Answers:
        """End some of a task's calls, in any order."""
        calls = self._calls[task]
        chosen = self._random.sample(sorted(calls), self._random.randint(1, len(calls)))
        outcome = self._services.outcome
        return Answers(tuple(outcome(task, call, calls[call]) for call in chosen))

    def _read(self, task: int) -> Event | None:
        try:
            batch = self._readers[task].read(self._random.randint(1, self._batch_rows), 0.0)
        except EndOfInput:
            del self._readers[task]
            return End(None)
        return None if batch is None else Source(batch)

    def _receive(self, channel: int) -> Event:
        queue = self._queues[channel]
        event = queue.popleft()
        if isinstance(event, Batches):
            taken, mark = list(event.batches), event.watermark_ms
            while mark is None and queue and self._random.random() < 0.5:
                more = queue[0]
                if not isinstance(more, Batches):
                    break
                queue.popleft()
                taken += more.batches
                mark = more.watermark_ms
            event = Batches(channel, tuple(taken), mark)
        return event

    def _take(self, task: int, event: Event, harness: StepHarness) -> None:
        if not (isinstance(event, Tick) and harness.wake_ms is None):
            self.events[task].append((int(self._now_ms), event))
            if self._random.random() < self._restore:
                harness = self._restored(task, harness)
        output = harness.feed(event)
        if isinstance(event, End) and event.channel is not None:
            self._open[task].discard(event.channel)
        if isinstance(event, Answers):
            for outcome in event.outcomes:
                del self._calls[task][outcome.id]
        self._calls[task].update(output.asked)
        is_over = not self._open[task] and task not in self._readers and not self._calls[task]
        is_end = is_over and task not in self._has_ended
        if is_end:
            self._has_ended.add(task)
        self._emit(task, output, is_end=is_end)

    def _restored(self, task: int, old: StepHarness) -> StepHarness:
        layers = self._layers[task]
        layers.append(bytes(old.program.delta()))
        program = self._compiled.codes[task].program()
        for layer in layers:
            program.apply(layer)
        open_calls = program.open_calls()
        assert {c: r.digest for c, r in open_calls.items()} == {
            c: r.digest for c, r in self._calls[task].items()
        }, "other calls are open"
        call = partial(self._services.call, task)
        harness = StepHarness(program, position=old.position, now_ms=old.now_ms, call=call)
        harness.wake_ms = old.wake_ms
        self._tasks[task] = harness
        return harness

    def _emit(self, task: int, output: StepOutput, *, is_end: bool) -> None:
        channels = self._compiled.plan.channels
        for channel, batch in output.batches.items():
            if channels[channel].receiver == HOUSE_KEEPER:
                name = self._compiled.plan.tasks[task].sink
                assert name is not None
                self._delivered.setdefault(name, []).append(batch.payload)
            else:
                mark = output.watermarks.get(channel)
                self._queues[channel].append(Batches(channel, (batch.payload,), mark))
        for channel, mark in output.watermarks.items():
            if channels[channel].receiver != HOUSE_KEEPER and channel not in output.batches:
                self._queues[channel].append(Watermark(channel, mark))
        if is_end:
            for channel in self._compiled.codes[task].task.outputs:
                is_inner = channels[channel].receiver != HOUSE_KEEPER
                if is_inner and not channels[channel].is_feedback:
                    self._queues[channel].append(End(channel))
