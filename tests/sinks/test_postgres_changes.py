"""A sink in PostgreSQL when the graph of its job changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from clonos.errors import OutputExists, UnknownColumn
from tests.sinks.test_postgres import SCHEMA, Place, output


@pytest.fixture
def place(postgres: str) -> Iterator[Place]:
    made = Place(postgres)
    yield made
    made.close()


def test_columns_that_do_not_fit_are_found_before_the_graph_changes(place):
    place.claims().require({"out": SCHEMA})  # there is no table yet
    place.begin()
    place.claims().require({"out": SCHEMA})
    with pytest.raises(UnknownColumn, match="no column 'more'"):
        place.claims().require({"out": SCHEMA.append(pa.field("more", pa.int64()))})


def test_a_sink_that_was_removed_comes_back(place):
    """Its numbers begin anew, in a later generation; it has more tasks now."""
    place.begin()
    place.writer().write([output(seq, (seq, "before")) for seq in (1, 2, 3)])

    def back(**how: Any) -> None:
        place.claims(tasks=2, **how).begin({"out": SCHEMA}, is_new=False, added=["out"])

    with pytest.raises(OutputExists, match="another job"):
        back(job="another")
    for _ in range(2):  # before the switch, and after it
        back()
    place.writer(2).write([output(1, (1, "again"), generation=2)])
    place.writer(3).write([output(n, (n, "again"), generation=2) for n in (1, 2)])
    place.writer(2, number=1).write([output(1, (9, "new"), generation=2)])
    assert [word for _, word in place.rows(order="word, id")] == [
        *["again"] * 2, *["before"] * 3, "new",
    ]  # fmt: skip
    place.sql("drop table TABLE")
    back()
    place.writer(4).write([output(n, (n, "again"), generation=2) for n in (2, 3)])
    assert place.rows() == [(3, "again")]
