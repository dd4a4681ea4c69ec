"""The job's slots: how many, launched on Spark, relaunched when they end, known by their streams.

A *place* is a slot that the job wants to have; when its process dies it is launched again and
registers as a new slot: its control stream's number is its name from then on. Spark may also start
the task of a place again by itself; the newest one counts. A Spark job that somebody cancelled is
not launched again: who cancels one slot wants the whole to end.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any, Final

from clonos.cluster.errors import OtherVersion, SlotsLost
from clonos.cluster.feeds import query_cores
from clonos.core import coordinator as co
from clonos.core import messages as msg
from clonos.core.plan import Incarnation
from clonos.errors import ClonosError, SourceError
from clonos.graph.compile import CompiledJob
from clonos.runtime.shipment import Shipment
from clonos.runtime.slot import body
from clonos.runtime.versions import CPU, HASH_SEED, MACHINE, OF_SLOTS, installed, is_fixed
from clonos.spark.errors import JobCancelled, SparkStopped
from clonos.spark.slots import SPARK_ERRORS, SlotHandle, SlotLauncher, in_short
from clonos.transport.events import Connection, ControlOpened, Register
from clonos.transport.inbox import Inbox

SETTLE_S: Final = 1.0
"""A lost slot is launched again so much later, if there are slots to spare: what starting a process
takes, the recovery of what it ran needs first."""
RELAUNCH_S: Final = 0.5
"""A place that fails again at once is launched again only after this time, doubled each time."""
RELAUNCH_MAX: Final = 6
"""... and so often in a row without ever registering."""
ASKED_S: Final = 30.0
"""A slot that has not registered for so long after its launch is worth a warning."""
EXPELLED_S: Final = 5.0
"""An expelled slot has so long to leave by itself; then Spark is told to kill its process."""

_OTHER_ENVIRONMENT: Final = ("PYTHON_VERSION_MISMATCH", "No module named")
"""Found in what ends a slot that never began."""
_SAME_ENVIRONMENT: Final = (
    "use the same environment everywhere (spark.pyspark.python, or spark.archives with a packed"
    " environment)"
)
_ONE_SEED: Final = "set spark.executorEnv.PYTHONHASHSEED to one number, such as 0"


@dataclass
class Seat:
    """A registered slot."""

    place: int
    pid: int
    executor: str
    executor_pid: int
    incoming: Connection


class SlotPool:
    """Launches and knows the slots of one job.

    Parameters
    ----------
    standby_slots
        Slots beyond one per task, for the standbys of tasks that any slot can run; the standbys
        of tasks that read a DataFrame need slots of their own. Default: enough for each such
        task's copies, two to a slot.
    """

    def __init__(
        self,
        spark: Any,
        compiled: CompiledJob,
        shipment: Shipment,
        inbox: Inbox,
        standby_slots: int | None,
    ) -> None:
        self._compiled = compiled
        self._body = body(shipment)
        self._inbox = inbox
        self._launcher = SlotLauncher(spark, compiled.name, self._on_end, shipment.job_id)
        self._places = places(compiled, standby_slots, is_local=self._launcher.is_local)
        self._can_wait = len(self._places) > len(compiled.codes)
        self._frames: dict[str, Any] = {}
        self._seats: dict[int, Seat] = {}
        self._expelled: list[tuple[float, SlotHandle]] = []
        self._failures: dict[int, int] = {}
        self._asked: dict[int, float] = {}  # places that are launched and have not registered
        self._closing = False
        self._handles: dict[int, SlotHandle] = {}
        self._lock = threading.Lock()
        self._first: Register | None = None
        self.bound = frozenset(task for task in self._places if task is not None)

    @property
    def size(self) -> int:
        """How many slots the job wants."""
        return len(self._places)

    @staticmethod
    def count(compiled: CompiledJob, standby_slots: int | None = None) -> int:
        """How many cores of Spark a job needs: one per slot, and one for queries that feed it."""
        return len(places(compiled, standby_slots)) + query_cores(compiled)

    # --- launching ------------------------------------------------------------------------------

    def require(self) -> None:
        """Raise if the application has too few cores."""
        self._launcher.require(len(self._places), cores=query_cores(self._compiled))

    def prepare(self) -> None:
        """Have Spark plan, once, what the slots will read.

        Raises
        ------
        SourceError
            A DataFrame cannot be computed.
        """
        self._launcher.prepare(self._body)
        for code in self._compiled.codes:
            operator = code.task.operator
            if code.source is None or not code.source.is_bound or operator in self._frames:
                continue
            try:
                frame = _partitioned(code.source.dataframe, code.parallelism)
                self._launcher.prepare(self._body, frame)
            except SPARK_ERRORS as error:
                raise SourceError(
                    f"the DataFrame cannot be read: {in_short(error)}",
                    where=code.source_name,
                ) from error
            self._frames[operator] = frame

    def launch_all(self) -> None:
        for place in range(len(self._places)):
            self._launch(place)

    def _launch(self, place: int) -> None:
        task = self._places[place]
        with self._lock:
            if self._closing:
                return
            if task is None:
                handle = self._launcher.launch(place, self._body, description="task or standby")
            else:
                spec = self._compiled.codes[task].task
                handle = self._launcher.launch(
                    place,
                    self._body,
                    dataframe=self._frames[spec.operator],
                    partition=spec.index,
                    description=f"{spec.name} or its standby",
                )
            self._handles[place] = handle
            self._asked[place] = time.monotonic()

    def _on_end(self, place: int, error: ClonosError | None) -> None:
        """A slot's Spark job is over (called from a thread of the launcher)."""
        try:
            self._relaunch(place, error)
        except Exception as failure:  # noqa: BLE001 - nobody else would notice
            self._inbox.put(ClonosError(f"slot {place} cannot be launched again: {failure}"))

    def _relaunch(self, place: int, error: ClonosError | None) -> None:
        if self._closing:
            return
        if self._launcher.is_stopped:
            self._inbox.put(
                SparkStopped(
                    "the Spark application was stopped while the job ran",
                    where=self._compiled.name,
                    remedy="stop the job first; with a checkpoint_dir it goes on in a new session",
                )
            )
            return
        fatal = error if isinstance(error, JobCancelled) else wrong_environment(error)
        if fatal is not None:
            self._inbox.put(fatal)
            return
        failures = self._failures[place] = self._failures.get(place, 0) + 1
        if failures > RELAUNCH_MAX:
            self._inbox.put(
                SlotsLost(
                    f"the slot has ended {failures} times in a row before it registered: "
                    f"{error.what if error else 'it left without an error'}",
                    where=f"{self._compiled.name}: slot {place}",
                    remedy="see the executors' logs, and whether they reach the driver's address",
                )
            )
            return
        if failures == 1 and self._can_wait:
            time.sleep(SETTLE_S)
        elif failures > 1:
            time.sleep(min(RELAUNCH_S * 2 ** (failures - 2), 10.0))
        self._launch(place)

    def shutdown(self, patience_s: float = 5.0) -> None:
        """Wait for the slots to leave; cancel those that do not."""
        with self._lock:
            self._closing = True
        self._launcher.close()
        handles = list(self._handles.values())
        until = time.monotonic() + patience_s
        for handle in handles:
            if not handle.join(max(0.0, until - time.monotonic())):
                handle.cancel()
        until = time.monotonic() + patience_s
        for handle in handles:
            handle.join(max(0.0, until - time.monotonic()))

    # --- registered slots -----------------------------------------------------------------------

    def registered(self, event: ControlOpened) -> co.SlotReady:
        """A slot has come.

        Raises
        ------
        OtherVersion
            It does not run what the driver or the other slots run.
        """
        register = event.register
        self._first = self._first or register
        check_versions(register, self._first)
        self._failures[register.slot] = 0
        self._asked.pop(register.slot, None)
        group = f"{register.host}/{register.jvm_pid}"
        self._seats[event.conn_id] = Seat(
            register.slot, register.pid, register.executor, register.jvm_pid, event.incoming
        )
        return co.SlotReady(event.conn_id, register.address, group, self._places[register.slot])

    def replaced(self, event: ControlOpened) -> list[int]:
        """The slots whose place the new one takes: Spark has started their task again."""
        place = event.register.slot
        return [s for s, seat in self._seats.items() if seat.place == place and s != event.conn_id]

    def lost(self, slot: int) -> None:
        self._seats.pop(slot, None)

    def expel(self, slot: int, *, is_replaced: bool = False) -> None:
        """Cut off a slot that does not answer: it leaves when it sees its stream end.

        If it does not see even that, Spark has to end its process, so that another can be started
        in its place.
        """
        seat = self._seats.pop(slot, None)
        if seat is None:
            return
        seat.incoming.close()
        handle = self._handles.get(seat.place)
        if handle is not None and not is_replaced:
            self._expelled.append((time.monotonic() + EXPELLED_S, handle))

    def show(self, task: str, incarnation: Incarnation, slot: int | None) -> None:
        """Let Spark's UI say what a slot runs now."""
        seat = self._seats.get(slot) if slot is not None else None
        if seat is not None:
            life = f"incarnation {incarnation.term}.{incarnation.n}"
            self._launcher.show(f"{task}, {life}, runs in slot {seat.place}")

    def describe(self, text: str) -> None:
        """Let Spark's UI say what this thread has Spark do."""
        self._launcher.describe(f"{self._compiled.name}: {text}")

    def tick(self) -> list[str]:
        """End the processes of slots that were expelled and have not left.

        Returns what there is to warn of: slots that do not come.
        """
        now = time.monotonic()
        for due, handle in self._expelled:
            if due <= now:
                handle.cancel()
        self._expelled = [e for e in self._expelled if e[0] > now]
        late = [p for p, since in list(self._asked.items()) if now - since > ASKED_S]
        for place in late:
            del self._asked[place]  # it is said once
        return [
            f"job {self._compiled.name!r}: slot {place} has not come {ASKED_S:.0f} s after Spark "
            "was asked for it: other jobs of the application hold its cores, or its executor does "
            "not reach the driver"
            for place in late
        ]

    def command(self, slot: int, command: msg.Command) -> None:
        seat = self._seats.get(slot)
        if seat is not None:
            seat.incoming.send(command)

    def view(self, slot: int | None) -> Seat | None:
        return self._seats.get(slot) if slot is not None else None


