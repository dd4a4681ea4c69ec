"""Setting up a job's driver, and cleaning up after it."""

from __future__ import annotations

import ipaddress
import logging
import secrets
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, Final

from clonos.cluster.audience import JobAudience, Observer, Warnings
from clonos.cluster.clock import SystemClock
from clonos.cluster.datasets import datasets_of
from clonos.cluster.directory import JobDirectory
from clonos.cluster.durable import DeliveredOutputs, JournalFile, house_keeper
from clonos.cluster.feeds import Feeds, fed, with_materialized
from clonos.cluster.followers import Followers
from clonos.cluster.former import NOBODY, Former
from clonos.cluster.journal_thread import HANGS_S, JournalThread
from clonos.cluster.layers import BackgroundMerger
from clonos.cluster.listener import Listener
from clonos.cluster.lookout import Lookout
from clonos.cluster.moves import Executors
from clonos.cluster.pool import SlotPool, places, warm_up
from clonos.cluster.result import Delivered
from clonos.cluster.run_options import RunOptions
from clonos.cluster.shipping import seals_of, ship
from clonos.cluster.sink_places import added_sinks, claimed, claims_of, end_left
from clonos.cluster.stages import begins
from clonos.cluster.takeover import Look, Takeover
from clonos.cluster.trials import Trials
from clonos.cluster.witness import bear_witness
from clonos.core.housekeeper import Deliver, HouseKeeper
from clonos.core.layer import layer_path
from clonos.core.plan import Incarnation
from clonos.errors import (
    ClonosError,
    Divergence,
    JobCancelled,
    JournalBroken,
    NothingKept,
    OperatorError,
    PoisonRecord,
    PortTaken,
    SparkSetup,
    SparkStopped,
    masked,
)
from clonos.graph.compile import CompiledJob
from clonos.nodes.driver import DriverNode
from clonos.nodes.ports import DriverPorts, Journal
from clonos.nodes.settings import DriverSettings
from clonos.nodes.versions import HASH_SEED
from clonos.nodes.waiting import Waiting
from clonos.runtime.interpreter import low_latency
from clonos.runtime.memory_left import give_back
from clonos.runtime.versions import installed
from clonos.sinks.delivered import DeliveredStore
from clonos.sinks.outputs import Consumers, write_with_spark
from clonos.sinks.taken_back import take_back
from clonos.spark.slots import driver_address, is_local
from clonos.storage.layers import LayerStore
from clonos.storage.watchdog import Watchdog
from clonos.transport.certificates import Authority
from clonos.transport.inbox import Inbox
from clonos.transport.plane import Plane
from clonos.transport.secret import JobSecret
from clonos.transport.tls import DRIVER_NAME, Identity, slot_name
from clonos.upgrade.layers import require_continuable
from clonos.upgrade.names import ALL_STAYS, StateChanges
from clonos.upgrade.renamed import shape_before
from clonos.upgrade.switch import Switch
from clonos.watch.server import WatchServer
from clonos.watch.snapshot import Snapshot, snapshot

LOGGER: Final = logging.getLogger("clonos")

WRITERS: Final = 4
"""Threads that write files at the same time: delivered output, and the layers of a switch."""


