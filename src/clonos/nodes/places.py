"""The slots that a job wants: which are requested, which have registered, and when to launch again.

A *place* is a slot that the job wants to have. When its process dies, the place is launched again
and registers as a new slot, named by the number of its control stream. Spark may also retry the
Spark task of a place by itself; the newest process counts. When Spark says that the Spark job of a
place has ended, the place is launched again, after a pause.

A launch is a request: Spark keeps it until it has a core, and gives the first free core to the
oldest request. So a place for which a task waits is requested at once, before all others, and where
Spark retries nothing, before Spark has noticed the end of its process. Only a place that ends by
itself again and again is given time: it would end again.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import Final

from clonos.core import messages as msg
from clonos.core.decisions import SlotReady
from clonos.core.machine import Machine, Table
from clonos.core.pauses import doubled
from clonos.core.plan import Incarnation
from clonos.errors import (
    ClonosError,
    NotPicklable,
    OtherVersion,
    SlotBroken,
    SlotsLost,
    UnusableStore,
)
from clonos.nodes.errors import ExecutorLost
from clonos.nodes.events import Ended
from clonos.nodes.ports import Launcher
from clonos.nodes.versions import check_versions
from clonos.transport.events import Connection, ControlOpened, Register

SETTLE_S: Final = 1.0
"""Delay before a lost slot is relaunched if there are slots to spare: the recovery of its tasks
needs the processor first."""
RELAUNCH_S: Final = 0.5
"""Delay before a place that failed at once is relaunched; doubled each time ..."""
RELAUNCH_MOST_S: Final = 10.0
"""... up to this, and not at all while a task waits for the place."""
FAILURES_TOLD: Final = 2
"""If a place ends this often in a row without ever registering, there is a warning. (Once, it may
have been killed.)"""
RELAUNCH_MAX: Final = 6
"""The job fails if a place ends more often than this in a row without ever registering ..."""
RELAUNCH_FOR_S: Final = 15.0
"""... for at least this long. Executors that are lost do not count; nor do places that no task has
waited for this long, on machines that cannot keep state."""
LEFT_S: Final = 5.0
"""A task waits no longer than this for Spark to notice that a process is gone; then the slot is
requested anew. Spark notices the loss of a machine only after minutes."""
BROKEN_MAX: Final = 5
"""The job fails if slots end by an exception in their loop more often than this ..."""
BROKEN_S: Final = 60.0
"""... within this time. If it happens once in a while, it is handled like any death."""
ASKED_S: Final = 30.0
"""A slot that has not registered this long after its launch causes a warning."""
EXPELLED_S: Final = 5.0
"""Grace period for an expelled slot to exit; then Spark is told to kill its process ..."""
WANTED_S: Final = 0.5
"""... or after this, if a task waits for its place: a frozen process does not exit by itself."""


class State(Enum):
    """The states of a place."""

    EMPTY = "empty"
    ASKED = "asked"
    SEATED = "seated"
    LEFT = "left"
    EXPELLED = "expelled"


class Change(Enum):
    """What happens to a place."""

    LAUNCH = "launched"
    REGISTER = "a process registers"
    LOSE = "control stream over"
    EXPEL = "expelled"
    END = "Spark job over"


PLACE: Final = Table(
    "place for a slot",
    State.EMPTY,
    {
        (State.EMPTY, Change.LAUNCH): State.ASKED,
        (State.ASKED, Change.REGISTER): State.SEATED,
        (State.SEATED, Change.LOSE): State.LEFT,
        (State.SEATED, Change.EXPEL): State.EXPELLED,
        (State.LEFT, Change.REGISTER): State.SEATED,  # Spark has started it again by itself
        (State.LEFT, Change.LAUNCH): State.ASKED,  # Spark has not noticed its end yet
        (State.EXPELLED, Change.REGISTER): State.SEATED,  # another process
        (State.ASKED, Change.END): State.EMPTY,
        (State.SEATED, Change.END): State.EMPTY,
        (State.LEFT, Change.END): State.EMPTY,
        (State.EXPELLED, Change.END): State.EMPTY,
    },
)


@dataclass(frozen=True, slots=True)
class Seat:
    """A registered slot."""

    place: int
    pid: int
    executor: str
    executor_pid: int
    link: Connection

    @property
    def name(self) -> str:
        """How people are told of its place."""
        return f"slot {self.place}"


@dataclass(slots=True)
class Place:
    """A slot that the job wants. ``task``: the only one it can run; ``attempt``: the newest;
    ``former``: the one before, if Spark has not said yet that it is over, and when it is cancelled.

    ``due_s``: when to do the next thing: launch, warn or cancel; ``urgent_s``: the same if a task
    waits for the place. ``failures``: how many in a row, since ``failing_s``; ``unusable``: why the
    machine that Spark has chosen last cannot keep state.
    """

    number: int
    task: int | None
    machine: Machine[State, Change]
    attempt: int = 0
    former: tuple[int, float] | None = None
    failures: int = 0
    failing_s: float = 0.0
    unusable: UnusableStore | None = None
    due_s: float | None = None
    urgent_s: float | None = None
    slot: int | None = None

    @property
    def state(self) -> State:
        return self.machine.state


@dataclass(frozen=True)
class Pace:
    """How soon, and how often, slots are relaunched."""

    settle_s: float = SETTLE_S
    relaunch_s: float = RELAUNCH_S
    relaunch_max: int = RELAUNCH_MAX


PACE: Final = Pace()


class Places:
    """All places of a job.

    Parameters
    ----------
    tasks
        For each place the only task it can run; None: any.
    spare
        Whether there are more places than tasks.
    versions
        The versions that the driver runs on; slots must run on the same.
    fatal
        Errors of a slot that any other slot would have, too.
    """

    def __init__(
        self,
        job: str,
        tasks: Sequence[int | None],
        launcher: Launcher,
        *,
        spare: bool,
        versions: Mapping[str, str],
        fatal: tuple[type[ClonosError], ...] = (),
        pace: Pace = Pace(),
    ) -> None:
        self._job, self._launcher, self._pace = job, launcher, pace
        self._spare, self._versions = spare, versions
        self._fatal: tuple[type[ClonosError], ...] = (OtherVersion, *fatal)
        self._first: Register | None = None
        self._attempts = 0
        self._is_closing = False
        self._broken: deque[float] = deque(maxlen=BROKEN_MAX + 1)
        self._failed: list[str] = []  # warnings
        self._told: set[str] = set()  # machines that cannot keep state
        self._waiting_s: float | None = None  # since when tasks wait for slots
        self.places = [
            Place(number, task, PLACE.machine(f"place {number}"))
            for number, task in enumerate(tasks)
        ]
        self.seats: dict[int, Seat] = {}

    # --- processes ------------------------------------------------------------------------------

    def launch_all(self, now_s: float) -> None:
        """The job begins: request all slots that nobody has requested yet."""
        for place in self.places:
            if place.state is State.EMPTY and place.due_s is None:
                self._launch(place, now_s)

    def _launch(self, place: Place, now_s: float) -> None:
        if place.state is State.LEFT:
            place.former = place.attempt, now_s + LEFT_S
        self._attempts += 1
        place.machine.on(Change.LAUNCH)
        place.attempt = self._attempts
        place.due_s, place.urgent_s = now_s + ASKED_S, None
        self._launcher.launch(place.number, place.attempt)

    def ended(self, event: Ended, now_s: float) -> ClonosError | None:
        """A slot's Spark job has ended: relaunch it later. Returns an error that ends the job."""
        place = self.places[event.place]
        is_former = place.former is not None and event.attempt == place.former[0]
        if is_former:
            place.former = None
        elif event.attempt != place.attempt or place.state is State.EMPTY:
            return None
        else:
            place.machine.on(Change.END)
            place.due_s = place.urgent_s = None
        if self._is_closing:
            return None
        if isinstance(event.error, self._fatal):
            return event.error
        if isinstance(event.error, SlotBroken) and (broken := self._break(event.error, now_s)):
            return broken
        if is_former:
            return None
        if not isinstance(event.error, ExecutorLost) and (error := self._fail(place, event, now_s)):
            return error
        pause_s, urgent_s = self._pauses_s(place)
        place.due_s, place.urgent_s = now_s + pause_s, now_s + urgent_s
        return None

    def _pauses_s(self, place: Place) -> tuple[float, float]:
        """How long until the next launch, and how long if a task waits for the place."""
        if place.failures <= 1:
            return (self._pace.settle_s if self._spare else 0.0), 0.0
        pause_s = doubled(self._pace.relaunch_s, place.failures - 2, RELAUNCH_MOST_S)
        return pause_s, min(pause_s, self._pace.relaunch_s)

    def _fail(self, place: Place, event: Ended, now_s: float) -> ClonosError | None:
        """A slot has ended by itself. Return an error if that was too often before it
        registered."""
        if not place.failures:
            place.failing_s = now_s
        place.failures += 1
        if isinstance(event.error, UnusableStore):
            return self._avoid(place, event.error, now_s)
        is_unreadable = isinstance(event.error, NotPicklable)
        if is_unreadable and self._first is None:  # once it could be read, it may be again
            return event.error
        why = event.error.what.rstrip(".") if event.error else "it left without an error"
        others = any(p.failures >= FAILURES_TOLD for p in self.places if p is not place)
        if place.failures == FAILURES_TOLD and not others:  # one warning for all
            self._failed.append(
                f"job {self._job!r}: slot {place.number} has ended {place.failures} times in a row "
                f"before it registered: {why}. It is started again, and the job waits for it"
            )
        if not self._is_hopeless(place, now_s):
            return None
        if is_unreadable:
            return event.error
        return SlotsLost(
            f"the slot has ended {place.failures} times in a row before it registered: {why}",
            where=f"{self._job}: slot {place.number}",
            remedy="see the executors' logs, and whether they reach the driver's address",
        )

    def _is_hopeless(self, place: Place, now_s: float) -> bool:
        is_patient = now_s - place.failing_s < RELAUNCH_FOR_S
        return place.failures > self._pace.relaunch_max and not is_patient

    def _avoid(self, place: Place, error: UnusableStore, now_s: float) -> UnusableStore | None:
        """Spark has chosen a machine that cannot keep state. Return an error if it has no other
        one: none has a slot, or tasks have waited for long."""
        place.unusable = error
        found = [each.unusable for each in self.places if each.unusable is not None]
        is_everywhere = not self.seats and len(found) == len(self.places)
        waits_since_s = now_s if self._waiting_s is None else self._waiting_s
        is_needed = now_s - waits_since_s >= RELAUNCH_FOR_S
        if is_everywhere or (is_needed and self._is_hopeless(place, now_s)):
            where = ", ".join(sorted({each.where for each in found}))
            return UnusableStore(error.what, where=where, remedy=error.remedy)
        is_worth_it = bool(self.seats) or place.failures >= FAILURES_TOLD
        if is_worth_it and error.where not in self._told:
            self._told.add(error.where)
            self._failed.append(
                f"job {self._job!r}: no slot can begin on {error.where}: {error.sentence} Slots go "
                f"on elsewhere, and it is tried again. To do: {error.remedy}"
            )
        return None

    def _break(self, error: SlotBroken, now_s: float) -> SlotBroken | None:
        """Count that the loop of a slot has raised; fail the job if that happens too often."""
        self._broken.append(now_s)
        if len(self._broken) <= BROKEN_MAX or now_s - self._broken[0] > BROKEN_S:
            return None
        return SlotBroken(
            f"slots have ended {len(self._broken)} times within "
            f"{now_s - self._broken[0]:.0f} s, the last one by {error.what}",
            where=f"{self._job}: {error.where}",
            remedy="report this: it is a bug in clonos; the executors' logs have its traceback. "
            "With a checkpoint_dir the job goes on where it was",
        )

    def tick(self, now_s: float, waiting: Collection[int] = ()) -> list[str]:
        """Relaunch the places that are due; have Spark end processes that should have ended.

        Parameters
        ----------
        waiting
            Tasks that wait for a slot.

        Returns
        -------
        list[str]
            Warnings: slots that do not register, or end before they do.
        """
        if not waiting:
            self._waiting_s = None
        elif self._waiting_s is None:
            self._waiting_s = now_s
        for place in self._urgent(waiting) if waiting else ():
            if place.urgent_s is not None and now_s >= place.urgent_s:
                place.urgent_s = None
                if place.state is State.EMPTY or self._is_free(place):
                    self._launch(place, now_s)
                else:
                    self._launcher.cancel(place.attempt)
        late: list[Place] = []
        failed, self._failed = self._failed, []
        for place in self.places:
            if place.former is not None and now_s >= place.former[1]:  # it may hold the core
                self._launcher.cancel(place.former[0])
                place.former = place.former[0], inf
            if place.due_s is None or now_s < place.due_s:
                continue
            place.due_s = None
            if place.state is State.EMPTY:
                self._launch(place, now_s)
            elif place.state is State.EXPELLED:
                self._launcher.cancel(place.attempt)
            else:
                late.append(place)  # only once
        return [*failed, *self._complaints(late)]

    def _is_free(self, place: Place) -> bool:
        """Whether no process is to come for it, although Spark has not said that it has ended."""
        return place.state is State.LEFT and place.former is None and not self._launcher.retries

    def _complaints(self, late: Collection[Place]) -> Iterator[str]:
        """One for all slots that are gone, one for all that have not come."""
        gone = [place.number for place in late if place.state is State.LEFT]
        missing = [place.number for place in late if place.state is not State.LEFT]
        if gone:
            yield (
                f"job {self._job!r}: {_slots(gone, 'is', 'are')} gone, and Spark has not started "
                f"another process for {ASKED_S:.0f} s: no core is free, an executor is still to "
                "come, or Spark has not noticed yet that a machine is lost. When a task waits for "
                "a slot, another one is requested"
            )
        if missing:
            yield (
                f"job {self._job!r}: {_slots(missing, 'has', 'have')} not come {ASKED_S:.0f} s "
                "after Spark was asked: other jobs of the application hold the cores, an executor "
                "still unpacks what it was sent (--archives), or does not reach the driver"
            )

    def _urgent(self, waiting: Collection[int]) -> list[Place]:
        """As many places without a slot as tasks wait for: those that can come soonest."""
        bound = {place.task for place in self.places}
        wanted = Counter(task if task in bound else None for task in waiting)
        result = []
        for task, count in wanted.items():
            open_ = [(p.urgent_s, p.number) for p in self.places if p.task == task]
            soonest = sorted((at, number) for at, number in open_ if at is not None)
            result += [self.places[number] for _, number in soonest[:count]]
        return result

    def close(self) -> None:
        """Stop launching."""
        self._is_closing = True
        for place in self.places:
            place.due_s = place.urgent_s = None

    @property
    def is_empty(self) -> bool:
        """Whether Spark runs nothing for the job any more."""
        return all(p.state is State.EMPTY and p.former is None for p in self.places)

    def cancel_all(self) -> None:
        """Have Spark cancel whatever still runs."""
        for place in self.places:
            if place.state is not State.EMPTY:
                self._launcher.cancel(place.attempt)
            if place.former is not None:
                self._launcher.cancel(place.former[0])

    # --- registered slots -----------------------------------------------------------------------

    def registered(self, event: ControlOpened) -> SlotReady:
        """A slot has registered.

        Raises
        ------
        OtherVersion
            It runs on other versions than the driver or the other slots.
        """
        register = event.register
        self._first = self._first or register
        check_versions(register, self._first, self._versions)
        place = self.places[register.slot]
        if place.state is not State.EMPTY:  # else Spark has told of its end first
            place.machine.on(Change.REGISTER)
            place.due_s = place.urgent_s = None
        place.failures, place.unusable, place.slot = 0, None, event.conn_id
        self.seats[event.conn_id] = Seat(
            place.number, register.pid, register.executor, register.jvm_pid, event.incoming
        )
        return SlotReady(
            event.conn_id, register.address, register.executor, place.task, register.disk
        )

    def replaced(self, event: ControlOpened) -> list[int]:
        """The slots whose place the new one takes: Spark has started their task again."""
        place = event.register.slot
        return [s for s, seat in self.seats.items() if seat.place == place and s != event.conn_id]

    def slots_of(self, pid: int) -> list[int]:
        """The slots of this process."""
        return [slot for slot, seat in self.seats.items() if seat.pid == pid]

    def lost(self, slot: int, now_s: float) -> None:
        """The control stream of a slot is over. Spark starts it again, or says that it has
        ended."""
        patience_s = LEFT_S if self._launcher.retries else 0.0
        self._leave(slot, Change.LOSE, now_s + ASKED_S, now_s + patience_s)

    def expel(self, slot: int, now_s: float) -> None:
        """Cut off a slot that does not answer: it exits when it sees its stream end.

        If it does not see even that, Spark has to end its process, so that another one can be
        started.
        """
        seat = self._leave(slot, Change.EXPEL, now_s + EXPELLED_S, now_s + WANTED_S)
        if seat is not None:
            seat.link.close()

    def _leave(self, slot: int, change: Change, due_s: float, urgent_s: float) -> Seat | None:
        seat = self.seats.pop(slot, None)
        if seat is not None:
            place = self.places[seat.place]
            if place.slot == slot:
                place.slot = None
                if place.state is State.SEATED:
                    place.machine.on(change)
                    if not self._is_closing:
                        place.due_s, place.urgent_s = due_s, urgent_s
        return seat

    def seat(self, slot: int | None) -> Seat | None:
        """Of a slot that is registered."""
        return self.seats.get(slot) if slot is not None else None

    def command(self, slot: int, command: msg.Command) -> None:
        seat = self.seats.get(slot)
        if seat is not None:
            seat.link.send(command)

    def show(self, task: str, incarnation: Incarnation, slot: int | None) -> None:
        """Show in Spark's UI what a slot runs now."""
        seat = self.seat(slot)
        if seat is not None:
            life = f"incarnation {incarnation.term}.{incarnation.n}"
            self._launcher.describe(task, f"{life}, runs in slot {seat.place}")

    def check(self) -> None:
        """Assert the invariants of the whole state."""
        for place in self.places:
            is_seated = place.slot is not None and place.slot in self.seats
            assert place.state is not State.SEATED or is_seated, place
            assert place.slot is None or self.seats[place.slot].place == place.number, place


def _slots(numbers: Sequence[int], of_one: str, of_many: str) -> str:
    """These slots as the subject of a sentence, with its verb."""
    *others, last = map(str, numbers)
    return f"slots {', '.join(others)} and {last} {of_many}" if others else f"slot {last} {of_one}"
