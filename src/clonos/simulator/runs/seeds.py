"""One seed, one simulation: everything about it is drawn from one generator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random

from clonos.core.levels import STORE
from clonos.core.machine import InvalidTransition
from clonos.errors import ClonosError, Divergence, ProtocolError
from clonos.simulator.checks.endings import nothing_asked_again
from clonos.simulator.checks.invariants import only_poison_is_blamed
from clonos.simulator.checks.levels import lost_for_a_reason
from clonos.simulator.checks.violations import Violation
from clonos.simulator.jobs.arrow import ArrowJob, random_arrow_job
from clonos.simulator.jobs.calls import with_calls, with_effects
from clonos.simulator.jobs.implied import with_implied
from clonos.simulator.jobs.lethal import lethal_row, with_lethal_call
from clonos.simulator.jobs.levels import keeping_layers
from clonos.simulator.jobs.long_logs import LATE_MS, LogWatch, long_job, rare_floors
from clonos.simulator.jobs.loops import loop_job
from clonos.simulator.jobs.programs import AnyJob, Job, in_cells, random_job
from clonos.simulator.jobs.shapes import chain_job, overlap_job
from clonos.simulator.processes.cluster import STEPS_MAX, Cluster, Options
from clonos.simulator.runs.canaries import KEEP as CANARY_KEEP
from clonos.simulator.runs.canaries import Canaries, canary_job
from clonos.simulator.runs.coverage import Coverage
from clonos.simulator.runs.faults import (
    DISK,
    EDGE,
    HARSH,
    KINDS,
    OVERLAP,
    TAKEOVER,
    Faults,
    faults_of_levels,
)
from clonos.simulator.runs.kinds import AS_THE_SEED_SAYS, Kind
from clonos.simulator.runs.limits import few_steps_watched, limits, merged_early, soon_blamed
from clonos.simulator.runs.moves import Movers
from clonos.simulator.runs.past_reader import Reader, keep_of
from clonos.simulator.runs.quiet import Quiet
from clonos.simulator.runs.rewinds import Rewinds
from clonos.simulator.runs.sizes import LARGE, Size
from clonos.simulator.runs.upgrades import Upgrades
from clonos.simulator.world.virtual import Trials

ROWS_AT_ONCE = 1.75
"""How many rows sources read at once, on average."""
LINES_MS = 600.0
"""An effect may wait for its turn longer than until a successor of its driver checks it."""
BLIND_MS = 200.0
"""Long enough to do harm."""
PATIENCE_MS = 30_000.0
"""Time for the job to finish after all faults have healed."""
LETHAL_PATIENCE_MS = 600_000.0
"""The same, if each proof against a call costs lives: in a loop, the same row asks again."""
LETHAL_EPOCH_MS = 40.0
"""Most such jobs have fewer checkpoints: they wait most of their time, and checkpoints are most of
the work then."""


class InternalError(AssertionError):
    """Clonos has raised an unexpected error."""


CRASHES = {error.__name__: error for error in (ProtocolError, InvalidTransition, InternalError)}
"""Failures of a job that reveal a fault of Clonos which no invariant has found."""


@dataclass
class Result:
    """The outcome of one seed.

    ``invariant``, ``check``: the violated invariant (or the kind of crash), and the function that
    found it; ``digest``: of all events, in order; ``error``: the error that ended the job, if no
    check did.
    """

    seed: int
    verdict: str
    failure: str = ""
    invariant: str = ""
    check: str = ""
    coverage: Coverage = field(default_factory=Counter)
    steps: int = 0
    events: int = 0
    digest: str = ""
    error: Exception | None = None


def random_options(random: Random, job: AnyJob, size: Size = LARGE) -> Options:
    """Draw slots, standbys and durations, from comfortable to hopeless."""
    cells = len(job.plan.cells)
    standbys = random.choice((0, 0, 1, 1, 2))
    sources = [task.id for task in job.plan.tasks if task.is_source]
    homes = {job.plan.cell_of[task] for task in sources}
    return Options(
        slots=cells + random.choice((0, 1, 2, cells // 2 + 1)),
        groups=random.choice((1, 2, 3, 5)),
        standbys=standbys,
        availability=random.random() < 0.1,
        epoch_ms=random.choice(size.epochs_ms),
        latency_ms=random.choice((0.2, 1.0, 3.0, 10.0)),
        store_ms=random.choice((0.5, 4.0, 20.0)),
        commit_ms=random.choice((0.1, 1.0, 5.0)),
        rows_ms=random.choice((0.5, 2.0, 5.0)),
        relaunch_ms=random.choice((10.0, 40.0, 150.0)),
        rotate_bytes=random.choice((3_000, 10_000_000)),
        step_ms=random.choice((0.05, 0.3, 1.0)),
        floors_at_end=random.choice((0, 2, 2)),
        # A slot has at most one DataFrame's partition.
        bound=frozenset(sources)
        if random.random() < 0.2 and len(homes) == len(sources)
        else frozenset(),
        merges=random.choice((0.0, 0.5, 1.0)),
        pressures=random.choice((0.0, 0.0, 0.1)),
        silence_ms=random.choice((10_000.0, 10_000.0, 250.0)),
        retries=random.choice((0.0, 0.0, 0.5)),
        launch_faults=random.choice((0.0, 0.0, 0.1)),
        steps_per_turn=random.choice((1, 1, 1, 4, 32)),
    )


def with_poison(job: Job, random: Random) -> Job:
    """The same job with a row that kills every process that reads it; half of these jobs may leave
    it out."""
    stages = list(job.stages)
    number = random.choice([n for n, s in enumerate(stages) if s.reads or s.is_sink])
    source = random.choice(list(job.sources.values()))
    row_id = random.choice(source.rows)[0]
    leaves_out = row_id % 2 == 0
    behaviour = replace(stages[number].behaviour, poison_id=row_id, leaves_out=leaves_out)
    stages[number] = replace(stages[number], behaviour=behaviour)
    tasks = tuple(
        replace(task, leaves_out=leaves_out and job.stage_of[task.id] == number)
        for task in job.plan.tasks
    )
    return replace(job, stages=tuple(stages), plan=replace(job.plan, tasks=tasks))


def reads(job: Job) -> float:
    """About how often the sources read. If rows came all at once, the job would be idle when most
    faults strike."""
    return max(len(source.rows) for source in job.sources.values()) / ROWS_AT_ONCE


def _toy_job(random: Random, seed: int, size: Size, *, loops: bool) -> tuple[Job, bool]:
    if loops:
        return loop_job(random, Random(f"copies {seed}")), False
    job = random_job(random, size.tasks, size.rows, with_fused=seed % 5 == 2)
    if random.random() < 0.05:
        plan = job.plan
        job = replace(job, plan=replace(plan, causal_log=False))
    is_poisoned = job.plan.causal_log and random.random() < 0.05
    return (with_poison(job, random) if is_poisoned else job), is_poisoned


def _in_cells(job: Job, seed: int) -> Job:
    """Put tasks into cells; drawn separately, so that the rest of a seed stays as it was."""
    has_cells = seed % 4 == 3 or seed % 16 == 5
    return in_cells(job, Random(f"cells {seed}")) if has_cells else job


def _with_calls(job: Job, seed: int, *, always: bool = False) -> Job:
    """Add calls, drawn separately, too; in half of these jobs some calls are effects."""
    if seed % 7 not in (2, 5) and not always:
        return job
    job = with_calls(job, Random(f"calls {seed}"), always=always)
    return with_effects(job, Random(f"effects {seed}")) if seed % 2 and job.plan.causal_log else job


def _with_lethal_call(job: Job, seed: int, *, executors: bool) -> Job:
    """In a fifth of the jobs that have calls one of them kills; drawn separately, too. `executors`:
    some take along their executors."""
    random = Random(f"lethal {seed}")
    is_so = job.plan.causal_log and random.random() < 0.2
    return with_lethal_call(job, random, executors=0.2 * executors) if is_so else job


def _has_markers(seed: int) -> bool:
    return seed % 5 not in (1, 3)


def _in_its_way(job: Job, seed: int) -> Job:
    """In two of five seeds tasks seal without markers, unless the job has no logs."""
    has_markers = _has_markers(seed) or not job.plan.causal_log
    return replace(job, plan=replace(job.plan, has_markers=has_markers))


def _with_promises(job: Job, seed: int, random: Random, kind: Kind) -> Job:
    """Draw cells, calls and, if there are logs, the sharing depth."""
    if kind.gaps:
        job = replace(job, plan=replace(job.plan, causal_log=False, leaves_gaps=True))
    job = _with_calls(_in_cells(job, seed), seed, always=kind.calls)
    job = _with_lethal_call(job, seed, executors=kind.calls)
    if kind.harsh:
        job = replace(job, plan=replace(job.plan, sharing_depth=random.choice((0, 1, 2, 9))))
    return job


def simulate(
    seed: int,
    kind: Kind = AS_THE_SEED_SAYS,
    *,
    trace: bool = False,
    checks_state: bool = True,
) -> Result:
    """Run one seed and judge it; a violated invariant is returned, not raised.

    In two of five seeds tasks seal without markers; in a third, slots run several tasks each; in
    two of seven, rows wait for calls, half of them effects; in a fifth, some tasks are source and
    sink at once; in a third, user code takes time. `checks_state`: run the machines' own
    consistency checks.
    """
    judged = {"trace": trace, "checks_state": checks_state}
    if kind.upgrade or kind.live or kind.rewind:
        begin: Callable[..., Upgrades] = Rewinds if kind.rewind else Upgrades
        return _simulate_upgrade(seed, partial(begin, is_live=kind.live, **judged), trace=trace)
    size = kind.size_of(seed)
    if kind.moves or kind.rivals:
        return _simulate_moves(seed, size, rivals=kind.rivals, **judged)
    if kind.implied:
        return _simulate_implied(seed, size, **judged)
    if kind.canary:
        return _simulate_canary(seed, **judged)
    if kind.levels:
        return _simulate_levels(seed, **judged)
    if kind.edge:
        return _simulate_edge(seed, size, availability=bool(kind.availability), **judged)
    if kind.overlap:
        return _simulate_overlap(seed, size, availability=bool(kind.availability), **judged)
    if kind.logs:
        return _simulate_logs(seed, **judged)
    return _simulate_any(seed, kind, size, **judged)


def _simulate_any(seed: int, kind: Kind, size: Size, **judged: bool) -> Result:
    """A job of any shape, and all faults."""
    harsh, loops = kind.harsh, kind.loops
    is_toy = loops or kind.gaps or kind.calls
    arrow = seed % 50 == 49 and not is_toy if kind.arrow is None else kind.arrow
    random = Random(seed)
    job: AnyJob
    is_poisoned = False
    if arrow:
        job = random_arrow_job(random, size.arrow_rows, has_markers=_has_markers(seed))
    else:
        job, is_poisoned = _toy_job(random, seed, size, loops=loops)
        job = _in_its_way(_with_promises(job, seed, random, kind), seed)
    options = random_options(random, job, size)
    has_order = isinstance(job, ArrowJob) and job.has_order
    is_lethal = any(lethal_row(job, task.id) is not None for task in job.plan.tasks)
    if is_poisoned or is_lethal or harsh or loops or has_order:
        options.availability = False
    if harsh:
        options.latency_ms = 1.0
        options.epoch_ms = random.choice((10.0, size.epochs_ms[-1]))
        options.commit_ms, options.rows_ms = 5.0, 0.5
        options.slots += 3
    if kind.availability is not None and not (is_poisoned or is_lethal or has_order):
        options.availability = kind.availability
    options.long_work, options.wired = _long_work(seed), kind.wire
    if kind.spill:
        options.memory_bytes, options.scratch_faults = 0, (0.0, 0.3)[seed % 2]
    if kind.history and job.plan.causal_log:
        options.keep, options.availability = keep_of(seed), False
    disk = seed % 8 == 5 if kind.disk is None else kind.disk
    if disk and not harsh:  # leave time to see what stays in the store
        options.epoch_ms = min(options.epoch_ms, 25.0)
        options.floors_at_end = size.disk_floors
    if is_lethal and seed % 5:
        options.epoch_ms = max(options.epoch_ms, LETHAL_EPOCH_MS)
    kinds: tuple[tuple[str, int], ...] = (*KINDS, *DISK) if disk else KINDS
    if kind.calls:
        kinds, options.lines_ms = (*kinds, *TAKEOVER), LINES_MS
    with soon_blamed() if is_lethal else nullcontext():
        return simulate_job(
            seed,
            job,
            options,
            random,
            harsh=harsh,
            kinds=HARSH if harsh else kinds,
            size=size,
            patience_ms=LETHAL_PATIENCE_MS if is_lethal else PATIENCE_MS,
            **judged,
        )[0]


def _long_work(seed: int) -> float:
    return 0.3 if seed % 3 == 1 else 0.0


def _simulate_edge(seed: int, size: Size, *, availability: bool, **judged: bool) -> Result:
    random = Random(seed)
    job = _in_its_way(_with_calls(_in_cells(chain_job(random, size.chain_rows), seed), seed), seed)
    options = Options(
        slots=len(job.plan.cells) + 3,
        standbys=0,
        availability=availability,
        epoch_ms=random.choice((5.0, 20.0, size.epochs_ms[-1])),
        commit_ms=random.choice((1.0, 5.0)),
        rows_ms=0.5,
        long_work=_long_work(seed),
    )
    return simulate_job(seed, job, options, random, harsh=True, kinds=EDGE, size=size, **judged)[0]


def _simulate_overlap(seed: int, size: Size, *, availability: bool, **judged: bool) -> Result:
    random = Random(seed)
    job = _in_its_way(_with_calls(overlap_job(random, size.chain_rows), seed), seed)
    options = Options(
        slots=len(job.plan.tasks) + random.choice((0, 0, 1, 3)),
        standbys=random.choice((0, 0, 1)),
        availability=availability,
        epoch_ms=random.choice((10.0, 20.0, size.epochs_ms[-1])),
        latency_ms=random.choice((1.0, 3.0)),
        store_ms=random.choice((0.5, 20.0)),
        commit_ms=random.choice((1.0, 5.0)),
        relaunch_ms=random.choice((5.0, 40.0)),
        rows_ms=0.5,
    )
    result, _ = simulate_job(
        seed, job, options, random, harsh=True, kinds=OVERLAP, size=size, **judged
    )
    return result


def _simulate_implied(seed: int, size: Size, **judged: bool) -> Result:
    """A chain whose links to the house-keeper break, paths that cross, or any job."""
    random = Random(f"implied {seed}")
    which = seed % 3
    if which < 2:
        job = (chain_job, overlap_job)[which](random, size.chain_rows)
    else:
        job, is_poisoned = _toy_job(random, seed, size, loops=False)
        if job.plan.causal_log and not is_poisoned and random.random() < 0.2:
            job = with_poison(job, random)
    job = _in_its_way(_with_calls(_in_cells(job, seed), seed), seed)
    if job.plan.causal_log:
        job = with_implied(job, random)
    options = random_options(random, job, size)
    options.slots, options.availability = options.slots + 2, False
    options.long_work = _long_work(seed)
    if which < 2:
        options.epoch_ms, options.rows_ms = random.choice((5.0, 20.0, size.epochs_ms[-1])), 0.5
        options.latency_ms, options.commit_ms = 1.0, random.choice((1.0, 5.0))
    kinds, is_harsh = (EDGE, OVERLAP, KINDS)[which], which < 2
    poisoned = [task for task in job.plan.tasks if job.poison(task.id) is not None]
    with few_steps_watched() if any(t.is_implied for t in poisoned) else nullcontext():
        return simulate_job(
            seed, job, options, random, harsh=is_harsh, kinds=kinds, size=size, **judged
        )[0]


def _simulate_levels(seed: int, **judged: bool) -> Result:
    random = Random(f"levels {seed}")
    job, is_poisoned = _toy_job(random, seed, LARGE, loops=seed % 6 == 4)
    job = _in_its_way(_with_calls(_in_cells(job, seed), seed), seed)
    options = random_options(random, job)
    options.availability = options.availability and not is_poisoned
    options.long_work, options.wired = _long_work(seed), seed % 10 == 9
    drawn = Random(f"movers {seed}"), Random(f"renewals {seed}")
    moves = drawn[0].random() < 0.5
    rivals = Random(f"rivals {seed}") if seed % 7 == 3 else None
    job = keeping_layers(job, options, seed, random, moves=moves)
    kinds = faults_of_levels(seed, options, job.plan)
    movers: list[Movers] = []

    def prepare(cluster: Cluster) -> None:
        Quiet(cluster)
        if moves:
            movers.append(Movers(cluster, *drawn, deadly=True, rivals=rivals))

    with merged_early(random.choice((2, 4, 32))):
        result, _ = simulate_job(
            seed, job, options, random, prepare, kinds=kinds, size=LARGE, **judged
        )
    for one in movers:
        one.add_to(result.coverage)
    return result


def _simulate_logs(seed: int, **judged: bool) -> Result:
    random = Random(seed)
    job = _in_its_way(_with_calls(_in_cells(long_job(random), seed), seed), seed)
    options = random_options(random, job)
    rare_floors(options, random)
    has_faults = seed % 2 == 0

    def watch(cluster: Cluster) -> None:
        LogWatch(cluster, cluster.heals_at + LATE_MS if has_faults else 0.0)

    kinds = KINDS if has_faults else ()
    result, _ = simulate_job(
        seed, job, options, random, watch, kinds=kinds, scale=10.0, size=LARGE, **judged
    )
    return result


def _simulate_moves(seed: int, size: Size, *, rivals: bool, **judged: bool) -> Result:
    random = Random(f"moves {seed}")
    job, is_poisoned = _toy_job(random, seed, size, loops=seed % 6 == 4)
    job = _in_its_way(_with_calls(_in_cells(job, seed), seed), seed)
    options = random_options(random, job, size)
    options.long_work, options.slots = _long_work(seed), options.slots + 2
    options.availability = options.availability and not is_poisoned
    kinds = KINDS if seed % 2 else ()
    if not kinds:
        options.launch_faults = options.retries = 0.0
        options.silence_ms = 10_000.0
    movers: list[Movers] = []

    def prepare(cluster: Cluster) -> None:
        drawn = (Random(f"movers {seed}"), Random(f"renewals {seed}"))
        overtaken = Random(f"rivals {seed}") if rivals else None
        movers.append(Movers(cluster, *drawn, deadly=bool(kinds), rivals=overtaken))

    result, cluster = simulate_job(
        seed, job, options, random, prepare, kinds=kinds, size=size, **judged
    )
    movers[0].add_to(result.coverage)
    has_failures = movers[0].has_failures or cluster.driver.term > 1
    if result.verdict == "ok" and not has_failures:
        with judging(result, trace=judged["trace"]):
            nothing_asked_again(cluster.service)
        result.coverage["moved", "nothing failed"] = movers[0].moved
    return result


def _simulate_canary(seed: int, *, trace: bool, checks_state: bool) -> Result:
    """A job with a history, and two canaries that follow it."""
    random = Random(f"canary {seed}")
    job = canary_job(random)
    options = random_options(random, job)
    options.keep, options.availability = CANARY_KEEP, False
    options.epoch_ms = min(options.epoch_ms, 20.0)
    found: list[Canaries] = []

    def prepare(cluster: Cluster) -> None:
        found.append(Canaries(cluster, job, Random(f"looks {seed}")))

    harsh = seed % 2 == 0
    options.slots += 3 * harsh
    try:
        result, _ = simulate_job(
            seed, job, options, random, prepare, trace=trace, harsh=harsh, checks_state=checks_state
        )
        if result.verdict == "ok":
            with judging(result, trace=trace):
                found[0].end()
    finally:
        for canaries in found:
            canaries.close()
    result.coverage["looks", "running"] = found[0].looks
    return result


def _simulate_upgrade(seed: int, begin: Callable[..., Upgrades], *, trace: bool) -> Result:
    result, simulation = Result(seed, "ok"), None
    with (
        limits(*((6, 2, 3, 40) if seed % 3 == 0 else (1024, 16, 64))),
        judging(result, trace=trace),
    ):
        simulation = begin(seed, random_options)
        simulation.run()
    if simulation is not None:
        cluster = simulation.cluster
        result.steps, result.events = cluster.recorder.steps, cluster.scheduler.steps
        result.digest = cluster.scheduler.digest.value
        result.coverage = Counter(
            {
                ("switch", "finished"): simulation.switches,
                ("no switch", "finished"): simulation.deaths,
                ("went on", "finished"): simulation.went_on,
                ("forward", "finished"): simulation.forward,
                ("section", "finished"): simulation.sections,
                ("prepared", "finished"): simulation.prepared,
                ("shared out", "finished"): simulation.shared_out,
                ("renamed", "finished"): simulation.renamed,
            }
        )
    return result


@contextmanager
def judging(result: Result, *, trace: bool) -> Iterator[None]:
    """Record in `result` how a simulation fails; with `trace`, also raise."""
    try:
        yield
    except Violation as violation:
        result.verdict, result.invariant = "violation", violation.invariant
        result.failure, result.check = str(violation), violation.check
        if trace:
            raise
    except Divergence as error:  # the protocol itself must detect it
        result.verdict, result.invariant = "violation", "divergence"
        result.failure, result.check = f"divergence: {error}", "simulate_job"
        result.error = error
        if trace:
            raise
    except (ClonosError, AssertionError, LookupError, TypeError, ValueError) as error:
        result.verdict, result.invariant = "violation", type(error).__name__
        result.failure = f"{type(error).__name__}: {error}"
        result.error = error
        if trace:
            raise


def simulate_job(
    seed: int,
    job: AnyJob,
    options: Options,
    random: Random,
    prepare: Callable[[Cluster], None] = lambda _: None,
    /,
    *,
    trace: bool = False,
    harsh: bool = False,
    kinds: tuple[tuple[str, int], ...] = KINDS,
    checks_state: bool = True,
    scale: float = 1.0,
    size: Size = LARGE,
    patience_ms: float = PATIENCE_MS,
) -> tuple[Result, Cluster]:
    """Run a job under faults that are drawn from `random`, and judge it.

    `scale`: how much longer than usual everything takes, including the time of faults. `prepare`:
    called with the cluster before it starts.
    """
    small = random.random() < 0.3
    if any(task.has_effects for task in job.plan.tasks):
        options.availability = False  # as users cannot have both
    if size is not LARGE:
        options.turn_ms = random.choice(size.turns_ms)
        options.blind_ms = BLIND_MS
    result = Result(seed, "ok")
    with limits(*((6, 2, 3, 40) if small else (1024, 16, 64))):
        cluster = Cluster(job, options, random, trace=trace)
        cluster.recorder.checks_state = checks_state
        if options.keep is not None:
            Reader(cluster, Random(f"reader {seed}"))
        faults = Faults(
            cluster,
            budget=size.harsh_strikes if harsh else _strikes(random, size.strikes),
            begins_at=scale * random.choice(size.begins_ms),
            lasts=scale * random.choice(size.lasts_ms),
            eagerness=0.2 if harsh else random.choice((0.0, 0.05, 0.3)),
            kinds=kinds,
        )
        cluster.heals_at = faults.ends_at
        if isinstance(job, Job) and random.random() < 0.7:
            options.rows_ms = max(options.rows_ms, faults.ends_at / reads(job))
        trials = cluster.trials = Trials(job.wrap, Random(seed))
        trials.misfortune = trials.random.choice((0.0, 0.0, 0.3))
        prepare(cluster)
        with judging(result, trace=trace):
            cluster.start()
            steps_max = max(1.0, scale, patience_ms / PATIENCE_MS) * STEPS_MAX
            outcome = cluster.run(faults.ends_at + scale * patience_ms, steps_max)
            if outcome.state == "failed":
                _judge_failure(job, cluster)
                result.verdict = outcome.error
            else:
                cluster.recorder.check_end(cluster.service)
    result.coverage = faults.coverage
    result.steps = cluster.recorder.steps
    result.events = cluster.scheduler.steps
    result.digest = cluster.scheduler.digest.value
    return result, cluster


def _strikes(random: Random, most: int) -> int:
    """The number of faults: in every twentieth seed, none."""
    return random.choice((0, *[random.randint(1, most)] * 19))


def _judge_failure(job: AnyJob, cluster: Cluster) -> None:
    """The only legitimate reasons to give up are a poison record, and state of which all copies are
    gone."""
    outcome = cluster.outcome
    if outcome.error == "Divergence":
        raise Violation("divergence", outcome.message)
    if outcome.error in CRASHES:
        raise CRASHES[outcome.error](outcome.message)
    if outcome.error == "StateLost":
        driver, kept = cluster.driver, cluster.recorder.holders
        chain = [r for r in driver.keeper.layers[outcome.task] if r.level != STORE]
        lost_for_a_reason(outcome.task, chain, driver.coordinator.slots.values(), kept)
        return
    if outcome.error != "PoisonRecord":
        raise Violation("liveness", f"the job gave up: {outcome.error}: {outcome.message}")
    only_poison_is_blamed(job.poison(outcome.task), outcome.message)
