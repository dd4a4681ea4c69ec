"""What must hold, whatever fails. Each function is one invariant of the protocol."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from clonos.core import events as ev
from clonos.core import messages as msg
from clonos.core import outbounds as outbounds_module
from clonos.core.channels import Outbound
from clonos.core.determinants import Call, Marker, Source, Timer, decode_record
from clonos.core.housekeeper import Deliver, HouseKeeper
from clonos.core.messages import Item, Kind
from clonos.core.plan import HOUSE_KEEPER, Incarnation, Plan
from clonos.core.task import TaskMachine
from clonos.simulator.programs import AnyJob
from clonos.simulator.world import NoWorld, Service

if TYPE_CHECKING:
    from clonos.simulator.recorder import Recorder


LATE_MS = 2
"""A timer's wait is rounded to milliseconds, twice."""


class Violation(AssertionError):
    """An invariant does not hold."""

    def __init__(self, invariant: str, what: str) -> None:
        super().__init__(f"{invariant}: {what}")
        self.invariant = invariant


def require(condition: object, invariant: str, what: str) -> None:
    """Raise a `Violation` unless `condition` holds."""
    if not condition:
        raise Violation(invariant, what)


def log_before_effect(
    machine: TaskMachine, durable: dict[int, int], paths: dict[int, dict[int, int]]
) -> None:
    """Invariant 1 inside the job: a task holds every log entry that its state depends on, if no
    path to it is longer than the sharing depth (or the journal holds it, or a floor has passed)."""
    plan = machine.plan
    for task, dependency in machine.dep.items():
        hops = paths[machine.id].get(task, 0)
        if not 0 < hops <= plan.sharing_depth or not plan.causal_log:
            continue
        held = max(machine.book.length(task), durable.get(task, 0))
        require(
            held >= dependency.position,
            "log before effect",
            f"{machine.spec.name} depends on {dependency.position} entries of task {task}, "
            f"but only {held} are held",
        )


def gated_source(machine: TaskMachine, channel: int, item: Item, durable: dict[int, int]) -> None:
    """Invariant 1 for sources that cannot be read again: content is in the journal before any of
    it leaves."""
    to_world = machine.plan.channels[channel].receiver == HOUSE_KEEPER
    if machine.plan.causal_log and machine.spec.is_gated and not to_world:
        position = item.dep[machine.id].position
        require(
            position <= durable.get(machine.id, 0),
            "log before effect",
            f"{machine.spec.name} sends entry {position}, the journal has {durable}",
        )


def log_leaves(machine: TaskMachine) -> None:
    """Invariant 1 in time: what a live task has written down is on its way after each tick."""
    for channel, output in machine.outputs.items():
        require(
            not output.connected or not output.lags(machine.book, machine.holder.stable),
            "log before effect",
            f"{machine.spec.name} keeps log entries from channel {channel}",
        )


def longest_paths(plan: Plan) -> dict[int, dict[int, int]]:
    """For each task: the hops on the longest way to it from every task before it."""
    paths: dict[int, dict[int, int]] = {task.id: {} for task in plan.tasks}
    for task in plan.tasks:  # numbered from the sources to the sinks
        for channel in task.inputs:
            sender = plan.channels[channel].sender
            for origin, hops in ({sender: 0} | paths[sender]).items():
                paths[task.id][origin] = max(paths[task.id].get(origin, 0), hops + 1)
    return paths


def log_before_output(keeper: HouseKeeper, deliver: Deliver) -> None:
    """Invariant 1 at the edge: all that delivered output depends on is in the journal."""
    if not keeper.plan.causal_log or keeper.generation:
        return
    for task, dependency in deliver.item.dep.items():
        require(
            dependency.position <= keeper.length(task),
            "log before effect",
            f"output {deliver.item.seq} of task {deliver.task} needs {dependency.position} entries "
            f"of task {task}, the journal has {keeper.length(task)}",
        )


def stable_output(world: dict[Any, Any], key: tuple[int, int, int], item: Item, where: str) -> None:
    """Invariant 2: (generation, task, seq) names one content for ever."""
    content = (int(item.kind), item.batch.payload if item.batch else None, item.chain)
    known = world.setdefault(key, content)
    require(known == content, "stable output", f"{where} {key}: first {known}, then {content}")


def gap_free_output(last: dict[tuple[int, int], int], deliver: Deliver) -> None:
    """Invariant 3 at the edge: outputs 1, 2, 3, ... of a sink task, once each."""
    key = (deliver.generation, deliver.task)
    due = last.get(key, deliver.item.seq - 1 if deliver.generation else 0) + 1
    require(
        deliver.item.seq == due,
        "gap-free FIFO",
        f"output {deliver.item.seq} of task {deliver.task} came where {due} was due",
    )
    last[key] = deliver.item.seq


