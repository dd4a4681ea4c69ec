"""Jobs of a fixed shape, which some failures need."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from clonos.simulator.jobs.programs import Behaviour, Job, Stage, build_job


def chain_job(random: Random, rows: int = 40) -> Job:
    """A source, two or three stages and a sink, one task each: most logs reach the house-keeper on
    two paths."""
    middle = random.choice((2, 3))
    stages = [
        Stage("source", 1, ()),
        *(Stage(f"stage{number}", 1, (number,)) for number in range(middle)),
        Stage("sink", 1, (middle,), is_sink=True, writes_itself=random.random() < 0.5),
    ]
    return build_job(stages, sharing_depth=random.choice((0, 1)), rows=rows)


def overlap_job(random: Random, rows: int = 40) -> Job:
    """Two sources whose paths cross, and an independent pipeline beside them."""
    plain = Behaviour()
    stages = [
        Stage("left", 1, ()),
        Stage("right", 1, ()),
        Stage("a", 1, (0,)),
        Stage("b", 1, (0, 1) if random.random() < 0.5 else (1,)),
        Stage("join", 1, (2, 3), replace(plain, call_every=random.choice((0, 3)))),
        Stage("sink", 1, (4,), is_sink=True, writes_itself=random.random() < 0.3),
    ]
    if random.random() < 0.5:
        stages += [Stage("other", 1, ()), Stage("other sink", 1, (6,), is_sink=True)]
    return build_job(stages, sharing_depth=random.choice((0, 1, 1, 2)), rows=rows)
