"""Runs each operator of a job several times, and reports the first difference between two runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from pyspark import cloudpickle  # Spark ships functions with it

from clonos.blame import in_short
from clonos.columns.durations import parse_duration
from clonos.errors import (
    CannotSimulate,
    DefinitionError,
    NotDeterministic,
    OperatorError,
)
from clonos.graph.code import TaskCode
from clonos.graph.compile import CompiledJob, compile_graph
from clonos.operators.operations import EarlyPart
from clonos.simulator.user_job.rows import rows_of, with_rows
from clonos.testing.determinism.compare import difference, difference_of_content
from clonos.testing.determinism.runs import History, Run
from clonos.testing.determinism.worker import Again, Broken, Record, Surroundings, Worker

YEAR_S: Final = 365 * 86400.0
HERE: Final = Surroundings("1", "Pacific/Kiritimati", 0.0)
ELSEWHERE: Final = Surroundings("2", "Pacific/Pago_Pago", YEAR_S)
"""Another process where the hash seed, the time zone and the year differ."""
READS: Final = 20
"""Each source reads about this often."""
RESTORES: Final = 4
TIMEOUT: Final = "60 seconds"
SHOWN: Final = 5
"""How many lines of code a finding names."""

STUCK: Final = (
    "correct the function, or give it more time for a batch of rows with timeout= (--timeout)"
)
CAUSES: Final = {
    "again": (
        "the same rows in another process",
        (
            "does the order of a set, hash(), id(), the time or the environment get into it? sort, "
            "and take time, random numbers and services from ctx"
        ),
    ),
    "restored": (
        "restored from its state in a fresh process",
        (
            "what a function has to remember belongs in ctx.state: a module, an object and a "
            "default argument die with the process"
        ),
    ),
    "cuts": (
        "the same rows in other batches",
        (
            "are numbers added up batch by batch? what a row becomes must not depend on which rows "
            "come with it; if that is meant, check with cuts=False (--same-cuts)"
        ),
    ),
    "refused": (
        "it speaks to another process",
        "ask with ctx.call or map_async, so that the answer is logged",
    ),
    "died": ("its process ended", "correct the function"),
    "stuck": ("a function hangs", STUCK),
}
"""By kind of finding: what was tried, and the remedy."""


@dataclass(frozen=True)
class Finding:
    """A difference between two runs.

    Attributes
    ----------
    operator
        The operator's name.
    task
        The task, such as ``"total[1]"``.
    kind
        "again", "restored", "cuts", "refused", "died" or "stuck".
    what
        The first difference.
    asked
        Lines of user code that bypass ``ctx``, and what they ask for.
    """

    operator: str
    task: str
    kind: str
    what: str
    asked: tuple[str, ...] = ()

    def __str__(self) -> str:
        cause, remedy = CAUSES[self.kind]
        lines = [f"{self.task}: {cause}: {self.what}"]
        if self.asked:
            lines.append("  outside of ctx it asks for")
            lines += [f"    {line}" for line in self.asked[:SHOWN]]
        return "\n".join([*lines, f"  To do: {remedy}"])


@dataclass
class Checked:
    """The result of a successful check.

    Attributes
    ----------
    operators
        By name, the number of events that the operator's tasks handled.
    runs
        How often tasks ran.
    notes
        By operator, the lines that get time, random numbers or the environment outside of ``ctx``,
        although nothing differed.
    same_cuts
        Operators that were not tested with other batches, because they use values of ``ctx`` that
        differ by step (the time, random numbers), or wait for calls.
    """

    operators: dict[str, int] = field(default_factory=dict)
    runs: int = 0
    notes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    same_cuts: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        events = sum(self.operators.values())
        what = f"{len(self.operators)} operators, {events} events, {self.runs} runs"
        lines = [f"{what}: the same each time"]
        if unfed := [name for name, events in self.operators.items() if not events]:
            lines.append(f"no rows came to {', '.join(unfed)}")
        if self.same_cuts:
            lines.append(f"not given other batches: {', '.join(self.same_cuts)}")
        for name, asked in self.notes.items():
            lines.append(f"{name} asks outside of ctx, and nothing differed:")
            lines += [f"    {line}" for line in asked[:SHOWN]]
        return "\n".join(lines)


def check_deterministic(
    job: Any,
    rows: Any = None,
    *,
    services: Mapping[Any, Any] | None = None,
    answers: str | Path | None = None,
    cuts: bool = True,
    restores: int = RESTORES,
    strict: bool = False,
    duration: str = "1 second",
    seed: int = 0,
    timeout: str | timedelta = TIMEOUT,
    watch: Callable[[str, Finding | None], object] = lambda *_: None,
) -> Checked:
    """Check that each operator of a job does the same when it gets the same input again.

    The job runs once, in one thread, with stand-ins for its services. Then each task runs alone on
    the same input: in another process (with another hash seed, time zone and clock); restored from
    its state in the middle, in a fresh process; and with the same rows in other batches. Rows,
    calls, watermarks, timers and state must be equal. No function may open a connection of its own.

    Parameters
    ----------
    job
        A :class:`clonos.Job`. Its sinks are not written to.
    rows, services, answers
        As for :func:`~clonos.testing.simulate`.
    cuts
        Whether to test with other batches, too.
    restores
        At how many places each task is restored.
    strict
        Also reject functions that get time, random numbers or the environment outside of ``ctx``,
        even if nothing differs.
    duration
        About how long the job runs, in virtual time. Choose it longer than the timers that are to
        fire.
    seed
        The seed of the first run, from which cuts and the order of tasks are drawn.
    timeout
        How long a function may take for a batch of rows. One that takes longer is reported with
        the lines where it is.
    watch
        Called with the name of each operator and its finding.

    Returns
    -------
    Checked
        The result; can be printed.

    Raises
    ------
    NotDeterministic
        Operators differ; ``findings`` names them.
    CannotSimulate
        Rows are missing, or a function is called that has no stand-in.
    OperatorError
        A function fails, or does not return, before anything can be compared.

    Examples
    --------
    >>> import clonos
    >>> from clonos.testing import check_deterministic
    >>> job = clonos.Job("words")
    >>> words = job.source(clonos.sources.from_batches([[("to",), ("be",)]], "word string"))
    >>> longer = words.map(lambda row: (row.word + "!",), "word string", name="longer")
    >>> longer.sink(clonos.sinks.collect(), name="out")
    >>> checked = check_deterministic(job)
    >>> sorted(checked.operators)
    ['batches', 'longer', 'out']
    """
    compiled = with_rows(compile_graph(job.graph, is_fused=False), rows)
    most = max((rows_of(c).rows.num_rows for c in compiled.codes if c.source), default=1)
    options = {
        "seed": seed,
        "batch_rows": max(2, 2 * most // READS),
        "step_ms": parse_duration(duration) / (READS * max(1, len(compiled.codes))),
    }
    record = Record(services or {}, None if answers is None else str(answers), options)
    checked = Checked()
    findings: dict[str, Finding] = {}
    timeout_s = parse_duration(timeout) / 1000
    check = _Check(compiled, record, checked, cuts, restores, strict, timeout_s)
    for code, finding in check.findings():
        name = _name(code)
        if finding is not None:
            findings.setdefault(name, finding)
        if code.task.index == code.parallelism - 1:
            watch(name, findings.get(name))
    if findings:
        raise _failed(compiled.name, tuple(findings.values()))
    return checked


def _failed(job: str, findings: tuple[Finding, ...]) -> NotDeterministic:
    several = "an operator does" if len(findings) == 1 else f"{len(findings)} operators do"
    failed = NotDeterministic(
        "\n".join([f"{several} not do the same twice", *map(str, findings)]), where=job
    )
    failed.findings = findings
    return failed


def _name(code: TaskCode) -> str:
    return code.operators[0][0]


class _Check:
    """One check of a job."""

    def __init__(
        self,
        compiled: CompiledJob,
        record: Record,
        checked: Checked,
        cuts: bool,
        restores: int,
        strict: bool,
        timeout_s: float,
    ) -> None:
        self._compiled, self._record, self._checked = compiled, record, checked
        self._cuts, self._restores, self._strict = cuts, restores, strict
        self._timeout_s = timeout_s

    def findings(self) -> Iterator[tuple[TaskCode, Finding | None]]:
        """The finding of each task; None if it does the same each time."""
        shipped = _shipped(self._compiled)
        with closing(Worker(shipped, HERE, self._timeout_s)) as self._here:
            histories = self._here.record(self._record)
            if isinstance(histories, Broken):
                yield self._first_failed(histories)
                return
            with closing(Worker(shipped, ELSEWHERE, self._timeout_s)) as self._elsewhere:
                for code in self._compiled.codes:
                    history = histories[code.task.id]
                    operators = self._checked.operators
                    operators[_name(code)] = operators.get(_name(code), 0) + len(history.events)
                    yield code, self._of_task(code, history)

    def _first_failed(self, broken: Broken) -> tuple[TaskCode, Finding]:
        """The error of a job that cannot run once, or the finding that it opens a connection."""
        told = broken.complaint
        if broken.kind == "unanswered":
            raise CannotSimulate(
                f"the job calls {told.what}, and nothing stands in for it",
                where=self._compiled.name,
                remedy="say who answers: services={name: function, mapping or 'record'}, or "
                "--service NAME=MODULE:FUNCTION",
            )
        if broken.kind == "stuck":
            place = self._compiled.codes[broken.task].task.name if broken.task >= 0 else ""
            raise OperatorError(
                f"a function hangs: {told.what}",
                where=place or self._compiled.name,
                remedy=STUCK,
                trace=told.trace,
            )
        if broken.kind in ("error", "died"):
            raise OperatorError(
                f"the job fails before anything can be compared: {told.what}",
                where=told.where or self._compiled.name,
                remedy=told.remedy or "correct the function",
                trace=told.trace,
            )
        code = self._compiled.codes[broken.task]
        return code, Finding(_name(code), code.task.name, "refused", told.what)

    def _of_task(self, code: TaskCode, history: History) -> Finding | None:
        task = code.task.id
        first = self._run(self._here, Again(task, history, is_watched=True))
        if isinstance(first, Broken):
            return self._broken(code, first)
        watch = first.watch
        asked = tuple(f"{name}: {line}" for line, name in watch.asked.items())
        perhaps = tuple(f"{name}: {line}" for line, name in watch.perhaps.items())
        for kind, again in self._others(code, history, first):
            if isinstance(again, Broken):
                return self._broken(code, again)
            if again.refused:
                return self._finding(code, "refused", again.refused)
            if kind == "cuts":
                what = difference_of_content(first, again)
            else:
                what = difference(first, again, history)
            if what and kind == "restored":
                what = f"after {again.first} of {len(history.events)} steps: {what}"
            if what:
                return self._finding(code, kind, what, (*asked, *perhaps))
        if asked and self._strict:
            return self._finding(code, "again", "nothing differs, but it might", asked)
        if asked:
            known = self._checked.notes.get(_name(code), ())
            self._checked.notes[_name(code)] = (*known, *(a for a in asked if a not in known))
        return None

    def _others(
        self, code: TaskCode, history: History, first: Run
    ) -> Iterator[tuple[str, Run | Broken]]:
        """All other runs, made lazily."""
        task, events = code.task.id, len(history.events)
        if first.refused:
            yield "again", first
        yield "again", self._run(self._elsewhere, Again(task, history))
        layers = tuple(made.layer for made in first.steps)
        for place in _places(events, self._restores):
            again = Again(task, history, layers=layers[:place])
            yield "restored", self._run(self._elsewhere, again)
        # Early parts of windows make a row per batch and key by design.
        is_early = any(isinstance(operation, EarlyPart) for _, operation in code.operators)
        if self._cuts and events and not is_early:
            if first.watch.knows_step or first.asks_calls:
                if _name(code) not in self._checked.same_cuts:
                    self._checked.same_cuts.append(_name(code))
            else:
                yield "cuts", self._run(self._elsewhere, Again(task, history, recut=task + 1))

    def _run(self, worker: Worker, request: Again) -> Run | Broken:
        self._checked.runs += 1
        return worker.again(request)

    def _broken(self, code: TaskCode, broken: Broken) -> Finding:
        kind = "stuck" if broken.kind == "stuck" else "died"
        told = broken.complaint
        return self._finding(code, kind, "\n".join(filter(None, [told.what, told.trace])))

    @staticmethod
    def _finding(code: TaskCode, kind: str, what: str, asked: tuple[str, ...] = ()) -> Finding:
        return Finding(_name(code), code.task.name, kind, what, asked)


def _places(events: int, restores: int) -> list[int]:
    """After how many steps a task is restored: evenly spaced places."""
    every = range(1, events)
    if len(every) <= restores:
        return list(every)
    return sorted({round(events * (n + 1) / (restores + 1)) for n in range(restores)})


def _shipped(compiled: CompiledJob) -> bytes:
    dumps: Callable[[Any], bytes] = cloudpickle.dumps
    try:
        return dumps(compiled)
    except Exception as error:
        raise DefinitionError(
            f"a function cannot be sent to another process: {in_short(error)}",
            where=compiled.name,
            remedy="open files and connections where they are used, not where the job is defined",
        ) from error
