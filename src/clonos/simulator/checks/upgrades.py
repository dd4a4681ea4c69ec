"""Invariants of a job whose plan was replaced."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from clonos.columns.keys import owner_of_group
from clonos.core.history import Chains
from clonos.core.housekeeper import HouseKeeper
from clonos.core.levels import LayerRef
from clonos.core.plan import HOUSE_KEEPER, Plan
from clonos.core.sealed import Layer
from clonos.core.task import TaskMachine
from clonos.errors import UnreadableLayer
from clonos.operators.process.process import prefix_of
from clonos.simulator.checks.violations import Violation, require
from clonos.simulator.jobs.arrow import ArrowJob
from clonos.simulator.jobs.rescaled import Rows
from clonos.state.kept import kept_of
from clonos.storage.layers import LayerStore, get_layers
from clonos.upgrade.prepare import Prepared
from clonos.upgrade.shape import Shape

_NUMBERED = (8, 9)
"""Key lengths in bytes of rows and pieces; such a key is just a number."""


Renamed = Mapping[Any, str]
"""What has another name now, by former name: operators, and states by operator and name."""


def state_is_kept(
    before: Shape,
    last: Mapping[int, Layer],
    job: ArrowJob,
    first: Mapping[int, Layer],
    renamed: Renamed = MappingProxyType({}),
) -> None:
    """State by key is kept exactly once, by the task that owns its key group, and each state of a
    process with its values. Of numbered rows and pieces something is kept (pieces may have been
    combined)."""
    now = Shape.of(job.compiled)
    was = _state(before, last, renamed)
    becomes = _state(now, first)
    homes = {renamed.get(name, name): tasks for name, tasks in before.homes.items()}
    for name in now.homes:
        mine, theirs = was.get(name, Counter()), becomes.get(name, Counter())
        if name in was or name in becomes:
            require(
                mine == theirs or name not in homes,
                "kept state",
                f"{name} kept {mine}, and has {theirs}",
            )
        tasks = now.homes[name]
        if len(tasks) == len(homes.get(name, ())):
            continue
        for index, task in enumerate(tasks):
            kept = kept_of(first[task].delta).get(now.chains[task].index(name))
            groups = [] if kept is None else kept.groups.tolist()
            owners = {int(owner_of_group(group, len(tasks))) for group in groups}
            require(owners <= {index}, "kept state", f"{name}[{index}] has keys of {owners}")


def _state(
    shape: Shape, layers: Mapping[int, Layer], renamed: Renamed = MappingProxyType({})
) -> dict[str, Counter[Any]]:
    """What operators keep, by their present names."""
    found: dict[str, Counter[Any]] = {}
    for name, tasks in shape.homes.items():
        rows: Counter[Any] = Counter()
        has_states = shape.operators[name][0] == "ProcessRows"
        states = {
            prefix_of(of[1]): prefix_of(becomes)
            for of, becomes in renamed.items()
            if isinstance(of, tuple) and of[0] == name
        }
        for task in tasks:
            kept = kept_of(layers[task].delta).get(shape.chains[task].index(name))
            if kept is None:
                continue
            groups, keys = kept.groups.tolist(), kept.keys.to_pylist()
            if has_states:
                addresses = (_under(states, key) for key in keys)
                rows.update(zip(groups, addresses, kept.values.to_pylist(), strict=True))
            else:
                rows.update(_rows(groups, keys))
        found[renamed.get(name, name)] = rows
    return found


def _under(states: Mapping[bytes, bytes], address: bytes) -> bytes:
    """The address of a value by the present name of its state."""
    mine = next((prefix for prefix in states if address.startswith(prefix)), b"")
    return states.get(mine, b"") + address[len(mine) :]


def _rows(groups: list[int], keys: list[bytes]) -> Iterator[Any]:
    """Rows by key group; a numbered row counts without its number."""
    yield from {group for group, key in zip(groups, keys, strict=True) if len(key) in _NUMBERED}
    for group, key in zip(groups, keys, strict=True):
        if len(key) not in _NUMBERED:
            yield group, key


def stays_while_shared_out(store: LayerStore, since: Mapping[int, Sequence[LayerRef]]) -> None:
    """While state is shared out, no layer is deleted that is to be read for it."""
    for refs in since.values():
        for ref in refs:
            said = f"{ref.path} is shared out, and is not there any more"
            require(store.has(ref.path), "no early truncation", said)


def rounds_are_of_use(store: LayerStore, layers: Chains, found: Prepared) -> None:
    """A switch can go on from what its driver has shared out before it."""
    is_of_use = not found.rounds or found.fits(layers, store)
    said = f"it was shared out up to {found.upto}, and there are {layers}"
    require(is_of_use, "rounds", said)


def takes_all_along(plan: Plan, section: Collection[int]) -> None:
    """A section that goes back includes every task that has received anything from it."""
    for channel in plan.channels:
        if channel.sender in section and channel.receiver != HOUSE_KEEPER:
            name = plan.tasks[channel.receiver].name
            said = f"{name} stays, although it has heard from {plan.tasks[channel.sender].name}"
            require(channel.receiver in section, "section", said)


def who_stays_stays(
    plan: Plan, section: Collection[int], now: Mapping[int, Layer], first: Mapping[int, Layer]
) -> None:
    """Tasks outside the section forget nothing and read no row again."""
    for task in plan.tasks:
        if task.id not in section:
            one, other = now[task.id], first[task.id]
            was, becomes = (
                (layer.source_rows, layer.source_ended, _facts(layer)) for layer in (one, other)
            )
            require(was == becomes, "section", f"{task.name} had {was}, and has {becomes}")


def rows_come_again(name: str, since: range, lacks: range, *, is_refused: bool) -> None:
    """A rewind is allowed if, and only if, the sources still have the rows since the point.

    Parameters
    ----------
    since
        Rows that came since the point, counted from the very first row.
    lacks
        Rows that the source no longer gives, or gives changed.
    """
    is_lost = max(since.start, lacks.start) < min(since.stop, lacks.stop)
    said = f"of {name}, {since} came since, and {lacks} are gone: refused: {is_refused}"
    require(is_lost == is_refused, "rows again", said)


def _facts(layer: Layer) -> dict[int, dict[str, Any]]:
    return {number: kept.facts for number, kept in kept_of(layer.delta).items()}


def calls_are_at_rest(job: ArrowJob, keeper: HouseKeeper, store: LayerStore) -> None:
    """A task that has settled in time has all answers, so its successors ask nothing again."""
    for task, chain in keeper.layers.items():
        program = job.program(task)
        for layer in get_layers(store, chain):
            program.apply(layer.delta)
        count = len(program.open_calls()) if program.makes_calls else 0
        require(not count, "settled calls", f"task {task} has settled with {count} open calls")


def nothing_is_taken_again(
    keeper: HouseKeeper, store: LayerStore, machines: Iterable[TaskMachine]
) -> None:
    """What a source that has settled in time has taken is in its floor: nothing is read again, and
    no calls are made again for its rows."""
    for machine in machines:
        rows = [layer.source_rows for layer in get_layers(store, keeper.layers[machine.id])]
        floor, taken = max(rows, default=0), machine.intake.taken
        said = f"{machine.spec.name} has settled at row {floor}, and has taken {taken}"
        require(floor >= taken, "settled steps", said)


def goes_on_or_has_not_begun(
    keeper: HouseKeeper, store: LayerStore
) -> dict[int, tuple[Layer, ...]]:
    """A death while the plan is replaced leaves either the old plan or the new one, complete."""
    try:
        layers = {task: get_layers(store, chain) for task, chain in keeper.layers.items()}
    except UnreadableLayer as error:
        raise Violation("one plan", f"a layer of the plan is missing: {error}") from error
    plan = keeper.plan
    for channel in plan.channels:
        if channel.receiver != HOUSE_KEEPER and layers[channel.sender] and layers[channel.receiver]:
            sent = layers[channel.sender][-1].outs[channel.id]
            taken = layers[channel.receiver][-1].ins[channel.id]
            if channel.id in (carried := layers[channel.sender][-1].carried):
                before, items = carried[channel.id]
                sent = sent[0] - len(items), before
            require(sent == taken, "one plan", f"channel {channel.id}: sent {sent}, taken {taken}")
    return layers


def names_are_new(names: set[tuple[Any, ...]], name: tuple[Any, ...]) -> None:
    """No two outputs have the same name, whichever plan made them."""
    require(name not in names, "stable output", f"two outputs are named {name}")
    names.add(name)


def each_row_once(delivered: Mapping[str, Rows], due: Mapping[str, Rows]) -> None:
    """All plans together deliver what a single plan would have delivered."""
    for sink, rows in due.items():
        told = delivered.get(sink, Counter())
        by_clock = Counter({row: n for row, n in told.items() if row[1:2] == ("id",)})
        twice = {row: n for row, n in by_clock.items() if n > 1}
        require(not twice, "conservation", f"{sink}: {twice} were reported again")
        rest = told - by_clock
        require(
            rest == rows, "conservation", f"{sink}: missing {rows - rest}, too many {rest - rows}"
        )
