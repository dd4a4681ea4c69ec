"""Invariants that hold at every moment, whatever fails. Each function checks one.

Those of a finished job are in :mod:`clonos.simulator.checks.endings`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from clonos.core import messages as msg
from clonos.core import outbounds as outbounds_module
from clonos.core.channels import Outbound
from clonos.core.cuts import valid_length
from clonos.core.determinants import (
    Determinant,
    Marker,
    Order,
    Outcomes,
    Source,
    SourceCut,
    Timer,
    decode_record,
)
from clonos.core.fences import Cut, Trust, depends_on_lost
from clonos.core.housekeeper import Deliver, HouseKeeper
from clonos.core.levels import STORE, LayerRef
from clonos.core.life import Phase
from clonos.core.log import LogBook
from clonos.core.messages import Item, Kind
from clonos.core.plan import HOUSE_KEEPER, Cell, Incarnation, Plan
from clonos.core.task import TaskMachine
from clonos.errors import UnreadableLayer
from clonos.simulator.checks.closed import ClosedKeeper
from clonos.simulator.checks.violations import Violation, require
from clonos.storage.layers import LayerStore, get_layers

LATE_MS = 2
"""A timer's wait is rounded to milliseconds, twice."""


def log_before_effect(
    machine: TaskMachine, durable: dict[int, int], shared: dict[int, set[int]]
) -> None:
    """Invariant 1 inside the job: a task holds every entry that its state depends on of the logs
    that are `shared` with it (or the journal holds it, or a floor has passed)."""
    for task, dependency in machine.dep.items():
        if task not in shared[machine.id] or not machine.plan.causal_log:
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


def log_before_effects(machine: TaskMachine, asked_at: int, durable: dict[int, int]) -> None:
    """Invariant 1 for effects: what led to them is in the journal before they are made."""
    require(
        asked_at <= durable.get(machine.id, 0),
        "log before effect",
        f"{machine.spec.name} makes what step {asked_at} has asked, the journal has {durable}",
    )


def spilled_is_kept(file: object, files: Collection[object]) -> None:
    """Invariant 8 for items on a local disk: a file exists as long as it may be asked for."""
    require(file in files, "no early truncation", f"file {file} was dropped")


def log_leaves(machine: TaskMachine) -> None:
    """Invariant 1 in time: after each tick, all log entries of a live task are on their way."""
    for channel, output in machine.outputs.items():
        require(
            not output.connected or not output.lags(machine.book, machine.holder.stable),
            "log before effect",
            f"{machine.spec.name} keeps log entries from channel {channel}",
        )


def shared_logs(plan: Plan) -> dict[int, set[int]]:
    """For each task: whose logs it must hold, by the sharing depth.

    A task must hold the log of another if fewer cells than the depth lie on each path between the
    two. The log's own cell does not count: its other tasks die with the writer.
    """
    if plan.loops:
        return _shared_in_loops(plan)
    passed: dict[int, dict[int, int]] = {task.id: {task.id: 0} for task in plan.tasks}
    shared: dict[int, set[int]] = {}
    for task in plan.tasks:  # numbered from the sources to the sinks
        before: dict[int, int] = {}
        for sender in (plan.channels[channel].sender for channel in task.inputs):
            for origin, cells in passed[sender].items():
                before[origin] = max(before.get(origin, 0), cells)
                homes = plan.cell_of[origin], plan.cell_of[sender]
                here = cells + (plan.cell_of[task.id] not in homes)
                passed[task.id][origin] = max(passed[task.id].get(origin, 0), here)
        near = {origin for origin, cells in before.items() if cells < plan.sharing_depth}
        shared[task.id] = {origin for origin in near if not plan.tasks[origin].is_implied}
    return shared


