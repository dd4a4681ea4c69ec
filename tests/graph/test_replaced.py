"""Functions of a graph are replaced by others of the same kind."""

from __future__ import annotations

import pytest

import clonos
from clonos.errors import CannotReplace
from clonos.graph.compile import compile_graph
from clonos.graph.replaced import replaced
from clonos.testing import InMemoryRun

MADE: list[int] = []


@clonos.effect(idempotent=True)
async def pay(n, *, call):
    raise AssertionError("it was replaced")


@clonos.effect(idempotent=True)
async def pay_twice_as_much(n, *, call):
    assert call.key
    MADE.append(n)
    return 2 * n


@clonos.effect
def book(n):
    MADE.append(n)
    return n


async def ask(n):
    return n


def asking(fn):
    job = clonos.Job("asking")
    rows = job.source(clonos.sources.from_batches([[(1,), (2,)]], "n long"), name="rows")
    rows.with_column_async("answer long", fn, "n", name="asks").sink(
        clonos.sinks.collect(), name="out"
    )
    return job.graph


def test_an_effect_takes_the_place_of_an_effect():
    MADE.clear()
    graph = replaced(asking(pay), {"asks": pay_twice_as_much})
    out = InMemoryRun(compile_graph(graph), seed=1).run()["out"]
    assert out.column("answer").to_pylist() == [2, 4]
    assert MADE == [1, 2]


@pytest.mark.parametrize(
    ("one", "other", "match"),
    [
        (ask, book, "book is an effect, and what it would replace is a plain call"),
        (book, ask, "ask is a plain call, and what it would replace is an effect"),
        (pay, book, "book is an effect, and what it would replace is an idempotent effect"),
        (ask, 3, "int cannot replace what 'asks' runs"),
    ],
)
def test_a_call_stays_of_its_kind(one, other, match):
    with pytest.raises(CannotReplace, match=match):
        replaced(asking(one), {"asks": other})
