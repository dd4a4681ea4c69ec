"""Small deterministic programs and random graphs of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from random import Random
from typing import Any, Protocol

import msgpack

from clonos.core.calls import CallId, Outcome, Request
from clonos.core.canonical import decode
from clonos.core.plan import FULL_DEPTH, HOUSE_KEEPER, ChannelSpec, Plan, TaskSpec
from clonos.core.program import Batch, Program, Step
from clonos.core.step import arguments_digest
from clonos.simulator.world.virtual import Poisoned, SourceData, batch_of

MASK = (1 << 61) - 1
KEYS = 5


def ask(*arguments: int) -> int:
    """Stands for an external service; the simulated world answers in its place."""
    raise AssertionError(arguments)


@dataclass(frozen=True)
class Behaviour:
    """What the tasks of a stage do with their rows, besides keeping state by key."""

    clock: bool = False
    call_every: int = 0
    timer_ms: int = 0
    waits_for_watermark: bool = False
    watermark_every: int = 0
    poison_id: int = -1
    leaves_out: bool = False
    """It goes on without the row that kills it."""
    lethal_id: int = -1
    kills_executor: bool = False
    """No call about this row is survived: by the process, or by its executor."""
    in_flight: int = 0
    """If not 0, each row waits for a call of its own; so many calls are open at most."""
    ordered: bool = False
    has_effects: bool = False
    """These calls are effects."""


class Waiting:
    """The rows of a :class:`Toy` that wait for their calls, with answers and watermarks.

    Attributes
    ----------
    came, asked
        Number of rows so far; number of these that have asked.
    rows, answers, marks
        Rows by number, from 1; the answers that have come; watermarks, by the row before them.
    """

    def __init__(self, task: int, behaviour: Behaviour) -> None:
        self.came = self.asked = 0
        self.rows: dict[int, tuple[int, int]] = {}
        self.answers: dict[int, int] = {}
        self.marks: list[tuple[int, int]] = []
        self._task, self._behaviour = task, behaviour

    @property
    def is_full(self) -> bool:
        return len(self.rows) >= self._behaviour.in_flight > 0

    def request(self, number: int) -> tuple[CallId, Request]:
        arguments = (self._task, number, *self.rows[number])
        key = str(number) if self._behaviour.has_effects else ""
        return CallId(0, number), Request(None, arguments, arguments_digest(arguments, {}), key)

    def open(self) -> dict[CallId, Request]:
        numbers = [n for n in self.rows if n <= self.asked and n not in self.answers]
        return dict(map(self.request, numbers))

    def ask(self, step: Step) -> None:
        """Make as many calls as the limit allows."""
        while self.asked < self.came and len(self.open()) < self._behaviour.in_flight:
            self.asked += 1
            step.ask(*self.request(self.asked))

    def take(self, outcomes: Sequence[Outcome]) -> list[tuple[int, int]]:
        """Rows that can go on, with their answers."""
        for outcome in outcomes:
            answer = decode(outcome.answer) if outcome.ok else len(outcome.answer)
            self.answers[outcome.number] = answer
        numbers = list(self.answers)
        if self._behaviour.ordered:
            numbers = list(takewhile(self.answers.__contains__, self.rows))
        done = [(self.rows.pop(n), self.answers.pop(n)) for n in numbers]
        return [(row_id, (value + answer) & MASK) for (row_id, value), answer in done]

    def passed(self) -> list[int]:
        """Watermarks that no waiting row precedes any more."""
        first = min(self.rows, default=self.came + 1)
        passed = [mark for number, mark in self.marks if number < first]
        self.marks = self.marks[len(passed) :]
        return passed


class Toy:
    """A program with keyed state, clock, calls, timers, windows and watermarks.

    Each row goes out exactly once.

    Parameters
    ----------
    edges
        For every downstream stage, the channels to its tasks: a row goes to one task of each.
    back
        The same for stages in a loop with this one: a row goes round some times before it goes on.
    feedback
        The inputs that are feedback channels.
    """

    def __init__(
        self,
        task: int,
        inputs: tuple[int, ...],
        edges: tuple[tuple[int, ...], ...],
        behaviour: Behaviour,
        back: tuple[tuple[int, ...], ...] = (),
        feedback: tuple[int, ...] = (),
    ) -> None:
        self.task = task
        self.inputs = inputs
        self.edges = edges
        self.back, self.feedback = back, feedback
        self.visits: dict[int, int] = {}
        self.behaviour = behaviour
        self.count = self._told = 0  # steps, and those that layers have
        self.table: dict[int, int] = {}
        self.held: list[tuple[int, int]] = []
        self.watermarks: dict[int, int] = {}
        self.ended: list[int] = []
        self.waiting = Waiting(task, behaviour)
        self._dirty: set[int] = set()

    # --- the program ----------------------------------------------------------------------------

    def on_source(self, step: Step, batch: Batch) -> None:
        self._process(step, batch.payload)
        every = self.behaviour.watermark_every
        if every and self.count % every == 0:
            self._advance(step, self.count)

    def on_batches(
        self, step: Step, channel: int, batches: Sequence[Batch], watermark_ms: int | None
    ) -> None:
        self._process(step, [row for batch in batches for row in batch.payload])
        if watermark_ms is not None:
            self.on_watermark(step, channel, watermark_ms)

    def on_watermark(self, step: Step, channel: int, watermark_ms: int) -> None:
        before = self._watermark()
        self.watermarks[channel] = watermark_ms
        after = self._watermark()
        if after > before:
            if self.behaviour.waits_for_watermark:
                self._flush(step)
            self._advance(step, after)

    def on_outcomes(self, step: Step, outcomes: Sequence[Outcome]) -> None:
        self.count += 1
        rows = self.waiting.take(outcomes)
        if rows:
            self._emit(step, rows)
        self.waiting.ask(step)
        for mark in self.waiting.passed()[-1:]:
            self._advance(step, mark)

    @property
    def makes_calls(self) -> bool:
        return self.behaviour.in_flight > 0

    @property
    def is_full(self) -> bool:
        return self.waiting.is_full

    has_left_memory = False

    def let_go(self) -> None:
        """It has no files."""

    def open_calls(self) -> dict[CallId, Request]:
        return self.waiting.open()

    def on_timer(self, step: Step, now_ms: int) -> None:
        assert step.clock_ms() == now_ms
        self.count += 1
        self._flush(step, now_ms)

    def on_end(self, step: Step, channel: int | None) -> None:
        if channel is not None and channel not in self.ended:
            self.ended.append(channel)
        if len(self.ended) == len(self.inputs):
            self._flush(step)

    def delta(self) -> bytes:
        table = {key: self.table[key] for key in sorted(self._dirty)}
        self._dirty.clear()
        calls = self.waiting
        waiting = [calls.came, calls.asked, calls.rows, calls.answers, calls.marks]
        # Like the rows of a join, this must not be applied twice.
        new, self._told = self.count - self._told, self.count
        state = (new, table, self.held, self.watermarks, self.ended, waiting)
        packed: bytes = msgpack.packb((*state, self.visits) if self.back else state)
        return packed

    def apply(self, delta: bytes) -> None:
        new, table, held, watermarks, ended, waiting, *visits = msgpack.unpackb(
            delta, strict_map_key=False
        )
        self.count += new
        self._told = self.count
        calls = self.waiting
        calls.came, calls.asked, rows, calls.answers, marks = waiting
        calls.rows = {number: tuple(row) for number, row in rows.items()}
        calls.marks = [tuple(mark) for mark in marks]
        self.table.update(table)
        self.held = [(row[0], row[1]) for row in held]
        self.watermarks, self.ended = watermarks, ended
        self.visits = visits[0] if visits else {}

    # --- what it does -----------------------------------------------------------------------------

    def _watermark(self) -> int:
        running = [c for c in self.inputs if c not in self.ended and c not in self.feedback]
        return min((self.watermarks.get(c, 0) for c in running), default=0)

    def _advance(self, step: Step, watermark: int) -> None:
        if self.waiting.rows:
            self.waiting.marks.append((self.waiting.came, watermark))
            return
        for channels in self.edges:
            for channel in channels:
                step.emit_watermark(channel, watermark)

    def _process(self, step: Step, rows: Sequence[tuple[int, int]]) -> None:
        behaviour = self.behaviour
        self.count += 1
        if not rows:  # all were left out
            return
        salt = self.count
        if behaviour.clock or behaviour.timer_ms:
            salt += step.clock_ms() * 31
        if behaviour.call_every and self.count % behaviour.call_every == 0:
            try:
                salt += step.call(ask, (self.task, self.count, rows[0][0]), {})
            except ValueError as error:
                salt += len(str(error))
        out = []
        for row_id, value in rows:
            if row_id == behaviour.poison_id:
                raise Poisoned
            key = row_id % KEYS
            total = (self.table.get(key, 0) * 31 + value + salt) & MASK
            self.table[key] = total
            self._dirty.add(key)
            out.append((row_id, total))
        if behaviour.waits_for_watermark:
            self.held.extend(out)
        elif behaviour.timer_ms:
            if not self.held:
                step.wake_at(step.clock_ms() + behaviour.timer_ms)
            self.held.extend(out)
        elif behaviour.in_flight:
            for row in out:
                self.waiting.came += 1
                self.waiting.rows[self.waiting.came] = row
            self.waiting.ask(step)
        else:
            self._emit(step, out)

    def _flush(self, step: Step, salt: int = 0) -> None:
        rows, self.held = self.held, []
        if rows:
            self._emit(step, [(row_id, (value + salt) & MASK) for row_id, value in rows])

    def _emit(self, step: Step, rows: list[tuple[int, int]]) -> None:
        if not self.back:
            self._emit_on(step, self.edges, rows, [0] * len(rows))
            return
        rounds = [self._round(row_id) for row_id, _ in rows]
        again = [n for n, number in enumerate(rounds) if number]
        on = [row for row, number in zip(rows, rounds, strict=True) if not number]
        # Another task with each round, or rows would never cross to a parallel task.
        self._emit_on(step, self.back, [rows[n] for n in again], [rounds[n] for n in again])
        self._emit_on(step, self.edges, on, [0] * len(on))

    def _round(self, row_id: int) -> int:
        """Which round a row begins; 0: it goes on. A stage sends it round 0 to 3 times."""
        visits = self.visits.get(row_id, 0)
        if visits >= (row_id * 31 + self.inputs[0] * 17) % 4:
            return 0
        self.visits[row_id] = visits + 1
        return visits + 1

    @staticmethod
    def _emit_on(
        step: Step,
        edges: tuple[tuple[int, ...], ...],
        rows: list[tuple[int, int]],
        shifts: list[int],
    ) -> None:
        for channels in edges if rows else ():
            if len(channels) == 1:
                step.emit(channels[0], batch_of(tuple(rows)))
                continue
            parts: list[list[tuple[int, int]]] = [[] for _ in channels]
            for row, shift in zip(rows, shifts, strict=True):
                parts[(row[0] * 7 + shift) % len(channels)].append(row)
            for channel, part in zip(channels, parts, strict=True):
                if part:
                    step.emit(channel, batch_of(tuple(part)))


# --- graphs -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stage:
    """A named group of equal tasks that read other stages (by number)."""

    name: str
    parallelism: int
    reads: tuple[int, ...]
    behaviour: Behaviour = Behaviour()
    is_sink: bool = False
    is_gated: bool = False
    writes_itself: bool = False
    back_to: int = -1
    """The stage to which rows go back a few times before they go on."""


class Rows(Protocol):
    """The rows of one source task, the same whenever they are read."""

    def read(self, offset: int, count: int, /) -> Batch: ...


class AnyJob(Protocol):
    """What a simulation runs: toy programs, or real ones."""

    @property
    def plan(self) -> Plan: ...
    @property
    def stage_of(self) -> dict[int, int]: ...
    @property
    def sources(self) -> Mapping[int, Rows]: ...
    def program(self, task: int) -> Program: ...
    def encode(self, batch: Batch) -> bytes: ...
    def decode(self, content: bytes) -> Any: ...
    def wrap(self, payload: Any) -> Batch: ...
    def poison(self, task: int) -> int | None: ...
    def merge(self, deltas: Sequence[bytes], *, is_base: bool) -> bytes: ...
    def arrivals(self, without: Collection[int] = ()) -> dict[int, dict[int, int]]: ...
    def deadly_records(self) -> int: ...


@dataclass(frozen=True)
class Job:
    """A plan with everything that is needed to run it."""

    stages: tuple[Stage, ...]
    plan: Plan
    edges: dict[int, tuple[tuple[int, ...], ...]]
    stage_of: dict[int, int]
    sources: dict[int, SourceData]
    back: dict[int, tuple[tuple[int, ...], ...]] = field(default_factory=dict)

    def program(self, task: int) -> Toy:
        behaviour = self.stages[self.stage_of[task]].behaviour
        inputs = self.plan.tasks[task].inputs
        feedback = tuple(c for c in inputs if self.plan.channels[c].is_feedback)
        back = self.back.get(task, ())
        return Toy(task, inputs, self.edges[task], behaviour, back, feedback)

    @staticmethod
    def encode(batch: Batch) -> bytes:
        """What the journal and the logs of gated sources keep of a batch."""
        return bytes(msgpack.packb(batch.payload))

    @staticmethod
    def decode(content: bytes) -> Any:
        """The payload of an encoded batch."""
        return tuple(tuple(row) for row in msgpack.unpackb(content))

    def wrap(self, payload: Any) -> Batch:
        """A payload as a batch."""
        return batch_of(payload)

    def poison(self, task: int) -> int | None:
        """The id of the record that kills a task, if there is one."""
        row_id = self.stages[self.stage_of[task]].behaviour.poison_id
        return row_id if row_id >= 0 else None

    @staticmethod
    def merge(deltas: Sequence[bytes], *, is_base: bool) -> bytes:  # noqa: ARG004 - it keeps all
        """One delta with the effect of all of them."""
        table: dict[int, int] = {}
        count = 0
        for delta in deltas:
            new, changed, *rest = msgpack.unpackb(delta, strict_map_key=False)
            table.update(changed)
            count += new
        packed: bytes = msgpack.packb((count, table, *rest))
        return packed

    def arrivals(self, without: Collection[int] = ()) -> dict[int, dict[int, int]]:
        """For each sink stage: how often each row of a source stage arrives there, on ways that do
        not lead through the stages `without`."""
        ways = self._ways(without)
        return {n: counts for n, counts in ways.items() if self.stages[n].is_sink}

    def deadly_records(self) -> int:
        """How often the row that kills comes to the stage that it kills, at most."""
        ways = zip(self.stages, self._ways(()).values(), strict=True)
        return max((max(w.values()) for s, w in ways if s.behaviour.poison_id >= 0), default=0)

    def _ways(self, without: Collection[int]) -> dict[int, dict[int, int]]:
        result: dict[int, dict[int, int]] = {}
        for number, stage in enumerate(self.stages):
            if number in without:
                result[number] = {}
            elif stage.reads:
                counts: dict[int, int] = {}
                for upstream in stage.reads:
                    for source, paths in result[upstream].items():
                        counts[source] = counts.get(source, 0) + paths
                result[number] = counts
            else:
                result[number] = {number: 1}
        return result


def build_job(stages: Sequence[Stage], *, sharing_depth: int, rows: int) -> Job:
    """Lay out stages as tasks and channels; every stage pair is connected all to all."""
    tasks: list[list[int]] = []
    stage_of: dict[int, int] = {}
    for number, stage in enumerate(stages):
        tasks.append([len(stage_of) + i for i in range(stage.parallelism)])
        stage_of.update(dict.fromkeys(tasks[-1], number))
    channels: list[ChannelSpec] = []
    edges: dict[int, list[tuple[int, ...]]] = {task: [] for task in stage_of}
    for number, stage in enumerate(stages):
        for port, upstream in enumerate(stage.reads):
            for sender in tasks[upstream]:
                first = len(channels)
                for receiver in tasks[number]:
                    channels.append(ChannelSpec(len(channels), sender, receiver, port))
                edges[sender].append(tuple(range(first, len(channels))))
    back: dict[int, tuple[tuple[int, ...], ...]] = {}
    for number, stage in enumerate(stages):
        for sender in tasks[number] if stage.back_to >= 0 else ():
            first = len(channels)
            for receiver in tasks[stage.back_to]:
                channels.append(ChannelSpec(len(channels), sender, receiver, 0, is_feedback=True))
            back[sender] = (tuple(range(first, len(channels))),)
    for task, number in stage_of.items():
        channel = ChannelSpec(len(channels), task, HOUSE_KEEPER)
        channels.append(channel)
        if stages[number].is_sink:
            edges[task].append((channel.id,))
    specs = tuple(
        TaskSpec(
            task,
            f"{stages[number].name}[{tasks[number].index(task)}]",
            stages[number].name,
            tasks[number].index(task),
            tuple(c.id for c in channels if c.receiver == task),
            tuple(c.id for c in channels if c.sender == task),
            is_source=not stages[number].reads,
            sink=stages[number].name if stages[number].is_sink else None,
            is_gated=stages[number].is_gated,
            writes_itself=stages[number].writes_itself,
            leaves_out=stages[number].behaviour.leaves_out,
            waits_for_time=stages[number].behaviour.waits_for_watermark,
        )
        for task, number in stage_of.items()
    )
    plan = Plan(specs, tuple(channels), sharing_depth)
    sources = {task.id: SourceData(1 + 1000 * task.id, rows) for task in specs if task.is_source}
    every = {task: tuple(of_task) for task, of_task in edges.items()}
    return Job(tuple(stages), plan, every, stage_of, sources, back)


def in_cells(job: Job, random: Random) -> Job:
    """The same job with several tasks in a cell: those of equal index, or any."""
    count = random.randint(1, len(job.plan.tasks))
    by_index = random.random() < 0.5
    tasks = tuple(
        replace(task, cell=task.index if by_index else random.randrange(count))
        for task in job.plan.tasks
    )
    return replace(job, plan=replace(job.plan, tasks=tasks))


def random_behaviour(random: Random, *, is_source: bool) -> Behaviour:
    """Any sensible combination of the things that a stage can do."""
    window = random.random()
    return Behaviour(
        clock=random.random() < 0.3,
        call_every=random.choice((0, 0, 1, 3)),
        timer_ms=0 if is_source or window > 0.3 else random.choice((1, 4, 15)),
        waits_for_watermark=not is_source and window > 0.8,
        watermark_every=random.choice((0, 2, 5)) if is_source else 0,
    )


def random_job(
    random: Random,
    tasks: tuple[int, int] = (3, 9),
    rows: tuple[int, int] = (8, 50),
    *,
    with_fused: bool = False,
) -> Job:
    """Chains, shuffles, diamonds, several inputs, one or two sinks.

    `tasks`, `rows` of each source: from, to. `with_fused`: also tasks that are source and sink.
    """
    stages: list[Stage] = []
    budget = random.randint(*tasks)

    def add(stage: Stage) -> None:
        nonlocal budget
        stages.append(stage)
        budget -= stage.parallelism

    for i in range(random.choice((1, 1, 1, 2))):
        behaviour = random_behaviour(random, is_source=True)
        gated = random.random() < 0.2
        add(Stage(f"source{i}", random.choice((1, 1, 2)), (), behaviour, is_gated=gated))
    sinks = random.choice((1, 1, 1, 2))
    while budget > sinks and len(stages) < 7:
        unread = [n for n in range(len(stages)) if not any(n in s.reads for s in stages)]
        reads = {random.choice(unread or range(len(stages)))}
        if random.random() < 0.4:
            reads.add(random.randrange(len(stages)))
        parallelism = min(random.choice((1, 1, 2, 3)), budget - sinks)
        behaviour = random_behaviour(random, is_source=False)
        add(Stage(f"stage{len(stages)}", parallelism, tuple(sorted(reads)), behaviour))
        if random.random() < 0.15:
            break
    middle = len(stages)
    for i in range(sinks):
        unread = [n for n in range(middle) if not any(n in s.reads for s in stages)]
        reads = set(unread) or {random.randrange(middle)}
        if random.random() < 0.2:
            reads.add(random.randrange(middle))
        add(
            Stage(
                f"sink{i}",
                random.choice((1, 1, 2)) if budget > 1 else 1,
                tuple(sorted(reads)),
                replace(random_behaviour(random, is_source=False)),
                is_sink=True,
                writes_itself=random.random() < 0.3,
            )
        )
    depth = random.choice((0, 1, 1, 2, FULL_DEPTH))
    if with_fused:
        add(
            Stage(
                "fused",
                random.choice((1, 2)),
                (),
                random_behaviour(random, is_source=random.random() < 0.3),
                is_sink=True,
                is_gated=random.random() < 0.3,
                writes_itself=random.random() < 0.3,
            )
        )
    return build_job(stages, sharing_depth=depth, rows=random.randint(*rows))