class DriverSetup:
    """The driver's node with its adapters. Takes the journal's lock and a port; releases them if
    making the rest fails, or by :meth:`close`.

    Parameters
    ----------
    standby, listeners, ui_port, upgrade, changes
        See :class:`~clonos.cluster.driver.RunningJob`.
    look, goes_on
        See :class:`~clonos.cluster.takeover.Takeover`.
    former
        The driver that has run the job in this process until now.
    """

    def __init__(
        self,
        compiled: CompiledJob,
        spark: Any,
        run_options: RunOptions,
        *,
        standby: bool = False,
        listeners: Sequence[Listener] = (),
        ui_port: int | None = None,
        upgrade: bool = False,
        changes: StateChanges = ALL_STAYS,
        look: Look | None = None,
        former: Former = NOBODY,
        goes_on: bool = False,
    ) -> None:
        # `former` is not kept: it would keep all drivers before.
        self.compiled, self.spark, self._run_options = compiled, spark, run_options
        self.durability = durability = run_options.durability
        self.sinks = {name: sink for name, (sink, _) in compiled.sinks.items()}
        self.sink_schemas = {name: schema for name, (_, schema) in compiled.sinks.items()}
        self.consumers = Consumers(compiled.plan, self.sinks)
        self.warn, self.trials = Warnings(), Trials()
        self.observer = Observer([t.name for t in compiled.plan.tasks])
        self.run_id = f"{compiled.name}-{secrets.token_hex(6)}"
        self.directory = directory = _directory(compiled, spark, run_options, is_upgrade=upgrade)
        store = DeliveredStore(directory.delivered_uri, durability)
        self.delivered = Delivered(spark, directory, store, self.sink_schemas)
        with ExitStack() as undo:  # if anything below fails: release the lock and the port
            undo.enter_context(low_latency())
            undo.callback(self.directory.close)
            self.inbox = undo.enter_context(closing(Inbox()))
            waiting = self._stand_by(former, undo) if standby else None
            plane = self.plane if waiting is not None else None
            takeover = Takeover(
                compiled.name, waiting, plane, look, stands_by=standby, goes_on=goes_on
            )
            file = self._open_journal(takeover)
            undo.callback(file.close)
            self._stores = takeover.patience(self.warn)
            recover = partial(self._recover, file, former, undo, has_waited=takeover.has_waited)
            recovered = self._stores(partial(recover, is_upgrade=upgrade, changes=changes))
            self._stores(partial(self._claim, undo))
            if waiting is None:
                self._equip(undo)
            self.is_equipped = waiting is not None
            self.followers = Followers(
                compiled, spark, self.directory.queries_uri, self.inbox.put, self.warn
            )
            self.audience = JobAudience(self.observer, self.warn, listeners, self.feeds)
            self.merger = BackgroundMerger(directory.layers_uri, durability, self._term, self.inbox)
            ports = self._ports(file, store, undo)
            settings = replace(self._known, term=self._term, delivered=former.delivered())
            self.node = DriverNode(self.keeper, recovered, ports, settings, waiting)
            self.observer.look = lambda: self.node.view
            self.page = self._open_page(ui_port, undo, follows=standby)
            self._undo = undo.pop_all()

    def _equip(self, undo: ExitStack) -> None:
        """Make what slots need: a port of this process, and the pool with the code that Spark
        runs."""
        compiled, directory, options = self.compiled, self.directory, self._run_options
        self.feeds = Feeds(compiled, directory, self.durability, self.inbox, self.warn)
        secret, identities = self._listen(driver_address(self.spark))
        undo.callback(self.plane.shutdown)
        shipment = ship(
            self.feeds.reading(with_materialized(compiled, self.spark, directory.spool_uri)),
            self.run_id,
            secret,
            self.plane.address,
            directory.layers_uri,
            layers_durability=self.durability,
            lineage=compiled.options.lineage or directory.checkpoint_id,
            run=directory.checkpoint_id,
            began=directory.lanes_began,
            identities=identities,
            allow_plaintext=options.tls is False,
            batch_rows_max=options.batch_rows_max,
            linger_ms=options.linger_ms,
        )
        self.pool = SlotPool(
            self.spark, compiled, shipment, self.inbox, options.standby_slots, options.profile
        )
        self._executors = Executors(
            self.spark,
            compiled.plan,
            lambda: self.node.view,
            self.inbox,
            self.pool.bound,
            self.pool.executors_with_room,
        )
        self._known = self._settings()

    def _stand_by(self, former: Former, undo: ExitStack) -> Waiting | None:
        """Slots that wait for the job. None: there is no job yet, or before slots can read, rows
        must be written where the other driver writes."""
        is_spooled = any(fed(self.compiled)) or any(
            code.source is not None and code.source.kind == "materialized"
            for code in self.compiled.codes
        )
        if self.directory.is_new or is_spooled:
            return None
        self._equip(undo)
        self.pool.require(leaving=former.leaving())
        self.pool.prepare()
        self._make_room()
        waiting = Waiting(self.compiled.plan, self.pool, self._known, self.warn)
        undo.callback(waiting.dismiss)
        return waiting

    def _make_room(self) -> None:
        """Have the folders there that are written to before the job goes on."""
        with suppress(ClonosError, OSError):  # as then
            self.directory.get_ready()
            maker = Incarnation(0, 0)
            self._store.make_room(layer_path(t.id, 0, maker) for t in self.compiled.plan.tasks)

    @cached_property
    def _store(self) -> LayerStore:
        return LayerStore(self.directory.layers_uri, self.durability)

    def _open_journal(self, takeover: Takeover) -> JournalFile:
        """Take the journal's lock."""
        root, disk = self.directory.journal_root, self.directory.disk
        opens = partial(JournalFile, root, self.durability, self.inbox.put, disk)
        file = takeover.take(opens, root, self._warm_up)
        begins("reading the journal", self.compiled.name)
        return file

    def _warm_up(self) -> None:
        warm_up(self.spark, self._slots(), self._run_options.profile)

    def _slots(self) -> int:
        """How many slots the job wants."""
        wanted = self._run_options.standby_slots
        return len(places(self.compiled, wanted, is_local=is_local(self.spark)))

    def _open_page(
        self, ui_port: int | None, undo: ExitStack, *, follows: bool
    ) -> WatchServer | None:
        if ui_port is None:
            return None
        folder = self.directory.local_folder
        try:
            page = WatchServer(self.snapshot, ui_port, folder)
        except PortTaken as error:
            if not follows:
                raise
            # The job of another driver is in its hands: it does not end for want of a page.
            page = WatchServer(self.snapshot, 0, folder)
            self.warn(f"{error.what}: it has another URL now, running.ui_url")
        undo.callback(page.close)
        return page

    def snapshot(self) -> Snapshot:
        """A snapshot of the job for its page. Any thread may call this."""
        return snapshot(
            self.compiled.name,
            self.run_id,
            self._term,
            self.compiled.plan,
            {c.task.id: [name for name, _ in c.operators] for c in self.compiled.codes},
            self.node.view,
            self.warn.said,
            SystemClock().ticks_s(),
            self.trials.shown(),
        )

    def _ports(self, file: JournalFile, store: DeliveredStore, undo: ExitStack) -> DriverPorts:
        plan, put = self.compiled.plan, self.inbox.put
        watchdog = Watchdog(
            lambda: self.warn(
                f"{file.where}: the journal has had no answer for {HANGS_S:g} s. Nothing is lost, "
                "and the job waits. To do: see what keeps its disk or server"
            ),
            HANGS_S,
        )
        thread = JournalThread(file, self.inbox, watchdog=watchdog)
        journal: Journal = undo.enter_context(closing(thread))
        writers = undo.enter_context(ThreadPoolExecutor(WRITERS, "clonos-outputs"))
        each, freed = writers.map, partial(writers.submit, give_back)
        outputs = DeliveredOutputs(plan, store, self.consumers, put, each=each, freed=freed)
        return DriverPorts(
            SystemClock(), journal, outputs, self.pool, self.merger, self.audience, self._lookout
        )

    def _settings(self) -> DriverSettings:
        compiled, options, run = self.compiled, self.compiled.options, self._run_options
        return DriverSettings(
            name=compiled.name,
            run_id=self.run_id,
            address=self.plane.address,
            places=tuple(self.pool.places),
            operators={c.task.id: [name for name, _ in c.operators] for c in compiled.codes},
            application_id=str(self.spark.sparkContext.applicationId),
            datasets=datasets_of(compiled),
            checkpoint_interval_s=seals_of(compiled, self.directory.layers_uri).longest_s,
            standbys=options.standbys,
            availability=options.on_orphan == "availability",
            silence_s=run.silence_s,
            answer_s=run.answer_s,
            progress_s=run.progress_s,
            inflight_bytes=options.inflight_bytes,
            log_bytes=options.log_bytes,
            speculation=options.speculation,
            versions=installed(),
            interruptions=(JobCancelled, SparkStopped),
        )

    def _listen(self, address: str) -> tuple[JobSecret, dict[int, Identity]]:
        """Open this process's plane; return what the slots need to use it."""
        secret, driver, identities = JobSecret.new(), None, {}
        tls = self._run_options.tls
        if not ipaddress.ip_address(address).is_loopback if tls is None else tls:
            authority = Authority(self.run_id)
            driver = authority.issue(DRIVER_NAME)
            identities = {n: authority.issue(slot_name(n)) for n in range(self._slots())}
        is_plaintext = tls is False  # asked for explicitly
        try:
            self.plane = Plane(
                address,
                secret,
                self.run_id,
                self.inbox,
                identity=driver,
                allow_plaintext=is_plaintext,
            )
        except OSError as error:
            raise SparkSetup(
                f"the driver cannot listen on {address}: {error}",
                remedy="set spark.driver.host to the address of an interface of the driver's "
                "machine",
            ) from error
        for channel, schema in self.compiled.schemas.items():
            self.plane.pin(channel, schema)
        return secret, identities

    def _recover(
        self,
        file: JournalFile,
        former: Former,
        undo: ExitStack,
        *,
        has_waited: bool,
        is_upgrade: bool,
        changes: StateChanges,
    ) -> list[Deliver]:
        """Read the journal and begin a term. Before that, replace the plan if another graph should
        go on. Return the outputs that the journal has."""
        compiled, directory, version = self.compiled, self.directory, file.version
        directory.catch_up(version, has_waited=has_waited)
        if not is_upgrade:
            directory.require(compiled, version)
        self._look_back(version)
        self.keeper = house_keeper(compiled.plan, compiled.options.keep)
        renames_states = directory.is_to_rename(changes.renamed, version)
        if directory.is_same(compiled, version) and not renames_states:
            for option, names in vars(changes).items():  # a driver that then died may have switched
                if names:
                    self.warn(f"{option}={names!r} does nothing: the job has this graph already")
            recovered = file.recover(self.keeper)
            self._term = self._begin_term(file, self.keeper, undo)
            return recovered
        require_continuable(directory.graph(version), compiled, directory.retired(version))
        drop_state, renamed = changes.drop_state, changes.renamed
        before = shape_before(directory.graph(version), compiled, renamed, drop_state)
        keeper, successor = house_keeper(before.plan), house_keeper(compiled.plan)
        waiting = file.recover(keeper)
        self._term = self._begin_term(file, keeper, undo)
        announce = partial(directory.announce, compiled, version + 1, renamed=renamed)
        begins("switching", compiled.name)
        known, owner = directory.graph(version), directory.checkpoint_id
        numbers, prepared = directory.numbers, former.prepared()
        with (
            claimed(before, known, compiled, self.durability, owner),
            ThreadPoolExecutor(WRITERS, "clonos-switch") as pool,
        ):
            switch = Switch(
                before,
                keeper,
                waiting,
                compiled,
                successor,
                drop_state,
                numbers,
                prepared,
                pool.map,
            )
            if not switch.make(self._store, self._term, announce, file):
                raise JournalBroken(
                    "the journal could not be begun anew, so the job may still have its old graph",
                    where=directory.journal_root,
                    remedy="check the disk, and start the job again in the same way",
                )
        begins("claiming", compiled.name)
        return file.recover(self.keeper)

    def _look_back(self, version: int) -> None:
        """If the job was rewound before it was started, say so, and complete the deletions in its
        sinks: the process that rewound it may have died."""
        for one in self.directory.rewound(version):
            if one["version"] == version:
                point, generation, gone = one["point"], one["generation"], one["superseded"]
                section = one.get("section", ())
                who = f"of the job, {', '.join(section)}" if section else "the job"
                self.warn(
                    f"{who} went back to point {point} of its past: it delivers generation "
                    f"{generation} now, and output since then {'is deleted' if gone else 'stays'}"
                )
                uri = self.directory.delivered_uri
                take_back(self.sinks, uri, self.durability, generation, gone)

    def _begin_term(self, journal: JournalFile, keeper: HouseKeeper, undo: ExitStack) -> int:
        """Begin a term of the checkpoint, and start to look for later ones."""
        self._lookout = Lookout(self.directory, self.inbox.put)
        undo.callback(self._lookout.close)
        if keeper.complete:
            return keeper.term + 1  # nothing is left to do
        return self.directory.begin_term(position=journal.next_seq, before=keeper.term)

    def _claim(self, undo: ExitStack) -> None:
        """Claim the directory and the places of sinks. If a new job finds output there, it belongs
        to another job."""
        compiled, directory = self.compiled, self.directory
        self._claims = claims_of(compiled, self.durability, directory.checkpoint_id)
        undo.callback(self._withdraw)
        if not self.keeper.complete:
            is_new = self.keeper.term == 0
            added = added_sinks(directory.graph_before(self.keeper.version), compiled)
            self._claims.begin(self.sink_schemas, is_new=is_new, added=added)
        environment = getattr(self.spark.sparkContext, "environment", {})
        self.directory.hash_seed = str(environment.get(HASH_SEED, ""))
        self.directory.claim(self.compiled, self.keeper.version)

    def _withdraw(self) -> None:
        """Give up the places of sinks, if nobody can go on with this job."""
        if self.keeper.term == 0 or self.directory.is_temporary:
            self._claims.withdraw()

    def begin(self) -> None:
        """Check that Spark can run the job, and begin to feed it. Raises like
        ``RunningJob.start``."""
        if not self.keeper.complete:
            if not self.is_equipped:
                self.pool.require()
                self.pool.prepare()
            self._stores(self._claims.check)
            self.feeds.start()
            self.followers.start()
            self._executors.start()
        if self.page is not None:
            self.page.start()

    def break_off(self) -> None:
        """End what works beside the node: the slots have left, or were ended."""
        self._executors.close()
        self.pool.close()
        self.plane.shutdown()

    def with_hint(self, error: ClonosError | None) -> ClonosError | None:
        """The error that has ended the job, if any, with a hint how to see it again."""
        is_kept = self.compiled.plan.causal_log and not self.directory.is_temporary
        if is_kept and isinstance(error, (OperatorError, Divergence, PoisonRecord)):
            where = masked(str(self.compiled.options.checkpoint_dir or self.directory.root))
            hint = f"clonos replay MODULE:JOB {where} shows it again, with a debugger"
            if self.compiled.options.bundle_bytes:
                hint = self._bundled(error, hint)
            error.remedy = f"{error.remedy}; {hint}" if error.remedy else hint
        return error

    def _bundled(self, error: ClonosError, otherwise: str) -> str:
        """Put what led to an error into a bundle. Return a hint how to see the error again."""
        failed = self.node.failed
        task = -1 if failed is None else failed.task
        compiled = self.feeds.reading(self.compiled)
        journal = self._run_options.journal
        try:
            path = bear_witness(compiled, self.directory, journal, self.keeper, error, task)
        except (ClonosError, OSError) as missing:
            self.warn(f"there is no bundle of what led to the error: {missing}")
            return otherwise
        return f"clonos replay MODULE:JOB {path} --pdb shows it again"

    def past(self) -> dict[str, Any]:
        """Where another process finds the past of this job.

        Raises
        ------
        NothingKept
            Nothing is kept.
        """
        if self.directory.is_temporary:
            raise NothingKept(
                "this job keeps nothing that another process could read",
                where=self.compiled.name,
                remedy="give it a checkpoint_dir",
            )
        return {
            "compiled": self.feeds.reading(self.compiled),
            "checkpoint_dir": self.compiled.options.checkpoint_dir or self.directory.root,
            "journal": self._run_options.journal,
        }

    def publish(self) -> None:
        """The job is complete: move its output to where the user wants it."""
        self._claims.end()
        directory = self.directory
        left = directory.left(self.keeper.version)
        end_left(left, self.durability, directory.checkpoint_id, self.warn)
        self.feeds.complete()
        for operator, sink in self.sinks.items():
            if sink.kind == "spark_write" and not self.directory.is_written(operator):
                self.pool.label(f"write the rows of {operator}")
                write_with_spark(sink, operator, self.delivered.dataframe(operator))
                self.directory.set_written(operator, self.compiled)

    def close(self) -> None:
        """Release the lock and the port."""
        self._undo.close()


def _directory(
    compiled: CompiledJob, spark: Any, run_options: RunOptions, *, is_upgrade: bool
) -> JobDirectory:
    on_one_machine = (spark.sparkContext.master or "").startswith("local")
    directory = JobDirectory(
        compiled.options.checkpoint_dir,
        run_options.journal,
        on_one_machine=on_one_machine,
        sole_driver=run_options.sole_driver,
    )
    try:
        directory.check(compiled, is_upgrade=is_upgrade)
    except BaseException:
        directory.close()
        raise
    return directory