def _shared_in_loops(plan: Plan) -> dict[int, set[int]]:
    """The same by walking every path without repetition: a task met again holds the log already."""
    most: dict[int, dict[int, int]] = {task.id: {} for task in plan.tasks}

    def walk(origin: int, way: tuple[int, ...], cells: int) -> None:
        sender = way[-1]
        for channel in plan.tasks[sender].outputs:
            task = plan.channels[channel].receiver
            if task == HOUSE_KEEPER or task in way:
                continue
            most[task][origin] = max(most[task].get(origin, 0), cells)
            homes = plan.cell_of[origin], plan.cell_of[sender]
            walk(origin, (*way, task), cells + (plan.cell_of[task] not in homes))

    for task in plan.tasks:
        walk(task.id, (task.id,), 0)
    return {
        task: {origin for origin, cells in of_task.items() if cells < plan.sharing_depth}
        for task, of_task in most.items()
    }


def log_before_output(keeper: ClosedKeeper, deliver: Deliver) -> None:
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
    if not same_content(known, content):
        raise Violation("stable output", f"{where} {key}: first {known}, then {content}")


def same_rows(one: Any, other: Any) -> bool:
    """Whether two payloads are equal; in Arrow, unlike here, NaN is not equal to itself."""
    if one == other:
        return True
    are_arrow = hasattr(one, "to_pylist") and hasattr(other, "to_pylist")
    return are_arrow and str(one.to_pylist()) == str(other.to_pylist())


def same_content(one: tuple[int, Any, int], other: tuple[int, Any, int]) -> bool:
    """Whether two outputs are equal: kind, payload and digest."""
    return (one[0], one[2]) == (other[0], other[2]) and same_rows(one[1], other[1])


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


def gap_free_input(machine: TaskMachine, before: Mapping[int, int], cause: Determinant) -> None:
    """Invariant 3 inside the job: a step takes a channel's items from where the step `before` it
    stopped, and the queued items follow without a gap."""
    for channel, end in machine.inputs.items():
        taken = cause.taken if isinstance(cause, Order) and cause.channel == channel else 0
        expected = before[channel] + taken
        if end.consumed != expected:
            raise Violation(
                "gap-free FIFO",
                f"{machine.spec.name} is at item {end.consumed} of channel {channel} after a step "
                f"that took {taken}, and was at {before[channel]}",
            )
        for item in end.queue:
            expected += 1
            if item.seq != expected:
                raise Violation(
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


def items_kept(output: Outbound, floor: int, task: str) -> None:
    """Invariant 5 on a channel: the sender keeps every item after the receiver's floor."""
    require(
        output.log.first <= floor + 1,
        "no early truncation",
        f"{task} keeps items of channel {output.spec.id} from {output.log.first} on, its "
        f"receiver's floor is at {floor}",
    )


def entries_kept(
    machine: TaskMachine, floors: Mapping[int, int], stable: Mapping[int, int]
) -> None:
    """Invariant 5 in a task: it keeps every log that it passes on, from that log's floor or from
    the first entry that the house-keeper is not known to hold."""
    for task in machine.plan.distances[machine.id]:
        base = machine.book.base(task)
        known = max(floors.get(task, 0), stable.get(task, 0))
        require(
            base <= known,
            "no early truncation",
            f"{machine.spec.name} has the log of task {task} from {base} on, its floor is "
            f"{floors.get(task, 0)} and {stable.get(task, 0)} entries are stable",
        )


def logs_kept(keeper: ClosedKeeper) -> None:
    """Invariant 5 at the house-keeper: every log is kept from its floor on."""
    for task, floor in keeper.positions.items():
        require(
            keeper.base(task) <= floor,
            "no early truncation",
            f"the house-keeper has the log of task {task} from {keeper.base(task)} on, "
            f"its floor is {floor}",
        )


def backlogs(machine: TaskMachine) -> dict[int, int]:
    """How many items each live receiver of a task is behind."""
    if not machine.is_live:
        return {}
    return {
        channel: output.log.last - output.log.processed
        for channel, output in machine.outputs.items()
        if output.carries_items and not output.relaxed and not output.spec.is_feedback
    }


def timer_in_time(machine: TaskMachine, waited_ms: float, due_in_ms: int) -> None:
    """Invariant 7: a timer fires after the wait that was computed when the task began to wait,
    whatever happens to clocks meanwhile."""
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
            isinstance(cause, (Timer, Marker, Outcomes)),
            "bounded memory",
            f"{machine.spec.name} goes on, {log.last - log.processed} items ahead of a receiver",
        )


