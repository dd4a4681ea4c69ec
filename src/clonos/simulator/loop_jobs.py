"""Random jobs in which rows go round."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from clonos.core.plan import FULL_DEPTH
from clonos.simulator.programs import Behaviour, Job, Stage, build_job, random_behaviour


def loop_job(random: Random) -> Job:
    """A source or two, one or two loops one behind the other, and a sink; at most nine tasks.

    A loop has one to three stages of one or two tasks. Its last one sends rows back, to any before
    it or to itself; so may another, so that loops lie within each other. Rows may also enter
    behind the head.
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
    return build_job([*stages, sink], sharing_depth=depth, rows=random.randint(8, 40))


def _behaviour(random: Random, *, is_source: bool) -> Behaviour:
    """Whoever waits for a watermark would give its rows out when the loop is over."""
    return replace(random_behaviour(random, is_source=is_source), waits_for_watermark=False)