def gap_free_input(machine: TaskMachine, consumed: dict[int, int]) -> None:
    """Invariant 3 inside the job: what a step has taken of a channel continues where the one
    before it stopped, and what is queued follows on that."""
    for channel, end in machine.inputs.items():
        before = consumed.get(channel, 0)
        expected = end.consumed
        require(end.consumed >= before, "gap-free FIFO", f"channel {channel} went back")
        for item in end.queue:
            expected += 1
            require(
                item.seq == expected,
                "gap-free FIFO",
                f"channel {channel}: {item.seq} is queued where {expected} is due",
            )


def fencing(
    task: int, incarnation: Incarnation, fenced: dict[int, Incarnation], receiver: str
) -> None:
    """Invariant 4: once a fence is resolved, no lower incarnation reaches anybody."""
    require(
        incarnation >= fenced.get(task, incarnation),
        "fencing",
        f"{receiver} takes data of task {task}, incarnation {tuple(incarnation)}, "
        f"fenced below {tuple(fenced.get(task, incarnation))}",
    )


def no_early_truncation(output: Outbound, receiver_in: int, task: str) -> None:
    """Invariant 5 on a channel: everything after the receiver's floor is kept."""
    require(
        output.log.first <= receiver_in + 1,
        "no early truncation",
        f"{task} keeps items of channel {output.spec.id} from {output.log.first} on, its "
        f"receiver's floor is at {receiver_in}",
    )


def logs_kept(keeper: HouseKeeper) -> None:
    """Invariant 5 at the house-keeper: every log is kept from its floor on."""
    for task, floor in keeper.positions.items():
        require(
            keeper.book.base(task) <= floor,
            "no early truncation",
            f"the house-keeper has the log of task {task} from {keeper.book.base(task)} on, "
            f"its floor is {floor}",
        )


def backlogs(machine: TaskMachine) -> dict[int, int]:
    """How many items every live receiver of a task is behind."""
    if not machine.is_live:
        return {}
    return {
        channel: output.log.last - output.log.processed
        for channel, output in machine.outputs.items()
        if output.carries_items and not output.relaxed
    }


def timer_in_time(machine: TaskMachine, waited_ms: float, due_in_ms: int) -> None:
    """Invariant 7: a timer comes when it was due as the task began to wait, whatever is done to
    clocks meanwhile."""
    require(
        waited_ms <= due_in_ms + LATE_MS,
        "liveness",
        f"{machine.spec.name} has waited for {waited_ms:.0f} ms for its timer",
    )


def bounded_memory(machine: TaskMachine, before: dict[int, int]) -> None:
    """Invariant 7: no input is taken while a live receiver is further behind than the limit."""
    for channel, behind in before.items():
        if behind <= outbounds_module.BACKLOG_ITEMS:
            continue
        log = machine.outputs[channel].log
        cause = decode_record(machine.book.record(machine.id, machine.position))[0]
        require(
            isinstance(cause, (Timer, Marker)),
            "bounded memory",
            f"{machine.spec.name} goes on, {log.last - log.processed} items ahead of a receiver",
        )


# --- at the end -----------------------------------------------------------------------------------


def rerun(job: AnyJob, histories: dict[int, list[bytes]]) -> dict[int, TaskMachine]:
    """A failure-free run of all automata with the given logs, from the beginning."""
    first = Incarnation(1, 0)
    world = NoWorld(lambda content: job.wrap(job.decode(content)))
    machines: dict[int, TaskMachine] = {}
    items: dict[int, list[Item]] = {}
    remaining = [task.id for task in job.plan.tasks]
    while remaining:
        ready = next(
            t
            for t in remaining
            if all(job.plan.channels[c].sender in machines for c in job.plan.tasks[t].inputs)
        )
        remaining.remove(ready)
        log = (msg.Run(ready, first, 1, tuple(histories[ready])),)
        activate = msg.Activate(ready, first, 0, (), log, (), ())
        machine = TaskMachine(job.plan, activate, job.program(ready), (), world)
        for action in machine.start():
            if isinstance(action, ev.NeedRows):
                start = 0
                for rows in action.cuts:
                    machine.handle(ev.SourceRows(job.sources[ready].read(start, rows)))
                    start += rows
        for channel in machine.inputs:
            sender = job.plan.channels[channel].sender
            machine.handle(ev.Opened(channel, 1, first))
            for item in items[channel]:
                clean = Item(
                    item.seq, item.kind, item.epoch, item.value, item.batch,
                    {sender: item.dep[sender]}, item.chain, watermark=item.watermark,
                )  # fmt: skip
                machine.handle(ev.Received(channel, 1, msg.Data(channel, first, clean, ())))
        while machine.position < machine.replay_to:
            require(
                machine.step() is not None,
                "equivalence",
                f"{machine.spec.name} lacks items in a re-run",
            )
        for channel, output in machine.outputs.items():
            log_ = output.log
            items[channel] = [log_.item(seq) for seq in range(log_.first, log_.last + 1)]
        machines[ready] = machine
    return machines