def loop_is_full(machine: TaskMachine) -> bool:
    """Whether so many items circulate at a live task that nothing should come in from outside,
    and no marker is on its way."""
    if not machine.is_live or machine.rounds is None or machine.injected > machine.epoch:
        return False
    sent = (o.log for o in machine.outputs.values() if o.spec.is_feedback)
    limit = outbounds_module.BACKLOG_ITEMS
    came = (len(i.queue) for i in machine.inputs.values() if i.spec.is_feedback)
    return any(log.last - log.processed > limit for log in sent) or any(n > limit for n in came)


def bounded_loop(machine: TaskMachine, cause: Determinant, *, was_full: bool) -> None:
    """Invariant 7: nothing enters a loop while more items circulate than the limit allows."""
    require(
        not was_full or not isinstance(cause, Order) or machine.plan.is_within_loop(cause.channel),
        "bounded memory",
        f"{machine.spec.name} takes more into its loop",
    )


def is_full(machine: TaskMachine) -> bool:
    """Whether a live task has as many calls open as it may, and awaits no marker."""
    awaits_marker = machine.injected > machine.epoch
    return machine.is_live and machine.program.is_full and not awaits_marker


def bounded_calls(machine: TaskMachine, cause: Determinant, *, was_full: bool) -> None:
    """Invariant 7: no input is taken while the limit of open calls is reached."""
    require(
        not was_full or not isinstance(cause, (Order, Source, SourceCut)),
        "bounded memory",
        f"{machine.spec.name} takes input with {len(machine.calls)} calls open",
    )


# --- invariant 1, from what has really happened ---------------------------------------------------


def dependencies_known(machine: TaskMachine, rests_on: Mapping[int, int]) -> None:
    """Invariant 1: a task knows all that it depends on, over any number of hops."""
    for task, position in rests_on.items():
        known = machine.dep.get(task)
        if known is None or known.position < position:
            raise Violation(
                "log before effect",
                f"{machine.spec.name} depends on entry {position} of task {task} and knows of "
                f"{known}",
            )


def longest_survives(
    plan: Plan, task: int, length: int, held: int, next_record: bytes | None, cuts: Cuts
) -> None:
    """Invariant 1 in a recovery: every log entry that any holder `held` survives, except entries
    that took items that no longer exist."""
    if length >= held:
        return
    cause = decode_record(next_record)[0] if next_record is not None else None
    is_void = isinstance(cause, Order) and any(
        cause.incarnation < incarnation and cause.position > end
        for incarnation, end in cuts.get(plan.makers[cause.channel], ())
    )
    require(
        is_void,
        "log before effect",
        f"the log of task {task} was cut to {length}, but a holder had {held} entries",
    )


Cuts = dict[int, list[Cut]]
"""Per task: below which incarnation, and where, its log was cut."""


def no_void_entries(plan: Plan, task: int, runs: Iterable[msg.Run], cuts: Cuts) -> None:
    """The entries of a log to be replayed took only items that exist."""
    runs = tuple(runs)
    end = runs[-1].end if runs else 0
    valid = valid_length(plan, runs, end, cuts)
    require(valid >= end, "no orphans", f"entry {valid + 1} of task {task} took a lost item")


def no_orphan(machine: TaskMachine, cut: msg.Resolve) -> None:
    """A task that survives a cut depends on no lost entry, neither now nor through the entries that
    it holds or will replay."""
    task, incarnation, length = cut.task, cut.incarnation, cut.length
    kept = [("its state", machine.dep)]
    kept += [("an item", item.dep) for i in machine.inputs.values() for item in i.queue]
    for what, dep in kept:
        require(
            not depends_on_lost(task, incarnation, length, dep),
            "no orphans",
            f"{machine.spec.name}: {what} depends on {dep.get(task)} of task {task}, cut at "
            f"{length} by {tuple(incarnation)}",
        )
    if machine.phase is Phase.REPLAYING:
        future = machine.book.runs(machine.id, machine.position + 1)
        no_void_entries(machine.plan, machine.id, future, {task: [(incarnation, length)]})


