"""Invariants of a finished job: all delivered output is compared with all logs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from graphlib import TopologicalSorter
from itertools import pairwise, zip_longest
from typing import TYPE_CHECKING, Any

from clonos.core import events as ev
from clonos.core import messages as msg
from clonos.core.determinants import (
    Clock,
    Source,
    SourceCut,
    Timer,
    decode_record,
)
from clonos.core.messages import Item, Kind
from clonos.core.plan import Incarnation, Plan
from clonos.core.sealed import Layer
from clonos.core.task import TaskMachine
from clonos.errors import Divergence
from clonos.simulator.checks.invariants import same_content
from clonos.simulator.checks.violations import Violation, require
from clonos.simulator.jobs.loops import deliveries
from clonos.simulator.jobs.programs import AnyJob, Job
from clonos.simulator.world.virtual import NoWorld, Poisoned

if TYPE_CHECKING:
    from clonos.simulator.checks.recorder import Recorder
    from clonos.simulator.world.service import Service


def rerun(
    job: AnyJob, histories: dict[int, list[bytes]], first: Mapping[int, Layer] | None = None
) -> dict[int, TaskMachine]:
    """Run all automata with the given logs and no failures, from the beginning or from layers."""
    machines: dict[int, TaskMachine] = {}
    items: dict[int, list[Item]] = {}
    for task in senders_first(job.plan):
        if task in machines:
            continue
        loop = sorted(job.plan.loops.get(task, {task}))
        machines.update(rerun_tasks(job, loop, histories, items, first))
        for done in loop:
            items.update(items_of(machines[done]))
    return machines


def senders_first(plan: Plan) -> list[int]:
    """All tasks, each after its senders (those in its own loop excepted)."""
    first = {task.id: min(plan.loops.get(task.id, {task.id})) for task in plan.tasks}
    before: dict[int, set[int]] = {loop: set() for loop in first.values()}
    for task in plan.tasks:
        before[first[task.id]] |= {first[plan.channels[c].sender] for c in task.inputs}
    order = TopologicalSorter({loop: of - {loop} for loop, of in before.items()}).static_order()
    return [task for loop in order for task, head in first.items() if head == loop]


def items_of(machine: TaskMachine) -> dict[int, list[Item]]:
    """All items that a task has sent, by channel."""
    logs = {channel: output.log for channel, output in machine.outputs.items()}
    return {c: [log.item(seq) for seq in range(log.first, log.last + 1)] for c, log in logs.items()}


def rerun_task(
    job: AnyJob,
    task: int,
    history: list[bytes],
    items: Mapping[int, Sequence[Item]],
) -> TaskMachine:
    """Run one task through its whole log, with the items of its input channels."""
    return rerun_tasks(job, [task], {task: history}, items)[task]


def rerun_tasks(
    job: AnyJob,
    tasks: Sequence[int],
    histories: Mapping[int, list[bytes]],
    items: Mapping[int, Sequence[Item]],
    first: Mapping[int, Layer] | None = None,
) -> dict[int, TaskMachine]:
    """The same for all tasks of a loop: each runs as far as it can, until all are done."""
    floors = first or {}
    machines = {task: _restarted(job, task, histories[task], floors.get(task)) for task in tasks}
    given: Counter[int] = Counter()

    def give(machine: TaskMachine, channel: int) -> None:
        sender, first = job.plan.channels[channel].sender, Incarnation(1, 0)
        made = items_of(machines[sender])[channel] if sender in machines else items[channel]
        for item in made[given[channel] :]:
            data = msg.Data(channel, first, item.of(job.plan.makers[channel]), ())
            machine.handle(ev.Received(channel, 1, data))
        given[channel] = len(made)

    while behind := [m for m in machines.values() if m.position < m.replay_to]:
        before = sum(machine.position for machine in behind)
        for machine in behind:
            for channel in machine.inputs:
                give(machine, channel)
            while machine.position < machine.replay_to and machine.step() is not None:
                pass
        require(
            sum(machine.position for machine in behind) > before,
            "equivalence",
            f"{behind[0].spec.name} lacks items in a re-run",
        )
    return machines


def _restarted(job: AnyJob, task: int, history: list[bytes], floor: Layer | None) -> TaskMachine:
    """The task before its first step."""
    first = Incarnation(1, 0)
    world = NoWorld(lambda content: job.wrap(job.decode(content)), job.wrap)
    begin = floor.position if floor is not None else 0
    log = (msg.Run(task, first, begin + 1, tuple(history), begin),)
    activate = msg.Activate(task, first, (), log, (), ())
    layers = () if floor is None else (floor,)
    machine = TaskMachine(job.plan, activate, job.program(task), layers, world)
    for action in machine.start():
        if isinstance(action, ev.NeedRows):
            start = floor.source_rows if floor is not None else 0
            for rows, _ in action.cuts:
                machine.handle(ev.SourceRows(job.sources[task].read(start, rows)))
                start += rows
    for channel in machine.inputs:
        machine.handle(ev.Opened(channel, 1, first))
    return machine


def equivalence(job: AnyJob, recorder: Recorder) -> None:
    """Invariant 6: what was delivered is what a failure-free run with the same determinants
    delivers."""
    histories = {task.id: recorder.history(task.id) for task in job.plan.tasks}
    try:
        machines = rerun(job, histories, recorder.first)
    except (Divergence, Poisoned) as error:
        raise Violation("equivalence", f"a failure-free run: {error!r}") from error
    for task in job.plan.tasks:
        if not task.is_sink:
            continue
        (channel,) = task.outputs
        log = machines[task.id].outputs[channel].log
        expected = [log.item(seq) for seq in range(log.first, log.last + 1)]
        got = recorder.output(task.id)
        require(
            len(got) == len(expected),
            "equivalence",
            f"{task.name} delivered {len(got)} outputs, a failure-free run {len(expected)}",
        )
        for item, known in zip(expected, got, strict=True):
            content = (int(item.kind), item.batch.payload if item.batch else None, item.chain)
            require(
                same_content(content, known),
                "equivalence",
                f"{task.name} delivered {known} as {item.seq}, a failure-free run {content}",
            )


def rows_in(job: AnyJob, recorder: Recorder) -> dict[int, list[int]]:
    """The ids of the rows that entered, by source task, as the logs record them."""
    result: dict[int, list[int]] = {}
    for task in job.plan.tasks:
        if task.is_source:
            causes = [decode_record(record)[0] for record in recorder.history(task.id)]
            count = sum(cause.rows for cause in causes if isinstance(cause, Source | SourceCut))
            result[task.id] = [row[0] for row in job.sources[task.id].read(0, count).payload]
    return result


def _expected(job: AnyJob, recorder: Recorder) -> dict[int, Counter[int]]:
    """How often each row must arrive, for each sink stage where that can be computed."""
    if job.plan.loops:
        return deliveries(job, rows_in(job, recorder)) if isinstance(job, Job) else {}
    arrivals = job.arrivals()
    result = {stage: Counter[int]() for stage in arrivals}
    entered = rows_in(job, recorder) if arrivals else {}
    leaving = [task.id for task in job.plan.tasks if task.leaves_out]
    poison = {row_id for task in leaving if (row_id := job.poison(task)) is not None}
    without = job.arrivals({job.stage_of[task] for task in leaving}) if poison else {}
    for source, ids in entered.items():
        for row_id in ids:
            for stage, paths in (without if row_id in poison else arrivals).items():
                result[stage][row_id] += paths.get(job.stage_of[source], 0)
    return result


def conservation(job: AnyJob, recorder: Recorder, *, at_least: bool) -> None:
    """Rows in are rows out: every row arrives at every sink stage once for each path, and in the
    stage's store if its tasks write themselves."""
    for stage, expected in _expected(job, recorder).items():
        tasks = [job.plan.tasks[task] for task, number in job.stage_of.items() if number == stage]
        got = _row_ids(content for task in tasks for _, content in recorder.outputs(task.id))
        missing = expected - got
        require(not missing, "conservation", f"missing at stage {stage}: {missing}")
        if not at_least:
            extra = got - expected
            require(not extra, "conservation", f"too many at stage {stage}: {extra}")
        if tasks[0].writes_itself:
            got = _row_ids(content for task in tasks for _, content in recorder.written_by(task.id))
            require(not expected - got, "conservation", f"not written: {expected - got}")


