"""Spools and floors: the last floor of a job may come while an earlier one is looked at."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from clonos.cluster import feeds as feeds_module
from clonos.cluster.feeds import Feeds


class Looking(Feeds):
    """Feeds that look at floors when they may."""

    def __init__(self) -> None:
        self._spools: Any = {"table": None}
        self._looking = self._newest = None
        self._lock, self._is_looking = threading.Lock(), False
        self._is_closed = threading.Event()
        self.seen: list[Any] = []
        self.begun, self.gate = threading.Semaphore(0), threading.Semaphore(0)
        self.errors = 0

    def _look(self, layers: Any, kept: Any) -> bool:
        assert kept == {}
        self.seen.append(layers)
        self.begun.release()
        self.gate.acquire()
        self.errors -= 1
        return self.errors < 0


@pytest.fixture
def feeds(monkeypatch):
    monkeypatch.setattr(feeds_module, "LOOK_S", 0.0)
    monkeypatch.setattr(feeds_module, "AGAIN_S", 0.0)
    return Looking()


def test_a_floor_that_comes_meanwhile_is_looked_at_next(feeds):
    for number in range(3):
        feeds.after_floor({number: ()}, {})
        if not number:
            assert feeds.begun.acquire(timeout=60)
    feeds.gate.release(2)
    feeds._looking.join(60)
    assert feeds.seen == [{0: ()}, {2: ()}], "the newest of them is enough"


def test_who_could_not_look_looks_again(feeds):
    feeds.errors = 2
    feeds.after_floor({0: ()}, {})
    feeds.gate.release(3)
    feeds._looking.join(60)
    assert feeds.seen == [{0: ()}] * 3


def test_nobody_looks_after_the_end(feeds):
    feeds.errors = 1 << 30
    feeds.after_floor({0: ()}, {})
    feeds._is_closed.set()
    feeds.gate.release(3)
    feeds._looking.join(60)
    assert feeds.seen == [{0: ()}]
