"""Jobs whose logs exceed the limit while no periodic checkpoint comes."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Final

from clonos.core.plan import Incarnation
from clonos.core.throttle import KEEPER_TIMES
from clonos.simulator.checks.violations import require
from clonos.simulator.jobs.programs import Behaviour, Job, Stage, build_job

if TYPE_CHECKING:
    from clonos.simulator.processes.cluster import Cluster, Options
    from clonos.simulator.processes.slot import Slot

LATE_MS: Final = 400.0
"""By then sources must have heard of the excess: a task reports every 250 ms."""
KEEPER: Final = "the house-keeper"


def long_job(random: Random) -> Job:
    """A chain that makes a call and reads the clock for each row, so that its logs are long."""
    asks = Behaviour(clock=True, call_every=1)
    stages = [
        Stage("source", random.choice((1, 2)), (), replace(asks, call_every=0)),
        Stage("ask", random.choice((1, 2)), (0,), asks),
        Stage("sink", 1, (1,), is_sink=True),
    ]
    return build_job(stages, sharing_depth=random.choice((0, 1, 2)), rows=400)


class LogWatch:
    """Checks how much of logs processes hold, and whether sources go on although it is too much.

    Parameters
    ----------
    since_ms
        The check begins here. While there are faults, or while the driver is stopped, a process may
        have nobody to report an excess to.
    """

    def __init__(self, cluster: Cluster, since_ms: float) -> None:
        self._cluster, self._since_ms = cluster, since_ms
        self._too_much: dict[str, float] = {}  # since when, by process
        self._taken: dict[tuple[int, Incarnation], int] = {}  # by each life of a source: rows
        self.most = 0
        """The most that any process has held."""
        cluster.on_steps.append(self._stepped)

    def _stepped(self, slot: Slot) -> None:
        cluster = self._cluster
        limit = cluster.options.log_bytes
        assert limit is not None
        held = {
            s.address: sum(machine.book.nbytes for machine in s.machines)
            for s in cluster.slots
            if s.is_controlled and s.stalled_until <= cluster.scheduler.now
        }
        self.most = max([self.most, *held.values()])
        held[KEEPER] = cluster.driver.keeper.book.nbytes // KEEPER_TIMES
        now = cluster.scheduler.now
        self._too_much = {
            name: self._too_much.get(name, now)
            for name, nbytes in held.items()
            if nbytes > limit and now >= max(self._since_ms, cluster.driver.paused_until)
        }
        for machine in slot.machines:
            if machine.spec.is_source and machine.is_live and slot.is_controlled:
                life = machine.id, machine.incarnation
                bounded_logs(
                    self._too_much,
                    now,
                    machine.intake.taken - self._taken.get(life, machine.intake.taken),
                )
                self._taken[life] = machine.intake.taken


def bounded_logs(too_much: dict[str, float], now: float, rows: int) -> None:
    """Invariant 7: no source goes on while some process holds more of logs than the limit."""
    late = [name for name, since in too_much.items() if now - since > LATE_MS]
    require(not (late and rows), "bounded memory", f"sources go on, and {late} hold long logs")


def rare_floors(options: Options, random: Random) -> None:
    """Only hurried checkpoints come, and they take long."""
    options.epoch_ms = 1e7
    options.log_bytes = random.choice((8_000, 20_000))
    options.store_ms = random.choice((4.0, 500.0))
    options.availability = False
    options.pressures = 0.0
    options.floors_at_end = 0  # without rows nothing hurries a checkpoint
