"""Threads that were made ready in advance do what they would have done without."""

from __future__ import annotations

import threading
import time
from functools import partial
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from clonos.spark.ready import ReadyThread, Successors

WAIT_S = 60.0


def ready_to(say: SimpleQueue[Any], word: str) -> ReadyThread:
    """Says a word when it is ready."""

    def prepare() -> str:
        say.put(word)
        return word

    return ReadyThread(word, prepare)


def ended(name: str) -> bool:
    for thread in threading.enumerate():
        if thread.name == name:
            thread.join(WAIT_S)
    return all(thread.name != name for thread in threading.enumerate())


def test_it_prepares_before_it_is_told_what_to_do():
    said: SimpleQueue[Any] = SimpleQueue()
    thread = ready_to(said, "ready")
    assert said.get(timeout=WAIT_S) == "ready"
    thread.do(lambda ready: said.put(f"{ready()}, go"))
    assert said.get(timeout=WAIT_S) == "ready, go"


def test_what_fails_in_advance_is_raised_where_somebody_hears_of_it():
    said: SimpleQueue[str] = SimpleQueue()

    def prepare() -> None:
        raise OSError("there is none")

    def act(ready: Any) -> None:
        with pytest.raises(OSError, match="there is none"):
            ready()
        said.put("heard")

    ReadyThread("fails", prepare).do(act)
    assert said.get(timeout=WAIT_S) == "heard"


def test_what_has_failed_in_advance_is_tried_again():
    said: SimpleQueue[str] = SimpleQueue()
    results = iter([OSError("no memory for the moment"), "ready"])

    def prepare() -> Any:
        result = next(results)
        said.put("tried")
        if isinstance(result, OSError):
            raise result
        return result

    thread = ReadyThread("again", prepare)
    assert said.get(timeout=WAIT_S) == "tried"
    thread.do(lambda ready: said.put(ready()))
    assert [said.get(timeout=WAIT_S) for _ in range(2)] == ["tried", "ready"]


def test_a_place_has_one_successor_which_is_ready_for_one_thing():
    said: SimpleQueue[Any] = SimpleQueue()
    successors = Successors(0.0, 0.0)
    for word in ("first", "second"):
        successors.ask(3, word, partial(ready_to, said, word))
    assert [said.get(timeout=WAIT_S) for _ in "12"] == ["first", "second"]
    assert ended("first"), "the second one has taken its place"
    assert successors.take(4, "second") is None
    assert successors.take(3, "third") is None
    assert ended("second"), "it was ready for something else"
    successors.close()


def test_where_no_thread_can_be_started_there_is_no_successor_for_the_moment():
    said: SimpleQueue[Any] = SimpleQueue()
    successors = Successors(0.0, 0.0)

    def fail() -> ReadyThread:
        said.put("failed")
        raise RuntimeError("can't start new thread")

    successors.ask(3, "one", fail)
    assert said.get(timeout=WAIT_S) == "failed"
    successors.ask(3, "one", lambda: ready_to(said, "there"))
    assert said.get(timeout=WAIT_S) == "there"
    successors.close()
    assert ended("there")


def test_none_is_made_after_the_end(monkeypatch):
    made: list[str] = []
    before, closed = set(threading.enumerate()), threading.Event()
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: closed.wait(WAIT_S))
    monkeypatch.setattr("clonos.spark.ready.time", clock)

    def make() -> ReadyThread:
        made.append("one")
        return ready_to(SimpleQueue(), "one")

    successors = Successors(0.0, 0.0)
    successors.ask(3, "one", make)
    (thread,) = set(threading.enumerate()) - before
    successors.close()
    successors.ask(3, "one", make)
    closed.set()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert made == []
    assert successors.take(3, "one") is None
