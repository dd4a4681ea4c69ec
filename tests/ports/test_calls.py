"""What a task may rely on when its calls are made, in an event loop and in the simulation."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from clonos.core.calls import CallId, Outcome, Request
from clonos.nodes.events import CallsOver
from clonos.nodes.ports import Calls
from clonos.operators.calls.service import Policy
from clonos.runtime.calls import CallRunner
from clonos.simulator.processes.calls import SlotCalls

from .common import Real, Simulated

LIFE, OTHER = 7, 8
CALLS = 30


class InEventLoop(Real):
    """The service is a function that waits until it may answer."""

    def __init__(self) -> None:
        super().__init__()
        self._runner = CallRunner(self._inbox.put)
        self._may_answer = threading.Event()
        self._may_answer.set()
        self.port: Calls = self._runner
        self.asked: list[int] = []
        self._policy = Policy(
            fn=self._ask,
            name="ask",
            timeout_s=60.0,
            attempts=1,
            backoff_s=(0.001, 0.01),
            per_second=None,
            hedge_s=None,
            in_flight=CALLS,
        )

    def _ask(self, number: int) -> int:
        self.asked.append(number)
        self._may_answer.wait()
        return number

    def hold(self) -> None:
        """Nobody is answered until :meth:`answer`."""
        self._may_answer.clear()

    def answer(self) -> None:
        self._may_answer.set()

    def request(self, number: int) -> Request:
        return Request(self._policy, (number,), number)

    def close(self) -> None:
        self._may_answer.set()
        self._runner.close()
        self._inbox.close()


class InSimulation(Simulated):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.port: Calls = SlotCalls(self.ear)
        self._held_until = self.cluster.heals_at

    @property
    def asked(self) -> list[int]:
        return [one.arguments[-1] for one in self.cluster.service.journal]

    def hold(self) -> None:
        self.cluster.options.hanging_calls = 1.0
        self.cluster.heals_at = float("inf")

    def answer(self) -> None:
        self.cluster.heals_at = self.cluster.scheduler.now

    @staticmethod
    def request(number: int) -> Request:
        return Request(None, (number,), number)


@pytest.fixture(params=["event loop", *range(5)])
def world(request: pytest.FixtureRequest) -> Iterator[Any]:
    kind = request.param
    with closing(InEventLoop() if kind == "event loop" else InSimulation(kind)) as made:
        yield made


def make(world: Any, life: int, numbers: range) -> None:
    world.port.make(life, [(CallId(2, n), world.request(n)) for n in numbers])


def outcomes(world: Any, life: int = LIFE) -> list[Outcome]:
    return [one for over in world.heard if over.life == life for one in over.outcomes]


def test_each_call_comes_to_one_outcome_that_names_what_was_asked(world):
    make(world, LIFE, range(1, CALLS))
    make(world, LIFE, range(CALLS, CALLS + 1))
    world.until(lambda: len(outcomes(world)) >= CALLS)
    found = outcomes(world)
    assert Counter(one.number for one in found) == Counter(range(1, CALLS + 1))
    assert all(one.digest == one.number and one.operator == 2 for one in found)
    assert {type(over) for over in world.heard} == {CallsOver}
    assert sorted(world.asked) == list(range(1, CALLS + 1))


def test_nobody_waits_for_a_call(world):
    world.hold()
    make(world, LIFE, range(1, CALLS + 1))
    world.until(lambda: len(world.asked) == CALLS)
    assert not world.heard
    world.answer()
    world.until(lambda: len(outcomes(world)) == CALLS)


def test_a_life_that_is_over_hears_nothing_and_others_do(world):
    world.hold()
    make(world, LIFE, range(1, 4))
    make(world, OTHER, range(4, 7))
    world.until(lambda: len(world.asked) == 6)
    world.port.withdraw(LIFE)
    world.answer()
    world.until(lambda: len(outcomes(world, OTHER)) == 3)
    make(world, OTHER, range(7, 8))
    world.until(lambda: len(outcomes(world, OTHER)) == 4)
    assert outcomes(world, LIFE) == []
