"""What cannot be sent to slots is named as it is called in the user's code."""

from __future__ import annotations

import socket
import threading
from functools import partial
from typing import Any

import pytest
from pyspark.sql import Observation

import clonos
from clonos.cluster.pickling import require_picklable
from clonos.errors import DefinitionError, NotPicklable

lock = threading.Lock()


def compiled(build: Any) -> Any:
    job = clonos.Job("pickled")
    rows = job.source(clonos.sources.from_batches([], "k string, n long"), name="in")
    build(rows).sink(clonos.sinks.callback(lock.locked), name="out")  # the driver calls it
    return job.compile()


def captures_a_socket(rows: Any) -> Any:
    connection = socket.socket()
    connection.close()

    def ask(row: Any) -> int:
        return connection.fileno()

    return rows.map(ask, "n long", name="ask")


def captures_it_further_away(rows: Any) -> Any:
    gates = {"one": threading.Lock()}

    def inner(row: Any) -> bool:
        return gates["one"].locked()

    return rows.filter(lambda row: not inner(row), name="some")


def holds_it_as_an_attribute(rows: Any) -> Any:
    class Locked(clonos.Process):
        def __init__(self) -> None:
            self.lock = threading.Lock()

        def on_row(self, row: Any, ctx: Any) -> Any:
            return [row]

    return rows.key_by("k").process(Locked(), "k string, n long", name="locked")


def is_given_it(rows: Any) -> Any:
    def wait(row: Any, *, until: Any) -> Any:
        return row

    return rows.map(partial(wait, until=threading.Event()), "k string, n long", name="wait")


def uses_spark(rows: Any) -> Any:
    seen = Observation("rows")
    seen._jvm = lock  # as a session, which cannot be pickled
    return rows.map(lambda row: (seen.get,), "n long", name="sparks")


@pytest.mark.parametrize(
    ("build", "told", "remedy"),
    [
        (captures_a_socket, r"ask: 'connection' \(socket\) .*; ask uses it \(test_pickling.py:",
         "when it is first called"),
        (captures_it_further_away, r"some: 'gates'\['one'\] \(lock\).*; inner uses it", "open()"),
        (holds_it_as_an_attribute, r"locked: Locked.lock \(lock\)", "open()"),
        (is_given_it, r"wait: .* \(lock\) cannot be sent to the slots", "open()"),
        (uses_spark, r"sparks: 'seen' \(Observation\)", "look_up"),
    ],
)  # fmt: skip
def test_it_is_named(build, told, remedy):
    with pytest.raises(NotPicklable, match=told) as raised:
        require_picklable(compiled(build))
    assert isinstance(raised.value, DefinitionError)
    assert remedy in raised.value.remedy


def test_what_can_be_sent_is_not_refused():
    factor = 2
    require_picklable(compiled(lambda rows: rows.map(lambda row: (row.n * factor,), "n long")))
