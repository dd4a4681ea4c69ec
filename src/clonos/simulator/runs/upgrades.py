"""A job that settles, and goes on with another plan, again and again, under faults.

The switch is production's own, on disks that fail; its process dies at any disk operation.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, Final

from clonos.cluster.durable import JournalFile
from clonos.core.history import Chains
from clonos.core.housekeeper import HouseKeeper
from clonos.core.layer import merge_layers
from clonos.core.messages import Kind
from clonos.core.plan import Incarnation
from clonos.core.sealed import Layer
from clonos.core.task import TaskMachine
from clonos.core.version import version_of
from clonos.errors import CannotUpgrade, JournalBroken, StoreAway
from clonos.graph.description import describe
from clonos.nodes import events
from clonos.operators.process.declared import IN_USE
from clonos.simulator.checks.upgrades import (
    calls_are_at_rest,
    each_row_once,
    goes_on_or_has_not_begun,
    names_are_new,
    nothing_is_taken_again,
    state_is_kept,
)
from clonos.simulator.checks.violations import Violation
from clonos.simulator.jobs.arrow import ArrowJob
from clonos.simulator.jobs.rescaled import (
    AS_WRITTEN,
    COUNTING,
    PASSING,
    Names,
    RescaledJob,
    Rows,
    expected,
    upgrade_job,
)
from clonos.simulator.processes.cluster import Cluster, Options, Outcome
from clonos.simulator.processes.slot import Slot
from clonos.simulator.runs.faults import KINDS, Faults
from clonos.simulator.runs.sharing import Sharing
from clonos.simulator.world.disk import Died, SimulatedFiles
from clonos.simulator.world.disks import HOME, JOURNAL, LAYERS, TERMS, Disks
from clonos.state.deltas import merge_deltas
from clonos.state.kept import kept_of
from clonos.storage.checkpoint import Checkpoint
from clonos.storage.folder import Folder
from clonos.storage.layers import LayerStore
from clonos.storage.terms import Terms
from clonos.upgrade.names import Renamed
from clonos.upgrade.prepare import NOTHING, ROUNDS, Prepared, prepare
from clonos.upgrade.renamed import shape_before
from clonos.upgrade.shape import Shape
from clonos.upgrade.switch import Switch, last_layers

PATIENCE_MS: Final = 30_000.0
SWITCHES: Final = 2
LONG_S: Final = 20.0
"""Enough time to settle if nothing fails."""
LOOKS: Final = 1000
LOOK_MS: Final = 0.2
"""How often it is looked for a bad moment to settle, and how long in between."""
ATTEMPTS: Final = 20
"""Attempts to settle, and to switch; the last one is spared faults."""
BY_NO_TASK: Final = 1 << 30
"""A life number above those of all tasks."""
MARKS: Final = (" a", " b")
"""Ends of the names of operators."""
STATES: Final = ("number", "fresh", "times", "total", "new")
"""Names of states; a state may get one that another had."""
SHARING: Final = 0.3
"""The part of seeds in which, before switches, state is shared out while the job runs."""
CALLS: Final = 60
"""A switch takes about so many file operations."""


class Upgrades:
    """One simulation.

    Attributes
    ----------
    job, cluster
        The job that owns the checkpoint now, and the cluster that runs it.
    switches, deaths, went_on
        How many switches were made and how many were broken off; how often a job that was to settle
        went on instead.
    forward
        How often the job went to a point on a past that it had discarded.
    sections
        How often only a section went back.
    prepared
        How often most of the state was redistributed in advance.
    shared_out
        How often that was done while the job ran.
    renamed
        How often operators, or states, got other names.
    """

    forward = sections = prepared = shared_out = renamed = 0

    def __init__(
        self,
        seed: int,
        options_of: Callable[[Random, ArrowJob], Any],
        *,
        is_live: bool = False,
        trace: bool,
        checks_state: bool,
    ) -> None:
        self.random, self._preparing = Random(f"upgrades {seed}"), Random(f"prepared {seed}")
        self._is_live = is_live
        self.switches = self.deaths = self.went_on = 0
        self._seed, self._trace, self._checks_state = seed, trace, checks_state
        self._options_of = options_of
        self._delivered: dict[str, Rows] = {}
        self._names: set[tuple[Any, ...]] = set()
        self._extra, self._names_now = False, AS_WRITTEN
        self._marking, self._renaming = Random(f"renamed {seed}"), Random(f"names {seed}")
        self._sharing = Random(f"sharing {seed}")
        self._shares_out = self._sharing.random() > 1 - SHARING
        self._asked: Mapping[str, int] = {}
        """By operator, how many calls it had made."""
        self._moments = Random(f"moments {seed}")
        self._shares: Sharing | None = None
        self._newest: dict[int, TaskMachine] = {}
        """The newest life of each task that has taken a step."""
        self.job = self._next_job()
        self.cluster = self._begin(self.job, None, None)

    # --- one plan ---------------------------------------------------------------------------------

    def _next_job(self) -> RescaledJob:
        parallelism = self.random.choice((1, 2, 2, 3, 4))
        number = self._seed + self.switches * (self._seed % 7 == 6)  # then markers change, too
        has_markers = number % 5 not in (1, 3)
        how: Any = {"has_markers": has_markers, "extra": self._extra, "names": self._names_now}
        return upgrade_job(self._seed, parallelism, **how)

    def _begin(
        self, job: ArrowJob, before: Cluster | None, first: Mapping[int, Layer] | None
    ) -> Cluster:
        options = self._options(job)
        if self._is_live:
            options.waits_ms = self.random.choice((5.0, 50.0, 200.0)) * self.random.random()
        cluster = Cluster(job, options, self.random, trace=self._trace, before=before, first=first)
        cluster.recorder.checks_state = self._checks_state
        faults = Faults(
            cluster,
            budget=self.random.randint(0, 5),
            begins_at=cluster.scheduler.now + 3.0,
            lasts=self.random.choice((30.0, 80.0)),
            eagerness=self.random.choice((0.0, 0.05)),
            kinds=KINDS,
        )
        cluster.heals_at = faults.ends_at
        self._newest = {}
        cluster.on_steps.append(self._stepped)
        cluster.start()
        return cluster

    def _stepped(self, slot: Slot) -> None:
        if slot.is_controlled:
            self._newest.update((machine.id, machine) for machine in slot.machines)

    def _options(self, job: ArrowJob) -> Options:
        options: Options = self._options_of(self.random, job)
        if self._shares_out:  # so that there are rows left when it is done, and layers
            options.rows_ms, options.epoch_ms = max(options.rows_ms, 15.0), 10.0
        return replace(options, availability=False, bound=frozenset(), floors_at_end=0)

    def run(self) -> None:
        """Run until the job is done."""
        for _ in range(SWITCHES):
            if not self._settle():
                break
            self._switch()
        while not self._is_complete():
            self._go_on()
        self.cluster.recorder.check_end(self.cluster.service)
        self._gather()
        each_row_once(self._delivered, expected(self.job))

    def _is_complete(self) -> bool:
        return self.cluster.driver.keeper.complete

    def _go_on(self) -> None:
        """Run until the driver ends; start it again if it was stopped."""
        cluster = self.cluster
        if cluster.outcome.state == "done":
            cluster.outcome = Outcome()
            cluster.kill_driver()
        now = max(cluster.scheduler.now, cluster.heals_at)
        outcome = cluster.run(now + PATIENCE_MS)
        if outcome.state == "failed":
            raise Violation("liveness", f"the job gave up: {outcome.error}: {outcome.message}")

    def _settle(self, sharing: Sharing | None = None) -> bool:
        """Let the job settle, when its state has been shared out for a while; False: it is
        complete."""
        cluster, self._shares = self.cluster, sharing
        for attempt in range(ATTEMPTS):
            at = (
                cluster.scheduler.now + self.random.choice((1.0, 10.0, 40.0)) * self.random.random()
            )
            settle_s = self.random.choice((0.05, 1.0)) if attempt < ATTEMPTS - 2 else LONG_S
            looks = LOOKS if self._moments.random() < 0.1 else 0
            at = cluster.scheduler.now if looks else at
            if sharing is not None:
                sharing.begin()
                at += sharing.runs_ms
            cluster.scheduler.at(at, self._ask_to_stop, cluster, settle_s, looks)
            self._go_on()
            keeper = cluster.driver.keeper
            if keeper.complete:
                return False
            if keeper.is_settled:
                self._look_at_rest(keeper)
                return True
        raise Violation("liveness", f"the job has not settled in {ATTEMPTS} attempts")

    def _look_at_rest(self, keeper: HouseKeeper) -> None:
        """Check that nothing is under way, if there was time enough."""
        cluster = self.cluster
        until_s = cluster.driver.node.settling.until_s
        if until_s is not None and cluster.scheduler.now < 1000 * until_s:
            store = _layers(cluster.disks)
            calls_are_at_rest(self.job, keeper, store)
            now = {task.id: task.incarnation for task in cluster.driver.coordinator.tasks.values()}
            alive = (m for m in self._newest.values() if m.incarnation == now[m.id])
            nothing_is_taken_again(keeper, store, alive)

    def _ask_to_stop(self, cluster: Cluster, settle_s: float, looks: int = 0) -> None:
        """Ask the current driver to stop; one that has died meanwhile is not asked. So many `looks`
        are for a moment at which it thinks that nothing is under way, and is wrong."""
        if cluster.outcome.state != "running" or cluster.driver.keeper.complete:
            return
        if looks and not self._seems_at_rest(cluster):
            cluster.scheduler.after(LOOK_MS, self._ask_to_stop, cluster, settle_s, looks - 1)
            return
        driver, is_patient = cluster.driver, self._is_live and settle_s < LONG_S
        if driver.alive and driver.waiting is None and driver.node.phase.value == "running":
            otherwise = partial(self._went_on, cluster) if is_patient else None
            if otherwise is not None:
                driver.post(events.EndIsNear())
            driver.post(events.StopAsked(settle_s, otherwise))
        else:
            cluster.scheduler.after(10.0, self._ask_to_stop, cluster, settle_s)

    def _seems_at_rest(self, cluster: Cluster) -> bool:
        keeper = cluster.driver.keeper
        return keeper.is_settled and any(
            machine.position > keeper.positions[machine.id]
            for slot in cluster.slots
            if slot.is_controlled
            for machine in slot.machines
        )

    def _went_on(self, cluster: Cluster) -> None:
        """The job did not settle in time: ask again, or let it go on."""
        self.went_on += 1
        if self._shares is not None:
            self._shares.give_up()
        if self.random.random() < 0.8:
            settle_s = self.random.choice((0.02, LONG_S))
            cluster.scheduler.after(10.0, self._ask_to_stop, cluster, settle_s)

    # --- from one to the next ---------------------------------------------------------------------

    def _other_names(self, names: Names) -> Names:
        """Two operators swap their names, or get back their own; or states have other names."""
        random, operators = self._renaming, sorted({*self.job.called, PASSING})
        pair = tuple(random.sample(operators, 2))
        if COUNTING in operators and random.random() < 0.5:
            pair = COUNTING, PASSING
        if random.random() < 0.5:
            names = names._replace(swapped=() if names.swapped else pair)
        called = list(names.states.values())
        random.shuffle(called)
        if random.random() < 0.5:
            called = random.sample(STATES, len(called))
        return names._replace(states=dict(zip(names.states, called, strict=True)))

    def _switch(self) -> None:
        """Replace the plan; processes that try may die, and the old plan may go on for a while."""
        before, was_extra = self.cluster, self._extra
        self._extra = self.random.random() < 0.3
        if self._marking.random() < 0.3:  # drawn separately
            self._names_now = self._names_now._replace(mark=self._marking.choice(MARKS))
            self.renamed += 1
        if self._extra == was_extra and self._renaming.random() < 0.5:
            self._names_now = self._other_names(self._names_now)
            self.renamed += 1
        old, new = self.job, self._next_job()
        prepared = NOTHING
        for _ in range(2):
            more = self._prepared(old, new, prepared)
            if more is not None:
                prepared = more
                if not self._settle():  # the job goes on meanwhile
                    return
        if prepared.rounds:  # nothing need happen after a round
            prepared = self._prepared(old, new, prepared) or prepared
        if self._shares_out:
            share, store = partial(self._round, old, new, None), partial(_layers, before.disks)
            sharing = Sharing(before, share, self._sharing, store)
            if not self._settle(sharing):
                return
            found = sharing.end()
            prepared = found if found.rounds else prepared
            self.shared_out += sharing.rounds
        for _ in range(ATTEMPTS):
            numbers = dict(self._asked)
            maker = Maker(old, new, self.switches + 1, before.disks, self.random, prepared, numbers)
            first = self._attempt(maker)
            if first is not None:
                renamed = renamed_between(old, new)
                state_is_kept(Shape.of(old.compiled), maker.last, new, first, renamed)
                self._asked = maker.asked
                self._gather()
                self.switches += 1
                self.job, self.cluster = new, self._begin(new, before, first)
                return
            if self.random.random() < 0.3 and not self._settle():
                return
        raise Violation("liveness", f"the plan was not replaced in {ATTEMPTS} attempts")

    def _prepared(self, old: RescaledJob, new: RescaledJob, so_far: Prepared) -> Prepared | None:
        """In every second switch, redistribute values in advance; drawn separately. The process
        that does it may die."""
        if self._preparing.random() < 0.5:
            return None
        dies_at = self._preparing.randrange(CALLS) if self._preparing.random() < 0.2 else None
        keeper = _keeper(old)
        keeper.recover(self.cluster.disks.journal())
        if keeper.epoch <= so_far.rounds or so_far.rounds == ROUNDS:
            return None
        how: Any = (keeper.term + 1, self.switches, keeper.layers, so_far)
        try:
            found = self._round(old, new, dies_at, *how)
        except (Died, OSError, StoreAway, CannotUpgrade):
            return None
        self.prepared += found is not None
        return found

    def _round(
        self,
        old: RescaledJob,
        new: RescaledJob,
        dies_at: int | None,
        term: int,
        number: int,
        chains: Chains,
        so_far: Prepared,
    ) -> Prepared | None:
        """A process shares out state once."""
        files = self.cluster.disks.shared.mount(dies_at)
        store = LayerStore(_layers_of(self.cluster.disks), files=files)
        maker = Incarnation(term, BY_NO_TASK + number)
        shapes = before_of(old, new, renamed_between(old, new)), Shape.of(new.compiled)
        try:
            return prepare(*shapes, chains, store, maker, _dropped(old, new), so_far)
        except (Died, OSError, StoreAway):
            files.die()
            raise

    def _attempt(self, maker: Maker) -> Mapping[int, Layer] | None:
        """One process tries to switch; None: the old plan is still in force."""
        try:
            maker.make()
        except CannotUpgrade:  # calls are open
            maker.leave()
            self._settle()
            return None
        except (Died, OSError, StoreAway, JournalBroken):
            self.deaths += 1
        maker.leave()
        return maker.found()

    def _gather(self) -> None:
        """Collect the output of this plan."""
        cluster = self.cluster
        for task in cluster.job.plan.tasks:
            if task.sink is None:
                continue
            rows = self._delivered.setdefault(task.sink, Counter())
            for (generation, _, seq), (kind, payload, _) in cluster.recorder.outputs(task.id):
                names_are_new(self._names, (generation, task.sink, task.index, seq))
                if kind == Kind.BATCH:
                    rows.update(tuple(row.values()) for row in payload.to_pylist())


class Maker:
    """A driver that replaces the plan; it may die at one of its disk operations."""

    def __init__(
        self,
        old: RescaledJob,
        new: RescaledJob,
        version: int,
        disks: Disks,
        random: Random,
        prepared: Prepared,
        asked: Mapping[str, int],
    ) -> None:
        self._prepared, self.asked = prepared, asked
        self._old, self._new, self._version, self._disks = old, new, version, disks
        dies_at = random.randrange(CALLS) if random.random() < 0.5 else None
        is_local = random.random() < 0.5
        self._local = disks.local.mount(dies_at if is_local else None)
        self._shared = disks.shared.mount(None if is_local else dies_at)
        self._loses_power = random.random() < 0.3
        self.last: Mapping[int, Layer] = {}

    def make(self) -> None:
        """Switch."""
        journal = JournalFile(JOURNAL, "fsync", lambda _: None, self._local)
        keeper, successor = _keeper(self._old), _keeper(self._new)
        waiting = journal.recover(keeper)
        home = Folder(self._local, HOME, "fsync")
        checkpoint = Checkpoint(home, "upgrader", lambda: terms_of(self._shared))
        store = LayerStore(f"{LAYERS}/{checkpoint.id}", files=self._shared)
        term = checkpoint.begin_term(position=journal.next_seq, before=keeper.term).number
        self.last = last_layers(self._old.plan, keeper, store)
        before = before_of(self._old, self._new, self._renamed(keeper, store))
        how: Any = (_dropped(self._old, self._new), self.asked, self._prepared)
        switch = Switch(before, keeper, waiting, self._new.compiled, successor, *how)

        def announce(asked: Mapping[str, int]) -> None:
            home.put("next", b"graph")
            self.asked = {**self.asked, **asked}

        switch.make(store, term, announce, journal)

    def _renamed(self, keeper: HouseKeeper, store: LayerStore) -> Renamed:
        """What has another name. States that were never used are not named, unless they were when
        state was shared out."""
        renamed = renamed_between(self._old, self._new)
        if self._prepared.fits(keeper.layers, store):
            return renamed
        counting = Shape.of(self._old.compiled).homes.get(self._old.called.get(COUNTING, ""), [])
        facts = [of.facts for t in counting for of in kept_of(self.last[t].delta).values()]
        in_use = {name for of in facts for name in of.get(IN_USE, ())}
        return {
            of: becomes for of, becomes in renamed.items() if isinstance(of, str) or of[1] in in_use
        }

    def leave(self) -> None:
        """The process ends, perhaps with its machine."""
        for files in (self._local, self._shared):
            files.die()
        if self._loses_power:
            self._disks.local.lose_power()

    def found(self) -> Mapping[int, Layer] | None:
        """The first layers of the new plan; None: the old one is still in force."""
        records = self._disks.journal()
        is_new = version_of(records) == self._version
        keeper = _keeper(self._new if is_new else self._old)
        keeper.recover(records)
        layers = goes_on_or_has_not_begun(keeper, _layers(self._disks))
        return {task: whole(chain) for task, chain in layers.items()} if is_new else None


def before_of(old: RescaledJob, new: RescaledJob, renamed: Renamed) -> Shape:
    """The shape of a job, with the names that its operators have in the next one."""
    known = json.loads(json.dumps(describe(old.compiled)))
    return shape_before(known, new.compiled, renamed, _dropped(old, new))


def renamed_between(old: RescaledJob, new: RescaledJob) -> Renamed:
    """What has another name in the next job."""
    both = sorted(old.called.keys() & new.called.keys())
    found: dict[Any, str] = {
        old.called[name]: new.called[name] for name in both if old.called[name] != new.called[name]
    }
    if COUNTING in both:
        states = zip(old.names.states.values(), new.names.states.values(), strict=True)
        found |= {(old.called[COUNTING], was): now for was, now in states if was != now}
    return found


def _dropped(old: RescaledJob, new: RescaledJob) -> list[str]:
    """The operators whose state may be lost."""
    return [old.called[PASSING]] if PASSING in old.called.keys() - new.called.keys() else []


def whole(chain: Sequence[Layer]) -> Layer:
    """Merge layers into one."""
    return merge_layers(chain, merge_deltas, is_base=True)


def _keeper(job: ArrowJob) -> HouseKeeper:
    return HouseKeeper(job.plan, job.encode, job.decode)


def _layers(disks: Disks) -> LayerStore:
    """The store, seen by a process that suffers no faults."""
    return LayerStore(_layers_of(disks), files=disks.shared.observe())


def _layers_of(disks: Disks) -> str:
    home, files = Folder(disks.local.observe(), HOME, "fsync"), disks.shared.observe()
    checkpoint = Checkpoint(home, "observer", lambda: terms_of(files))
    return f"{LAYERS}/{checkpoint.id}"


def terms_of(shared: SimulatedFiles) -> Terms:
    """The terms of the driver that goes on with the job."""
    return Terms(Folder(shared, TERMS, "fsync"))
