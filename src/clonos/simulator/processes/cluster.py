"""A whole cluster in one thread: slots, driver, network and stores, under virtual time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from random import Random

from clonos.core import decisions as co
from clonos.core import messages as msg
from clonos.core import notes
from clonos.core.history import Keep
from clonos.core.inflight import INFLIGHT_BYTES
from clonos.core.levels import AUTO
from clonos.core.program import Batch
from clonos.core.sealed import Layer
from clonos.core.task import TaskMachine
from clonos.core.watch import DEATHS, LIVES
from clonos.errors import ClonosError, JournalBroken, StoreAway, UnreadableJournal
from clonos.nodes.versions import HASH_SEED
from clonos.simulator.checks.invariants import few_are_burnt
from clonos.simulator.checks.lethal import few_die_of_a_call
from clonos.simulator.checks.levels import in_store
from clonos.simulator.checks.litter import Litter
from clonos.simulator.checks.recorder import Recorder
from clonos.simulator.checks.violations import Violation, require
from clonos.simulator.jobs.programs import AnyJob
from clonos.simulator.processes.driver import ControlLink, Driver
from clonos.simulator.processes.slot import Slot
from clonos.simulator.world.disk import Died, Disk
from clonos.simulator.world.disks import Disks, Rot
from clonos.simulator.world.network import Network
from clonos.simulator.world.service import Service
from clonos.simulator.world.virtual import MachineClock, Scheduler, Trials
from clonos.simulator.world.wired import Wired
from clonos.transport.events import ControlLost, ControlOpened, Heartbeat, Register, TaskStatistics

KEEPER_ADDRESS = "house-keeper"
LOST_MS = 100.0
"""About half the time until Spark gives up an executor whose machine is gone."""
STEPS_MAX = 400_000
"""A job of the usual size that takes more steps is taken never to end."""


@dataclass
class Options:
    """What varies from one simulation to the next, besides the job and its faults."""

    slots: int = 6
    groups: int = 3
    standbys: int = 1
    availability: bool = False
    patience_ms: int = 150
    gather_ms: int = 5
    epoch_ms: float = 30.0
    latency_ms: float = 1.0
    store_ms: float = 4.0
    commit_ms: float = 1.0
    rows_ms: float = 2.0
    relaunch_ms: float = 40.0
    rotate_bytes: int = 20_000
    echo_ms: float = 100.0
    """How long a driver may go on without looking for a later term."""
    grace_ms: float = 20.0
    """How long unreferenced layers stay."""
    detect_ms: float = 5.0
    step_ms: float = 0.3
    blind_ms: float | None = None
    """After how long a process notices that it was expelled, if not at once. None: never, and the
    driver waits for it in vain."""
    turn_ms: float = 0.0
    """The shortest time that a turn takes; events that come meanwhile share the next turn."""
    floors_at_end: int = 0
    bound: frozenset[int] = frozenset()
    """Tasks that run only in slots of their own, one per copy."""
    keep: Keep | None = None
    """How much of its past the job keeps."""
    merges: float = 0.0
    """The probability that a merge of layers follows a floor ..."""
    pressures: float = 0.0
    """... or that memory pressure in some process does."""
    merges_overlap: bool = True
    """Whether merges of a task that are under way at once may have layers in common. Production
    never begins such: two might give their layers the same name."""
    steps_per_turn: int = 1
    """Steps that a process does before it looks at its input."""
    rows_at_once: int = 1
    """The fewest rows that a source reads at once."""
    silence_ms: float = 10_000.0
    """A slot that is silent for this long is given up."""
    retries: float = 0.0
    """The probability that Spark restarts a process by itself."""
    launch_faults: float = 0.0
    """The probability that a launched process starts late, twice, or never."""
    hanging_calls: float = 0.1
    """The probability that a call is answered only after all faults have healed."""
    lines_ms: float = 0.0
    """Some effects wait for their turn (a rate, a pause), at most this long."""
    memory_bytes: int = INFLIGHT_BYTES
    """A process that retains more than this for receivers spills to its local disk."""
    log_bytes: int | None = None
    """How much of logs a process may hold. None: processes do not report how much they hold."""
    scratch_faults: float = 0.0
    """The probability that the local disk fails, while there are faults."""
    long_work: float = 0.0
    """The probability that user code takes longer, so that its slot takes turns meanwhile."""
    wired: bool = False
    """Whether channels are bytes on simulated sockets."""
    has_machines: bool = False
    """Whether a place is always on the same machine ..."""
    executors_each: int = 1
    """... and how many executors there are on each machine."""
    late_ms: float = 1000.0
    quiet_ms: float = 5000.0
    """A dial takes a level to be behind after `late_ms`, and no longer after `quiet_ms`."""
    lost_ms: int = 5_000
    """How long a machine may be away that has the only copy of a layer."""
    waits_ms: float = 0.0
    """For how long a driver has slots before it has a plan."""


@dataclass
class Control:
    """The control stream of one slot: FIFO both ways."""

    driver: Driver
    attempt: int
    order_at: float = 0.0
    report_at: float = 0.0


@dataclass
class Outcome:
    """How a simulation ended."""

    state: str = "running"
    error: str = ""
    message: str = ""
    task: int = -1


class Cluster:
    """One simulation.

    `before`: the cluster that ran the same checkpoint until now, with another plan; its processes
    are gone. `first`: the layers that tasks begin with.
    """

    def __init__(
        self,
        job: AnyJob,
        options: Options,
        random: Random,
        *,
        trace: bool = False,
        before: Cluster | None = None,
        first: Mapping[int, Layer] | None = None,
    ) -> None:
        self.job = job
        self.options = options
        self.random = random
        self.work_random = Random(0)
        """Draws the duration of user code; separate, so that the rest of a seed does not change."""
        self.call_random = Random(0)
        """Draws the duration of calls."""
        self.line_random = Random(0)
        self.level_random = Random(0)
        """Draws the time that slots need for the layers that they keep."""
        self.scratch_random = Random(0)
        """Draws the delays and faults of local disks."""
        self.spilled = self.read_back = self.rotten = 0
        """Number of spilled files: written, read back, found damaged."""
        self.scheduler = Scheduler()
        self.network = (
            Wired(self.scheduler, random, job) if options.wired else Network(self.scheduler, random)
        )
        self.network.latency_ms = options.latency_ms
        self.service = Service(random)
        self.disks = Disks(random)
        if before is not None:
            self.scheduler.now, self.disks = before.scheduler.now, before.disks
        self.recorder = Recorder(job, self.disks, self.scheduler.digest)
        self.recorder.holders.copies = options.standbys
        self.recorder.holders.chosen = {t.id for t in self.job.plan.tasks if t.level == AUTO}
        self.recorder.goes_on(first or {})
        self.slots: list[Slot] = []
        self.outcome = Outcome()
        self.litter = Litter(self.disks.shared.observe(), options.grace_ms, job.plan)
        self.on_note: list[Callable[[notes.Note], None]] = []
        self.on_work: list[Callable[[Slot, float], None]] = []
        self.on_steps: list[Callable[[Slot], None]] = []
        self.before_end: list[Callable[[], bool]] = []
        """Sources go on until all of these are true."""
        self.slow: dict[int, float] = {}
        self.clocks: dict[str, MachineClock] = defaultdict(partial(MachineClock, self.scheduler))
        """By machine."""
        self.leaving: set[str] = set()
        """Executors that start no process any more."""
        self.held_starts: list[Callable[[], None]] | None = None
        """Starts of processes that a script holds back: Spark has no room for them."""
        self.deaths = 0
        self.poisonings = 0
        self.trials = Trials(job.wrap, Random(0))
        self._controls: dict[Slot, Control] = {}
        self._hears_rest: dict[Slot, bool] = {}
        self._names = self._drivers = 0
        self.is_traced = trace
        self.rot: Rot | None = None
        """Damage to the journal that nobody has noticed yet."""
        self.heals_at = self.store_back_at = 0.0
        self.floors_since = 0
        self.driver = self._new_driver()

    def trace(self, *what: object) -> None:
        if self.is_traced:  # nobody else pays for the descriptions
            print(f"{self.scheduler.now:10.2f} ", *(str(part)[:300] for part in what))  # noqa: T201

    # --- delays -----------------------------------------------------------------------------------

    def about(self, mean: float) -> float:
        return mean * 2 * self.random.random()

    def store_delay(self, times: int = 1) -> float:
        """Duration of a store operation that takes that many times as long as others, including
        the time that adapters wait while the store is away."""
        away = max(0.0, self.store_back_at - self.scheduler.now)
        return away + times * self.about(self.options.store_ms)

    def past_delay(self) -> float:
        """The same for files of the history."""
        away = max(0.0, self.store_back_at - self.scheduler.now)
        return away + self.options.store_ms

    def commit_delay(self) -> float:
        return self.about(self.options.commit_ms)

    def rows_delay(self) -> float:
        return self.about(self.options.rows_ms)

    def step_cost(self, slot: Slot) -> float:
        slow = self.slow.get(slot.number, 0.0) if self.slow else 0.0
        return self.about(self.options.step_ms) + slow

    def line_ms(self) -> float:
        """How long an effect waits for its turn."""
        random, longest = self.line_random, self.options.lines_ms
        return longest * random.random() if longest and random.random() < 0.25 else 0.0

    def work_duration(self) -> float:
        random = self.work_random
        if random.random() >= self.options.long_work:
            return 0.0
        return random.choice((0.5, 3.0, 30.0, 30.0)) * random.random()

    def under_way(self, slot: Slot, duration: float) -> None:
        """A long piece of user code has begun."""
        for listener in self.on_work:
            listener(slot, duration)

    def stepped(self, slot: Slot) -> None:
        """A process has done steps."""
        for listener in self.on_steps:
            listener(slot)

    def may_end(self) -> bool:
        """Sources continue until enough checkpoints have completed after the last fault.

        Without markers they continue at most until the floors have reached the positions of all
        tasks, as they must when nothing happens any more.
        """
        if not all(is_true() for is_true in self.before_end):
            return False
        if self.floors_since >= self.options.floors_at_end or self.job.plan.leaves_gaps:
            return True
        keeper, plan = self.driver.keeper, self.job.plan
        at = {m.id: m.position for slot in self.alive() for m in slot.machines if m.is_live}
        return not plan.has_markers and keeper.positions == at

    def decode_rows(self, content: bytes) -> Batch:
        return self.job.wrap(self.job.decode(content))

    # --- processes --------------------------------------------------------------------------------

    def _new_driver(self) -> Driver:
        self.litter.forget()
        driver = Driver(self, f"{KEEPER_ADDRESS}{self._drivers or ''}", self.disks.local)
        self.network.hosts[driver.address] = driver
        self.network.joins(driver)
        self.recorder.recovered(driver.keeper, driver.recovered, driver.layers)
        return driver

    def start(self) -> None:
        self.driver.start()

    def start_slot(self, driver: Driver, place: int, attempt: int, bound: int | None) -> Slot:
        """A process starts and registers; `bound`: the only task that it can run."""
        self._names += 1
        number = driver.slots_started
        driver.slots_started += 1
        group = f"executor{self.random.randrange(self.options.groups)}"
        if self.options.has_machines:
            group = f"executor{place % self.options.groups}"
            while group in self.leaving:
                group += "'"  # another one on the same machine
        slot = Slot(self, number, f"slot{self._names}", group, driver.layers, bound)
        self.slots.append(slot)
        self.network.hosts[slot.address] = slot
        self.network.joins(slot)
        self._controls[slot] = Control(driver, attempt)
        driver.slots[number] = slot
        self.trace(f"slot {number} is {slot.address} in {group}")
        versions = {HASH_SEED: "0"}
        register = Register(
            place, attempt, str(self._names), group, group, 0, number, slot.address, versions,
            slot.store.disk,
        )  # fmt: skip
        driver.post(ControlOpened(number, register, ControlLink(self, slot)))
        self._beat(slot)
        return slot

    def _beat(self, slot: Slot) -> None:
        """The heartbeat thread of a process: a stall stops it, a long step does not."""
        driver = self._controls[slot].driver
        if slot.alive and slot.is_controlled and driver.alive:
            if slot.stalled_until <= self.scheduler.now:
                driver.post((slot.number, Heartbeat(slot.address, 0)))
            self.scheduler.after(self.options.silence_ms / 15, self._beat, slot)

    def is_of_the_past(self, slot: Slot) -> bool:
        """Whether another driver has taken over from the slot's."""
        return self._controls[slot].driver is not self.driver

    def alive(self) -> list[Slot]:
        return [slot for slot in self.slots if slot.alive]

    def kill(self, slot: Slot, why: str, *, is_silent: bool = False) -> None:
        """The process ends, and its connections close; or (`is_silent`: its machine is gone) they
        stay open, and others notice only that it does not answer."""
        if not slot.alive:
            return
        self.trace(f"{slot.address} dies ({why}) {self.describe(slot)}")
        self.deaths += 1
        self.poisonings += why == "poisoned"
        # The same record may come by several ways; if it is left out, the next one kills, too.
        # Where trials fail, too, deaths prove nothing until there are very many.
        most = LIVES + 2 if self.trials.misfortune else 2 * DEATHS
        each = most * max(self.job.deadly_records(), 1)
        few_are_burnt(self.poisonings, self.deaths, self.driver.coordinator.term, each)
        few_die_of_a_call(self.deaths, self.service.lethal, self.driver.coordinator.term)
        slot.alive = False
        self.slots.remove(slot)
        self.network.host_died(slot, is_silent=is_silent)
        if not is_silent:
            self._lose(slot, lose_reports=self.random.random() < 0.5)
        self.network.hosts.pop(slot.address)
        control = self._controls[slot]
        self.scheduler.after(
            2 * self.about(LOST_MS if is_silent else self.options.detect_ms),
            control.driver.spark.process_ended, slot, control.attempt, why,
        )  # fmt: skip

    def machine_of(self, executor: str) -> str:
        """The machine of an executor."""
        number = int(executor.removeprefix("executor").rstrip("'"))
        return f"machine{number // self.options.executors_each}"

    def lose_disk(self, machine: str) -> None:
        """A machine is gone for good, with its disk."""
        if (known := self.disks.machines.pop(machine, None)) is not None:
            self.recorder.holders.loses_disk(known[0])

    def _lose(self, slot: Slot, *, lose_reports: bool) -> None:
        """The driver learns that the control stream has ended."""
        if not slot.is_controlled:
            return
        if lose_reports:
            slot.is_controlled = False
        control = self._controls[slot]
        at = max(self.scheduler.now + self.about(self.options.detect_ms), control.report_at)
        self.scheduler.at(at, self._lost, slot)

    def _lost(self, slot: Slot) -> None:
        slot.is_controlled = False
        driver = self._controls[slot].driver
        driver.slots.pop(slot.number, None)
        self.recorder.lost(slot.number)
        driver.post(ControlLost(slot.number, slot.number))

    def suspect(self, slot: Slot, *, lives_for: float) -> None:
        """The control stream breaks but the process lives on: a zombie."""
        self.trace(f"{slot.address} becomes a zombie {self.describe(slot)}")
        self._lose(slot, lose_reports=True)
        control = self._controls[slot]
        control.driver.spark.suspects(control.attempt)
        self.scheduler.after(lives_for, self.kill, slot, "zombie ends")

    def expel(self, slot: Slot) -> None:
        """The driver has closed the control stream: the process leaves, or does not notice."""
        if self._controls[slot].driver is self.driver:
            self.recorder.lost(slot.number)
        if not slot.is_controlled:  # it is ending already, or its stream is broken
            return
        self.trace(f"{slot.address} is expelled")
        slot.is_controlled = False
        self._controls[slot].driver.slots.pop(slot.number, None)
        if self.random.random() < 0.9:
            self.scheduler.after(self.about(20.0), self.kill, slot, "expelled")
        elif self.options.blind_ms is not None:
            self.scheduler.after(self.options.blind_ms, self.kill, slot, "expelled")

    def kill_driver(self, driver: Driver | None = None) -> None:
        """Everything of this term is void, but its workers still run for a while."""
        driver = driver or self.driver
        if not driver.alive:
            return
        self.trace("the driver dies")
        driver.die()
        self.network.host_died(driver)
        for slot in list(self.slots):
            if self._controls[slot].driver is driver:
                slot.is_controlled = False
                self.scheduler.after(self.about(60.0), self.kill, slot, "orphaned")
        if driver is self.driver:
            self.scheduler.after(self.about(30.0), self._restart_driver)

    def superseded(self, driver: Driver) -> None:
        """A driver has found out that another one has taken over."""
        require(driver is not self.driver, "one driver", "the only driver is superseded")
        self.trace(f"{driver.address} leaves it to {self.driver.address}")
        self.kill_driver(driver)

    def follow(self, disk: Disk) -> None:
        """A second driver starts on a machine with this disk, whatever the first one does."""
        self.trace("a second driver starts")
        self._drivers += 1
        first, self.disks.local = self.driver, disk
        try:
            self.driver = self._new_driver()
        except (Died, OSError, StoreAway, JournalBroken) as error:  # it cannot start, and need not
            self.trace(f"   it does not: {error}")
            self.kill_driver(first)
        else:
            self.start()

    def _restart_driver(self) -> None:
        self.trace("the driver starts again")
        try:
            self.driver = self._new_driver()
        except (Died, OSError, StoreAway, JournalBroken) as error:
            self.trace(f"   it does not: {error}")
            self.scheduler.after(self.about(30.0), self._restart_driver)
        except UnreadableJournal as error:
            self.trace(f"   it does not: {error}")
            require(self.rot is not None, "durable", f"the journal is damaged: {error}")
            assert self.rot is not None
            self.rot.heal()
            self.rot = None
            self.scheduler.after(self.about(30.0), self._restart_driver)
        else:
            self.start()

    def refuse(self, disk: Disk, kind: type[ClonosError]) -> None:
        """A second driver on this disk must be refused before it begins."""
        try:
            Driver(self, "another house-keeper", disk)
        except (kind, Died, OSError, StoreAway, JournalBroken) as error:
            self.trace(f"a second driver: {error}")
        else:
            raise Violation("one driver", f"a second driver begins, where {kind.__name__} is due")

    def describe(self, slot: Slot) -> str:
        if not slot.machines:
            return f"with standbys {sorted(slot.standbys)}"
        return f"running {', '.join(map(self._life, slot.machines))}"

    @staticmethod
    def _life(machine: TaskMachine) -> str:
        n = machine.incarnation
        return f"{machine.spec.name} {n.term}.{n.n} {machine.phase.value}"

    # --- control ----------------------------------------------------------------------------------

    def order(self, slot: Slot, command: msg.Command) -> None:
        if not slot.is_controlled:
            return
        self.trace("->", slot.address, command)
        self.recorder.ordered(slot.number, command)
        control = self._controls[slot]
        at = max(self.scheduler.now + self.network.delay(slot), slot.stalled_until)
        control.order_at = max(control.order_at, at)
        self.scheduler.at(control.order_at, self._ordered, slot, command)

    def _ordered(self, slot: Slot, command: msg.Command) -> None:
        if slot.is_controlled or self._still_comes(slot):
            slot.command(self.network.carried(command))

    def _still_comes(self, slot: Slot) -> bool:
        """Whether a process that was frozen still receives earlier commands, before it learns that
        it was given up."""
        if not self.options.has_machines:
            return False
        return self._hears_rest.setdefault(slot, self.level_random.random() < 0.5)

    def report(self, slot: Slot, report: msg.Report | TaskStatistics) -> None:
        if not slot.is_controlled:
            return
        control = self._controls[slot]
        if isinstance(report, (msg.Announced, msg.Survived, msg.Reached)):
            delay = self.options.latency_ms * (0.1 + self.trials.random.random())
        else:
            delay = self.network.delay(slot)
        at = self.scheduler.now + delay
        control.report_at = max(control.report_at, at)
        self.scheduler.at(control.report_at, self._reported, slot, report)

    def _reported(self, slot: Slot, report: msg.Report | TaskStatistics) -> None:
        driver = self._controls[slot].driver
        was_flushed = isinstance(report, msg.Announced)  # even if the process dies now
        if driver.alive and (slot.is_controlled or was_flushed):
            self.trace("<-", slot.address, report)
            if not isinstance(report, TaskStatistics):
                self.recorder.reported(slot.number, report)
            driver.post((slot.number, self.network.carried(report)))

    # --- the driver's decisions -------------------------------------------------------------------

    def noted(self, note: notes.Note) -> None:
        self.trace("   note", note)
        if isinstance(note, notes.Floor):
            driver = self.driver.coordinator
            sealed = driver.checkpoints.sealed.values()
            waiting = {layer.ref.path for layers in sealed for layer in layers}
            waiting |= driver.holdings.expected | in_store(self.driver.keeper.layers)
            self.litter.look(self.scheduler.now, self.recorder.used | waiting)
        elif isinstance(note, notes.Detected | notes.Moving | notes.Restored):
            self.litter.forget()
        if isinstance(note, notes.Floor) and self.scheduler.now > self.heals_at:
            self.floors_since += 1
        self.recorder.noted(note)
        for listener in self.on_note:
            listener(note)

    def fail(self, action: co.Fail) -> None:
        self.trace(f"failed: {action}")
        self.outcome = Outcome("failed", action.error, action.message, action.task)

    def finished(self) -> None:
        self.trace("done")
        self.outcome = Outcome("done")

    # --- run --------------------------------------------------------------------------------------

    def run(self, deadline_ms: float, steps_max: float = STEPS_MAX) -> Outcome:
        """Run until the job is done or has failed, which it must be in time."""
        while self.outcome.state == "running":
            if not self.scheduler.run_next():
                raise Violation("liveness", "nothing is left to happen")
            if self.scheduler.now > deadline_ms or self.scheduler.steps > steps_max:
                raise Violation("liveness", self.stuck())
        return self.outcome

    def run_until(self, condition: Callable[[], object], deadline_ms: float = 5_000.0) -> None:
        """For scripted scenarios: run until a condition holds."""
        while not condition():
            if not self.scheduler.run_next() or self.scheduler.now > deadline_ms:
                raise Violation("liveness", f"the awaited condition never held\n{self.stuck()}")
            if self.outcome.state != "running":
                raise Violation("liveness", f"the job ended too early: {self.outcome}")

    def slot_of(self, task: int) -> Slot | None:
        """Where the newest life of a task runs."""
        homes = (s for s in self.slots if s.machine_of(task) is not None and s.is_controlled)
        return next(homes, None)

    def stuck(self) -> str:
        """What each process waits for."""
        coordinator = self.driver.coordinator
        now, epoch = self.scheduler.now, coordinator.checkpoints.pending_epoch
        lines = [f"not done at {now:.0f} ms; epoch {epoch}"]
        lines += [
            f"{t.id} {t.phase.value} in {t.slot}, {tuple(t.incarnation)}, awaits {t.awaited}"
            for t in coordinator.tasks.values()
        ]
        for slot in self.slots:
            for machine in slot.machines:
                queues = {
                    c: (i.conn, i.greeted, i.consumed, len(i.queue), i.aligned, i.ended)
                    for c, i in machine.inputs.items()
                }
                outs = {
                    c: (o.connected, o.log.cursor, o.log.last, o.log.processed, o.settled)
                    for c, o in machine.outputs.items()
                }
                lines.append(
                    f"{slot.address} {self._life(machine)} at {machine.position} of "
                    f"{machine.replay_to} epoch {machine.epoch} in {queues} out {outs}"
                )
        return "\n".join(lines)
