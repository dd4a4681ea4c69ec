"""A job's operators in a plain loop: no Spark, no network, no log; what computing itself costs.

Every source batch goes through all tasks before the next one is read. CPU time is taken per
operator; what a task takes beyond its operators (sharing out rows, digests) is its output's.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from clonos.core.plan import HOUSE_KEEPER
from clonos.graph.compile import CompiledJob
from clonos.operators.base import Operator
from clonos.sources.readers import EndOfInput
from clonos.testing.harness import Batches, End, Event, Source, StepHarness, Tick, Watermark

OUTPUT: Final = "(output)"
SOURCE: Final = "(source)"

_TIMED: Final = ("on_watermark", "on_end", "on_timer", "changes")


@dataclass
class Cost:
    """Of one operator, all its tasks together."""

    seconds: float = 0.0
    rows: int = 0


class PlainLoop:
    """One run.

    Parameters
    ----------
    compiled
        A job with replayable sources.
    batch_rows
        What is read at once.
    layer_every
        A layer is taken of every task after so many source batches; 0: never.
    """

    def __init__(
        self, compiled: CompiledJob, *, batch_rows: int = 32_768, layer_every: int = 0
    ) -> None:
        self.costs: dict[str, Cost] = {}
        self.seconds = 0.0
        self.rows_out = 0
        self.layer_bytes = 0
        self._compiled = compiled
        self._batch_rows = batch_rows
        self._layer_every = layer_every
        self._inner = 0.0
        self._tasks: dict[int, StepHarness] = {}
        self._open = {task.id: set(task.inputs) for task in compiled.plan.tasks}
        self._queue: deque[tuple[int, Event]] = deque()
        for code in compiled.codes:
            program = code.program()
            for name, operator in program.operators.items():
                self._time(operator, self.costs.setdefault(name, Cost()))
            self._tasks[code.task.id] = StepHarness(program)

    def run(self) -> None:
        """Read all sources to their end, in turn."""
        readers = {}
        for code in self._compiled.codes:
            if code.source is not None:
                readers[code.task.id] = code.source.reader(code.task.index, code.parallelism)
                readers[code.task.id].open(0)
        source = self.costs.setdefault(SOURCE, Cost())
        turns = 0
        while readers:
            for task, reader in list(readers.items()):
                began = time.process_time()
                event: Event
                try:
                    batch = reader.read(self._batch_rows, 0.0)
                    assert batch is not None
                    source.rows += batch.num_rows
                    event = Source(batch)
                except EndOfInput:
                    event = End(None)
                    del readers[task]
                source.seconds += time.process_time() - began
                self._queue.append((task, event))
                self._drain()
            turns += 1
            if self._layer_every and turns % self._layer_every == 0:
                self._take_layers()

    def _drain(self) -> None:
        while self._queue:
            task, event = self._queue.popleft()
            harness = self._tasks[task]
            name = f"{OUTPUT} {self._compiled.codes[task].task.operator}"
            self._inner = 0.0
            began = time.process_time()
            outputs = [harness.feed(Tick(int(time.time() * 1000))), harness.feed(event)]
            taken = time.process_time() - began
            self.seconds += taken
            cost = self.costs.setdefault(name, Cost())
            cost.seconds += taken - self._inner
            for output in outputs:
                cost.rows += sum(batch.rows for batch in output.batches.values())
                self._emit(output.batches, output.watermarks)
            if isinstance(event, End):
                self._open[task].discard(-1 if event.channel is None else event.channel)
                if not self._open[task]:
                    self._end(task)

    def _emit(self, batches: dict[int, Any], watermarks: dict[int, int]) -> None:
        for channel, batch in batches.items():
            receiver = self._compiled.plan.channels[channel].receiver
            if receiver == HOUSE_KEEPER:
                self.rows_out += batch.rows
            else:
                self._queue.append((receiver, Batches(channel, (batch.payload,))))
        for channel, mark in watermarks.items():
            receiver = self._compiled.plan.channels[channel].receiver
            if receiver != HOUSE_KEEPER:
                self._queue.append((receiver, Watermark(channel, mark)))

    def _end(self, task: int) -> None:
        for channel in self._compiled.codes[task].task.outputs:
            receiver = self._compiled.plan.channels[channel].receiver
            if receiver != HOUSE_KEEPER:
                self._queue.append((receiver, End(channel)))

    def _take_layers(self) -> None:
        for harness in self._tasks.values():
            began = time.process_time()
            self.layer_bytes += len(bytes(harness.program.delta()))
            self.seconds += time.process_time() - began

    def _time(self, operator: Operator, cost: Cost) -> None:
        def timed(call: Callable[..., Any]) -> Callable[..., Any]:
            def run(*args: Any) -> Any:
                began = time.process_time()
                try:
                    return call(*args)
                finally:
                    taken = time.process_time() - began
                    cost.seconds += taken
                    self._inner += taken
                    if args and isinstance(args[0], pa.RecordBatch):
                        cost.rows += args[0].num_rows

            return run

        for name in ("on_batch", *_TIMED):
            setattr(operator, name, timed(getattr(operator, name)))
