"""Finds functions of a job that do something else when they get the same input again.

Every task is run twice more, with the log that it wrote and the items that it took. The first task
whose two runs differ is to blame; tasks downstream of it are not.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

from clonos.blame import in_short, users_line
from clonos.core.messages import Item
from clonos.errors import ClonosError, Divergence
from clonos.simulator.checks.endings import items_of, rerun_task, senders_first
from clonos.simulator.checks.recorder import Recorder
from clonos.simulator.checks.violations import Violation
from clonos.simulator.user_job.job import UserJob

SUSPECTS: Final = frozenset(
    {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "now",
     "utcnow", "today", "random", "getrandbits", "urandom", "id", "getpid", "standard_normal",
     "integers"}
)  # fmt: skip
"""Functions in C that return something else each time."""
SHOWN: Final = 5
"""How many lines of code an error names."""
REMEDY: Final = (
    "take time, random numbers and services from ctx (ctx.clock, ctx.random, ctx.call), and keep "
    "what a function has to remember in ctx.state"
)


def divergence(job: UserJob, recorder: Recorder) -> Divergence | None:
    """The error of the first task whose two runs differ; None if there is none."""
    items: dict[int, list[Item]] = {}
    for task in senders_first(job.plan):
        try:
            first = _again(job, task, recorder, items)
            second = _again(job, task, recorder, items)
        except (Divergence, Violation) as error:
            return _error(job, task, recorder, items, in_short(error))
        except (ClonosError, LookupError):
            return None  # its log is incomplete, so it cannot be judged
        if not _same(first, second):
            return _error(job, task, recorder, items, _difference(first, second))
        items.update(first)
    return None


def _again(
    job: UserJob, task: int, recorder: Recorder, items: dict[int, list[Item]]
) -> dict[int, list[Item]]:
    return items_of(rerun_task(job, task, recorder.history(task), items))


def _same(one: dict[int, list[Item]], other: dict[int, list[Item]]) -> bool:
    return {c: [(i.kind, i.chain) for i in items] for c, items in one.items()} == {
        c: [(i.kind, i.chain) for i in items] for c, items in other.items()
    }


def _difference(one: dict[int, list[Item]], other: dict[int, list[Item]]) -> str:
    """The first rows that differ."""
    for channel, items in one.items():
        for item, again in zip(items, other[channel], strict=False):
            if item.chain != again.chain:
                return f"first {_shown(item, again)}, then {_shown(again, item)}"
    return "one run made more rows than the other"


def _shown(item: Item, beside: Item) -> str:
    """The first row of an item that differs from the other item's."""
    if item.batch is None:
        return f"a {item.kind.name}"
    rows = item.batch.payload.to_pylist()
    others = beside.batch.payload.to_pylist() if beside.batch is not None else []
    differs = (row for row, other in zip(rows, others, strict=False) if str(row) != str(other))
    return str(next(differs, rows[-1]))


def _error(
    job: UserJob, task: int, recorder: Recorder, items: dict[int, list[Item]], what: str
) -> Divergence:
    code = job.compiled.codes[task]
    found: dict[str, None] = {}
    try:
        with _watched(found):
            _again(job, task, recorder, items)
    except (ClonosError, Violation):
        pass  # this error is being explained
    lines = "".join(f"\n  {line}" for line in list(found)[:SHOWN])
    asked = f"\nIn this task your code asks outside of ctx:{lines}\n" if lines else ""
    operators = ", ".join(name for name, _ in code.operators)
    return Divergence(
        f"two runs with the same rows, answers and clock differ: {what}{asked}",
        where=f"{code.task.name} ({operators})",
        remedy=REMEDY,
    )


@contextmanager
def _watched(found: dict[str, None]) -> Iterator[None]:
    """Collect the lines of user code that call nondeterministic functions."""

    def look(frame: FrameType, event: str, called: Any) -> None:
        name = getattr(called, "__name__", "")
        if event == "c_call" and name in SUSPECTS:
            line = users_line(frame)
            if line:
                found[line] = None

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        yield
    finally:
        sys.setprofile(before)
