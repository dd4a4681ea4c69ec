"""Fault injection: at random times, and at the worst times (when the protocol makes progress)."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from functools import partial
from operator import attrgetter
from random import Random
from typing import TYPE_CHECKING

from clonos.core import notes
from clonos.core.roster import RUNNING
from clonos.errors import JournalInUse, OtherJournal
from clonos.simulator.runs.coverage import Coverage, state_of
from clonos.simulator.world.disk import Disk
from clonos.simulator.world.disks import Rot

if TYPE_CHECKING:
    from clonos.core.plan import Plan
    from clonos.simulator.processes.cluster import Cluster, Options
    from clonos.simulator.processes.slot import Slot
    from clonos.simulator.world.network import Host, Stream

CRITICAL = notes.Stage | notes.Floor | notes.Generation


HOUR_MS = 3_600_000
LATE_MS = 30.0
"""For this long, log entries and items of a task reach only its receivers."""

KINDS = (
    ("kill", 10), ("kill several", 4), ("kill neighbours", 6), ("kill executor", 3),
    ("kill standby", 2), ("zombie", 5), ("cut", 4), ("slow link", 3), ("slow task", 2),
    ("stall", 3), ("break stream", 4), ("duplicate", 3), ("pause driver", 2), ("kill driver", 1),
    ("clock jumps", 3), ("part", 3), ("journal fails", 2),
    ("lose machine", 2), ("store away", 2), ("late stream", 3),
    ("lose log", 2),
)  # fmt: skip
"""Kinds of faults, with their weights."""

DISK = (
    ("kill driver", 4), ("kill driver at a call", 5), ("lose driver's machine", 6), ("rot", 4),
    ("journal fails", 4), ("disk full", 4), ("store reboots", 5), ("store fails", 5),
    ("kill while storing", 5), ("second driver", 8),
)  # fmt: skip
"""Faults of disks, in addition to the others."""

EDGE = (
    ("cut off", 8), ("slow link", 4), ("break stream", 5), ("kill neighbours", 8), ("stall", 2),
    ("late stream", 4), ("lose log", 6),
)  # fmt: skip
"""Faults at the house-keeper: logs reach it late, and their other holders die."""

OVERLAP = (
    ("kill", 4), ("kill in turn", 6), ("kill above", 6), ("kill below", 4), ("kill recovering", 4),
    ("stall holder", 4), ("cut off", 8), ("slow link", 3), ("zombie", 2),
)  # fmt: skip
"""Faults while tasks recover: tasks upstream, downstream and elsewhere fail, the recovering tasks
fail again, holders that are asked for a log fall silent, and logs reach the house-keeper late."""

LOSSES = (
    ("kill", 12), ("kill standby", 12), ("kill copies", 8), ("kill executor", 6),
    ("lose machine", 3), ("break stream", 6), ("late stream", 3), ("kill in turn", 6),
    ("rot on a machine", 8), ("machine's disk full", 4), ("machine's disk fails", 4),
    ("driver sleeps", 4), ("stall", 4),
)  # fmt: skip
"""Faults of processes and machines that keep layers themselves."""


def faults_of_levels(seed: int, options: Options, plan: Plan) -> tuple[tuple[str, int], ...]:
    """Faults of a job whose slots keep layers. The last machine stays: nothing outlives it."""
    kinds = (*KINDS, *LOSSES * (seed % 3 > 0), *(("store away", 10),) * plan.chooses_levels)
    has_others = options.groups > options.executors_each
    return tuple(kind for kind in kinds if has_others or kind[0] != "lose machine")


TAKEOVER = (("takeover", 20),)
"""Of jobs with effects, too: a driver that is frozen or cut off does not know that another one has
taken over, nor do its processes."""
TAKEOVERS = ("frozen", "all frozen", "cut off")

HARSH = (
    ("kill", 4), ("kill neighbours", 6), ("zombie", 2), ("cut", 4), ("slow link", 5), ("stall", 6),
    ("late stream", 3), ("lose log", 6),
)  # fmt: skip


class Faults:
    """Injects faults until the budget or the time is used up; then everything heals.

    Attributes
    ----------
    begins_at, ends_at
        Nothing fails before the first or after the second.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        budget: int,
        lasts: float,
        eagerness: float,
        begins_at: float = 3.0,
        kinds: tuple[tuple[str, int], ...] = KINDS,
    ) -> None:
        self.cluster = cluster
        self.budget = budget if kinds else 0
        self.begins_at = begins_at
        self.ends_at = begins_at + lasts
        self.coverage: Coverage = Coverage()
        self._eagerness = eagerness
        self._kinds = [kind for kind, weight in kinds for _ in range(weight)]
        cluster.on_note.append(self.on_note)
        cluster.on_work.append(self.on_work)
        for _ in range(budget // 2 + 1):
            at = begins_at + cluster.random.random() * lasts
            cluster.scheduler.at(at, self.strike)

    def on_note(self, note: notes.Note) -> None:
        random = self.cluster.random
        if self.cluster.scheduler.now < self.begins_at:
            return
        if isinstance(note, CRITICAL) and random.random() < self._eagerness:
            self.cluster.scheduler.after(random.choice((0.0, 0.5, 3.0)), self.strike)

    def on_work(self, slot: Slot, duration: float) -> None:
        """During a step, kill tasks on whose logs it depends before those logs are safe."""
        random, scheduler = self.cluster.random, self.cluster.scheduler
        if scheduler.now >= self.begins_at and random.random() < self._eagerness:
            scheduler.after(random.choice((0.0, duration / 8)), self._kill_before, slot)

    def _kill_before(self, slot: Slot) -> None:
        machine = next((m for m in slot.machines if m.under_way is not None), None)
        if machine is None or not self._may_strike():
            return
        keeper, before = self.cluster.driver.keeper, machine.plan.distances[machine.id]
        victims = [
            other
            for other in self.cluster.alive()
            if other is not slot
            and any(m.id in before and m.position > keeper.length(m.id) for m in other.machines)
        ]
        if victims:
            self._count("kill before")
        for victim in victims:
            self.cluster.kill(victim, "killed before a step that is under way")

    def strike(self) -> None:
        if self._may_strike():
            kind = self.cluster.random.choice(self._kinds)
            self._count(kind)
            getattr(self, "_" + kind.replace(" ", "_").replace("'", ""))()

    def _may_strike(self) -> bool:
        cluster = self.cluster
        is_time = cluster.scheduler.now <= self.ends_at and cluster.driver.alive
        return self.budget > 0 and is_time and cluster.outcome.state == "running"

    def _count(self, kind: str) -> None:
        self.budget -= 1
        self.coverage[kind, state_of(self.cluster)] += 1
        self.cluster.trace(f"fault: {kind}")

    def _any(self) -> Slot | None:
        slots = self.cluster.alive()
        return self.cluster.random.choice(slots) if slots else None

    def _busy(self) -> Slot | None:
        slots = [slot for slot in self.cluster.alive() if slot.machines]
        return self.cluster.random.choice(slots) if slots else self._any()

    def _kill(self) -> None:
        slot = self._busy()
        if slot is not None:
            self.cluster.kill(slot, "killed")

    def _kill_in_turn(self) -> None:
        """Kill several processes soon after each other."""
        self._kill()
        random, after = self.cluster.random, 0.0
        for _ in range(random.randint(1, 3)):
            after += random.choice((0.5, 3.0, 10.0)) * random.random() * 2
            self.cluster.scheduler.after(after, self._kill_later)

    def _kill_later(self) -> None:
        cluster = self.cluster
        is_over = cluster.scheduler.now > self.ends_at or cluster.outcome.state != "running"
        if cluster.driver.alive and not is_over:
            self._kill()

    def _recovering(self) -> list[int]:
        """The tasks that recover; if there are none, all tasks."""
        tasks = self.cluster.driver.coordinator.tasks.values()
        return [t.id for t in tasks if t.phase not in RUNNING] or [t.id for t in tasks]

    def _kill_one_of(self, tasks: Iterable[int]) -> None:
        slots = [slot for task in tasks if (slot := self.cluster.slot_of(task)) is not None]
        if slots:
            self.cluster.kill(self.cluster.random.choice(slots), "killed")

    def _kill_recovering(self) -> None:
        self._kill_one_of(self._recovering())

    def _kill_above(self) -> None:
        """Kill a task upstream of one that recovers."""
        task = self.cluster.random.choice(self._recovering())
        ancestors = self.cluster.job.plan.distances[task]
        self._kill_one_of(a for a in ancestors if a != task)

    def _kill_below(self) -> None:
        """Kill a task downstream of one that recovers: it may be asked for that task's log."""
        task = self.cluster.random.choice(self._recovering())
        self._kill_one_of(self._below(task))

    def _below(self, task: int) -> list[int]:
        distances = self.cluster.job.plan.distances
        return [t for t, above in distances.items() if task in above and t != task]

    def _stall_holder(self) -> None:
        """A holder that is asked for the log of a failed task falls silent."""
        random = self.cluster.random
        asked = self._below(random.choice(self._recovering()))
        slots = [slot for task in asked if (slot := self.cluster.slot_of(task)) is not None]
        if slots:
            duration = random.choice((20.0, 100.0, 400.0))
            random.choice(slots).stalled_until = self.cluster.scheduler.now + duration

    def _kill_several(self) -> None:
        slots = self.cluster.alive()
        count = min(len(slots), self.cluster.random.randint(2, 4))
        for slot in self.cluster.random.sample(slots, count):
            self.cluster.kill(slot, "killed")

    def _kill_neighbours(self) -> None:
        """Kill a slot and the holders of its logs: more failures than the sharing depth allows."""
        first = self._busy()
        if first is None or not first.machines:
            return
        plan = self.cluster.job.plan
        outputs = [c for machine in first.machines for c in machine.spec.outputs]
        near = {plan.channels[c].receiver for c in outputs}
        for slot in self.cluster.alive():
            is_near = any(machine.id in near for machine in slot.machines)
            if slot is first or (is_near and self.cluster.random.random() < 0.8):
                self.cluster.kill(slot, "killed with its neighbours")

    def _lose_log(self) -> None:
        """A task's log reaches the house-keeper late; then the task and all other holders die.

        Tasks that have its output but not its log live on. They are orphans, or nearly so if they
        had received the output and not yet taken it.
        """
        cluster, random = self.cluster, self.cluster.random
        plan = cluster.job.plan
        running = {slot.machine.id: slot for slot in cluster.alive() if slot.machine is not None}
        hops = {
            origin: {task: near[origin] for task, near in plan.distances.items() if origin in near}
            for origin in running
        }
        origins = [task for task, far in hops.items() if max(far.values()) > plan.sharing_depth]
        if not origins:
            return
        after = LATE_MS * (0.2 + 0.8 * random.random())
        makes_slow = random.random() < 0.5
        for task, far in hops[random.choice(origins)].items():
            slot = running.get(task)
            if slot is None:
                continue
            if far <= plan.sharing_depth:
                cluster.network.delay_from(slot, cluster.driver, LATE_MS)
                cluster.scheduler.after(after, cluster.kill, slot, "killed with its log")
            elif makes_slow:
                self._slow_down(slot, 2 * LATE_MS)

    def _kill_executor(self) -> None:
        victim = self._any()
        for slot in self.cluster.alive():
            if victim is not None and slot.group == victim.group:
                self.cluster.kill(slot, "executor killed")

    def _lose_machine(self) -> None:
        """A machine disappears. Its connections stay half-open: no peer is told."""
        victim = self._any()
        for slot in self.cluster.alive():
            if victim is not None and slot.machine_name == victim.machine_name:
                self.cluster.kill(slot, "machine lost", is_silent=True)
        if victim is not None:
            self.cluster.lose_disk(victim.machine_name)

    def _store_away(self) -> None:
        """The store of layers and of sinks' output does not answer."""
        cluster = self.cluster
        duration = cluster.random.choice((20.0, 100.0, 500.0))
        cluster.store_back_at = cluster.scheduler.now + duration

    def _kill_standby(self) -> None:
        slots = [slot for slot in self.cluster.alive() if slot.standbys]
        if slots:
            self.cluster.kill(self.cluster.random.choice(slots), "standby killed")

    def _kill_copies(self) -> None:
        """Kill a task, or all of its standbys, or all but one process that has its state."""
        cluster, random = self.cluster, self.cluster.random
        task = random.choice(cluster.job.plan.tasks).id
        home = cluster.slot_of(task)
        having = [s for s in cluster.alive() if task in s.standbys or s is home]
        spared = random.choice(having) if having and random.random() < 0.8 else None
        for slot in having:
            if slot is not spared:
                cluster.kill(slot, "killed with other copies")

    def _zombie(self) -> None:
        slot = self._busy()
        if slot is not None and slot.is_controlled:
            self.cluster.suspect(slot, lives_for=self.cluster.random.random() * 120)

    def _cut(self) -> None:
        cluster, one, other = self.cluster, self._busy(), self._busy()
        if one is None or other is None:
            return
        far = cluster.driver if one is other else other
        cluster.network.cut(one, far)
        pair = frozenset((one.address, far.address))
        heals_in = cluster.random.random() * 60
        cluster.scheduler.after(heals_in, cluster.network.cuts.discard, pair)

    def _part(self) -> None:
        """Packets between two executors, or an executor and the house-keeper, are dropped.

        They are dropped in one direction or both, and nobody is told. Control streams go on.
        """
        cluster, random = self.cluster, self.cluster.random
        ends: list[Host | None] = [self._busy(), random.choice((self._busy(), cluster.driver))]
        random.shuffle(ends)
        one, other = ends
        if one is not None and other is not None and one.group != other.group:
            lasts = random.choice((10.0, 60.0, 120.0))
            cluster.network.part(one, other, lasts, one_way=random.random() < 0.5)

    def _cut_off(self) -> None:
        """A task reaches its neighbours, but not the house-keeper; its control stream goes on."""
        cluster, slot = self.cluster, self._busy()
        if slot is not None:
            cluster.network.cut(slot, cluster.driver)
            pair = frozenset((slot.address, cluster.driver.address))
            heals_in = 20 + cluster.random.random() * 60
            cluster.scheduler.after(heals_in, cluster.network.cuts.discard, pair)

    def _slow_link(self) -> None:
        slot = self._any()
        if slot is not None:
            slot.slowness = self.cluster.random.choice((5.0, 30.0))
            self.cluster.scheduler.after(self.cluster.random.random() * 60, self._heal, slot)

    @staticmethod
    def _heal(slot: Slot) -> None:
        slot.slowness = 0.0

    def _slow_task(self) -> None:
        slot = self._busy()
        if slot is not None:
            self._slow_down(slot, self.cluster.random.random() * 80)

    def _slow_down(self, slot: Slot, lasts: float) -> None:
        self.cluster.slow[slot.number] = 4.0
        self.cluster.scheduler.after(lasts, self._hurry, slot.number)

    def _hurry(self, number: int) -> None:
        self.cluster.slow.pop(number, None)

    def _stall(self) -> None:
        """Freeze a process, sometimes for long enough to be given up."""
        slot = self._busy()
        if slot is not None:
            duration = self.cluster.random.choice((20.0, 100.0, 400.0))
            slot.stalled_until = self.cluster.scheduler.now + duration

    def _stream(self) -> Stream | None:
        open_ = sorted(
            (s for s in self.cluster.network.streams if s.receiver_open), key=attrgetter("conn")
        )
        return self.cluster.random.choice(open_) if open_ else None

    def _break_stream(self) -> None:
        stream = self._stream()
        if stream is not None:
            self.cluster.network.lose(stream)

    def _late_stream(self) -> None:
        """The items of one channel come late, in order; all other channels go on."""
        stream = self._stream()
        if stream is not None:
            self.cluster.network.delay_stream(
                stream, self.cluster.random.choice((20.0, 60.0, 200.0))
            )

    def _duplicate(self) -> None:
        """The sender gives a stream up and dials again; its receiver does not know."""
        stream = self._stream()
        if stream is not None:
            self.cluster.network.give_up(stream)

    def _pause_driver(self) -> None:
        duration = self.cluster.random.choice((10.0, 80.0, 3_000.0))
        self.cluster.driver.paused_until = self.cluster.scheduler.now + duration

    def _clock_jumps(self) -> None:
        """A machine's clock jumps by an hour in either direction, and perhaps back later."""
        random, slot = self.cluster.random, self._busy()
        if slot is None:
            return
        clock, jump_ms = self.cluster.clocks[slot.machine_name], random.choice((HOUR_MS, -HOUR_MS))
        clock.set_by(jump_ms)
        if random.random() < 0.7:
            self.cluster.scheduler.after(random.random() * 60, clock.set_by, -jump_ms)

    def _kill_driver(self) -> None:
        self.cluster.kill_driver()

    def _driver_sleeps(self) -> None:
        """All processes die, and the driver freezes for longer than it waits for a lost disk."""
        cluster, random = self.cluster, self.cluster.random
        for slot in cluster.alive():
            cluster.kill(slot, "killed before the driver sleeps")
        asleep_ms = cluster.options.lost_ms * random.choice((1.1, 1.5))
        cluster.scheduler.after(10 + random.random() * 20, self._sleep, asleep_ms)

    def _sleep(self, asleep_ms: float) -> None:
        self.cluster.driver.paused_until = self.cluster.scheduler.now + asleep_ms

    # --- disks ----------------------------------------------------------------------------------

    def _kill_driver_at_a_call(self) -> None:
        """Kill the driver while it writes, lists or deletes files."""
        driver = self.cluster.driver
        self.cluster.random.choice((driver.disk, driver.shared)).dies_within(3, 40)

    def _lose_drivers_machine(self) -> None:
        """The driver's machine dies, with all unsynced data."""
        self.cluster.kill_driver()
        self.cluster.disks.local.lose_power()

    def _rot(self) -> None:
        """While the driver is away, a bit of its journal flips."""
        self.cluster.kill_driver()
        self.cluster.rot = Rot(self.cluster.disks.local)

    def _journal_fails(self) -> None:
        """The journal's disk fails for a while; the write under way may be there or not."""
        self._fail(self.cluster.disks.local)

    def _store_fails(self) -> None:
        self._fail(self.cluster.disks.shared)

    def _fail(self, disk: Disk) -> None:
        disk.faults = partial(now_and_then, disk.random)
        self.cluster.scheduler.after(self.cluster.random.random() * 60, disk.heal)

    def _disk_full(self) -> None:
        disks = self.cluster.disks
        disk = self.cluster.random.choice((disks.local, disks.shared))
        disk.capacity = disk.used + self.cluster.random.choice((0, 100, 3_000))
        self.cluster.scheduler.after(self.cluster.random.random() * 60, disk.heal)

    def _store_reboots(self) -> None:
        """The file server reboots: all unsynced data is gone."""
        self.cluster.disks.shared.lose_power()
        self.cluster.recorder.store_is_back()

    def _machine_disk(self) -> tuple[str, Disk] | None:
        """The disk of a machine that has layers."""
        machines = list(self.cluster.disks.machines.values())
        return self.cluster.random.choice(machines) if machines else None

    def _rot_on_a_machine(self) -> None:
        """A bit of a layer on a machine's disk flips."""
        if (found := self._machine_disk()) is None:
            return
        (name, disk), random = found, self.cluster.random
        infos = disk.observe().entries("/", recursive=True)
        layers = [info for info in infos if info.path.endswith(".layer") and info.nbytes]
        if layers:
            path = random.choice(layers).path
            disk.flip(path, random.randrange(8 * len(disk.file(path).data)))
            task, file = path.split("/")[-2:]
            self.cluster.recorder.holders.rots(name, f"{task}/{file}")

    def _machines_disk_full(self) -> None:
        if (found := self._machine_disk()) is not None:
            disk = found[1]
            disk.capacity = disk.used + self.cluster.random.choice((0, 100, 3_000))
            self.cluster.scheduler.after(self.cluster.random.random() * 200, disk.heal)

    def _machines_disk_fails(self) -> None:
        if (found := self._machine_disk()) is not None:
            self._fail(found[1])

    def _kill_while_storing(self) -> None:
        slot = self._busy()
        if slot is not None:
            slot.store.files.dies_within(20)

    def _second_driver(self) -> None:
        """The job is started a second time: on the same machine, with a journal of its own, with
        the journal's disk moved to another machine, or with a copy of that disk while the first
        driver is frozen."""
        cluster, disks = self.cluster, self.cluster.disks
        how = cluster.random.choice(("there", "own journal", "moved", "copied"))
        if how == "there":
            cluster.refuse(disks.local, JournalInUse)
        elif how == "own journal":
            cluster.refuse(Disk(disks.local.random), OtherJournal)
        elif how == "moved":
            cluster.driver.disk.detach()
            cluster.follow(disks.local)
        else:
            asleep_ms = cluster.options.echo_ms * cluster.random.choice((1.1, 3.0))
            cluster.driver.paused_until = cluster.scheduler.now + asleep_ms
            cluster.follow(disks.local.copy())

    def _takeover(self) -> None:
        how = self.cluster.random.choice(TAKEOVERS)
        take_over(self.cluster, how, self.cluster.random.choice((200.0, 600.0, 3_000.0)))


def take_over(cluster: Cluster, how: str, lasts_ms: float) -> None:
    """Another driver goes on with the job while the first one is frozen, perhaps with all its
    processes, or cut off from its journal and the checkpoint."""
    first, ends_at = cluster.driver, cluster.scheduler.now + lasts_ms
    if how == "cut off":
        first.looks_at = ends_at
        first.disk.detach()
        cluster.follow(cluster.disks.local)
        return
    first.paused_until = ends_at
    if how == "all frozen":
        for slot in cluster.alive():
            slot.stalled_until = ends_at - 50 * cluster.random.random()
    cluster.follow(cluster.disks.local.copy())


def now_and_then(random: Random, call: str, _path: str) -> int:
    """A failing disk: the error number of a call, or 0."""
    if call in ("info", "entries", "lock") or random.random() < 0.4:
        return 0
    return random.choice((errno.EIO, errno.ENOSPC))