def still_no_orphan(machine: TaskMachine) -> None:
    """A step that took an item which was lost while the step was under way does not end."""
    require(
        machine.fences.judge(machine.dep) is not Trust.ORPHAN,
        "no orphans",
        f"{machine.spec.name} goes on after step {machine.position}, which took what was lost",
    )


def over_is_over(machine: TaskMachine) -> None:
    """Invariant 4 in a task: once it is fenced itself, it ends no step."""
    require(
        machine.phase is not Phase.FENCED,
        "fencing",
        f"{machine.spec.name} ends step {machine.position} after a fence of its own",
    )


def cut_once(task: int, again: Mapping[int, Collection[int]]) -> None:
    """A resolved log is cut again only for a failure that came later.

    `again`: the tasks that are cut again now that `task` is resolved; for each, the tasks that had
    failed and were unresolved when it was resolved.
    """
    for other, due in again.items():
        require(
            task not in due,
            "stable log",
            f"the log of task {other} was resolved before that of task {task}, and is cut again",
        )


def nothing_lost_held(book: LogBook, task: int, cuts: Iterable[Cut], holder: str) -> None:
    """A holder that has heard of a cut holds no entry that it removed, even if the entry came
    late, or behind entries of a newer life."""
    for incarnation, length in cuts:
        for at in (length + 1, max(book.length(task), length + 1)):
            writer = book.writer(task, at)
            if writer is not None and writer < incarnation:
                what = f"entry {at} of task {task}, which is lost"
                raise Violation("no orphans", f"{holder} holds {what}")


def promise_kept(machine: TaskMachine, promised: Mapping[int, int]) -> None:
    """Invariant 4 in a holder: after it has reported how much of a fenced log it holds, it takes no
    more of that log until it hears how much survives."""
    for task, length in promised.items():
        require(
            machine.book.length(task) <= length,
            "fencing",
            f"{machine.spec.name} has said it holds {length} entries of task {task}, and took more",
        )


def flow_told(machine: TaskMachine) -> None:
    """Invariant 7: every sender knows whether its receiver replays or aligns."""
    is_replaying = machine.phase is Phase.REPLAYING
    for channel, end in machine.inputs.items():
        is_told = end.told_relaxed == (is_replaying or end.aligned)
        if end.greeted and end.reset_at is None and not is_told:
            raise Violation(
                "open flow",
                f"{machine.spec.name} has told the sender of channel {channel} that it is "
                f"{'' if end.told_relaxed else 'not '}relaxed",
            )


# --- floors and acknowledged records --------------------------------------------------------------


def stable_stays(cuts: Iterable[tuple[int, Incarnation, int]], stable: Mapping[int, int]) -> None:
    """Entries that the house-keeper has called stable are never cut."""
    for task, _, length in cuts:
        told = stable.get(task, 0)
        require(
            length >= told,
            "stable log",
            f"{told} entries of task {task} were called stable; now it is cut to {length}",
        )


def somebody_wrote(
    machine: TaskMachine, log: Iterable[msg.Run], known: Sequence[tuple[Incarnation, bytes]]
) -> None:
    """Every entry of a log to be replayed was written by an earlier life, and names that life."""
    for run in log:
        for position, record in enumerate(run.records, run.start):
            require(
                position <= len(known) and known[position - 1] == (run.incarnation, record),
                "stable log",
                f"{machine.spec.name} is to replay an entry {position} that nobody wrote",
            )


def journal_stands(found: ClosedKeeper, may_stand: Sequence[ClosedKeeper]) -> None:
    """The journal restores the last acknowledged group, or one that was being written after it."""
    if may_stand and not any(found.says_what(known) for known in may_stand):
        there = [str(known) for known in may_stand]
        raise Violation("durable", f"the journal says {found}; what may be there is {there}")


def nothing_forgotten(keeper: HouseKeeper, outputs: Mapping[Any, Any]) -> None:
    """A new life of the driver knows every delivered output by its number and digest."""
    for (generation, task, seq), (_, _, chain) in outputs.items():
        if generation != keeper.generation:
            continue
        end = keeper.inputs[keeper.plan.tasks[task].outputs[-1]]
        require(end.consumed >= seq, "durable", f"output {seq} of task {task} is forgotten")
        require(
            end.consumed != seq or end.consumed_chain == chain,
            "durable",
            f"output {seq} of task {task} has another digest",
        )


