"""What users say of effects, and under which names they are made."""

from __future__ import annotations

from functools import partial

import pytest

import clonos
from clonos.errors import BadGraph, EffectUnknown, StateMismatch, UnknownColumn, WrongType
from clonos.operators.calls.effects import effect_key
from clonos.operators.chain import ChainProgram
from clonos.operators.shares import REWOUND
from clonos.state.kept import nothing_kept
from clonos.testing import Answers, StepHarness, rows
from clonos.testing.harness import answered
from clonos.upgrade.section import gone_back


async def pay(order, *, call):
    return call.key


async def find(order):
    return clonos.NotMade


def orders(**settings):
    rows = clonos.sources.from_batches([], "order long, cents long")
    return clonos.Job("shop", **settings).source(rows)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"on_unknown": "shrug"}, "on_unknown='shrug'"),
        ({"idempotent": True, "check": find}, "has a check"),
        ({"check": 7}, "7 is not a plain function"),
        ({"check": clonos.effect(find)}, "is not a plain function"),
        ({"refused": ("x",)}, "not a kind of Exception"),
        ({"keys_kept": "1 day"}, "how long a service recognises keys, and this one does not"),
        ({"refused": BaseException}, "not a kind of Exception"),
    ],
)
def test_declarations_that_make_no_sense(how, said):
    with pytest.raises(WrongType, match=said):
        clonos.effect(**how)(pay)


def test_an_idempotent_effect_takes_its_key():
    with pytest.raises(WrongType, match="does not take its key") as caught:
        clonos.effect(idempotent=True)(find)
    assert "call.key" in caught.value.remedy


def test_an_effect_can_be_called_in_tests():
    @clonos.effect
    def send(text):
        """Sends."""
        return text.upper()

    assert send("hello") == "HELLO"
    assert (send.__name__, send.__doc__) == ("send", "Sends.")


def test_streams_with_effects_say_so():
    declared = clonos.effect(check=find)(pay)
    stream = orders()
    stream.with_column_async("key string", declared, "order").sink(clonos.sinks.collect())
    job = stream._job.compile()
    assert [task.has_effects for task in job.plan.tasks] == [True] * len(job.plan.tasks)
    assert all(job.plan.channels[t.outputs[-1]].receiver < 0 for t in job.plan.tasks)


def test_what_cannot_be_kept_is_refused():
    declared = clonos.effect(check=find)(pay)
    with pytest.raises(WrongType, match="effect twice"):
        orders().with_column_async("key string", declared, "order", hedge="1 second")
    with pytest.raises(WrongType, match="identity= names effects"):
        orders().with_column_async("key string", find, "order", identity="order")
    with pytest.raises(WrongType, match="would be made for each"):
        orders().with_column_async("key string", declared, "order", identity="order")
    by_key = clonos.effect(idempotent=True)(pay)
    with pytest.raises(UnknownColumn, match="number"):
        orders().with_column_async("key string", by_key, "order", identity="number")
    with pytest.raises(WrongType, match="is no name of a column"):
        orders().with_column_async("key string", by_key, "order", identity=len)
    with pytest.raises(WrongType, match="pay is an effect"):
        orders().map(declared, "order long")
    with pytest.raises(WrongType, match="check: the function cannot be called with"):
        orders().with_column_async("key string", declared, "order", "cents")
    for settings in ({"guarantee": "at_least_once"}, {"on_orphan": "availability"}):
        stream = orders(**settings).with_column_async("key string", declared, "order")
        stream.sink(clonos.sinks.collect())
        with pytest.raises(BadGraph, match="an effect needs guarantee"):
            stream._job.compile()
    stream = orders()
    stream.with_column_async("key string", declared, "order", name="pay")
    stream.sink(clonos.sinks.collect())
    with pytest.raises(BadGraph, match="it leads to no sink") as caught:
        stream._job.compile()
    assert caught.value.where == "pay"


SCHEMA = "order long, cents long"
ROWS = [(7, 100), (8, 200), (7, 300)]


def asked(program):
    return StepHarness(program).source(ROWS, SCHEMA).asked


