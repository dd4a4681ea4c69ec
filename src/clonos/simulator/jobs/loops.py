"""Random jobs in which rows go round."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from clonos.core.plan import FULL_DEPTH, HOUSE_KEEPER
from clonos.core.program import Batch
from clonos.simulator.jobs.programs import Behaviour, Job, Stage, build_job, random_behaviour
from clonos.simulator.world.virtual import batch_of


def loop_job(random: Random, copies: Random | None = None) -> Job:
    """A source or two, one or two loops in sequence, and a sink; at most nine tasks.

    A loop has one to three stages of one or two tasks. Its last stage sends rows back, to any stage
    before it or to itself. Another stage may do so, too, which nests loops. Rows may also enter
    after the head. With `copies`, in half of the jobs rows also leave a loop in its middle, or
    take two paths within it, so that they multiply with each round.
    """
    stages = [Stage("source", random.choice((1, 1, 2)), (), _behaviour(random, is_source=True))]
    if random.random() < 0.4:
        stages.append(Stage("second", 1, (), _behaviour(random, is_source=True)))
    entries = list(range(len(stages)))
    for loop in range(random.choice((1, 1, 2))):
        head, size = len(stages), random.choice((1, 1, 2, 3) if loop == 0 else (1, 1, 2))
        behind = entries.pop() if len(entries) > 1 and random.random() < 0.5 else None
        for i in range(size):
            reads = set(entries) if i == 0 else {head + i - 1}
            if behind is not None and i == size - 1:
                reads.add(behind)
            is_last = i == size - 1
            goes_back = is_last or random.random() < 0.3
            stages.append(
                Stage(
                    f"loop{loop}.{i}",
                    random.choice((1, 1, 2)),
                    tuple(sorted(reads)),
                    _behaviour(random, is_source=False),
                    back_to=(head if is_last else random.randint(head, head + i))
                    if goes_back
                    else -1,
                )
            )
        entries = [len(stages) - 1]
    sink = Stage("sink", 1, tuple(entries), is_sink=True, writes_itself=random.random() < 0.3)
    depth = random.choice((0, 1, 1, 2, FULL_DEPTH))
    stages.append(sink)
    if copies is not None and copies.random() < 0.5:
        _copy_rows(stages, copies)
    return build_job(stages, sharing_depth=depth, rows=random.randint(8, 40))


def _copy_rows(stages: list[Stage], random: Random) -> None:
    """Give a stage of a loop more readers: the sink, a later stage of its loop, or both."""
    loops = [n for n, stage in enumerate(stages[:-1]) if stage.name.startswith("loop")]
    leaves = random.choice(loops)
    sink = stages[-1]
    stages[-1] = replace(sink, reads=tuple(sorted({*sink.reads, leaves})))
    ahead = [
        (n, later)
        for n in loops
        for later in loops
        if later > n + 1 and stages[n].name[:5] == stages[later].name[:5]
    ]
    if ahead:
        one, later = random.choice(ahead)
        reads = stages[later].reads
        stages[later] = replace(stages[later], reads=tuple(sorted({*reads, one})))


class _Walk:
    """A queue of emitted rows that are still to be processed; stands for a step."""

    def __init__(self) -> None:
        self.ahead: deque[tuple[int, Batch]] = deque()

    def emit(self, channel: int, batch: Batch) -> None:
        self.ahead.append((channel, batch))


def deliveries(job: Job, entered: Mapping[int, Sequence[int]]) -> dict[int, Counter[int]]:
    """How often each row that `entered` at a source task arrives at each sink stage.

    The order of a row's copies makes no difference: where a copy goes depends only on how many
    copies the task has seen. (Chip-firing games and rotor-routers are *abelian* in this way.)
    So the programs are run here one row at a time, without clocks, calls or timers.
    """
    plain = replace(job, stages=tuple(replace(s, behaviour=Behaviour()) for s in job.stages))
    programs = {task.id: plain.program(task.id) for task in job.plan.tasks}
    walk: Any = _Walk()  # all that a program without clocks, calls or timers asks of its step
    for source, ids in entered.items():
        for row_id in ids:
            programs[source].on_source(walk, batch_of(((row_id, 0),)))
    arrived = {n: Counter[int]() for n, stage in enumerate(job.stages) if stage.is_sink}
    while walk.ahead:
        channel, batch = walk.ahead.popleft()
        end = job.plan.channels[channel]
        if end.receiver == HOUSE_KEEPER:
            arrived[job.stage_of[end.sender]].update(row_id for row_id, _ in batch.payload)
        else:
            programs[end.receiver].on_batches(walk, channel, [batch], None)
    return arrived


def _behaviour(random: Random, *, is_source: bool) -> Behaviour:
    """A stage that waits for a watermark would release its rows only when the loop is over."""
    return replace(random_behaviour(random, is_source=is_source), waits_for_watermark=False)
