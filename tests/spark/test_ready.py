"""A thread that was made ready in advance does what it would have done without."""

from __future__ import annotations

from queue import SimpleQueue
from typing import Any

import pytest

from clonos.spark.ready import ReadyThread

WAIT_S = 60.0


@pytest.mark.parametrize("after_s", [0.0, WAIT_S])
def test_it_is_made_ready_once(after_s):
    prepared: SimpleQueue[str] = SimpleQueue()
    said: SimpleQueue[Any] = SimpleQueue()

    def prepare():
        prepared.put("now")
        return "hello"

    thread = ReadyThread("greeter", prepare, after_s)
    if not after_s:
        prepared.get(timeout=WAIT_S)  # before there is anything to do
    thread.do(lambda ready: said.put(ready()))
    assert said.get(timeout=WAIT_S) == "hello"
    assert prepared.qsize() == (1 if after_s else 0)


def test_what_fails_in_advance_is_tried_again_where_somebody_hears_of_it():
    errors = [OSError("not yet"), OSError("not at all")]
    tried: SimpleQueue[str] = SimpleQueue()
    said: SimpleQueue[str] = SimpleQueue()

    def prepare():
        tried.put("once")
        raise errors.pop(0)

    def act(ready):
        try:
            ready()
        except OSError as error:
            said.put(str(error))

    thread = ReadyThread("greeter", prepare, 0.0)
    tried.get(timeout=WAIT_S)
    thread.do(act)
    assert said.get(timeout=WAIT_S) == "not at all"


def test_who_is_dismissed_does_nothing():
    thread = ReadyThread("greeter", print, WAIT_S)
    thread.dismiss()
    thread.thread.join(WAIT_S)
    assert not thread.thread.is_alive()
