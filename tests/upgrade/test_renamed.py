"""Operators that have another name in the next graph."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

import clonos
from clonos.columns.keys import KEY_GROUPS, owner_of_group
from clonos.core.canonical import decode, encode
from clonos.core.plan import HOUSE_KEEPER
from clonos.core.sealed import Layer
from clonos.errors import CannotUpgrade
from clonos.graph.description import describe
from clonos.operators.process.process import prefix_of
from clonos.state.deltas import CHAIN, Changes, Values, encode_delta, merge_deltas
from clonos.state.kept import kept_of
from clonos.state.timers import place_of
from clonos.upgrade.layers import Redistribution
from clonos.upgrade.renamed import shape_before
from clonos.upgrade.shape import Shape
from tests.upgrade.test_layers import ROWS, SEALED, Before, _with, job


@pytest.mark.parametrize("becomes", [1, 2, 5])
def test_state_goes_with_its_operator(becomes):
    before, same = Before(job(2)), Before(job(2)).upgraded(job(becomes))
    after = before.upgraded(job(becomes, name="scoring"), kept="scoring")
    for mine, other in zip(after.kept("scoring"), same.kept("kept"), strict=True):
        assert mine.facts == other.facts
        assert mine.keys.equals(other.keys)
        assert mine.values.equals(other.values)
    assert sum(len(kept.keys) for kept in after.kept("scoring")) == 2 * KEY_GROUPS
    for task, layer in same.layers.items():  # event time, counts, numbers of outputs
        assert after.layers[task].outs == layer.outs
        mine, other = (kept_of(made.delta)[CHAIN] for made in (after.layers[task], layer))
        assert mine.facts == other.facts
    outs = [
        after.layers[c.sender].outs[c.id]
        for c in after.compiled.plan.channels
        if c.receiver == HOUSE_KEEPER
    ]
    assert outs.count((7, 77)) == min(2, becomes)


def test_without_a_word_it_is_refused_and_the_new_name_is_offered():
    with pytest.raises(CannotUpgrade, match="'kept', which has state") as told:
        Before(job(2)).upgraded(job(2, name="scoring"))
    assert "renamed={'kept': 'scoring'}" in told.value.remedy


@pytest.mark.parametrize(
    ("names", "said", "remedy"),
    [
        ({"kep": "scoring"}, "renamed= names 'kep', and", "it had rows, kept, out"),
        ({"kept": "scorin"}, "'scorin' now, and there is no such", "rows, scoring, out"),
        ({"kept": "rows"}, "an operator of that name, too", "the job did not have"),
        ({"rows": "scoring", "kept": "scoring"}, "2 operators this name", "name one"),
    ],
)
def test_a_wrong_name(names, said, remedy):
    with pytest.raises(CannotUpgrade, match=said) as told:
        Before(job(2)).upgraded(job(2, name="scoring"), **names)
    assert remedy in told.value.remedy


def test_state_cannot_both_go_and_stay():
    with pytest.raises(CannotUpgrade, match="keeps its state, and drop_state= drops it"):
        Before(job(2)).upgraded(job(2, name="scoring"), ["kept"], kept="scoring")


def test_settings_are_compared_under_the_new_name():
    made = clonos.Job("job", parallelism=2)
    rows = made.source(clonos.sources.from_batches([], ROWS), name="rows", parallelism=2)
    rows.key_by("key").deduplicate(name="scoring").sink(clonos.sinks.collect(), name="out")
    with pytest.raises(CannotUpgrade, match="kind and settings have changed"):
        Before(job(2)).upgraded(made, kept="scoring")


def numbers(after: Any, name: str) -> list[Any]:
    return [kept.facts.get("asked") for kept in after.kept(name)]


@pytest.mark.parametrize("parallelism", [2, 3])
def test_calls_get_no_name_that_was_used(parallelism):
    asked: Any = {"asked": [9, 4]}
    becomes = job(parallelism, name="scoring")
    own = [9, 4] if parallelism == 2 else [9, 9, 9]
    assert numbers(Before(job(2), **asked).upgraded(becomes, kept="scoring"), "scoring") == own
    earlier = {"scoring": 50}  # an operator had the name once
    after = Before(job(2), **asked).upgraded(becomes, kept="scoring", numbers=earlier)
    assert numbers(after, "scoring") == [50] * parallelism


def test_an_operator_that_gets_the_old_name_counts_on():
    both = job(2, name="scoring", more=["kept"])
    after = Before(job(2), asked=[9, 4]).upgraded(both, kept="scoring")
    assert numbers(after, "scoring") == [9, 4]
    assert numbers(after, "kept") == [9, 9]
    assert not any(len(kept.keys) for kept in after.kept("kept"))


def test_the_old_name_is_remembered():
    before, becomes = Before(job(2), asked=[9, 4]), job(2, name="scoring").compile()
    shape = Shape.of(before.compiled, {"kept": "scoring"})
    made = Redistribution(shape, before.layers, becomes, SEALED)
    assert made.asked() == {"kept": 9, "scoring": 9}


def with_open_call(before: Before) -> None:
    task = before.shape.homes["kept"][0]
    kept = kept_of(before.layers[task].delta)
    changes: list[Any] = [(n, change) for n, of in kept.items() for change in of.changes()]
    changes.append((0, Changes([0], [b"c" + (1).to_bytes(8, "big")], [b"open"])))
    delta = encode_delta(before.shape.chains[task], changes)
    layer: Layer = _with(before.layers[task], delta=delta)
    before.layers[task] = layer


def test_open_calls_go_along_unless_their_numbers_were_used():
    before = Before(job(2), asked=[9, 4])
    with_open_call(before)
    becomes = job(2, name="scoring")
    assert before.upgraded(becomes, kept="scoring").layers
    with pytest.raises(CannotUpgrade, match="calls of it are open"):
        before.upgraded(becomes, kept="scoring", numbers={"scoring": 50})


@clonos.effect(idempotent=True)
async def charge(n: int, *, call: Any) -> int:
    return n


def paying(name: str, out: str = "out") -> clonos.Job:
    made = clonos.Job("job", parallelism=2)
    rows = made.source(clonos.sources.from_batches([], ROWS), name="rows", parallelism=2)
    paid = rows.with_column_async("m long", charge, "n", name=name)
    paid.sink(clonos.sinks.collect(), name=out)
    return made


@pytest.mark.parametrize(
    ("becomes", "names", "said"),
    [
        (paying("charging"), {"kept": "charging"}, "has made effects, whose keys have its name"),
        (paying("kept", "bills"), {"out": "bills"}, "has put out rows, and the output of a sink"),
    ],
)
def test_what_others_know_by_its_name_keeps_it(becomes, names, said):
    with pytest.raises(CannotUpgrade, match=said):
        Before(paying("kept"), asked=[0, 4]).upgraded(becomes, **names)


def test_a_sink_without_output_and_effects_that_were_never_made_may_have_other_names():
    before = Before(paying("kept"), asked=[0, 0])
    for task in before.shape.homes["out"]:
        outs = dict.fromkeys(before.layers[task].outs, (0, 0))
        before.layers[task] = replace(before.layers[task], outs=outs)
    after = before.upgraded(paying("charging", "bills"), kept="charging", out="bills")
    assert sum(len(kept.keys) for kept in after.kept("charging")) == 2 * KEY_GROUPS


def test_without_a_word_a_sink_with_another_name_is_another_one():
    after = Before(paying("kept")).upgraded(paying("kept", "bills"))
    ends = [after.compiled.plan.tasks[task] for task in after.shape.homes["bills"]]
    assert [after.layers[task.id].outs[task.outputs[-1]] for task in ends] == [(0, 0), (0, 0)]


def swapping(first: str, second: str) -> clonos.Job:
    """Two operators of the same kind; the state that `Before` makes is that of the first one."""
    return job(2, name=first, more=[second])


def test_two_operators_swap_their_names():
    before = Before(swapping("kept", "scoring"), asked=[9, 4])
    after = before.upgraded(swapping("scoring", "kept"), kept="scoring", scoring="kept")
    assert sum(len(kept.keys) for kept in after.kept("scoring")) == 2 * KEY_GROUPS
    assert not any(len(kept.keys) for kept in after.kept("kept"))
    assert numbers(after, "scoring") == [9, 4], "its calls had other names"
    assert numbers(after, "kept") == [9, 9], "the other one has used these"


def test_half_a_swap_is_refused():
    with pytest.raises(CannotUpgrade, match="an operator of that name, too") as told:
        Before(swapping("kept", "scoring")).upgraded(job(2, name="scoring"), kept="scoring")
    assert "say what 'scoring' is now, too" in told.value.remedy


def summing(state: str, parallelism: int = 2, name: str = "kept") -> clonos.Job:
    """A job whose process has a state of this name."""

    class Summing(clonos.Process):
        def on_row(self, row: Any, ctx: Any) -> Any:
            ctx.state(state).set(row.n)

    return job(parallelism, process=Summing(), name=name)


def states_of(after: Any, name: str) -> dict[bytes, Any]:
    """All values of a process, by address; timers have none."""
    found = dict[bytes, Any]()
    for kept in after.kept(name):
        rows = zip(kept.keys.to_pylist(), kept.values.to_pylist(), strict=True)
        mine = {key: decode(value) for key, value in rows if key[:1] == b"s"}
        assert not found.keys() & mine.keys()
        found |= mine
        at = dict(zip(kept.keys.to_pylist(), kept.hashes.tolist(), strict=True))
        assert all(at[key] in (0, place_of(key)) for key in at), "where it is looked up"
    return found


def renamed_state(group: int, name: str) -> bytes:
    return prefix_of(name) + encode([f"key {group}"])


@pytest.mark.parametrize("becomes", [1, 2, 5])
def test_a_state_has_another_name(becomes):
    before = Before(job(2))
    after = before.upgraded(summing("total", becomes), renamed={("kept", "n"): "total"})
    due = {renamed_state(group, "total"): group for group in range(KEY_GROUPS)}
    assert states_of(after, "kept") == due
    timers = [key for kept in after.kept("kept") for key in kept.keys.to_pylist()]
    assert len(timers) == 2 * KEY_GROUPS, "timers stay"


def test_a_state_and_its_operator_have_other_names():
    names = {("kept", "n"): "total", "kept": "scoring"}
    after = Before(job(2)).upgraded(summing("total", 3, "scoring"), renamed=names)
    due = {renamed_state(group, "total"): group for group in range(KEY_GROUPS)}
    assert states_of(after, "scoring") == due


def with_state(before: Before, state: str, value: Any) -> Before:
    """The same job, in which one key has this value (None: had, and has forgotten it)."""
    group = 0
    task = before.shape.homes["kept"][owner_of_group(group, len(before.shape.homes["kept"]))]
    number = before.shape.chains[task].index("kept")
    address = renamed_state(group, state)
    kept = None if value is None else encode(value)
    more = encode_delta(
        before.shape.chains[task],
        [(number, lambda: [Values({address: kept}, [group], place_of)])],
    )
    delta = merge_deltas([before.layers[task].delta, more], is_base=False)
    before.layers[task] = _with(before.layers[task], delta=delta)
    return before


@pytest.mark.parametrize("becomes", [2, 3])
def test_two_states_swap_their_names(becomes):
    before = with_state(Before(job(2)), "m", "other")
    names = {("kept", "n"): "m", ("kept", "m"): "n"}
    due: dict[bytes, Any] = {renamed_state(g, "m"): g for g in range(KEY_GROUPS)}
    due[renamed_state(0, "n")] = "other"
    assert states_of(before.upgraded(job(becomes), renamed=names), "kept") == due


def test_what_was_forgotten_under_the_new_name_is_no_obstacle():
    before = with_state(Before(job(2)), "total", None)
    after = before.upgraded(summing("total"), renamed={("kept", "n"): "total"})
    assert len(states_of(after, "kept")) == KEY_GROUPS


@pytest.mark.parametrize(
    ("names", "said", "remedy"),
    [
        ({("kep", "n"): "m"}, "a state of 'kep', and the job had no operator", "it had rows, kept"),
        ({("rows", "n"): "m"}, "only process(...) has states with names", "a state of a process"),
        ({("kept", "x"): "m"}, "its state 'x', and no key has a value of that", "check the name"),
        ({("kept", "n"): "taken"}, "another state has values of that name", "'taken' is now, too"),
        ({("kept", "n"): "m", ("kept", "taken"): "m"}, "gives 2 states this name", "name one"),
    ],
)
def test_a_wrong_name_of_a_state(names, said, remedy):
    before = with_state(Before(job(2)), "taken", 1)
    with pytest.raises(CannotUpgrade, match=re.escape(said)) as told:
        before.upgraded(job(3), renamed=names)
    assert remedy in told.value.remedy


@pytest.mark.parametrize("becomes", [2, 3])
def test_a_new_task_knows_what_its_states_are_called_now(becomes):
    """So that code which calls them otherwise is refused."""
    before = Before(job(2), states=[["n"], ["m", "n"]])
    after = before.upgraded(summing("total", becomes), renamed={("kept", "n"): "total"})
    known = [kept.facts["states"] for kept in after.kept("kept")]
    assert known == ([["total"], ["m", "total"]] if becomes == 2 else [["m", "total"]] * 3)


def test_a_state_that_no_key_has_now_gets_another_name():
    """Without renamed= it is refused, because keys have had it."""
    before = Before(job(2), states=[["n"], ["m", "n"]])
    after = before.upgraded(summing("total"), renamed={("kept", "m"): "total"})
    assert after.kept("kept")[1].facts["states"] == ["n", "total"]


def test_a_state_cannot_both_go_and_stay():
    with pytest.raises(CannotUpgrade, match="drop_state= drops all"):
        Before(job(2)).upgraded(job(2), ["kept"], renamed={("kept", "n"): "m"})


def test_a_source_goes_on_where_it_was():
    made = clonos.Job("job", parallelism=2)
    rows = made.source(clonos.sources.from_batches([], ROWS), name="events", parallelism=2)
    kept = rows.key_by("key").deduplicate(name="once")
    kept.sink(clonos.sinks.collect(), name="out")
    after = Before(job(2)).upgraded(made, ["kept"], rows="events")
    tasks = after.shape.homes["events"]
    assert [after.layers[task].source_rows for task in tasks] == [20, 21]


def test_the_early_part_of_a_window_has_the_new_name_too():
    def counting(name: str) -> Any:
        made = clonos.Job("job", parallelism=2)
        rows = made.source(clonos.sources.from_batches([], ROWS), name="rows", parallelism=2)
        counts = rows.key_by("key").window(clonos.tumbling("1 s")).agg(n=clonos.count(), name=name)
        counts.sink(clonos.sinks.collect(), name="out")
        return made.compile()

    shape = shape_before(describe(counting("counts")), counting("sums"), {"counts": "sums"})
    assert {"sums", "sums_partial"} <= shape.homes.keys()
    assert not {"counts", "counts_partial"} & shape.homes.keys()