def restorable(error: Exception) -> None:
    """Layers that a task is told to restore can be read."""
    require(not isinstance(error, UnreadableLayer), "durable", f"a layer to restore: {error}")


def layers_are_there(store: LayerStore, layers: Mapping[int, tuple[LayerRef, ...]]) -> None:
    """Every layer that the journal refers to can be read."""
    for refs in layers.values():
        try:
            get_layers(store, [ref for ref in refs if ref.level == STORE])
        except UnreadableLayer as error:
            raise Violation("durable", f"the journal refers to a layer: {error}") from error


def output_is_kept(
    outputs: Mapping[Any, Any], delivered: Iterable[Deliver], stored: Mapping[Any, Any]
) -> None:
    """A reader finds every delivered output: in the journal or in the files of delivered output."""
    found = dict(stored)
    for output in delivered:
        if output.item.batch is not None:
            found[output.generation, output.task, output.item.seq] = output.item.batch.payload
    for name, (kind, payload, _) in outputs.items():
        if kind == Kind.BATCH and payload is not None:
            require(same_rows(found.get(name), payload), "durable", f"output {name} is not kept")


def one_driver(term: int, speaker: int, *, is_found: bool) -> None:
    """Once a driver has released output, no earlier driver does, except output that the later one
    found in the journal: the earlier one may have made it durable and not yet released it."""
    require(
        term >= speaker or is_found,
        "one driver",
        f"term {term} releases output, although term {speaker} already does",
    )


def unused(paths: Iterable[str], used: set[str]) -> None:
    """No file is deleted that the journal refers to."""
    for path in paths:
        require(path not in used, "durable", f"{path} is deleted, and the journal refers to it")


def vouches_for_deliveries(
    name: str, last: tuple[int, int, int], begin: int, outputs: Mapping[Any, Any]
) -> None:
    """Invariant 1 in what the house-keeper tells a sink: it claims only what it has delivered.
    `last`: the output before the next one; `begin`: the number before the first."""
    require(
        last[2] == begin or last in outputs,
        "log before effect",
        f"the house-keeper has output {last[2]} of {name}, and did not deliver it",
    )


def released_is_delivered(key: tuple[int, int, int], outputs: Mapping[Any, Any]) -> None:
    """Invariant 1 where a task writes itself: no output is written before it is delivered."""
    require(key in outputs, "log before effect", f"output {key} is written and not delivered")


def few_are_burnt(poisonings: int, deaths: int, terms: int, each: int) -> None:
    """A poison record kills `each` slots in a row at most, whatever else dies."""
    others = deaths - poisonings
    require(poisonings <= each * terms + others, "poison", f"{poisonings} slots were burnt")


def only_poison_is_blamed(poison: int | None, verdict: str) -> None:
    """A job fails for a record only if one really kills the task that is named. `poison`: that
    record's id. If the verdict names a record, it is that one."""
    require(poison is not None, "blame", f"no record kills here, and yet: {verdict}")
    names_one = "the record (" in verdict
    require(not names_one or f"({poison}, " in verdict, "blame", f"{poison} kills, not: {verdict}")


def right_place(bound: int | None, cell: Cell, tasks_bound: Iterable[int]) -> None:
    """A task that reads a DataFrame's partition runs, with its cell, in the slot of that
    partition."""
    require(
        bound == next((task for task in cell if task in tasks_bound), None),
        "placement",
        f"{cell} came to a slot that cannot run it",
    )


def cells_together(plan: Plan, slots: Mapping[int, int | None]) -> None:
    """The tasks of a cell share one slot, and no other task is in it."""
    cells: dict[int, Cell] = {}
    for cell in plan.cells:
        homes = {slots[task] for task in cell} - {None}
        require(len(homes) <= 1, "placement", f"{cell} is in several slots: {homes}")
        for home in homes:
            assert home is not None
            other = cells.setdefault(home, cell)
            require(other == cell, "placement", f"{cell} and {other} are in one slot")
