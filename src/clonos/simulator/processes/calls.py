"""Simulated calls that take a while; some hang until all faults have healed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING

from clonos.core.calls import CallId, Outcome, Request
from clonos.core.canonical import outcome_of
from clonos.core.plan import Incarnation
from clonos.nodes.events import CallsOver
from clonos.simulator.jobs.lethal import is_lethal, kills_executor
from clonos.simulator.world.service import LethalCall
from clonos.transport.events import Away

if TYPE_CHECKING:
    from clonos.simulator.processes.slot import Slot

HANG_MS = 20.0
"""How often hanging calls check whether all faults have healed."""
QUIET_MS = 250.0
"""By then no earlier life begins an effect: a process that was given up alive has ended, and the
mandate of one whose driver was frozen is over."""
MANDATE_MS = 150.0
"""How long a mandate lasts."""
POLL_MS = 2.0
"""How often an effect that waits for a mandate looks for it."""


class SlotCalls:
    """The :class:`~clonos.nodes.ports.Calls` of a slot.

    The service sees a question at once, late, or never if the process dies first. It answers after
    any delay, in any order.
    """

    def __init__(self, slot: Slot) -> None:
        self._slot = slot
        self._over: set[int] = set()
        self._until_s = inf

    def make(self, life: int, calls: Sequence[tuple[CallId, Request]]) -> None:
        task, incarnation = self._slot.node.who(life)
        scheduler, random = self._slot.cluster.scheduler, self._slot.cluster.call_random
        for call, request in calls:
            delay = random.choice((0.0, 1.0, 5.0)) * random.random() + QUIET_MS * request.in_doubt
            if request.key:
                delay += self._slot.cluster.line_ms()
            scheduler.after(delay, self._ask, life, task, incarnation, call, request)

    def withdraw(self, life: int) -> None:
        self._over.add(life)

    def away(self, life: int) -> Mapping[str, Away]:
        del life
        return {}  # a call that has an error here has made all of its attempts in no time

    def may_begin(self, until_s: float) -> None:
        self._until_s = until_s

    def _ask(
        self, life: int, task: int, incarnation: Incarnation, call: CallId, request: Request
    ) -> None:
        cluster = self._slot.cluster
        if not self._slot.alive or life in self._over:
            return
        if request.key and not self._may_begin_now():
            cluster.scheduler.after(POLL_MS, self._ask, life, task, incarnation, call, request)
            return
        if is_lethal(cluster.job, task, request):
            slot, neighbours = self._slot, None
            if kills_executor(cluster.job, task):
                neighbours = [s for s in cluster.alive() if s.group == slot.group and s is not slot]
            count = None if neighbours is None else len(neighbours)
            cluster.service.lethal.append(LethalCall(task, incarnation, request.digest, count))
            for dying in (slot, *(neighbours or ())):
                cluster.kill(dying, "lethal call")
            return
        random = cluster.call_random
        ok, encoded = outcome_of(lambda: cluster.service.answer(task, incarnation, call, request))
        takes = random.choice((0.5, 2.0, 10.0)) * random.random()
        hangs = random.random() < cluster.options.hanging_calls
        over = CallsOver(life, (Outcome(*call, request.digest, ok, encoded),))
        cluster.scheduler.after(takes, self._answer, over, hangs)

    def _may_begin_now(self) -> bool:
        now = self._slot.cluster.scheduler.now
        return self._slot.stalled_until <= now < 1000 * self._until_s

    def _answer(self, over: CallsOver, hangs: bool) -> None:
        scheduler = self._slot.cluster.scheduler
        if not self._slot.alive or over.life in self._over:
            return
        if hangs and scheduler.now < self._slot.cluster.heals_at:
            scheduler.after(HANG_MS, self._answer, over, hangs)
        else:
            self._slot.post(over)