def at_most_once(job: AnyJob, recorder: Recorder) -> None:
    """Without logs and replay a row may be lost, but only with a process. It never arrives more
    often than it should, neither at a sink nor in the store of a stage that writes itself."""
    for stage, paths in job.arrivals().items():
        due = Counter[int]()
        for source, rows in job.sources.items():
            for row in rows.read(0, 1 << 30).payload:
                due[row[0]] += paths.get(job.stage_of[source], 0)
        tasks = [job.plan.tasks[task] for task, number in job.stage_of.items() if number == stage]
        stores = [[c for task in tasks for _, c in recorder.outputs(task.id)]]
        if tasks[0].writes_itself:
            stores.append([c for task in tasks for _, c in recorder.written_by(task.id)])
        for contents in stores:
            extra = _row_ids(contents) - due
            require(not extra, "at most once", f"too many at stage {stage}: {extra}")
            lost = due - _row_ids(contents)
            is_lawful = recorder.has_failures or not lost
            require(is_lawful, "at most once", f"lost without a failure: {lost}")


def _row_ids(contents: Iterable[Any]) -> Counter[int]:
    return Counter(row[0] for kind, payload, _ in contents if kind == Kind.BATCH for row in payload)


def written_once(job: AnyJob, recorder: Recorder) -> None:
    """Invariant 2 in the store of a task that writes itself: in the end the store has every batch
    that the task delivered, unchanged, and nothing else."""
    for task in job.plan.tasks:
        if task.writes_itself:
            due = [output for output in recorder.outputs(task.id) if output[1][0] == Kind.BATCH]
            got = recorder.written_by(task.id)
            for one, other in zip_longest(due, got, fillvalue=((), (-1, None, 0))):
                is_same = one[0] == other[0] and same_content(one[1], other[1])
                require(is_same, "written once", f"{task.name} delivered {one}, wrote {other}")


