"""State that does not fit into memory goes on in more or fewer tasks, again and again, and comes
out as if it had been in one task, in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from functools import cache
from random import Random
from typing import Any

import pytest

import clonos
from clonos.columns.keys import DistinctKeys, distinct_keys, owner_of_group
from clonos.core.layer import merge_layers
from clonos.core.levels import LayerRef
from clonos.core.messages import Dependency
from clonos.core.plan import Incarnation
from clonos.graph.compile import CompiledJob
from clonos.simulator.processes.shelf import SlowShelf
from clonos.state.deltas import merge_deltas
from clonos.storage.layers import LayerStore, get_layers, put_whole
from clonos.storage.opened import ScratchFile
from clonos.testing import StepHarness, rows
from clonos.testing.harness import _batch
from clonos.upgrade.layers import Redistribution
from clonos.upgrade.prepare import NOTHING, layers_since, prepare
from clonos.upgrade.sealed import Sealed, beginning
from clonos.upgrade.shape import Shape
from clonos.upgrade.switch import as_one
from tests.state.small import few_pieces_are_many

ROWS = "key long, t timestamp, n long, x double"


class Adding(clonos.Process):
    """Adds numbers, tells the sum when event time says so, and forgets it."""

    def open(self, ctx: Any) -> None:
        self.sum, self.last = ctx.state("sum", "long"), ctx.state("last", "long")

    def on_row(self, row: Any, ctx: Any) -> Any:
        self.sum.set(self.sum.get(0) + row.n)
        at = int(row.t.timestamp() * 1000)
        due = (at // 10 + 1 + row.n % 4) * 10
        if row.n % 5 == 0 and self.last.get() is not None:
            ctx.timers.delete(self.last.get())
            self.last.clear()
            return
        self.last.set(due)
        ctx.timers.event_time(due)

    def on_timer(self, key: Any, due: int, ctx: Any) -> Any:
        yield key, due, self.sum.get(0)
        self.sum.clear()
        if self.last.get() == due:
            self.last.clear()


SUMS = {"n": clonos.sum("n"), "c": clonos.count()}
FLOATS = {"f": clonos.sum("x")}
KINDS: dict[str, Callable[[Any], Any]] = {
    "process": lambda k: k.process(Adding(), "key long, due long, n long", name="op"),
    "tumbling": lambda k: k.window(clonos.tumbling("10 ms", on="t")).agg(
        **SUMS, pre_aggregate=False, name="op"
    ),
    "sliding": lambda k: k.window(clonos.sliding("20 ms", "8 ms", on="t")).agg(
        **SUMS, pre_aggregate=False, name="op"
    ),
    "sums of floats": lambda k: k.window(clonos.tumbling("10 ms", on="t")).agg(
        **FLOATS, pre_aggregate=False, name="op"
    ),
    "sliding sums of floats": lambda k: k.window(clonos.sliding("20 ms", "8 ms", on="t")).agg(
        **FLOATS, pre_aggregate=False, name="op"
    ),
    "session": lambda k: k.window(clonos.session("4 ms", on="t")).agg(
        **SUMS, pre_aggregate=False, name="op"
    ),
    "rows": lambda k: k.window(clonos.tumbling("10 ms", on="t")).rows(name="op"),
    "rows of sessions": lambda k: k.window(clonos.session("4 ms", on="t")).rows(name="op"),
    "once": lambda k: k.deduplicate(name="op"),
    "in order": lambda k: k.in_order("t", name="op"),
    "last": lambda k: k.last(3, name="op", c=clonos.sum("n")),
}
FLOATS_OF_SESSIONS = "sums of floats of sessions"
"""How they are added depends on the number of tasks, but not on where the sessions are."""


def floats_of_sessions(keyed: Any) -> Any:
    sessions = keyed.window(clonos.session("4 ms", on="t"))
    return sessions.agg(**FLOATS, **SUMS, pre_aggregate=False, name="op")


@cache
def at(kind: str, parallelism: int) -> CompiledJob:
    made = clonos.Job("job", parallelism=parallelism)
    given = made.source(clonos.sources.from_batches([], ROWS), name="rows", parallelism=1)
    keyed = given.with_watermark("t", "0 ms", name="marks").key_by("key")
    (floats_of_sessions if kind == FLOATS_OF_SESSIONS else KINDS[kind])(keyed).sink(
        clonos.sinks.collect(), name="out"
    )
    return made.compile()


@pytest.fixture(autouse=True)
def _eager(monkeypatch: pytest.MonkeyPatch) -> None:
    few_pieces_are_many(monkeypatch)


class Tasks:
    """The tasks of an operator, with the layers of all tasks of the job."""

    def __init__(
        self, kind: str, parallelism: int, nbytes: int | None, random: Random, store: LayerStore
    ) -> None:
        self.compiled = at(kind, parallelism)
        self.shape = Shape.of(self.compiled)
        self.codes = [c for c in self.compiled.codes if c.operators[0][0] == "op"]
        self.nbytes, self.random, self.store = nbytes, random, store
        self.chains: dict[int, list[LayerRef]] = {t.id: [] for t in self.compiled.plan.tasks}
        self.epoch = self.mark = 0
        self.made: list[Any] = []
        self.harnesses = [self._fresh(code) for code in self.codes]
        self.prepared = NOTHING

    def _fresh(self, code: Any) -> StepHarness:
        program = code.program()
        if self.nbytes is not None:
            program.use(SlowShelf(self.random), self.nbytes)
        return StepHarness(program)

    def _take(self, *outputs: Any) -> None:
        self.made += [row for o in outputs for b in o.batches.values() for row in rows(b)]

    def feed(self, given: list[Any]) -> None:
        batch = _batch(given, ROWS)
        distinct: DistinctKeys = distinct_keys(batch, ["key"])
        owners = [owner_of_group(distinct.groups[c], len(self.codes)) for c in distinct.codes]
        for index, (code, harness) in enumerate(zip(self.codes, self.harnesses, strict=True)):
            mine = [row for row, owner in zip(given, owners, strict=True) if owner == index]
            if mine:
                self._take(harness.input(code.task.inputs[0], mine, ROWS))

    def advance(self, mark: int) -> None:
        self.mark = mark
        for code, harness in zip(self.codes, self.harnesses, strict=True):
            self._take(harness.watermark(code.task.inputs[0], mark))

    def end(self) -> None:
        for code, harness in zip(self.codes, self.harnesses, strict=True):
            self._take(harness.end(code.task.inputs[0]))

    def seal(self) -> None:
        self.epoch += 1
        programs = {c.task.id: h.program for c, h in zip(self.codes, self.harnesses, strict=True)}
        for task in self.compiled.plan.tasks:
            program: Any = programs.get(task.id)
            life = Incarnation(1, 0)
            layer = replace(
                beginning(task),
                incarnation=life,
                epoch=self.epoch,
                position=self.epoch,
                dep={task.id: Dependency(life, self.epoch)},
                delta=bytes(program.delta()) if program is not None else b"",
            )
            self.chains[task.id].append(put_whole(self.store, layer, self._path(task.id)))

    def _path(self, task: int) -> str:
        return f"{task}/{self.epoch}-{self.random.random()}"

    def merge(self) -> None:
        for task, chain in self.chains.items():
            if len(chain) > 2:
                start = self.random.choice((0, 0, 1))
                end = self.random.randint(start + 2, len(chain))
                layers = get_layers(self.store, chain[start:end])
                merged = merge_layers(layers, merge_deltas, is_base=not start)
                chain[start:end] = [put_whole(self.store, merged, self._path(task))]

    def restore(self) -> None:
        """All of them die and go on from their layers."""
        for index, code in enumerate(self.codes):
            fresh = self._fresh(code)
            for layer in get_layers(self.store, self.chains[code.task.id], 100):
                fresh.program.apply(layer.delta)
            self.harnesses[index] = fresh

    def prepare(self, then: Tasks) -> None:
        more = prepare(
            self.shape,
            then.shape,
            {t: tuple(c) for t, c in self.chains.items()},
            self.store,
            Incarnation(2, self.random.randrange(1 << 30)),
            (),
            self.prepared,
        )
        self.prepared = more or self.prepared

    def become(self, then: Tasks) -> None:
        sealed = Sealed(Incarnation(2, 0), self.epoch + 1, 1)
        chains = {t: tuple(c) for t, c in self.chains.items()}
        prepared = self.prepared
        if prepared.rounds and prepared.fits(chains, self.store):
            last = layers_since(self.shape, chains, self.store, prepared)
        else:
            prepared = NOTHING
            tasks = self.compiled.plan.tasks
            scratch = ScratchFile()
            last = {t.id: as_one(t, chains[t.id], self.store, scratch) for t in tasks}
        made = Redistribution(
            self.shape, last, then.compiled, sealed, (), None, prepared.operators
        ).layers()
        then.epoch, then.mark, then.made = sealed.epoch, self.mark, self.made
        for task, layer in made.items():
            ref = put_whole(self.store, layer, then._path(task))
            then.chains[task] = [*prepared.below(task), ref]
        then.restore()


def some(random: Random, mark: int) -> list[Any]:
    """Rows that are not late."""
    given = []
    for _ in range(random.randint(1, 12)):
        ahead_ms = 1 + random.choice((3, 30, 60)) * random.random()
        at = datetime.fromtimestamp((mark + ahead_ms) / 1000, timezone.utc)
        x = random.choice((1e16, -1e16, 1.0, 0.1))
        given.append((random.randrange(40), at, random.randrange(10), x))
    return given


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", KINDS)
def test_nobody_can_tell_where_state_was(kind, seed, tmp_path):
    random, disk = Random(f"{kind} {seed}"), Random(seed)
    store = LayerStore(tmp_path, "process")
    nbytes = random.choice((0, 500, 2000, 20_000))
    alone = Tasks(kind, 1, None, disk, store)
    tasks = Tasks(kind, random.randint(1, 4), nbytes, disk, store)
    then: Tasks | None = None
    for _ in range(random.randint(20, 60)):
        what = random.choice("ffffwwsssmrpu")
        if what == "f":
            given = some(random, tasks.mark)
            for each in (alone, tasks):
                each.feed(given)
        elif what == "w":
            mark = tasks.mark + random.randrange(12)
            for each in (alone, tasks):
                each.advance(mark)
        elif what == "s":
            tasks.seal()
        elif what == "m" and tasks.epoch:
            tasks.merge()
        elif what == "r":
            tasks.seal()
            tasks.restore()
        elif what == "p" and tasks.epoch:
            then = then or Tasks(kind, random.randint(1, 4), nbytes, disk, store)
            tasks.prepare(then)
        elif what == "u":
            then = then or Tasks(kind, random.randint(1, 4), nbytes, disk, store)
            tasks.seal()
            tasks.become(then)
            tasks, then = then, None
    for each in (alone, tasks):
        each.end()
    assert Counter(tasks.made) == Counter(alone.made)


@pytest.mark.parametrize("seed", range(4))
def test_sums_of_floats_of_sessions_do_not_depend_on_where_these_were(seed, tmp_path):
    random, disk = Random(seed), Random(seed)
    store = LayerStore(tmp_path, "process")

    def both_of(parallelism: int) -> list[Tasks]:
        return [Tasks(FLOATS_OF_SESSIONS, parallelism, nbytes, disk, store) for nbytes in memories]

    memories = (None, random.choice((0, 500, 2000)))
    both, n_tasks = both_of(random.randint(1, 3)), 0
    for _ in range(60):
        what = random.choice("ffffffwssssru")
        given = [(row[0] % 5, *row[1:]) for row in some(random, both[0].mark)]
        step, n_tasks = random.randrange(4), n_tasks % 3 + 1
        then = both_of(n_tasks) if what == "u" else []
        for number, each in enumerate(both):
            if what == "f":
                each.feed(given)
            elif what == "w":
                each.advance(each.mark + step)
            else:
                each.seal()
            if what == "r":
                each.restore()
            elif what == "u":
                each.become(then[number])
        both = then or both
    for each in both:
        each.end()
    assert both[0].made == both[1].made


@pytest.mark.parametrize("is_later", [False, True])
def test_a_window_that_only_some_tasks_have_released_is_a_refusal(is_later, tmp_path):
    disk = Random(1)
    store = LayerStore(tmp_path, "process")
    tasks, then = (Tasks("sliding", parallelism, 0, disk, store) for parallelism in (2, 3))
    at = datetime.fromtimestamp(0.090 if is_later else 0.010, timezone.utc)
    tasks.feed([(key, at, 1, 1.0) for key in range(40)])
    tasks.harnesses[0].watermark(tasks.codes[0].task.inputs[0], 50)
    tasks.seal()
    if is_later:
        tasks.become(then)
        return
    with pytest.raises(clonos.errors.CannotUpgrade, match="released a window that others have not"):
        tasks.become(then)