def check_versions(register: Register, first: Register) -> None:
    """Compare what a slot runs on with the driver, and what only slots have with the first of them.

    Raises
    ------
    OtherVersion
        Something differs, or hash seeds are drawn: a replay there could give something else.
    """
    where = f"slot {register.slot} on {register.host}"
    seed = register.versions.get(HASH_SEED, "")
    if not is_fixed(seed):
        raise OtherVersion(
            f"the executor has {_named(HASH_SEED, seed)}: each process would iterate over sets in "
            "an order of its own",
            where=where,
            remedy=_ONE_SEED,
        )
    should_be = {**installed(), **{what: first.versions.get(what, "") for what in OF_SLOTS}}
    for what, version in should_be.items():
        theirs = register.versions.get(what, "")
        if theirs != version:
            raise OtherVersion(
                f"the executor has {_named(what, theirs)}; it should have {_named(what, version)}",
                where=where,
                remedy=_remedy(what, theirs, version),
            )


def _remedy(what: str, theirs: str, version: str) -> str:
    """How an executor gets what the others have."""
    if what == CPU:
        apart = sorted(set(theirs.split()) ^ set(version.split()))
        return f'set spark.executorEnv.NPY_DISABLE_CPU_FEATURES to "{" ".join(apart)}"'
    if what == MACHINE:
        return "use executors of one architecture"
    return _ONE_SEED if what == HASH_SEED else _SAME_ENVIRONMENT


