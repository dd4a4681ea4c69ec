"""One task of the past: production's automaton, fed with its own log."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from clonos.blame import in_short
from clonos.core import events as ev
from clonos.core import messages as msg
from clonos.core.canonical import decode, decode_error
from clonos.core.determinants import (
    Call,
    Clock,
    Determinant,
    Marker,
    Order,
    Outcomes,
    SourceEnd,
    Timer,
    decode_record,
)
from clonos.core.intake import cuts_to_read
from clonos.core.life import Phase
from clonos.core.messages import Item
from clonos.core.plan import HOUSE_KEEPER
from clonos.core.program import Batch
from clonos.core.step import RunningStep, Work
from clonos.core.task import TaskMachine
from clonos.errors import ClonosError, Divergence, NothingToReplay, OperatorError
from clonos.nodes.versions import HASH_SEED
from clonos.operators.chain import ChainProgram
from clonos.operators.process.process import ProcessOperator
from clonos.replay.errors import NotInLog
from clonos.replay.past import Past
from clonos.replay.steps import State, Step, count
from clonos.runtime.world import RealWorld
from clonos.sources.prefetch import PATIENCE, PrefetchThread

ROWS_MAX: Final = 4096
"""Rows that a source reads at once after the end of the log."""
QUIET_S: Final = 1.0
"""After the end of the log, a source that is silent for this long counts as ended."""


class Watched:
    """A program that records the rows given to its newest step."""

    def __init__(self, program: ChainProgram) -> None:
        self.program = program
        self.took: list[Batch] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.program, name)

    def on_source(self, step: Any, batch: Batch) -> None:
        self.took = [batch]
        self.program.on_source(step, batch)

    def on_batches(
        self, step: Any, channel: int, batches: Sequence[Batch], watermark_ms: int | None = None
    ) -> None:
        self.took = list(batches)
        self.program.on_batches(step, channel, batches, watermark_ms)


_OTHERS_THEN: Final = (
    "; if the job had other functions then (before an adopt, an upgrade or a new start), give them,"
    " or begin at a point that was made since"
)


class PastWorld(RealWorld):
    """The world after the end of the log: it has a clock, and `call` answers calls, if given."""

    def __init__(self, call: Callable[..., Any] | None) -> None:
        self._call = call

    def call(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if self._call is None:
            raise NotInLog(f"{getattr(fn, '__qualname__', fn)}{tuple(args)!r}")
        return self._call(fn, *args, **kwargs)


class FollowingMachine(TaskMachine):
    """An automaton that is never live: at the end of its log it waits for more."""

    def _if_replayed(self) -> None:
        return


class ReplayedTask:
    """A task as it was at its floor, and steps from there.

    Attributes
    ----------
    name
        The task's name, such as ``"score[0]"``.
    restored_at, log_ends_at
        The positions between which the log knows every step.
    failed_at
        The step of this task that ended the job, if any. The log has its input.
    """

    def __init__(
        self,
        past: Past,
        task: int,
        call: Callable[..., Any] | None,
        watch: Callable[[ChainProgram], Watched],
        *,
        follows: bool = False,
    ) -> None:
        plan, code = past.compiled.plan, past.codes[task]
        self.name, self._plan, self._code = code.task.name, plan, code
        self.watched = watch(code.program(past.lineage, past.run))
        activate = past.activations[task]
        program: Any = self.watched
        kind = FollowingMachine if follows else TaskMachine
        self.machine = kind(plan, activate, program, past.layers(task), PastWorld(call))
        self.restored_at, self.log_ends_at = self.machine.position, self.machine.replay_to
        self.failed_at, self._kills = past.failed.get(task), past.kills
        self._hash_seed, self._is_implied = past.hash_seed, code.task.is_implied
        self._has_rows = threading.Event()
        self._made = self._delivered = 0
        self._failure: ClonosError | None = None
        self._source = self._open()
        try:
            self._begin(past)
        except BaseException:
            self.close()
            raise

    def _begin(self, past: Past) -> None:
        for action in self.machine.start():
            if isinstance(action, ev.NeedRows):
                assert self._source is not None
                self._source.ask(action.cuts)
        for channel in self.machine.inputs:
            sender = self._plan.channels[channel].sender
            life = past.activations[sender].incarnation
            self.machine.handle(ev.Opened(channel, 1, life))
        if past.is_exact:
            self._expect(past)

    def _open(self) -> PrefetchThread | None:
        spec = self._code.source
        if spec is None or self.machine.intake.ended:
            return None
        source = PrefetchThread(
            spec.reader(self._code.task.index, self._code.parallelism),
            self._has_rows.set,
            batch_rows_max=ROWS_MAX,
            linger_s=0.0,
        )
        if spec.replayable:
            source.advance(self.machine.intake.taken, self.machine.intake.cut)
        return source

    def extend(self, run: msg.Run) -> None:
        """Add log entries."""
        self.machine.book.append(run)
        self.log_ends_at = self.machine.book.length(self.machine.id)
        if self._source is not None:
            self._source.ask(cuts_to_read(run.records))

    def _expect(self, past: Past) -> None:
        """Expect delivered output to be made again; otherwise there will be a ``Divergence``."""
        for channel, output in self.machine.outputs.items():
            is_last = self._plan.channels[channel].receiver == HOUSE_KEEPER
            if is_last and self._plan.causal_log and not past.keeper.forgiven:
                delivered, digest = past.delivered(channel)
                self._made, self._delivered = output.log.last, delivered
                output.log.resume(delivered + 1, digest)

    def close(self) -> None:
        """Close the source."""
        if self._source is not None:
            self._source.close()

    # --- inspection -----------------------------------------------------------------------------

    @property
    def position(self) -> int:
        """The position of its newest step."""
        return self.machine.position

    @property
    def is_at_the_end(self) -> bool:
        """Whether all logged steps have been repeated. An implied task has no logged steps: they
        follow from its input."""
        is_given = self._is_implied and any(end.queue for end in self.machine.inputs.values())
        return self.machine.position >= self.log_ends_at and not is_given

    @property
    def compared(self) -> tuple[int, int]:
        """For a task of a sink: how many outputs were found equal to those delivered since the
        checkpoint, and how many were delivered. All are compared at once, at the last one."""
        made = max(output.log.last for output in self.machine.outputs.values())
        due = max(self._delivered - self._made, 0)
        return (due if made >= self._delivered else 0), due

    @property
    def open_calls(self) -> int:
        """The number of calls without an answer in the log."""
        return len(self.machine.calls)

    @property
    def operators(self) -> tuple[str, ...]:
        """The operators of its chain, in order."""
        return tuple(self.watched.program.operators)

    def state(self, operator: str) -> dict[Any, dict[str, Any]]:
        """The present state of a :class:`clonos.Process`: by key, its values by name.

        Raises
        ------
        NothingToReplay
            The task has no such operator, or it is not a process.
        """
        found = self.watched.program.operators.get(operator)
        if not isinstance(found, ProcessOperator):
            have = [n for n, o in self.watched.program.operators.items() if _is_process(o)]
            raise NothingToReplay(
                f"{operator!r} is no process of this task",
                where=self.name,
                remedy=f"its processes are {', '.join(have)}" if have else "it has none",
            )
        return found.state()

    # --- steps ----------------------------------------------------------------------------------

    def items(self, channel: int, after: int) -> list[Item]:
        """The items that it has made for a channel after number `after`."""
        log = self.machine.outputs[channel].log
        return [log.item(seq) for seq in range(max(after + 1, log.first), log.last + 1)]

    def take(self, channel: int, items: Sequence[Item]) -> None:
        """Take items of a sender."""
        maker = self._plan.makers[channel]
        for item in items:
            data = msg.Data(channel, item.dep[maker].incarnation, item.of(maker), ())
            self.machine.handle(ev.Received(channel, 1, data))

    def step(self, *, beyond: bool, state: bool = False) -> Step | None:
        """Do the next step, if its input is there; after the end of the log only with `beyond`.

        `state`: also record what it changes in the state, for which the whole state is read.

        Raises
        ------
        OperatorError
            A function has raised; its own exception is the cause.
        Divergence
            The program does something else than before.
        NothingToReplay
            It asks a question without an answer.
        """
        if self._failure is not None:
            raise self._failure
        if self.is_at_the_end and not beyond:
            return None
        self._offer_rows()
        before = self._states() if state else {}
        machine, self.watched.took = self.machine, []
        is_logged = machine.position < self.log_ends_at or (self._is_implied and not beyond)
        work = machine.begin()
        step = machine.under_way
        if work is None or step is None:
            return None
        try:
            self._attempt(step, work)
        except ClonosError as error:
            self._failure = error
            raise
        machine.flush()
        self._forget_outputs()
        told = self._told(step, is_logged=is_logged)
        if not state:
            return told
        changed = _changed(before, self._states())
        return replace(told, before=changed[0], after=changed[1])

    def _states(self) -> State:
        operators = self.watched.program.operators.items()
        return {name: one.state() for name, one in operators if isinstance(one, ProcessOperator)}

    def _attempt(self, step: RunningStep, work: Work) -> None:
        try:
            work()
            self.machine.end()
        except NotInLog as asked:
            raise NothingToReplay(
                f"step {step.position} is not in the log, and asks {asked}",
                where=self.name,
                remedy="give Replay(call=...), a function that answers in place of the world",
            ) from None
        except Divergence as error:
            if step.position != self.failed_at:
                remedy = f"{self._seeds() or error.remedy}{_OTHERS_THEN}"
                raise Divergence(error.what, where=self.name, remedy=remedy) from error
            if self._kills:  # and a killed process has no last words
                raise NothingToReplay(
                    f"before it kills its process, step {step.position} asks what no log knows: "
                    f"{error.what}",
                    where=self.name,
                    remedy="try corrected functions with clonos_past or a branch, where stand_in= "
                    "answers",
                ) from error
            raise NothingToReplay(
                f"step {step.position}, which had failed, goes on now: {error.what}",
                where=self.name,
                remedy="the function seems to be corrected: start the job again",
            ) from error
        except ClonosError:
            raise
        except Exception as error:
            raise OperatorError(in_short(error), where=self.name) from error

    def _seeds(self) -> str:
        """Advice for the case that Python's sets are ordered differently here than in the slots."""
        here = os.environ.get(HASH_SEED, "random")
        if not self._hash_seed or here == self._hash_seed:
            return ""
        return (
            f"start Python with {HASH_SEED}={self._hash_seed}, as in the job's slots; it is {here}"
        )

    def _forget_outputs(self) -> None:
        """Forget output that leaves the job."""
        for channel, output in self.machine.outputs.items():
            is_last = self._plan.channels[channel].receiver == HOUSE_KEEPER
            if is_last:
                output.released = output.log.last  # a replay does not write
                output.log.truncate(output.log.last)

    def _offer_rows(self) -> None:
        machine, source = self.machine, self._source
        if source is None or machine.intake.ended:
            return
        ready = None
        if machine.phase is Phase.REPLAYING:
            if machine.intake.is_empty and self._wants_rows_again():
                ready = self._wait_for(source)
        elif machine.wants_rows and self._code.source is not None and self._code.source.replayable:
            source.advance(machine.intake.taken, machine.intake.cut)
            self._has_rows.clear()
            ready = source.take()
            if ready is None and self._has_rows.wait(QUIET_S):
                ready = source.take()
        if ready is not None:
            machine.handle(ready)

    def _wants_rows_again(self) -> bool:
        record = self.machine.book.record(self.machine.id, self.machine.position + 1)
        return bool(cuts_to_read([record]))

    def _wait_for(self, source: PrefetchThread) -> Any:
        ready = source.wait_for_taken()
        if ready is None:
            raise NothingToReplay(
                f"the source gave no rows for {PATIENCE} s",
                where=self.name,
                remedy="check that what it has read is still there",
            )
        return ready

    def _told(self, step: RunningStep, *, is_logged: bool) -> Step:
        made = {self._receiver(c): batch.payload for c, batch in step.emitted.items()}
        record = decode_record(self.machine.book.record(self.machine.id, step.position))
        return Step(
            self.name,
            step.position,
            is_logged,
            self._cause(record[0]),
            tuple(batch.payload for batch in self.watched.took),
            made,
            tuple(_answers(record)),
        )

    def _receiver(self, channel: int) -> str:
        receiver = self._plan.channels[channel].receiver
        if receiver == HOUSE_KEEPER:
            return self._code.task.sink or "house-keeper"
        return self._plan.tasks[receiver].name

    def _cause(self, cause: Determinant) -> str:
        match cause:
            case Order(channel=channel, taken=taken):
                sender = self._plan.tasks[self._plan.channels[channel].sender].name
                return f"{count(taken, 'item')} of {sender}"
            case SourceEnd():
                return "the source's end"
            case Timer(now_ms=now_ms):
                return f"timers due at {now_ms} ms"
            case Marker(epoch=epoch):
                return f"checkpoint {epoch}"
            case Outcomes(outcomes=outcomes):
                return f"{count(len(outcomes), 'answer')} of services"
        return f"{count(sum(batch.rows for batch in self.watched.took), 'row')} of the source"


