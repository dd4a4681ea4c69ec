"""The driver's thread, with a node that fails or hangs; no Spark."""

from __future__ import annotations

import threading
from typing import Any
from unittest.mock import MagicMock

import pytest

from clonos.cluster.loop import DriverLoop
from clonos.errors import ClonosError
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
