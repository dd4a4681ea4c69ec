"""What the sources of the next graph read: more, or less if that is said, but nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import clonos
from clonos.errors import CannotUpgrade
from clonos.graph.description import describe
from clonos.sources import redis_reader
from clonos.sources.kafka_cut import Cut, Span
from clonos.upgrade.layers import Redistribution, require_droppable
from clonos.upgrade.renamed import shape_before
from clonos.upgrade.shape import Shape
from tests.upgrade.test_layers import SEALED, Before

sources = clonos.sources
IDS: dict[str, int | None] = {"a": 1, "b": 2}
KAFKA = Cut({("a", 0): Span(5, 9, 4), ("b", 0): Span(7, 7, 0)}, IDS).encode()
REDIS = redis_reader.encode({"a": redis_reader.Span("0-0", "5-1", 4)})


def kafka(*topics: str) -> Any:
    return sources.kafka("kafka:9092", topics, value="text")


def redis(*streams: str, url: str = "redis://cache") -> Any:
    return sources.redis(url, streams, schema="n long")


def postgres(query: str, column: str = "id") -> Any:
    return sources.postgres("dbname=shop", query, column=column, schema="n long")


def mqtt(*topics: str, client_id: str = "job-7") -> Any:
    return sources.mqtt("broker", topics, client_id=client_id, value="text")


def reading(source: Any, name: str = "rows") -> clonos.Job:
    made = clonos.Job("job", parallelism=1)
    made.source(source, name=name).sink(clonos.sinks.collect(), name="out")
    return made


def upgraded(
    was: Any, becomes: Any, *, cut: bytes = b"", drop_state: Any = (), **names: str
) -> Any:
    """The cut with which the source goes on."""
    before, compiled = Before(reading(was)), reading(becomes, *names.values()).compile()
    (task,) = before.shape.homes["rows"]
    before.layers[task] = replace(before.layers[task], source_cut=cut)
    shape = shape_before(describe(before.compiled), compiled, names, drop_state)
    require_droppable(shape, compiled, drop_state)  # as it is asked before the pause
    layers = Redistribution(shape, before.layers, compiled, SEALED, drop_state).layers()
    (task,) = Shape.of(compiled).homes[names.get("rows", "rows")]
    return layers[task].source_cut


@pytest.mark.parametrize(
    ("was", "becomes", "cut"),
    [
        (kafka("a", "b"), kafka("a", "b", "c"), KAFKA),
        (redis("a"), redis("c", "a"), REDIS),
        (mqtt("a"), mqtt("b", "a"), b""),
        (postgres("select id, n from t"), postgres("select id,\n  n from t"), b"at"),
    ],
)
@pytest.mark.parametrize("names", [{}, {"rows": "events"}])
def test_a_source_may_read_more_and_goes_on_in_what_it_has_read(was, becomes, cut, names):
    if names and was.kind == "mqtt":
        pytest.skip("its rows are kept under its name")
    assert upgraded(was, becomes, cut=cut, **names) == cut


@pytest.mark.parametrize(
    ("was", "becomes", "said"),
    [
        (kafka("a", "b"), kafka("a"), "read 'a', 'b', and is to read 'a': its position in 'b'"),
        (kafka("a"), kafka("b"), "read 'a', and is to read 'b': its position in 'a'"),
        (redis("a", "b"), redis("b", "c"), "its position in 'a'"),
        (redis("a"), redis("a", url="redis://cache/1"), "is to read 'a in database 1'"),
        (mqtt("a"), mqtt("b"), "read 'a for job-7', and is to read 'b for job-7': its position"),
        (mqtt("a"), mqtt("a", client_id="other"), "and is to read 'a for other'"),
        (postgres("select * from t"), postgres("select * from u"), "select . from u by id'"),
        (postgres("select * from t"), postgres("select * from t", "at"), "from t by at'"),
    ],
)
def test_what_it_no_longer_reads_is_not_forgotten_without_a_word(was, becomes, said):
    with pytest.raises(CannotUpgrade, match=said) as told:
        upgraded(was, becomes)
    assert "drop_state=[" in told.value.remedy
    assert ("another client_id" in told.value.remedy) == (was.kind == "mqtt")


def test_it_forgets_what_the_user_names():
    cut = upgraded(kafka("a", "b"), kafka("a", "c"), cut=KAFKA, drop_state=[("rows", "b")])
    assert Cut.decode(cut) == Cut({("a", 0): Span(5, 9, 4)}, {"a": 1})
    cut = upgraded(kafka("a", "b"), kafka("c"), cut=KAFKA, drop_state=[("rows", x) for x in "ab"])
    assert cut == b"", "it begins as a new source does"
    cut = upgraded(redis("a", "b"), redis("b"), cut=REDIS, drop_state=[("rows", "a")])
    assert cut == b""
    was, gone = redis("a", url="redis://cache/1"), [("rows", "a in database 1")]
    assert upgraded(was, redis("a"), cut=REDIS, drop_state=gone) == b""


@pytest.mark.parametrize(
    ("becomes", "dropped", "said"),
    [
        (kafka("a"), ("rows", "c"), "'rows' is to forget 'c', and it did not read that"),
        (kafka("a", "b"), ("rows", "b"), "'rows' is to forget 'b', and it still reads that"),
        (kafka("a"), ("row", "b"), "'row' is to forget 'b', and it did not read that"),
    ],
)
def test_what_cannot_be_forgotten(becomes, dropped, said):
    with pytest.raises(CannotUpgrade, match=said):
        upgraded(kafka("a", "b"), becomes, drop_state=[dropped])


def test_a_query_has_one_position():
    one, other = postgres("select * from t"), postgres("select * from u")
    with pytest.raises(CannotUpgrade, match="position means nothing there"):
        upgraded(one, other, drop_state=[("rows", "select * from t by id")])
    assert upgraded(one, other, cut=b"at", drop_state=["rows"]) == b""


def test_a_job_of_an_earlier_clonos_does_not_say_what_it_read():
    description = describe(reading(kafka("a")).compile())
    for task in description["tasks"].values():
        task["source"] = task["source"] and task["source"][:1]
    compiled = reading(kafka("a", "b")).compile()
    require_droppable(shape_before(description, compiled, {}), compiled, ())