def _changed(before: State, after: State) -> tuple[State, State]:
    """The parts of two states with the keys in which they differ.

    Examples
    --------
    >>> _changed({"sum": {"a": {"n": 1}}}, {"sum": {"a": {"n": 1}, "b": {"n": 2}}})
    ({'sum': {}}, {'sum': {'b': {'n': 2}}})
    """
    keys = {
        name: [k for k in {**before[name], **kept} if _at(before, name, k) != kept.get(k)]
        for name, kept in after.items()
    }
    one, two = (
        {name: {k: of[name][k] for k in changed if k in of[name]} for name, changed in keys.items()}
        for of in (before, after)
    )
    return one, two


def _at(state: State, name: str, key: Any) -> Mapping[str, Any] | None:
    return state[name].get(key)


def _is_process(operator: Any) -> bool:
    return isinstance(operator, ProcessOperator)


def _answers(record: Sequence[Determinant]) -> list[Any]:
    answers: list[Any] = []
    for determinant in record:
        if isinstance(determinant, Call):
            answers.append(_answer(determinant.ok, determinant.answer))
        elif isinstance(determinant, Clock):
            answers.append(determinant.now_ms)
        elif isinstance(determinant, Outcomes):
            answers += [_answer(outcome.ok, outcome.answer) for outcome in determinant.outcomes]
    return answers


def _answer(ok: bool, answer: bytes) -> Any:
    return decode(answer) if ok else decode_error(answer)
