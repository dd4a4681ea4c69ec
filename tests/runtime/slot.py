"""What tests of calls share: a slot that makes them, and hears of them."""

from __future__ import annotations

import queue

from clonos.core.calls import CallId, Outcome, Request
from clonos.nodes.events import CallsOver
from clonos.operators.calls.service import Policy
from clonos.runtime.calls import CallRunner

LIMIT_S = 60.0
"""Only a test that has failed waits for so long."""
LIFE = 7


def policy(fn, **how):
    usual = {
        "name": "ask",
        "timeout_s": LIMIT_S,
        "attempts": 1,
        "backoff_s": (0.001, 0.01),
        "per_second": None,
        "hedge_s": None,
        "in_flight": 10,
    }
    return Policy(fn=fn, **{**usual, **how})


class Slot:
    """What hears of the calls."""

    def __init__(self):
        self.heard: queue.Queue[CallsOver] = queue.Queue()
        self.runner = CallRunner(self.heard.put)

    def make(self, how, *arguments, life=LIFE):
        calls = [(CallId(2, n), Request(how, given, n)) for n, given in enumerate(arguments, 1)]
        self.runner.make(life, calls)

    def outcomes(self, count, life=LIFE):
        found: dict[int, Outcome] = {}
        while len(found) < count:
            over = self.heard.get(timeout=LIMIT_S)
            assert over.life == life
            for outcome in over.outcomes:
                assert outcome.operator == 2
                assert outcome.digest == outcome.number not in found
                found[outcome.number] = outcome
        assert self.heard.empty()
        return [found[number] for number in sorted(found)]

    def one(self, how, *arguments):
        self.make(how, arguments)
        return self.outcomes(1)[0]