def equivalence(job: AnyJob, recorder: Recorder) -> None:
    """Invariant 6: what was delivered is what a failure-free run with the same determinants
    delivers."""
    histories = {task.id: recorder.history(task.id) for task in job.plan.tasks}
    machines = rerun(job, histories)
    for task in job.plan.tasks:
        if not task.is_sink:
            continue
        (channel,) = task.outputs
        log = machines[task.id].outputs[channel].log
        expected = [log.item(seq) for seq in range(1, log.last + 1)]
        got = recorder.output(task.id)
        require(
            len(got) == len(expected),
            "equivalence",
            f"{task.name} delivered {len(got)} outputs, a failure-free run {len(expected)}",
        )
        for item, known in zip(expected, got, strict=True):
            content = (int(item.kind), item.batch.payload if item.batch else None, item.chain)
            require(
                content == known,
                "equivalence",
                f"{task.name} delivered {known} as {item.seq}, a failure-free run {content}",
            )


def rows_in(job: AnyJob, recorder: Recorder) -> dict[int, list[int]]:
    """The row ids that entered, by source stage: those that the logs know."""
    result: dict[int, list[int]] = {}
    for task in job.plan.tasks:
        if task.is_source:
            causes = [decode_record(record)[0] for record in recorder.history(task.id)]
            count = sum(cause.rows for cause in causes if isinstance(cause, Source))
            ids = [row[0] for row in job.sources[task.id].read(0, count).payload]
            result.setdefault(job.stage_of[task.id], []).extend(ids)
    return result


def conservation(job: AnyJob, recorder: Recorder, *, at_least: bool) -> None:
    """Rows in are rows out: every row arrives at every sink stage, once for each path, and in the
    store of a stage that writes itself."""
    arrivals = job.arrivals()
    entered = rows_in(job, recorder) if arrivals else {}
    for stage, paths in arrivals.items():
        expected: Counter[int] = Counter()
        for source, count in paths.items():
            for row_id in entered[source]:
                expected[row_id] += count
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


def _row_ids(contents: Iterable[Any]) -> Counter[int]:
    return Counter(row[0] for kind, payload, _ in contents if kind == Kind.BATCH for row in payload)


def calls_once(job: AnyJob, recorder: Recorder, service: Service) -> None:
    """Invariant 6 at the service: every answer used was given for those arguments, and no call
    whose answer is used was made again by a later life."""
    for task in job.plan.tasks:
        calls = [
            (writer, determinant)
            for writer, record in recorder.entries(task.id)
            for determinant in decode_record(record)
            if isinstance(determinant, Call) and determinant.ok
        ]
        asked = {a.answer: a for a in service.journal if a.task == task.id}
        for writer, call in calls:
            answer = recorder.decode_answer(call.answer)
            require(answer in asked, "calls", f"answer {answer} was never given to {task.name}")
            known = asked[answer]
            require(known.incarnation == writer, "calls", f"answer of {known}, used by {writer}")
            later = [a for a in service.by_arguments[known.arguments] if a.incarnation > writer]
            require(not later, "calls", f"{known} was asked again: {later}")


def floors_of_channels(job: AnyJob, layers: dict[int, msg.Layer | None]) -> dict[int, int]:
    """For each channel inside the job: how far its receiver's floor has consumed it."""
    result: dict[int, int] = {}
    for channel in job.plan.channels:
        if channel.receiver == HOUSE_KEEPER:
            continue
        layer = layers.get(channel.receiver)
        result[channel.id] = layer.ins[channel.id][0] if layer else 0
    return result


def written_once(job: AnyJob, recorder: Recorder) -> None:
    """Invariant 2 in the store of a task that writes itself: at the end every batch that it has
    delivered is there, as it was delivered, and nothing else is."""
    for task in job.plan.tasks:
        if task.writes_itself:
            due = [output for output in recorder.outputs(task.id) if output[1][0] == Kind.BATCH]
            got = recorder.written_by(task.id)
            for one, other in zip_longest(due, got):
                require(one == other, "written once", f"{task.name} delivered {one}, wrote {other}")