def test_each_row_has_an_effect_of_its_own_or_each_thing_one():
    declared = clonos.effect(idempotent=True)(pay)

    def names(lineage, run="", **how):
        stream = orders(parallelism=1)
        stream.with_column_async("key string", declared, "order", name="pay", **how).sink(
            clonos.sinks.collect()
        )
        program = stream._job.compile().codes[-1].program(lineage, run)
        requests = [request for _, request in asked(program)]
        again = {call.number: request.key for call, request in program.open_calls().items()}
        assert list(again.values()) == [request.key for request in requests]
        return [request.key for request in requests]

    assert names("shop", "run 1") == [effect_key("run 1", "pay", [0, n], 0) for n in (1, 2, 3)]
    assert not {*names("shop", "run 1")} & {*names("shop", "run 2")}, "these are other rows"
    first, second, third = names("shop", "run 1", identity="order")
    assert first == third != second
    assert first == effect_key("shop", "pay", [7], 0)
    assert len({*names("shop", "run 1", identity=["order", "cents"])}) == 3


def test_a_row_that_is_about_nothing_is_a_bad_record():
    declared = clonos.effect(idempotent=True)(pay)
    stream = orders(parallelism=1, on_bad_record="drop")
    paid = stream.with_column_async("key string", declared, "order", name="pay", identity="order")
    paid.sink(clonos.sinks.collect())
    harness = StepHarness(stream._job.compile().codes[-1].program())
    output = harness.source([(None, 1), (7, 2), (None, 3)], SCHEMA)
    assert [request.arguments for _, request in output.asked] == [(7,)]
    assert statistics_of(harness)["pay: bad_records"] == 2


def test_what_is_logged_did_not_end_the_job():
    """... under the policy of then."""
    harness = paying(on_error=lambda order, error: "none")
    output = harness.source(ROWS, SCHEMA)
    outcomes = tuple(answered(*each) for each in output.asked)
    harness.is_live = False
    assert harness.feed(Answers(outcomes)).batches


def paying(**how):
    async def pay(order, *, call):
        if order == 8:
            raise EffectUnknown("nobody knows")
        return call.key

    declared = clonos.effect(check=find, on_unknown=how.pop("on_unknown", "fail"))(pay)
    stream = orders(parallelism=1)
    paid = stream.with_column_async("key string", declared, "order", name="pay", **how)
    paid.sink(clonos.sinks.collect())
    return StepHarness(stream._job.compile().codes[-1].program("run 1"))


def test_what_nobody_knows_ends_the_job_whatever_is_done_about_other_errors():
    harness = paying(on_error=lambda order, error: "none")
    output = harness.source(ROWS, SCHEMA)
    outcomes = [answered(*each) for each in output.asked]
    with pytest.raises(EffectUnknown, match=r"nobody knows \(for Row\(order=8") as caught:
        harness.feed(Answers(tuple(outcomes)))
    assert caught.value.where == "pay[0]"


def test_what_nobody_knows_may_be_an_error_of_the_row():
    harness = paying(on_unknown="on_error", on_error=lambda order, error: type(error).__name__)
    output = harness.source(ROWS, SCHEMA)
    (batch,) = harness.feed(
        Answers(tuple(answered(*each) for each in output.asked))
    ).batches.values()
    assert [row[-1] for row in rows(batch)][1] == "EffectUnknown"
    assert isinstance(harness.program, ChainProgram)
    traffic = harness.program.traffic
    assert [traffic[f"pay: {what}"] for what in ("calls", "unknown")] == [3, 1]


def test_a_process_says_that_it_has_effects():
    class Shop(clonos.Process):
        def open(self, ctx):
            self.pay = ctx.service("pay", clonos.effect(check=find)(pay))

        def on_row(self, row, ctx):
            raise AssertionError("no row comes")

    stream = orders()
    stream.key_by("order").process(Shop(), "order long").sink(clonos.sinks.collect())
    with pytest.raises(WrongType, match="the service 'pay' is an effect") as caught:
        program_of(stream)
    assert "effects=True" in caught.value.remedy
    stream = orders()
    shop = stream.key_by("order").process(Shop(), "order long", effects=True)
    shop.sink(clonos.sinks.collect())
    assert program_of(stream).makes_calls


class Shop(clonos.Process):
    def __init__(self, declared):
        self.declared = declared

    def open(self, ctx):
        self.pay = ctx.service("pay", self.declared)

    def on_row(self, row, ctx):
        self.pay.ask(row.order, then="on_paid")

    def on_paid(self, reply, ctx):
        try:
            return [(ctx.key, reply.get())]
        except EffectUnknown:
            return [(ctx.key, "unknown")]


def shop(declared):
    stream = orders(parallelism=1)
    keyed = stream.key_by("order")
    paid = keyed.process(Shop(declared), "order long, key string", effects=True, name="shop")
    paid.sink(clonos.sinks.collect())
    return StepHarness(program_of(stream))


