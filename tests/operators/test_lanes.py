"""map_async of a keyed stream: rows of one key in their order, and so many of their calls."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any, cast

import pyarrow as pa
import pytest

import clonos
from clonos.core.calls import CallId, Request
from clonos.core.step import arguments_digest
from clonos.errors import WrongType
from clonos.state.deltas import merge_deltas
from clonos.testing import (
    Answers,
    Batches,
    End,
    Event,
    InMemoryRun,
    StepHarness,
    Watermark,
    check_restore,
    rows,
)
from clonos.testing.harness import outcome_of

SCHEMA = "key string, n long"


async def echo(n):
    return n


async def echo_all(ns):
    return ns


def program_of(**how: Any) -> Any:
    job = clonos.Job("test")
    stream = job.source(clonos.sources.from_batches([], schema=SCHEMA), name="in").key_by("key")
    stream.with_column_async("said long", echo, "n", name="ask", **how).sink(clonos.sinks.collect())
    return job.compile().codes[-1].program()


class Asked:
    """A program, and its rows by what they are called: a1 is the row 1 of the key a."""

    def __init__(self, **how: Any) -> None:
        self.program = program_of(**how)
        self.harness = StepHarness(self.program)
        self.watermarks: dict[int, int] = {}

    def came(self, *names: str) -> list[str]:
        return self._asked(self.harness.input(0, [(n[0], int(n[1:])) for n in names], SCHEMA))

    def answer(self, *numbers: int) -> tuple[list[str], list[str]]:
        """Who goes on, and who asks then."""
        calls = self.program.open_calls()
        outcomes = [outcome_of(CallId(0, n), calls[CallId(0, n)], n) for n in numbers]
        output = self.harness.feed(Answers(tuple(outcomes)))
        self.watermarks = output.watermarks
        made = [row for batch in output.batches.values() for row in rows(batch)]
        return [f"{key}{n}" for key, n, _ in made], self._asked(output)

    @staticmethod
    def _asked(output: Any) -> list[str]:
        return [str(request.arguments[0]) for _, request in output.asked]


def test_rows_of_a_key_keep_their_order_and_others_do_not_wait():
    asked = Asked(ordered="key")
    assert asked.came("a1", "a2", "b3", "a4") == ["1", "2", "3", "4"]
    assert asked.answer(2) == ([], [])
    assert asked.answer(3) == (["b3"], [])
    assert asked.answer(1) == (["a1", "a2"], [])
    assert asked.answer(4) == (["a4"], [])


def test_answers_that_wait_take_a_place():
    asked = Asked(ordered="key", in_flight=2)
    assert asked.came("a1", "a2", "b3", "b4") == ["1", "2"]
    assert asked.answer(2) == ([], [])
    assert asked.answer(1) == (["a1", "a2"], ["3", "4"])


def test_so_many_calls_of_a_key_are_open():
    asked = Asked(ordered=False, per_key=2)
    assert asked.came("a1", "a2", "a3", "b4", "a5") == ["1", "2", "4"]
    assert asked.answer(2) == (["a2"], ["3"])
    assert asked.answer(4) == (["b4"], [])
    assert asked.answer(1, 3) == (["a1", "a3"], ["5"])
    assert asked.answer(5) == (["a5"], [])


def test_an_answer_that_waits_leaves_its_place_to_others_of_its_key():
    asked = Asked(ordered="key", per_key=2)
    assert asked.came("a1", "a2", "a3") == ["1", "2"]
    assert asked.answer(2) == ([], ["3"])
    assert asked.answer(3) == ([], [])
    assert asked.answer(1) == (["a1", "a2", "a3"], [])


def test_all_rows_in_order_and_one_call_per_key():
    asked = Asked(per_key=1, in_flight=2)
    assert asked.came("a1", "a2", "b3", "c4") == ["1", "3"]
    assert asked.answer(3) == ([], [])
    assert asked.answer(1) == (["a1"], ["2"])
    assert asked.answer(2) == (["a2", "b3"], ["4"])
    assert asked.answer(4) == (["c4"], [])


def test_input_waits_for_rows_that_are_held():
    asked = Asked(ordered=False, per_key=1, in_flight=3)
    assert asked.came("a1", "a2", "a3") == ["1"]
    assert not asked.program.is_full
    assert asked.came("a4", "b5") == ["5"]
    assert asked.program.is_full, "three rows are held, and two calls are open"
    assert asked.answer(1) == (["a1"], ["2"])
    assert not asked.program.is_full
    for number in (5, 2, 3, 4):
        asked.answer(number)
    assert not asked.program.open_calls()
    assert asked.program.waiting_bytes == 0


def test_a_watermark_overtakes_no_row_that_is_held():
    asked = Asked(ordered=False, per_key=1)
    asked.came("a1", "a2")
    assert not asked.harness.watermark(0, 5).watermarks
    asked.came("b3")
    assert not asked.harness.watermark(0, 6).watermarks
    asked.answer(3)
    assert not asked.watermarks
    asked.answer(1)
    assert not asked.watermarks
    asked.answer(2)
    assert asked.watermarks == {1: 6}


def outcome(number: int) -> Answers:
    request = Request(None, (number,), arguments_digest((number,), {}))
    return Answers((outcome_of(CallId(0, number), request, number),))


@pytest.mark.parametrize("merge", [None, merge_deltas])
@pytest.mark.parametrize("ordered", ["key", True, False])
def test_restored_at_any_step(ordered, merge):
    how = {"ordered": ordered, "per_key": 1, "in_flight": 2}
    keys = ["a", "a", "b", "a", "c"]
    events: list[Event] = [
        Batches(0, (pa.record_batch({"key": keys, "n": range(1, 6)}),), 10),
        outcome(3),
        Batches(0, (pa.record_batch({"key": ["c"], "n": [6]}),), 20),
        outcome(1),
        outcome(2),
        Watermark(0, 30),
        End(0),
        *map(outcome, (4, 5, 6)),
    ]
    outputs = check_restore(lambda: program_of(**how), events, merge=merge)
    made = [row[1] for o in outputs for batch in o.batches.values() for row in rows(batch)]
    assert sorted(made) == [1, 2, 3, 4, 5, 6]
    assert [m for m in made if m in (1, 2, 4)] == [1, 2, 4]
    assert outputs[-1].watermarks == {1: 30}
    asked = [name.number for output in outputs for name, _ in output.asked]
    assert sorted(asked) == [1, 2, 3, 4, 5, 6], "each once"


def most_of_a_key(program: Any) -> int:
    """Open calls of the key that has most of them."""
    keys = Counter(request.arguments[0] % 7 for request in program.open_calls().values())
    return max(keys.values(), default=0)


@pytest.mark.parametrize("seed", range(12))
def test_rows_of_a_key_in_any_order_of_answers(seed):
    per_key = (None, 1, 2)[seed % 3]
    job = clonos.Job(parallelism=1)
    numbers = [(f"{n % 7}", n) for n in range(150)]
    keyed = job.source(clonos.sources.from_batches([numbers], SCHEMA)).key_by("key")
    how: Any = {"in_flight": 2 + seed % 5, "ordered": "key", "per_key": per_key}
    said = keyed.with_column_async("said long", echo, "n", **how)
    said.sink(clonos.sinks.collect(), name="out")
    run = InMemoryRun(job.compile(), seed=seed, batch_rows=20, restore=0.3)
    out = run.run()["out"].to_pylist()
    assert all(row["n"] == row["said"] for row in out)
    of_key = {
        key: [row["n"] for row in out if row["key"] == key] for key in {r["key"] for r in out}
    }
    assert of_key == {f"{key}": list(range(key, 150, 7)) for key in range(7)}


@pytest.mark.parametrize("seed", range(8))
def test_never_more_calls_of_a_key_and_all_come_to_an_end(seed):
    """Whichever call is answered next, and restored in between: nobody waits for ever."""
    random = Random(seed)
    per_key, in_flight = random.choice((1, 2)), random.choice((1, 2, 5))
    how = {"ordered": ("key", True, False)[seed % 3], "per_key": per_key, "in_flight": in_flight}
    program = program_of(**how)
    harness, came = StepHarness(program), 0
    made: list[tuple[str, int, int]] = []
    layers: list[bytes] = []
    while came < 200 or program.open_calls():
        if came < 200 and (not program.is_full or random.random() < 0.05):  # before a marker
            count = random.randint(1, 12)
            given = [(str(n % 7), n) for n in (random.randrange(1000) for _ in range(count))]
            harness.input(0, given, SCHEMA)
            came += count
        calls = program.open_calls()
        assert len(calls) <= in_flight
        assert most_of_a_key(program) <= per_key
        if calls and random.random() < 0.8:
            name = random.choice(sorted(calls))
            for batch in harness.answer(name, 0).batches.values():
                made += rows(batch)
        if random.random() < 0.1:
            layers.append(bytes(program.delta()))
            program = program_of(**how)
            for layer in layers:
                program.apply(layer)
            assert list(program.open_calls()) == sorted(harness.program.open_calls())
            harness = StepHarness(program)
    assert len(made) == came
    assert not program.is_full
    assert program.waiting_bytes == 0


def test_what_cannot_be_meant_is_said():
    stream = clonos.Job().source(clonos.sources.from_batches([], schema=SCHEMA))
    keyed = stream.key_by("key")
    with pytest.raises(WrongType, match=r'ordered="key".*no key'):
        stream.with_column_async("m long", echo, "n", ordered="key")
    with pytest.raises(WrongType, match=r"per_key=1.*no key"):
        stream.with_column_async("m long", echo, "n", per_key=1)
    with pytest.raises(WrongType, match="per_key=0"):
        keyed.with_column_async("m long", echo, "n", per_key=0)
    with pytest.raises(WrongType, match="ordered='keys'"):
        keyed.with_column_async("m long", echo, "n", ordered=cast("Any", "keys"))
    with pytest.raises(WrongType, match=r"batch=.*several keys"):
        keyed.with_column_async("m long", echo_all, "n", batch=2, per_key=1)
