"""Moves of tasks that the user or Spark has asked for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from difflib import get_close_matches
from queue import Empty, SimpleQueue
from typing import Any, Final, NoReturn

from clonos.cluster.audience import Observer
from clonos.core.decisions import Leaving, MoveAsked
from clonos.core.moves import FULL
from clonos.core.plan import Plan
from clonos.errors import CannotMove, UnknownTask
from clonos.nodes.events import RenewalAsked
from clonos.nodes.spread import to_move, to_renew
from clonos.nodes.views import DriverView, JobEvent, SlotView
from clonos.spark.slots import SPARK_ERRORS
from clonos.transport.inbox import Inbox

LOOK_S: Final = 0.5
"""How often Spark is asked which executors are about to go."""
SETTLED_S: Final = 2.0
"""For so long slots and standbys must have been where they are before any is moved."""
AGAIN_S: Final = 60.0
"""How long a cell that did not move, because its calls take long, is left alone."""
RENEWALS_MAX: Final = 5
"""Spark may put a slot that is started anew where it was; it is not asked for ever."""
TO_HAVE_ROOM: Final = "give the job free slots with standby_slots=, and Spark the cores for them"
_POLL_S: Final = 0.05
_SHOWN: Final = 5
"""Tasks that an error names."""


class Mover:
    """Asks the driver for moves, and waits for them.

    Parameters
    ----------
    look
        Returns the newest view of the job.
    is_running
        Whether it still runs.
    """

    def __init__(
        self,
        plan: Plan,
        inbox: Inbox,
        observer: Observer,
        look: Callable[[], DriverView],
        is_running: Callable[[], bool],
    ) -> None:
        self._plan, self._inbox, self._observer = plan, inbox, observer
        self._look, self._is_running = look, is_running
        self._drained = set[str]()

    def move(self, task: str, timeout_s: float) -> None:
        """See :meth:`~clonos.cluster.driver.RunningJob.move`."""
        ids = {spec.name: spec.id for spec in self._plan.tasks}
        if task not in ids:
            near = get_close_matches(str(task), ids, n=3) or sorted(ids)[:3]
            raise UnknownTask(f"there is no task {task!r}", remedy=f"try {' or '.join(near)}")
        self._require_logs(task)
        first = self._plan.tasks[self._plan.cell_of[ids[task]][0]].name
        told: SimpleQueue[tuple[JobEvent, DriverView]] = SimpleQueue()

        def hear(event: JobEvent) -> None:
            if event.what in ("moved", "stayed") and event.task == first:
                told.put((event, self._look()))

        observer, until = self._observer, time.monotonic() + timeout_s
        observer.listeners = (*observer.listeners, hear)
        try:
            self._inbox.put(MoveAsked(ids[task]))
            while self._goes_on(until):
                try:
                    event, before = told.get(timeout=_POLL_S)
                except Empty:
                    continue
                if event.what == "stayed":
                    raise CannotMove(
                        f"it stays where it is: {event.why}",
                        where=task,
                        remedy=TO_HAVE_ROOM if event.why == FULL else "",
                    )
                while self._goes_on(until) and self._look() is before:
                    time.sleep(_POLL_S / 10)  # the caller's next look must show the task's new slot
                return
        finally:
            observer.listeners = tuple(one for one in observer.listeners if one is not hear)
        if not self._is_running():
            raise CannotMove("the job has ended", where=task, remedy="start it again")
        raise CannotMove(
            f"it has not moved within {timeout_s:g} s; it may still do so",
            where=task,
            remedy="running.tasks() shows where it is, and which task recovers: moves wait for it",
        )

    def drain(self, executor: str, timeout_s: float) -> None:
        """See :meth:`~clonos.cluster.driver.RunningJob.drain`."""
        self._require_logs("")
        if executor not in {slot.executor for slot in self._look().slots}:
            raise CannotMove(
                f"no slot of this job is on an executor {executor!r}",
                remedy="running.slots() says which executors there are",
            )
        self._inbox.put(Leaving(executor))
        self._drained.add(executor)
        until = time.monotonic() + timeout_s
        full_s: float | None = None  # since when there has been no free slot elsewhere
        while self._goes_on(until):
            slots = self._look().slots
            if not any(slot.runs for slot in slots if slot.executor == executor):
                return
            others = [slot for slot in slots if slot.executor not in self._drained]
            if any(not slot.runs for slot in others):
                full_s = None
            else:
                full_s = full_s or time.monotonic()
                if not others or time.monotonic() >= full_s + SETTLED_S:
                    break
            time.sleep(_POLL_S)
        if not self._is_running():
            raise CannotMove("the job has ended", where=executor, remedy="start it again")
        self._stays(executor, is_full=full_s is not None)

    def _stays(self, executor: str, *, is_full: bool) -> NoReturn:
        """Raise `CannotMove`: tasks are still on this executor."""
        here = [slot for slot in self._look().slots if slot.executor == executor]
        names = [name for slot in here for name in slot.runs]
        shown = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
        are = "there are" if len(names) > 1 else "there is"
        said = f"on executor {executor!r} {are} still {shown}"
        if not is_full:
            raise CannotMove(said)
        raise CannotMove(
            f"{said}, and no other executor has a free slot",
            remedy=f"{TO_HAVE_ROOM}; what is still there leaves as soon as another executor has a "
            "free slot",
        )

    def renew(self, timeout_s: float) -> None:
        """See :meth:`~clonos.cluster.driver.RunningJob.restart_slots`."""
        self._require_logs("")
        until, slots = time.monotonic() + timeout_s, self._look().slots
        self._require_time(until)
        for pid in [slot.pid for slot in sorted(slots, key=lambda slot: bool(slot.runs))]:
            while (slot := self._slot(pid)) is not None:
                self._require_time(until)
                if slot.runs:
                    self.move(slot.runs[0], until - time.monotonic())
                else:
                    self._inbox.put(RenewalAsked(pid))
                    time.sleep(_POLL_S)
            while len(self._look().slots) < len(slots):  # one slot after the other
                self._require_time(until)
                time.sleep(_POLL_S)

    def _slot(self, pid: int) -> SlotView | None:
        return next((slot for slot in self._look().slots if slot.pid == pid), None)

    def _require_time(self, until: float) -> None:
        if not self._goes_on(until):
            raise CannotMove(
                "the job has ended, or the time was over, before all slots were started anew",
                remedy="running.slots() shows their processes; ask again, with a longer timeout_s",
            )

    def _require_logs(self, task: str) -> None:
        if not self._plan.causal_log:
            raise CannotMove(
                "without logs a move would repeat or lose rows",
                where=task,
                remedy="move nothing, or run the job with exactly_once",
            )

    def _goes_on(self, until: float) -> bool:
        return self._is_running() and time.monotonic() < until


class Executors:
    """Looks, in a thread, at the executors of a job: which Spark is about to take away, and whether
    tasks and their standbys are on different ones. Tells the driver.

    Spark tells no Python code of the former. Its task scheduler knows, and is asked.

    Parameters
    ----------
    look
        Returns how the job is.
    bound
        Tasks that can only live in slots of their own.
    room
        Returns the executors that have a core for one more slot.
    """

    def __init__(
        self,
        spark: Any,
        plan: Plan,
        look: Callable[[], DriverView],
        inbox: Inbox,
        bound: Collection[int],
        room: Callable[[], Collection[str]],
    ) -> None:
        self._spark, self._plan, self._look, self._inbox = spark, plan, look, inbox
        self._room = room
        self._names = [task.name for task in plan.tasks]
        self._cells = [cell for cell in plan.cells if not set(cell) & set(bound)]
        self._known = set[str]()
        self._asked: tuple[str, int | None] = ("", None)
        self._since_s = self._again_s = 0.0
        self._renewals = 0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="clonos-executors", daemon=True)

    def start(self) -> None:
        """Begin to look, in a thread, unless all slots are on one machine."""
        master = self._spark.sparkContext.master or ""
        if not master.startswith("local") or master.startswith("local-cluster"):
            self._thread.start()

    def close(self) -> None:
        """Stop looking."""
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.wait(LOOK_S):
            try:
                self.look_who_leaves()
                self.look_who_is_crowded(time.monotonic())
            except (*SPARK_ERRORS, AttributeError):  # Spark has stopped: the job ends by itself
                continue

    def look_who_leaves(self) -> None:
        """Tell the driver of executors that are newly decommissioned."""
        for executor in {slot.executor for slot in self._look().slots} - self._known:
            scheduler = self._spark.sparkContext._jsc.sc().taskScheduler()  # noqa: SLF001
            if scheduler.getExecutorDecommissionState(executor).isDefined():
                self._known.add(executor)
                self._inbox.put(Leaving(executor, ends=True))

    def look_who_is_crowded(self, now_s: float) -> None:
        """Ask for what parts tasks from their standbys, once it has been so for a while."""
        wanted = self._wanted(self._look())
        if wanted != self._asked:
            self._asked, self._since_s = wanted, now_s
        what, which = wanted
        if which is None or now_s < max(self._since_s + SETTLED_S, self._again_s):
            return
        self._again_s = now_s + AGAIN_S
        if what == "move":
            self._inbox.put(MoveAsked(which))
        elif self._renewals < RENEWALS_MAX:
            self._renewals += 1
            self._again_s = now_s + SETTLED_S  # Spark may have put it where it was
            self._inbox.put(RenewalAsked(which))

    def _wanted(self, view: DriverView) -> tuple[str, int | None]:
        if any(task.phase != "live" for task in view.tasks):
            return "", None
        known = {self._names[task] for cell in self._cells for task in cell}
        if len({slot.executor for slot in view.slots}) == 1:
            return "renew", to_renew(view.slots, known, self._room())
        if not self._plan.causal_log:
            return "", None
        return "move", to_move(view.slots, self._cells, self._names)