@pytest.mark.parametrize("on_unknown", ["fail", "on_error"])
def test_a_process_hears_that_nobody_knows_only_if_the_policy_says_so(on_unknown):
    harness = shop(clonos.effect(check=find, on_unknown=on_unknown)(pay))
    ((call, request),) = harness.input(0, ROWS[:1], SCHEMA).asked
    assert request.key == effect_key("run 1", "shop", [0, 1], 0)
    if on_unknown == "fail":
        with pytest.raises(EffectUnknown, match=r"shop\[0\]: pay: the effect") as caught:
            harness.answer(call, EffectUnknown("the effect", remedy="look at its key"))
        assert caught.value.remedy == "look at its key"
    else:
        (batch,) = harness.answer(call, EffectUnknown("the effect")).batches.values()
        assert rows(batch) == [(7, "unknown")]


@pytest.mark.parametrize(
    ("how", "named", "is_found_out"),
    [
        ({"check": find}, {}, True),
        ({}, {}, True),  # nobody can be asked: that it is unknown is said, and it is not made again
        ({"idempotent": True}, {}, False),  # a name that nobody knows
        ({"idempotent": True}, {"identity": "order"}, True),
    ],
)
def test_what_may_have_been_made_before_the_job_went_back_is_found_out(how, named, is_found_out):
    stream = orders(parallelism=1)
    declared = clonos.effect(**how)(pay)
    stream.with_column_async("key string", declared, "order", name="pay", **named).sink(
        clonos.sinks.collect()
    )
    shops = StepHarness(program_of(stream)), shop(clonos.effect(**how)(pay))
    for harness in shops[: 1 if named else 2]:
        feed = harness.source if harness is shops[0] else partial(harness.input, 0)
        assert isinstance(harness.program, ChainProgram)
        before = feed(ROWS[:1], SCHEMA).asked
        for operator in harness.program.operators.values():
            if "asked" in operator.joins:
                kept = nothing_kept()._replace(facts=dict(operator.facts.as_dict()))
                operator.facts.set(REWOUND, gone_back(kept, 1).facts[REWOUND])
        since = feed(ROWS[1:], SCHEMA).asked
        assert [request.in_doubt for _, request in before] == [False]
        assert [request.in_doubt for _, request in since] == [is_found_out] * 2
        of_then = {call.number for call, request in harness.program.open_calls().items()
                   if not request.in_doubt}  # fmt: skip
        assert of_then == ({1} if is_found_out else {1, 2, 3}), "who was open is, for the task, too"


def test_an_open_call_does_not_go_on_as_another_kind():
    harness = shop(clonos.effect(check=find)(pay))
    harness.input(0, ROWS[:1], SCHEMA)
    sealed = bytes(harness.program.delta())
    again = shop(clonos.effect(check=find)(pay)).program
    again.apply(sealed)
    assert len(again.open_calls()) == 1
    again = shop(clonos.effect(idempotent=True)(pay)).program
    again.apply(sealed)
    with pytest.raises(StateMismatch, match="is open, as an effect; now it would be an idempotent"):
        again.open_calls()


@pytest.mark.parametrize("kind", ["rows", "batches", "process"])
def test_when_an_effect_was_asked_for_is_state_if_its_key_may_be_forgotten(kind):
    def started(declared, layers=()):
        stream = orders(parallelism=1)
        if kind == "process":
            how = {"effects": True, "name": "shop"}
            out = stream.key_by("order").process(Shop(declared), "order long, key string", **how)
        else:
            how = {"batch": 2} if kind == "batches" else {}
            out = stream.with_column_async("key string", declared, "order", name="pay", **how)
        out.sink(clonos.sinks.collect())
        program = program_of(stream)
        for layer in layers:
            program.apply(layer)
        return StepHarness(program)

    def feed(harness):
        is_keyed = kind == "process"
        return (partial(harness.input, 0) if is_keyed else harness.source)(ROWS, SCHEMA)

    forgets = clonos.effect(idempotent=True, keys_kept="1 day")(pay)
    harness = started(forgets)
    output = feed(harness)
    assert {request.asked_ms for _, request in output.asked} == {output.now_ms}
    assert output.has_read_clock
    again = started(forgets, [bytes(harness.program.delta())]).program
    opened = list(again.open_calls().values())
    assert [request.asked_ms for request in opened] == [output.now_ms] * len(output.asked)
    output = feed(started(clonos.effect(idempotent=True)(pay)))
    assert {request.asked_ms for _, request in output.asked} == {0}
    assert not output.has_read_clock, "which would be logged"


def statistics_of(harness):
    assert isinstance(harness.program, ChainProgram)
    return harness.program.statistics


def program_of(stream):
    """Of the last task."""
    return stream._job.compile().codes[-1].program("shop", "run 1")