def wrong_environment(error: ClonosError | None) -> OtherVersion | None:
    """What a slot's end says about its executor, if no other slot there could begin either."""
    if error is None or not any(sign in error.what for sign in _OTHER_ENVIRONMENT):
        return None
    return OtherVersion(
        f"the executor has another environment than the driver: {error.what}",
        where=error.where,
        remedy=_SAME_ENVIRONMENT,
    )


def _named(what: str, version: str) -> str:
    return f"{what} {version}" if version else f"no {what}"


def places(
    compiled: CompiledJob, standby_slots: int | None, *, is_local: bool = True
) -> list[int | None]:
    """One entry per slot that the job wants: the only task it can run, or None for any.

    On a cluster many tasks may be lost together, with their executor: each copy gets a slot.
    """
    copies = compiled.options.standbys
    bound = [c.task.id for c in compiled.codes if c.source and c.source.is_bound]
    free = len(compiled.codes) - len(bound)
    if standby_slots is None:
        wanted = free * copies
        standby_slots = max(copies, -(-wanted // 2)) if wanted and is_local else wanted
    return [*([None] * free), *([None] * standby_slots), *(bound * (1 + copies))]


def _partitioned(frame: Any, parallelism: int) -> Any:
    """A DataFrame with one partition per task."""
    partitions = frame.rdd.getNumPartitions()
    if partitions == parallelism:
        return frame
    return (
        frame.coalesce(parallelism) if partitions > parallelism else frame.repartition(parallelism)
    )