def clock_goes_on(job: AnyJob, recorder: Recorder) -> None:
    """The time that a task sees never goes back, even on a machine with another clock."""
    for task in job.plan.tasks:
        times = [
            determinant.now_ms
            for record in recorder.history(task.id)
            for determinant in decode_record(record)
            if isinstance(determinant, (Clock, Timer))
        ]
        for one, other in pairwise(times):
            require(one <= other, "monotonic clock", f"{task.name} sees {one}, then {other}")


def sinks_have_ended(job: AnyJob, recorder: Recorder) -> None:
    """A job is done when every sink has delivered its END."""
    for task in job.plan.tasks:
        if task.is_sink:
            kinds = [kind for kind, _, _ in recorder.output(task.id)]
            if task.id in recorder.first and recorder.first[task.id].end_is_out:
                kinds = [Kind.END]  # it ended under an earlier plan
            require(kinds and kinds[-1] == Kind.END, "liveness", f"{task.name} has no END")


def nothing_asked_again(service: Service) -> None:
    """If nothing failed, each call was made by one life, even if tasks were moved."""
    for arguments, asked in service.by_arguments.items():
        lives = {(call.task, call.incarnation) for call in asked}
        require(len(lives) == 1, "planned moves", f"{arguments} was asked by lives {sorted(lives)}")
