"""The first live steps of a task whose last life has died for an unknown reason.

Each step is announced before it begins (:mod:`clonos.core.blame`). Rows within which an earlier
life has died are tried first: a copy of this process, whose end hurts nobody, takes the step with
all of them, then with halves, down to the row. A record is poison if two copies have died of it or,
if copies come to no result, if :data:`DEATHS` lives of the task have since a copy has survived it.
A record that kills the slot together with the copy, or although the copy survives, counts as poison
after :data:`LIVES` lives.

Calls are made beside the steps, and a copy must not make them. So if lives keep dying outside of
their steps, the calls are made one at a time, and a call within which :data:`DEATHS` lives have
ended is not made again: it has an error for its outcome.

A task may go on without a record of which two copies have died, if it keeps a log: the log says
that the step leaves it out, so no later life meets it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NoReturn, Protocol

from clonos.core import messages as msg
from clonos.core.calls import CallId, OpenCalls, Outcome, Request
from clonos.core.canonical import encode_error
from clonos.core.determinants import (
    Determinant,
    Marker,
    Order,
    Outcomes,
    Source,
    SourceCut,
    Timer,
)
from clonos.core.events import Trial, World
from clonos.core.intake import Intake
from clonos.core.messages import Item, Kind
from clonos.core.plan import TaskSpec
from clonos.core.program import Batch, Program
from clonos.core.step import RunningStep, pick_rows, work_of
from clonos.core.suspects import (
    CALLS,
    MADE,
    MARKER,
    ONE_BY_ONE,
    SOURCE_ROWS,
    TIMER,
    Rows,
    Suspect,
)
from clonos.errors import EffectUnknown, PoisonRecord

DEATHS: Final = 4
"""If trials prove nothing, rows are to blame when this many lives have ended within them."""
LIVES: Final = 16
"""The same, whatever trials show: this many kills from outside would not all hit the same rows."""
FLOORS: Final = 3
"""How often the floor of an implied task has to move before its steps count."""
_SEE: Final = (
    "see the executors' logs for how the process ended (a crash in native code, too little memory, "
    "an exit); correct the function for "
)
_REMEDY: Final = f"{_SEE}this record, or filter the record out before it"
_CALL_REMEDY: Final = f"{_SEE}these arguments, or filter the row out before it"
_OR_LEAVE_OUT: Final = '; or set on_bad_record="drop" or "keep" to go on without such records'


Calls = tuple[tuple[CallId, Request], ...]


class Task(Protocol):
    """What a watch needs to know of the task."""

    program: Program
    world: World
    intake: Intake
    wake_ms: int | None

    def new_step(self, cause: Determinant) -> RunningStep:
        """A step that begins now."""


class Rehearsal:
    """The next step of a task, which a copy of it may take, perhaps with fewer rows.

    Attributes
    ----------
    batches
        All items that the step takes.
    """

    def __init__(self, task: Task, cause: Determinant, items: Sequence[Item]) -> None:
        self._task, self._cause, self._items = task, cause, items
        if isinstance(cause, Source | SourceCut):
            self.batches = [task.intake.offered]
        else:
            self.batches = [item.batch for item in items if item.batch is not None]

    @property
    def rows(self) -> list[int]:
        """The numbers of all rows."""
        return list(range(sum(batch.rows for batch in self.batches)))

    def picked(self, rows: Sequence[int]) -> list[Batch]:
        """Some of the rows."""
        return pick_rows(self._task.world, self.batches, rows)

    def attempt(self, rows: Sequence[int]) -> Trial:
        """Take the step with these rows in place of all."""
        task, batches = self._task, self.picked(rows)
        return task.world.attempt(task.program, lambda program: self._do(program, batches))

    def _do(self, program: Program, batches: Sequence[Batch]) -> None:
        cause = self._cause
        if isinstance(cause, Marker) or any(i.kind is Kind.MARKER for i in self._items):
            bytes(program.delta())  # a marker makes the program seal
        else:
            work_of(program, self._task.new_step(cause), cause, self._items, batches)()

    def narrow_down(self, rows: Sequence[int]) -> tuple[Sequence[int], bool]:
        """The fewest of these rows found, in one piece, of which a copy dies; and whether fewer
        would not kill."""
        while (count := len(rows)) > 1:
            halves, trials = (rows[: count // 2], rows[count // 2 :]), list[Trial]()
            for half in halves:
                trials.append(self.attempt(half))
                if trials[-1] is Trial.DIED:
                    rows = half
                    break
            else:
                return rows, Trial.UNKNOWN not in trials
        return rows, True


class Watch:
    """What a watched life does before and after each of its live steps.

    An implied task repeats, live, the steps of earlier lives since its floor, and it is not known
    how far they came. So its steps count only after its floor has moved a few times. No floor
    passes a step that kills every life, and each life begins not far before that step, so few
    floors are made on the way there.

    It also lasts until the calls of its steps are over: a call may kill when its answer is read.

    Parameters
    ----------
    announce
        Tells the coordinator, at once: the process may not live to do it later.

    Attributes
    ----------
    condemned
        The cause of the step that was not begun, because it would kill the process.
    finds_calls
        Whether calls must be made one at a time, and announced.
    hold_ms
        How long no call is made at first.
    """

    def __init__(
        self,
        spec: TaskSpec,
        activate: msg.Activate,
        world: World,
        announce: Callable[[msg.Report], None],
    ) -> None:
        self._spec, self._life = spec, (activate.task, activate.incarnation)
        self._left, self._suspects = activate.watched_steps, activate.suspects
        self._world, self._announce = world, announce
        self._floors_left = FLOORS if spec.is_implied else 0
        self.condemned: Determinant | None = None
        search = [suspect for suspect in self._suspects if suspect.rows == ONE_BY_ONE.rows]
        self.finds_calls = bool(search)
        self.hold_ms = max((suspect.hold_ms for suspect in search), default=0)
        self._open: set[CallId] = set()

    @classmethod
    def of(
        cls,
        spec: TaskSpec,
        activate: msg.Activate,
        world: World,
        announce: Callable[[msg.Report], None],
    ) -> Watch | None:
        """The watch of a life; None if it is not to be watched."""
        return cls(spec, activate, world, announce) if activate.watched_steps > 0 else None

    def floor_moved(self) -> None:
        """The floor of the task has moved."""
        self._floors_left -= self._floors_left > 0

    def before(self, task: Task, cause: Determinant, items: Sequence[Item]) -> Sequence[int]:
        """A step is about to begin. Return which of its rows, by number, it has to leave out.

        Raises
        ------
        PoisonRecord
            It would kill the process.
        """
        rows = rows_of(cause, items, task.intake.taken, task.wake_ms)
        met = [s for s in self._suspects if s.rows.common(rows) is not None]
        self._announce(msg.Announced(*self._life, rows, is_cleared=False))
        if not met:
            return ()
        self.condemned = cause
        has_survived, left_out = self._try(Rehearsal(task, cause, items), rows, met)
        if has_survived:
            self._announce(msg.Announced(*self._life, rows, is_cleared=True))
        self.condemned = None
        return left_out

    def _try(
        self, rehearsal: Rehearsal, rows: Rows, met: Sequence[Suspect]
    ) -> tuple[bool, Sequence[int]]:
        """Try suspect rows. Return whether a copy has survived them, and those that it was not
        given, because two copies have died of each."""
        if (lives := max(s.lives for s in met)) >= LIVES:
            self._condemn(rows, lives, "whatever a trial of it says")
        deaths, left_out = max(s.deaths for s in met), list[int]()
        rest: Sequence[int] = rehearsal.rows
        while (trial := rehearsal.attempt(rest)) is Trial.DIED:
            guilty, is_least = rehearsal.narrow_down(rest)
            # Something else may have killed the first copy, so the rows must kill another one.
            if rehearsal.attempt(guilty) is not Trial.DIED:
                break
            if self._spec.leaves_out and not is_least and deaths < DEATHS:
                break  # which of them kills, another life may find out
            if not self._spec.leaves_out or len(guilty) != 1:
                self._convict(rows, rehearsal.picked(guilty))  # a timer, or several rows together
            left_out = sorted([*left_out, *guilty])
            rest = [number for number in rest if number not in guilty]
        if trial is Trial.UNKNOWN and deaths >= DEATHS:
            self._condemn(rows, deaths, "and a trial of it comes to no end")
        return trial is Trial.SURVIVED, left_out

    def after(self, cause: Determinant) -> bool:
        """The step is over and the process alive. Return whether the watch ends here."""
        if isinstance(cause, Outcomes):
            self._open.difference_update(outcome.id for outcome in cause.outcomes)
        if not self._floors_left and (self._left > 1 or not self._open):
            self._left -= 1
        self._announce(msg.Survived(*self._life, self._left))
        return self._left == 0

    def asked(self, due: Calls, calls: OpenCalls) -> Calls:
        """These calls are to be made. Return those that may be; the others get their outcome."""
        if self._left > 1:
            self._open.update(call for call, _ in due)
        killed = {call: lives for call, request in due if (lives := self._killed(call, request))}
        calls.heard(_not_made(call, r, killed[call]) for call, r in due if call in killed)
        return tuple(asked for asked in due if asked[0] not in killed)

    def _killed(self, call: CallId, request: Request) -> int:
        """How many lives this call has ended, if it is to blame for that."""
        met = [s for s in self._suspects if s.rows == _made(call, request)]
        is_guilty = any(s.deaths >= DEATHS or s.lives >= LIVES for s in met)
        return max(s.lives for s in met) if is_guilty else 0

    def suspects(self, call: CallId, request: Request) -> bool:
        """Whether earlier lives have ended while this call was made."""
        return any(suspect.rows == _made(call, request) for suspect in self._suspects)

    def calls(self, call: CallId, request: Request, *, is_over: bool = False) -> None:
        """The slot is about to make this call, and no other; or it is over."""
        rows, shown = _made(call, request), "" if is_over else request.shown
        self._announce(msg.Announced(*self._life, rows, is_cleared=is_over, shown=shown))

    def _convict(self, rows: Rows, guilty: Sequence[Batch]) -> NoReturn:
        raise PoisonRecord(
            f"{self._name(rows, guilty)} kills the process: the task has died of it, and so has "
            "every process that tried it",
            where=self._spec.name,
            remedy=_REMEDY if self._spec.leaves_out else _REMEDY + _OR_LEAVE_OUT,
        )

    def _condemn(self, rows: Rows, lives: int, although: str) -> NoReturn:
        raise PoisonRecord(
            f"{lives} lives of the task have ended within the same step, of "
            f"{_describe(self._spec, rows)}, {although}",
            where=self._spec.name,
            remedy=_REMEDY,
        )

    def _name(self, rows: Rows, guilty: Sequence[Batch]) -> str:
        count, where = sum(batch.rows for batch in guilty), _describe(self._spec, rows)
        if count == 0:
            return where
        shown = self._world.show(guilty[0])
        if count == 1:
            return f"the record {shown}, one of {where},"
        return f"something in {count} records, from {shown} on, among {where},"


def _made(call: CallId, request: Request) -> Rows:
    """A call as something of which a process may die."""
    return Rows(MADE - call.operator, request.digest, request.digest)


def _not_made(call: CallId, request: Request, lives: int) -> Outcome:
    """The outcome of a call that is not made again."""
    said = f"making this call ends the process: {lives} lives of the task have ended within it"
    error: Exception = PoisonRecord(said, remedy=_CALL_REMEDY)
    if request.key:
        said = f"the effect {request.key}: nobody knows whether it was made: {said}"
        error = EffectUnknown(said, remedy=_CALL_REMEDY)
    return Outcome(*call, request.digest, ok=False, answer=encode_error(error), attempts=lives)


def rows_of(cause: Determinant, items: Sequence[Item], taken: int, wake_ms: int | None) -> Rows:
    """Which rows a step takes; `taken`: rows of the source that were taken before it."""
    match cause:
        case Order(channel=channel):
            return Rows(channel, items[0].seq, items[-1].seq)
        case Source(rows=rows) | SourceCut(rows=rows):
            return Rows(SOURCE_ROWS, taken + 1, taken + rows)
        case Timer(now_ms=now_ms):
            due_ms = now_ms if wake_ms is None else wake_ms
            return Rows(TIMER, due_ms, due_ms)
        case Marker(epoch=epoch):
            return Rows(MARKER, epoch, epoch)
        case Outcomes(outcomes=outcomes):
            (call, *_) = outcomes  # a watched life takes one at a time
            return Rows(CALLS - call.operator, call.number, call.number)
        case _:
            return Rows(SOURCE_ROWS, taken + 1, taken + 1)  # its end


def _describe(spec: TaskSpec, rows: Rows) -> str:
    if rows.channel == SOURCE_ROWS:
        return f"rows {rows.first} to {rows.last} of its source"
    if rows.channel == TIMER:
        return f"the timer that was due at {rows.first} ms"
    if rows.channel == MARKER:
        return f"the state at the end of epoch {rows.first}"
    if rows.channel <= CALLS:
        operator = CALLS - rows.channel
        return f"the answers to calls {rows.first} to {rows.last} of its operator {operator}"
    return f"items {rows.first} to {rows.last} of input {spec.inputs.index(rows.channel)}"
