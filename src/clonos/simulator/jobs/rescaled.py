"""Jobs of any parallelism whose output depends on their rows alone, not on their order."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from random import Random
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from clonos import sinks, sources
from clonos.api.aggregates import count
from clonos.api.aggregates import sum as total
from clonos.api.job import Job
from clonos.api.windows import session, sliding, tumbling
from clonos.operators.calls.effects import effect
from clonos.operators.process.process import Process, ProcessContext
from clonos.simulator.jobs.arrow import SCHEMA, ArrowJob, look_up

READERS = 2
"""Tasks that read rows, whatever the parallelism of the rest."""
COUNTS = "key string, kind string, number long"


_FIRST_EVENT_MS = 1_750_000_000_000


class Counting(Process):
    """Numbers the rows of a key. Reports every id once by a processing-time timer, and the rows of
    each ten seconds by an event-time timer. `named`: what its states are called."""

    def __init__(self, named: Mapping[str, str]) -> None:
        self.named = dict(named)

    def open(self, ctx: ProcessContext) -> None:
        self.number = ctx.state(self.named["number"], "long")
        self.fresh = ctx.state(self.named["fresh"])
        self.times = ctx.state(self.named["times"])

    def on_row(self, row: Any, ctx: ProcessContext) -> Iterable[Any]:
        self.number.set(self.number.get(0) + 1)
        if not self.fresh.get([]):
            ctx.timers.processing_time(ctx.clock.now_ms() + 5)
        self.fresh.set([*self.fresh.get([]), row.id])
        at = int(row.at.timestamp())
        self.times.set([*self.times.get([]), at])
        ctx.timers.event_time((at // 10 + 1) * 10_000)
        return [(row.key, "row", self.number.get())]

    def on_timer(self, key: Any, due: int, ctx: ProcessContext) -> Iterable[Any]:
        if due > _FIRST_EVENT_MS:  # an event time: the simulated clock never gets so far
            before = [at for at in self.times.get([]) if at * 1000 < due]
            yield key, f"until {due}", len(before)
        if self.fresh.get([]):
            for number in self.fresh.get():
                yield key, "id", number
            self.fresh.clear()


Rows = Counter[tuple[Any, ...]]

COUNTING: Final = "counting"
PASSING: Final = "passing"


class Names(NamedTuple):
    """What is called otherwise than in the program.

    ``mark``: at the end of the names of all operators that are no sinks; ``swapped``: two of them
    that have each other's name; ``states``: what the states of the counting operator are called.
    """

    mark: str = ""
    swapped: tuple[str, ...] = ()
    states: Mapping[str, str] = MappingProxyType(
        {"number": "number", "fresh": "fresh", "times": "times"}
    )

    def of(self, operator: str) -> str:
        """What an operator is called."""
        if operator in self.swapped:
            operator = self.swapped[1 - self.swapped.index(operator)]
        return operator + self.mark


AS_WRITTEN: Final = Names()


class RescaledJob(ArrowJob):
    """``called``: what its operators are called, by their names in the program; not its sinks."""

    def __init__(self, job: Job, rows: int, names: Names) -> None:
        self.names, self.called = names, dict[str, str]()
        for vertex in job.graph.vertices:
            if vertex.sink is None:
                self.called[vertex.name] = names.of(vertex.name)
                object.__setattr__(vertex, "name", names.of(vertex.name))  # it is not yet in use
        super().__init__(job.compile(), rows=rows)


def upgrade_job(
    seed: int,
    parallelism: int,
    *,
    has_markers: bool,
    extra: bool,
    has_effects: bool = False,
    names: Names = AS_WRITTEN,
) -> RescaledJob:
    """The job of a seed, at some parallelism. `extra`: with one more operator; `has_effects`: its
    calls are effects."""
    random = Random(f"upgrade {seed}")
    job = Job(
        "upgraded",
        parallelism=parallelism,
        sharing_depth=random.choice((0, 1, 2, "full")),
        checkpoints="marked" if has_markers else "uncoordinated",
        seed=7,
    )
    source = sources.from_batches([], schema=SCHEMA)
    rows = job.source(source, name="rows", parallelism=READERS)
    delay = random.choice(("1 second", "100 seconds"))
    rows = rows.with_watermark("at", delay, name="times")
    if random.random() < 0.3:
        how: dict[str, Any] = {"in_flight": 3, "on_error": lambda *_: 0, "name": "asked"}
        asked = effect(look_up, check=look_up) if has_effects else look_up
        rows = rows.with_column_async("asked long", asked, "id", **how).select(*SCHEMA_COLUMNS)
    if extra:
        rows = rows.key_by("id").process(Passing(), SCHEMA, name=PASSING)
    keyed = rows.key_by("key")
    chosen = random.sample(sorted(KINDS), random.choice((1, 1, 2)))
    for kind in chosen:
        KINDS[kind][0](keyed, names).sink(sinks.collect(), name=kind)
    return RescaledJob(job, random.randint(8, 30), names)


class Passing(Process):
    """Passes each row on once, and remembers it."""

    def on_row(self, row: Any, ctx: ProcessContext) -> Iterable[Any]:
        seen = ctx.state("seen", "long")
        seen.set(seen.get(0) + 1)
        return [tuple(row)] if seen.get() == 1 else []


SCHEMA_COLUMNS = ("id", "key", "at", "amount")


def expected(job: ArrowJob) -> Mapping[str, Rows]:
    """By sink, all rows that a run delivers, in whatever order."""
    given = [
        row for source in job.sources.values() for row in source.read(0, 1000).payload.to_pylist()
    ]
    kinds = {t.sink for t in job.plan.tasks if t.sink is not None}
    return {kind: KINDS[kind][1](given) for kind in kinds}


def _by_key(given: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in given:
        found[row["key"]].append(row)
    return found


def _counted(given: list[dict[str, Any]]) -> Rows:
    found: Rows = Counter()
    for key, rows in _by_key(given).items():
        found.update((key, "row", n + 1) for n in range(len(rows)))
        times = [int(row["at"].timestamp()) for row in rows]
        for end in {(at // 10 + 1) * 10 for at in times}:
            found[key, f"until {end * 1000}", sum(at < end for at in times)] += 1
    return found


def _windows(given: list[dict[str, Any]]) -> Rows:
    found: dict[tuple[Any, ...], int] = defaultdict(int)
    for row in given:
        found[row["key"], int(row["at"].timestamp()) // 10] += 1
    return Counter((key, n) for (key, _), n in found.items())


def _sliding(given: list[dict[str, Any]]) -> Rows:
    found: dict[tuple[Any, ...], int] = defaultdict(int)
    for row in given:
        at = int(row["at"].timestamp())
        for start in range(at // 4 * 4 - 8, at + 1, 4):
            if start <= at < start + 10:
                found[row["key"], start] += 1
    return Counter((key, n) for (key, _), n in found.items())


def _sessions(given: list[dict[str, Any]]) -> Rows:
    found: Rows = Counter()
    for key, rows in _by_key(given).items():
        times = sorted(int(row["at"].timestamp()) for row in rows)
        size = 1
        for one, other in itertools.pairwise(times):
            if other - one > 2:
                found[key, size] += 1
                size = 0
            size += 1
        found[key, size] += 1
    return found


def _pairs(given: list[dict[str, Any]]) -> Rows:
    found: Rows = Counter()
    for rows in _by_key(given).values():
        found.update((one["id"], other["id"]) for one in rows for other in rows)
    return found


def _joined(keyed: Any, _: Names) -> Any:
    names = {"id": "other", "key": "other_key"}
    right = keyed.select(*names).withColumnsRenamed(names).key_by("other_key")
    return keyed.join(right).select("id", "other")


KINDS: dict[str, tuple[Callable[[Any, Names], Any], Callable[[list[dict[str, Any]]], Rows]]] = {
    "counted": (
        lambda k, names: k.process(Counting(names.states), COUNTS, name=COUNTING),
        _counted,
    ),
    "windows": (
        lambda k, _: (
            k.window(tumbling("10 seconds", on="at"))
            .agg(n=count(), amount=total("amount"), name="by window")
            .select("key", "n")
        ),
        _windows,
    ),
    "sliding": (
        lambda k, _: (
            k.window(sliding("10 seconds", "4 seconds", on="at"))
            .agg(n=count(), name="by sliding window")
            .select("key", "n")
        ),
        _sliding,
    ),
    "sessions": (
        lambda k, _: (
            k.window(session("2 seconds", on="at"))
            .agg(n=count(), name="by session")
            .select("key", "n")
        ),
        _sessions,
    ),
    "in windows": (
        lambda k, _: (
            k.window(tumbling("10 seconds", on="at")).rows(name="rows of windows").select("id")
        ),
        lambda given: Counter((row["id"],) for row in given),
    ),
    "first": (
        lambda k, _: k.deduplicate(name="once").select("key"),
        lambda given: Counter((row["key"],) for row in {r["key"]: r for r in given}.values()),
    ),
    "joined": (_joined, _pairs),
    "sorted": (
        lambda k, _: k.in_order("at", "id", name="in order").select("id"),
        lambda given: Counter((row["id"],) for row in given),
    ),
}
"""By sink name: a function that applies an operator, and one that computes the expected rows."""
