"""What tasks of another plan begin with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import clonos
from clonos.columns.keys import KEY_GROUPS, owner_of_group
from clonos.core.canonical import decode, encode
from clonos.core.messages import Dependency
from clonos.core.plan import HOUSE_KEEPER, Incarnation
from clonos.core.sealed import Layer
from clonos.errors import CannotUpgrade
from clonos.graph.description import describe
from clonos.state.deltas import CHAIN, Changes, Values, encode_delta
from clonos.state.kept import fact_changes, kept_of, nothing_kept
from clonos.state.timers import EVENT_TIME, place_of
from clonos.upgrade.layers import Redistribution, require_continuable
from clonos.upgrade.renamed import shape_before
from clonos.upgrade.sealed import Sealed
from clonos.upgrade.shape import Shape

ROWS = "key string, n long"
SEALED = Sealed(Incarnation(5, 0), 8, 1)
MARK = 1000


class Keeping(clonos.Process):
    def on_row(self, row: Any, ctx: Any) -> Any:
        ctx.state("n").set(row.n)


def job(parallelism: int = 2, *, readers: int = 2, **how: Any) -> clonos.Job:
    made = clonos.Job(how.pop("job", "job"), parallelism=parallelism, seed=how.pop("seed", 0))
    source = clonos.sources.from_batches([], how.pop("schema", ROWS))
    rows = made.source(source, name="rows", parallelism=readers)
    keyed = rows.key_by("key")
    kept = keyed.process(how.pop("process", Keeping()), ROWS, name=how.pop("name", "kept"))
    kept.sink(clonos.sinks.collect(), name="out")
    for name in how.pop("more", ()):
        keyed.process(Keeping(), ROWS, name=name).sink(clonos.sinks.collect(), name=f"{name} out")
    assert not how
    return made


def timer(group: int, due: int) -> bytes:
    return EVENT_TIME + due.to_bytes(8, "big", signed=True) + encode([f"key {group}"])


def value(group: int) -> bytes:
    return b"s" + encode("n") + encode([f"key {group}"])


class Before:
    """A job that has settled: each key group has a value and, in one order, two timers."""

    def __init__(self, made: clonos.Job, **facts: Any) -> None:
        self.compiled = made.compile()
        self.shape = Shape.of(self.compiled)
        self.facts = facts
        self.ended: set[int] = set()
        self.outs: dict[int, tuple[int, int]] = {}
        self.layers = {task.id: self.layer(task) for task in self.compiled.plan.tasks}

    def layer(self, task: Any) -> Layer:
        names = self.shape.chains[task.id]
        changes: list[Any] = [(CHAIN, fact_changes({f"watermark {c}": MARK for c in task.inputs}))]
        for number, name in enumerate(names):
            facts: dict[str, Any] = {"watermark": MARK} if task.inputs else {}
            if name in ("kept", "goes"):
                many = len(self.shape.homes[name])
                mine = [g for g in range(KEY_GROUPS) if owner_of_group(g, many) == task.index]
                rows = [(g, value(g), encode(g)) for g in mine]
                for n, g in enumerate(reversed(mine), 1):
                    rows.append((g, timer(g, 50), encode([n, g])))
                facts |= {"timers": len(mine), "late_rows": 1 + task.index}
                facts |= {k: v[task.index] for k, v in self.facts.items()}
                groups, keys, values = zip(*rows, strict=True)
                kept = Values(dict(zip(keys, values, strict=True)), groups, place_of)
                changes.append((number, lambda kept=kept: [kept]))
            changes.append((number, fact_changes(facts)))
        outs = {
            c: (7, 77) if self.compiled.plan.channels[c].receiver == HOUSE_KEEPER else (3, 33)
            for c in task.outputs
        }
        return Layer(
            task=task.id,
            incarnation=Incarnation(4, 1),
            epoch=7,
            position=10 + task.id,
            ins=dict.fromkeys(task.inputs, (3, 33)),
            outs=outs,
            ended=(),
            dep={task.id: Dependency(Incarnation(4, 1), 10 + task.id)},
            clock_ms=100 + task.id,
            wake_ms=None,
            source_rows=20 + task.index if task.is_source else 0,
            source_ended=False,
            delta=encode_delta(names, changes),
        )

    def upgraded(self, to: clonos.Job, drop_state: Any = (), **names: Any) -> After:
        compiled, numbers = to.compile(), names.pop("numbers", None)
        names = names.pop("renamed", names)
        shape = shape_before(describe(self.compiled), compiled, names, drop_state)
        how = (drop_state, numbers)
        return After(compiled, Redistribution(shape, self.layers, compiled, SEALED, *how).layers())


class After:
    def __init__(self, compiled: Any, layers: Any) -> None:
        self.compiled, self.layers = compiled, layers
        self.shape = Shape.of(compiled)

    def kept(self, name: str) -> list[Any]:
        return [
            kept_of(self.layers[t].delta).get(self.shape.chains[t].index(name), nothing_kept())
            for t in self.shape.homes[name]
        ]


def timers_of(kept: Any) -> dict[bytes, int]:
    rows = zip(kept.keys.to_pylist(), kept.values.to_pylist(), strict=True)
    return {key: decode(v)[0] for key, v in rows if key.startswith(EVENT_TIME)}


@pytest.mark.parametrize("was", [1, 2, 3, 5])
@pytest.mark.parametrize("becomes", [1, 2, 4, 127])
def test_state_is_there_once_and_where_its_rows_will_come(was, becomes):
    after = Before(job(was)).upgraded(job(becomes))
    groups: list[int] = []
    for index, kept in enumerate(after.kept("kept")):
        assert set(owner_of_group(kept.groups, becomes).tolist()) <= {index}
        rows = zip(
            kept.groups.tolist(), kept.keys.to_pylist(), kept.values.to_pylist(), strict=True
        )
        values = {(g, k): v for g, k, v in rows if k.startswith(b"s")}
        assert all(k == value(g) and decode(v) == g for (g, k), v in values.items())
        groups += [g for g, _ in values]
        timers = timers_of(kept)
        assert sorted(timers) == sorted(timer(g, 50) for g, _ in values)
        assert kept.facts.get("timers", 0) >= max(timers.values(), default=0)
    assert sorted(groups) == list(range(KEY_GROUPS))
    late = [kept.facts.get("late_rows", 0) for kept in after.kept("kept")]
    assert sum(late) == was * (was + 1) // 2


def test_timers_fire_in_the_order_in_which_they_were_set():
    (kept,) = Before(job(2)).upgraded(job(1)).kept("kept")
    numbers = timers_of(kept)
    for index in range(2):
        mine = [g for g in range(KEY_GROUPS) if owner_of_group(g, 2) == index]
        assert sorted(mine, key=lambda g: numbers[timer(g, 50)]) == mine[::-1]


class Other(clonos.Process):
    def on_row(self, row, ctx):
        raise AssertionError("no row comes")


def test_with_as_many_tasks_all_is_as_it_was():
    before = Before(job(2))
    after = before.upgraded(job(2, process=Other()))
    for task, layer in before.layers.items():
        was, now = kept_of(layer.delta), kept_of(after.layers[task].delta)
        for number in was.keys() - {CHAIN}:
            assert was[number].facts == now[number].facts
            assert was[number].keys.equals(now[number].keys)
            assert was[number].values.equals(now[number].values)


def test_no_name_comes_again():
    before = Before(job(2), asked=[9, 4])
    after = before.upgraded(job(3))
    assert {layer.position for layer in after.layers.values()} == {10 + 3}
    assert {layer.clock_ms for layer in after.layers.values()} == {103}
    assert [kept.facts["asked"] for kept in after.kept("kept")] == [9, 9, 9]
    plan = after.compiled.plan
    lanes = {
        plan.tasks[c.sender].index: after.layers[c.sender].outs[c.id]
        for c in plan.channels
        if c.receiver == HOUSE_KEEPER and plan.tasks[c.sender].is_sink
    }
    assert lanes == {0: (7, 77), 1: (7, 77), 2: (0, 0)}
    assert {layer.generation for layer in after.layers.values()} == {1}


def test_the_numbers_of_an_operator_go_on_though_its_state_goes():
    after = Before(job(2), asked=[9, 4]).upgraded(job(2), drop_state=["kept"])
    assert [len(kept.keys) for kept in after.kept("kept")] == [0, 0]
    assert [kept.facts["asked"] for kept in after.kept("kept")] == [9, 9]


async def ask(n: int) -> int:
    return n


def test_the_numbers_go_on_in_an_operator_of_another_kind():
    made = clonos.Job("job", parallelism=2)
    rows = made.source(clonos.sources.from_batches([], ROWS), name="rows", parallelism=2)
    asked = rows.with_column_async("m long", ask, "n", name="kept")
    asked.sink(clonos.sinks.collect(), name="out")
    after = Before(job(2), asked=[9, 4]).upgraded(made, drop_state=["kept"])
    assert [kept.facts.get("asked") for kept in after.kept("kept")] == [9, 9]


def test_the_numbers_go_on_when_the_operator_had_not_asked_for_a_while():
    made = clonos.Job("job", parallelism=2)
    rows = made.source(clonos.sources.from_batches([], ROWS), name="rows", parallelism=2)
    rows.filter(lambda row: row.n > 1, name="kept").sink(clonos.sinks.collect(), name="out")
    silent = made.compile()
    first = Before(job(2), asked=[9, 4])
    shared = Redistribution(first.shape, first.layers, silent, SEALED, ["kept"])
    assert shared.asked() == {"kept": 9}
    again = job(2).compile()
    then = Redistribution(Shape.of(silent), shared.layers(), again, SEALED, (), shared.asked())
    after = After(again, then.layers())
    assert [kept.facts["asked"] for kept in after.kept("kept")] == [9, 9]
    assert then.asked() == {"kept": 9}


def test_a_source_that_has_ended_is_not_replaced_in_silence():
    before = Before(job(2))
    for task in before.shape.homes["rows"]:
        before.layers[task] = _with(before.layers[task], source_ended=True)
    assert before.upgraded(job(2)).layers
    made = clonos.Job("job", parallelism=2)
    made.source(clonos.sources.rate(5), name="rows", parallelism=2).sink(
        clonos.sinks.collect(), name="out"
    )
    other = clonos.Job("job", parallelism=2)
    now = other.source(clonos.sources.rate(5), name="new", parallelism=2)
    now.filter(lambda row: row.value > 1, name="rows").sink(clonos.sinks.collect(), name="out")
    assert before.upgraded(other, drop_state=["kept"]).layers  # that it is gone is no matter
    with pytest.raises(CannotUpgrade, match="has ended: nothing would be read") as told:
        before.upgraded(made, drop_state=["kept"])
    assert told.value.where == "rows"


def test_sources_go_on_where_they_were():
    after = Before(job(2)).upgraded(job(4))
    tasks = after.shape.homes["rows"]
    assert [after.layers[task].source_rows for task in tasks] == [20, 21]
    with pytest.raises(CannotUpgrade, match="it is not known what 3 tasks would have read") as told:
        Before(job(2)).upgraded(job(2, readers=3))
    assert "parallelism=2" in (told.value.remedy or "")


def test_rows_that_the_checkpoint_keeps_are_not_read_as_those_of_another_source():
    made = job(2, readers=1)
    compiled = made.compile()
    codes = tuple(
        replace(code, source=replace(code.source, kind="materialized")) if code.source else code
        for code in compiled.codes
    )
    before, spooled = Before(job(2, readers=1)), replace(compiled, codes=codes)
    with pytest.raises(CannotUpgrade, match="still has rows of the source"):
        Redistribution(before.shape, before.layers, spooled, SEALED, ["rows"]).layers()
    with pytest.raises(CannotUpgrade, match="still has rows of the source"):  # whatever else goes
        Redistribution(before.shape, before.layers, spooled, SEALED, ["rows", "kept"]).layers()
    other = describe(job(2, readers=1).compile())
    for task in other["tasks"].values():
        task["operators"] = [["other", *rest] for _, *rest in task["operators"]]
    with pytest.raises(CannotUpgrade, match="still has rows of the source"):
        require_continuable(other, spooled, ["rows"])
    require_continuable(other, spooled)


def test_event_time_is_that_of_the_senders():
    after = Before(job(2)).upgraded(job(3))
    for task in after.shape.homes["kept"]:
        facts = kept_of(after.layers[task].delta)[CHAIN].facts
        marks = {name: mark for name, mark in facts.items() if name.startswith("watermark")}
        assert set(marks.values()) == {MARK}
        assert len(marks) == 1 + 2


def test_an_operator_comes_and_one_goes():
    before = Before(job(2, more=["goes"]))
    with pytest.raises(CannotUpgrade, match="'goes', which has state") as told:
        before.upgraded(job(2, more=["comes"]))
    assert "drop_state=['goes']" in (told.value.remedy or "")
    with pytest.raises(CannotUpgrade, match="no operator of this name"):
        before.upgraded(job(2), drop_state=["gone", "goes"])
    after = before.upgraded(job(2, more=["comes"]), drop_state=["goes"])
    assert not any(len(kept.keys) for kept in after.kept("comes"))
    assert sum(len(kept.keys) for kept in after.kept("kept")) == 2 * KEY_GROUPS


def test_an_operator_of_another_kind():
    made = clonos.Job("job", parallelism=2)
    rows = made.source(clonos.sources.from_batches([], ROWS), name="rows", parallelism=2)
    rows.key_by("key").deduplicate(name="kept").sink(clonos.sinks.collect(), name="out")
    with pytest.raises(CannotUpgrade, match="kind and settings have changed") as told:
        Before(job(2)).upgraded(made)
    assert told.value.where == "kept"
    after = Before(job(2)).upgraded(made, drop_state=["kept"])
    assert after.layers.keys() == {task.id for task in after.compiled.plan.tasks}


def test_calls_that_are_open_belong_to_their_tasks():
    before = Before(job(2))
    task = before.shape.homes["kept"][0]
    call = b"c" + (1).to_bytes(8, "big")
    kept = kept_of(before.layers[task].delta)
    changes = [(n, change) for n, of in kept.items() for change in of.changes()]
    changes.append((0, Changes([0], [call], [b"open"])))
    names = before.shape.chains[task]
    before.layers[task] = _with(before.layers[task], delta=encode_delta(names, changes))
    with pytest.raises(CannotUpgrade, match="calls of it are open"):
        before.upgraded(job(3))
    assert before.upgraded(job(2)).layers  # its tasks are the same


def test_a_fact_that_nobody_knows_how_to_join_is_a_refusal():
    with pytest.raises(CannotUpgrade, match="'of each task'") as told:
        Before(job(2), **{"of each task": [1, 2]}).upgraded(job(3))
    assert told.value.where == "kept"


@pytest.mark.parametrize(("what", "how"), [("job", {"job": "other"}), ("seed", {"seed": 7})])
def test_another_job_is_none_that_goes_on(what, how):
    with pytest.raises(CannotUpgrade, match=f"its {what} was"):
        require_continuable(describe(job().compile()), job(**how).compile())


def _with(layer: Layer, **changes: Any) -> Layer:
    return replace(layer, **changes)
