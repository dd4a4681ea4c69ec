"""The driver's thread, with a node that fails or hangs; no Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from unittest.mock import MagicMock

import pytest

from clonos.cluster.loop import DriverLoop
from clonos.errors import ClonosError
from clonos.nodes.events import StopAsked
from clonos.nodes.phases import Phase


class Node:
    """Each turn calls user code, which raises once."""

    def __init__(self, error: BaseException) -> None:
        self.raises: BaseException | None = error
        self.error: ClonosError | None = None
        self.phase, self.is_over = Phase.RUNNING, False

    def start(self) -> None: ...

    def turn(self, heard: Any) -> float:
        error, self.raises = self.raises, None
        if error is not None:
            raise error
        self.is_over = True
        return 0.0

    def fail(self, error: ClonosError) -> None:
        self.error = error

    def tell_the_end(self, error: ClonosError | None) -> None: ...


@pytest.mark.parametrize("raised", [ValueError("no"), SystemExit(3), KeyboardInterrupt()])
def test_whatever_is_raised_in_the_driver_s_thread_ends_the_job(raised: BaseException) -> None:
    """Whoever waits for the job would wait for ever."""
    setup: Any = MagicMock()
    setup.node = Node(raised)
    setup.with_hint = lambda error: error
    loop = DriverLoop(setup)
    loop.start()
    assert loop.over.wait(60)
    assert loop.error is not None
    assert f"the driver failed: {type(raised).__name__}" in loop.error.what


def test_user_code_that_does_not_return_is_told_with_its_lines() -> None:
    told, setup = list[str](), MagicMock()
    is_told, node = threading.Event(), Node(ValueError())

    def never_returns(heard: Any) -> float:
        loop._watchdog.hangs_s = 0.01
        assert is_told.wait(60)
        node.is_over = True
        return 0.0

    def warn(text: str) -> None:
        told.append(text)
        is_told.set()

    node.turn = never_returns  # type: ignore[method-assign]
    setup.node, setup.warn, setup.with_hint = node, warn, lambda error: error
    loop = DriverLoop(setup)
    loop.start()
    assert loop.over.wait(60)
    (text,) = told
    assert "a function has not returned to the driver for 0.01 s" in text
    assert "assert is_told.wait(60)" in text
    assert loop.error is None


class Idle(Node):
    """Turns until it is asked to stop."""

    def __init__(self) -> None:
        super().__init__(ValueError())
        self.has_begun = False

    def start(self) -> None:
        self.has_begun = True

    def turn(self, heard: Any) -> float:
        self.is_over = any(isinstance(event, StopAsked) for event in heard)
        return 0.01


def interrupted(act: Callable[[], Any]) -> Callable[[], None]:
    """It has done what it does, and then Ctrl+C comes."""

    def run() -> None:
        act()
        raise KeyboardInterrupt

    return run


@pytest.mark.parametrize("moment", ["the thread runs", "the job begins", "it has begun"])
def test_no_job_runs_on_whose_start_was_interrupted(moment: str) -> None:
    """Nobody has a handle to stop it: the next cell of a notebook would find its journal in use."""
    setup: Any = MagicMock()
    asked: list[Any] = []
    setup.node, setup.with_hint = Idle(), lambda error: error
    setup.inbox.put = asked.append
    setup.plane.poll = lambda _: asked
    loop = DriverLoop(setup)
    if moment == "the thread runs":
        loop._thread.start = interrupted(loop._thread.start)  # type: ignore[method-assign]
    elif moment == "the job begins":
        setup.begin = interrupted(setup.begin)
    else:
        loop._may_begin.set = interrupted(loop._may_begin.set)  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        loop.start()
    assert loop.over.is_set()
    loop._thread.join(60)
    assert not loop._thread.is_alive()
    assert setup.node.has_begun is (moment == "it has begun")
    setup.close.assert_called_once()
