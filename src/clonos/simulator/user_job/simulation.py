"""A user's job in the simulated cluster, seed after seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

import pyarrow as pa

from clonos.blame import complaint_of, in_short, users_traceback
from clonos.columns.durations import parse_duration
from clonos.core import notes
from clonos.core.events import Trial
from clonos.core.program import Program
from clonos.errors import (
    BrokenLine,
    CannotSimulate,
    Divergence,
    EffectUnknown,
    OperatorError,
    SimulationFailed,
    StepTooLarge,
    UnencodableValue,
    WrongType,
)
from clonos.simulator.processes.cluster import Cluster, Options
from clonos.simulator.processes.slot import Slot
from clonos.simulator.runs.faults import DISK, KINDS
from clonos.simulator.runs.seeds import ROWS_AT_ONCE, Result, random_options, simulate_job
from clonos.simulator.user_job.answers import Answers, Recording, StandIns
from clonos.simulator.user_job.blame import divergence
from clonos.simulator.user_job.errors import Unanswered
from clonos.simulator.user_job.job import UserJob
from clonos.simulator.world.virtual import Trials

FAULTS: Final = (*KINDS, *DISK)
"""The kinds of faults, with their weights."""
READS: Final = 60
"""Each source reads at most about this often."""
SOURCES_READ_MS: Final = 200.0
"""How long sources read by default; all durations of the cluster are chosen for it."""

HONEST: Final = (
    OperatorError,
    BrokenLine,
    EffectUnknown,
    UnencodableValue,
    StepTooLarge,
    WrongType,
)
"""Errors for which the job itself is to blame."""
SHOWN: Final = 3
"""How many rows of each kind an error shows."""

Outputs = Mapping[str, pa.Table]
Check = Callable[[Outputs], object]


@dataclass
class Simulation:
    """The outcome of all seeds.

    Attributes
    ----------
    runs
        Number of simulations: whole runs of the job, from the first row to the last.
    steps
        Number of steps that all tasks took.
    deaths
        How often a task lost its process and went on in another.
    faults
        How often each fault struck.
    outputs
        The rows of the last seed, by sink.
    """

    runs: int = 0
    steps: int = 0
    deaths: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    outputs: Outputs = field(default_factory=dict)

    def __str__(self) -> str:
        struck = ", ".join(f"{kind} {times}" for kind, times in self.faults.most_common())
        return (
            f"{self.runs} simulations, {self.steps} steps, {self.deaths} tasks lost their process; "
            f"faults: {struck or 'none'}"
        )


def simulate(
    job: Any,
    rows: Any = None,
    *,
    seeds: int | Iterable[int] = 50,
    services: Mapping[Any, Any] | None = None,
    check: Check | None = None,
    same_rows: bool = False,
    every_step: bool = False,
    faults: Sequence[str] | None = None,
    duration: str = "200 ms",
    answers: str | Path | None = None,
    trace: bool = False,
    watch: Callable[[Simulation], None] = lambda _: None,
) -> Simulation:
    """Run a job in a simulated cluster whose machines fail, once for each seed.

    Driver, slots and tasks are production's own; network, disks, Spark and the clock are simulated,
    in one thread and in virtual time. Every seed is checked: a run without failures and with the
    same order, answers and clock readings delivers the same rows; no call is repeated whose answer
    was used; effects are made once; and functions do the same when they get the same input again.
    The same seed always gives the same run.

    Parameters
    ----------
    job
        A :class:`clonos.Job`. Its sinks are not written to.
    rows
        A dict from source names to rows: tuples or dicts, an Arrow table, or a file (``.jsonl``,
        ``.csv``, ``.parquet``). If only one source needs rows, they can be given without the dict.
        ``from_batches`` and ``files`` are read as they are.
    seeds
        How many seeds to run, or which.
    services
        Stand-ins: a dict from functions, or their names, to a function or mapping that answers
        instead, or to ``"record"``, which calls the real function once for each question.
    check
        Called with the output of each sink, as Arrow tables by name. It raises, or returns False,
        if the output is wrong.
    same_rows
        Require that each sink has the same rows, in any order, as without failures. Only for jobs
        that depend neither on the clock nor on the order in which rows of different tasks arrive,
        and whose stand-ins always give the same answer to a question.
    every_step
        Draw no faults. Instead, each seed has one run for each step of the job, in which the
        process that takes the step is killed right after it.
    faults
        Inject only these, such as ``("kill", "kill executor", "kill driver")``; all by default.
    duration
        How long the sources read, in virtual time. Choose it longer than the timers that are to
        fire.
    answers
        A file in which recorded answers are kept from one run to the next.
    trace
        Print everything that happens.
    watch
        Called after each simulation.

    Returns
    -------
    Simulation
        The outcome; can be printed.

    Raises
    ------
    CannotSimulate
        Rows are missing, or a function is called that has no stand-in.
    SimulationFailed
        A seed has found a fault; the error names the seed.

    Examples
    --------
    >>> import clonos
    >>> from clonos.testing import simulate
    >>> def ask(word):
    ...     raise AssertionError("this would be a request to a service")
    >>> def judge(row, ctx):
    ...     return row.value, ctx.call(ask, row.value)
    >>> job = clonos.Job("words")
    >>> words = job.source(clonos.sources.socket_lines("host", 9999), name="words")
    >>> words.map(judge, "word string, verdict int").sink(clonos.sinks.collect(), name="out")
    >>> verdicts = {"to": 1, "be": 2}
    >>> done = simulate(job, [("to",), ("be",)], services={ask: verdicts}, seeds=3)
    >>> done.outputs["out"].to_pylist()
    [{'word': 'to', 'verdict': 1}, {'word': 'be', 'verdict': 2}]
    """
    compiled = job if hasattr(job, "codes") else job.compile()
    if not compiled.plan.causal_log:
        raise CannotSimulate(
            "only what guarantee='exactly_once' promises can be checked",
            where=compiled.name,
            remedy="simulate it with guarantee='exactly_once'",
        )
    scale = parse_duration(duration) / SOURCES_READ_MS
    stand_ins = StandIns(services or {}, Recording(answers))
    runs = _Runs(UserJob(compiled, rows), stand_ins, _kinds(faults), scale, trace=trace)
    done = Simulation()
    for seed in range(seeds) if isinstance(seeds, int) else seeds:
        expected = runs.without(seed) if same_rows or every_step else {}
        for step in range(1, runs.steps + 1) if every_step else (0,):
            run = Run(seed, step)
            outputs = runs.without(seed, killed_after=step) if step else runs.with_faults(seed)
            if check is not None:
                _check(run, check, outputs)
            if same_rows:
                _compare(run, expected, outputs)
            done.outputs = outputs
            runs.add_to(done)
            watch(done)
    if not done.runs:
        raise CannotSimulate("there is no seed to run", where=compiled.name, remedy="give seeds=50")
    return done


class Run(NamedTuple):
    """One simulation. ``killed_after``: the step after which its process is killed; 0: none."""

    seed: int
    killed_after: int = 0

    def __str__(self) -> str:
        dies = f", killed after step {self.killed_after}" if self.killed_after else ""
        return f"seed {self.seed}{dies}"


class _Survives(Trials):
    """Trials always survive: a record that kills would kill this very process."""

    def attempt(self, program: Program, do: Callable[[Program], None]) -> Trial:
        del program, do
        return Trial.SURVIVED


class _Runs:
    """Runs one job, and judges it.

    Parameters
    ----------
    kinds
        The kinds of faults, with their weights.
    scale
        How much longer everything takes than usual.

    Attributes
    ----------
    steps
        Number of steps in the last run.
    """

    def __init__(
        self,
        job: UserJob,
        stand_ins: StandIns,
        kinds: tuple[tuple[str, int], ...],
        scale: float,
        *,
        trace: bool,
    ) -> None:
        self._job, self._stand_ins, self._kinds = job, stand_ins, kinds
        self._scale, self._trace = scale, trace
        self._result, self._deaths = Result(0, ""), 0
        self._is_judged = False

    @property
    def steps(self) -> int:
        return self._result.steps

    def add_to(self, done: Simulation) -> None:
        """Count the last run."""
        done.runs += 1
        done.steps += self._result.steps
        done.deaths += self._deaths
        for (kind, _), times in self._result.coverage.items():
            done.faults[kind] += times

    def with_faults(self, seed: int) -> Outputs:
        """The output of the sinks under faults."""
        return self._run(Run(seed), self._options(seed), self._kinds)

    def without(self, seed: int, *, killed_after: int = 0) -> Outputs:
        """The output without faults, except that the process that takes this step dies after it."""
        options = self._options(seed)
        options.steps_per_turn, options.retries = 1, 0.0
        options.launch_faults = options.pressures = 0.0
        return self._run(Run(seed, killed_after), options, ())

    def _options(self, seed: int) -> Options:
        job, scale = self._job, self._scale
        options = random_options(Random(f"cluster {seed}"), job)
        options.availability = job.compiled.options.on_orphan == "availability"
        options.epoch_ms *= scale
        options.merges_overlap = False
        options.rows_at_once = max(1, round(job.rows / ROWS_AT_ONCE / READS))
        options.rows_ms = scale * SOURCES_READ_MS * ROWS_AT_ONCE * options.rows_at_once / job.rows
        return options

    def _run(self, run: Run, options: Options, kinds: tuple[tuple[str, int], ...]) -> Outputs:
        job = self._job
        try:
            result, cluster = simulate_job(
                run.seed,
                job,
                options,
                Random(f"faults {run.seed}"),
                partial(self._prepare, run.killed_after),
                kinds=kinds,
                checks_state=False,  # Clonos's own consistency checks take time
                scale=self._scale,
            )
        except Unanswered as unanswered:
            raise CannotSimulate(
                f"the job calls {unanswered}, and nothing stands in for it",
                where=job.compiled.name,
                remedy="say who answers: services={name: function, mapping or 'record'}, or "
                "--service NAME=MODULE:FUNCTION",
            ) from None
        self._result = result
        if result.verdict != "ok":
            raise _failure(run, job, cluster, result)
        if not self._is_judged:  # once: such a fault need not have shown in the run
            self._is_judged = True
            if (found := divergence(job, cluster.recorder)) is not None:
                raise _diverged(run, found)
        return job.delivered(cluster.recorder)

    def _prepare(self, killed_after: int, cluster: Cluster) -> None:
        cluster.is_traced = self._trace
        self._deaths = 0
        cluster.on_note.append(self._note)
        cluster.service = Answers(self._stand_ins)
        cluster.trials = _Survives(self._job.wrap, Random(0))
        if killed_after:
            cluster.on_steps.append(partial(_kill_after, killed_after, cluster))

    def _note(self, note: notes.Note) -> None:
        self._deaths += isinstance(note, notes.Detected)


def _kill_after(step: int, cluster: Cluster, slot: Slot) -> None:
    """Kill the process that has just taken this step, counted over all tasks."""
    if cluster.recorder.steps >= step:
        cluster.on_steps.clear()
        cluster.scheduler.after(0.0, cluster.kill, slot, f"killed after step {step}")


def _kinds(names: Sequence[str] | None) -> tuple[tuple[str, int], ...]:
    """The faults of these names; all if no names are given."""
    known = dict(FAULTS)
    for name in names or ():
        if name not in known:
            kinds = f"there are {', '.join(sorted(known))}"
            raise CannotSimulate(f"no fault is called {name!r}", remedy=kinds)
    return tuple((name, weight) for name, weight in FAULTS if names is None or name in names)


# --- verdicts -------------------------------------------------------------------------------------


def _failure(run: Run, job: UserJob, cluster: Cluster, result: Result) -> SimulationFailed:
    """The error of a failed run, which says whether the job or Clonos is to blame."""
    error = result.error
    if error is not None and (trace := users_traceback(error)):
        told = complaint_of(error)
        return _failed(run, told.error, told.what, where=told.where, trace=trace)
    if (found := divergence(job, cluster.recorder)) is not None:
        return _diverged(run, found)
    if isinstance(error, Divergence):
        return _diverged(run, error)
    if isinstance(error, HONEST):
        kind, advice = type(error).__name__, error.remedy
        return _failed(run, kind, f"{kind}: {error.what}", where=error.where, remedy=advice)
    what = f"{result.failure} (a fault of Clonos itself: please report it, with the job)"
    return _failed(run, result.invariant or result.verdict, what)


def _failed(
    run: Run, verdict: str, what: str, *, where: str = "", remedy: str = "", trace: str = ""
) -> SimulationFailed:
    failed = SimulationFailed(f"{run}: {what}", where=where, trace=trace)
    failed.seed, failed.verdict, failed.advice = run.seed, verdict, remedy
    every_step = ", every_step=True" if run.killed_after else ""
    failed.repeat_with(f"simulate(..., seeds=[{run.seed}]{every_step})")
    return failed


def _diverged(run: Run, error: Divergence) -> SimulationFailed:
    return _failed(run, "divergence", error.what, where=error.where, remedy=error.remedy)


def _check(run: Run, check: Check, outputs: Outputs) -> None:
    try:
        found = check(outputs)
    except Exception as error:
        what = f"the check raised {in_short(error)}"
        raise _failed(run, "check", what, trace=users_traceback(error)) from error
    if found is False:
        raise _failed(run, "check", "the check returned False")


def _rows(outputs: Outputs) -> dict[str, Counter[str]]:
    return {name: Counter(map(str, table.to_pylist())) for name, table in outputs.items()}


def _compare(run: Run, expected: Outputs, outputs: Outputs) -> None:
    for (name, wanted), found in zip(_rows(expected).items(), _rows(outputs).values(), strict=True):
        missing, added = list((wanted - found).elements()), list((found - wanted).elements())
        if missing or added:
            what = (
                f"sink {name!r} does not have the rows of a run without failures: "
                f"{len(missing)} are missing "
                f"{missing[:SHOWN]}, {len(added)} are new {added[:SHOWN]}"
            )
            raise _failed(run, "rows", what)
