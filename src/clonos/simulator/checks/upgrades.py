"""What must hold when a job has got another plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from clonos.columns.keys import owner_of_group
from clonos.core.housekeeper import HouseKeeper
from clonos.core.layer import UnreadableLayer
from clonos.core.messages import Layer
from clonos.core.plan import HOUSE_KEEPER, Plan
from clonos.simulator.checks.violations import Violation, require
from clonos.simulator.jobs.arrow import ArrowJob
from clonos.simulator.jobs.rescaled import Rows
from clonos.state.kept import kept_of
from clonos.storage.layers import LayerStore, get_layers
from clonos.upgrade.shape import Shape

_NUMBERED = (8, 9)
"""Bytes of the keys of rows and pieces, which are their numbers."""


def state_is_kept(
    before: Shape, last: Mapping[int, Layer], job: ArrowJob, first: Mapping[int, Layer]
) -> None:
    """What was kept by key is kept once, by the task that owns its key group; of what is numbered,
    something (pieces may have been combined)."""
    now = Shape.of(job.compiled)
    was = _state(before, last)
    becomes = _state(now, first)
    for name in now.homes:
        mine, theirs = was.get(name, Counter()), becomes.get(name, Counter())
        if name in was or name in becomes:
            require(
                mine == theirs or name not in before.homes,
                "kept state",
                f"{name} kept {mine}, and has {theirs}",
            )
        tasks = now.homes[name]
        if len(tasks) == len(before.homes.get(name, ())):
            continue
        for index, task in enumerate(tasks):
            kept = kept_of(first[task].delta).get(now.chains[task].index(name))
            groups = [] if kept is None else kept.groups.tolist()
            owners = {int(owner_of_group(group, len(tasks))) for group in groups}
            require(owners <= {index}, "kept state", f"{name}[{index}] has keys of {owners}")


def _state(shape: Shape, layers: Mapping[int, Layer]) -> dict[str, Counter[Any]]:
    found: dict[str, Counter[Any]] = {}
    for name, tasks in shape.homes.items():
        rows: Counter[Any] = Counter()
        for task in tasks:
            kept = kept_of(layers[task].delta).get(shape.chains[task].index(name))
            if kept is not None:
                rows.update(_rows(kept.groups.tolist(), kept.keys.to_pylist()))
        found[name] = rows
    return found


def _rows(groups: list[int], keys: list[bytes]) -> Iterator[Any]:
    """By group; a number is no name."""
    yield from {group for group, key in zip(groups, keys, strict=True) if len(key) in _NUMBERED}
    for group, key in zip(groups, keys, strict=True):
        if len(key) not in _NUMBERED:
            yield group, key


def takes_all_along(plan: Plan, section: Collection[int]) -> None:
    """Who goes back takes all along that has heard of it."""
    for channel in plan.channels:
        if channel.sender in section and channel.receiver != HOUSE_KEEPER:
            name = plan.tasks[channel.receiver].name
            said = f"{name} stays, and has heard of {plan.tasks[channel.sender].name}"
            require(channel.receiver in section, "section", said)


def who_stays_stays(
    plan: Plan, section: Collection[int], now: Mapping[int, Layer], first: Mapping[int, Layer]
) -> None:
    """Of those that do not go back, nobody forgets anything, or reads a row again."""
    for task in plan.tasks:
        if task.id not in section:
            one, other = now[task.id], first[task.id]
            was, becomes = (
                (layer.source_rows, layer.source_ended, _facts(layer)) for layer in (one, other)
            )
            require(was == becomes, "section", f"{task.name} had {was}, and has {becomes}")


def rows_come_again(name: str, since: range, lacks: range, *, is_refused: bool) -> None:
    """A job goes back if, and only if, its sources have the rows that came since the point.

    Parameters
    ----------
    since
        Rows that came since, counted from the first one of all.
    lacks
        Rows that the source does not give any more, or not as they were.
    """
    is_lost = max(since.start, lacks.start) < min(since.stop, lacks.stop)
    said = f"of {name}, {since} came since, and {lacks} are gone: refused: {is_refused}"
    require(is_lost == is_refused, "rows again", said)


def _facts(layer: Layer) -> dict[int, dict[str, Any]]:
    return {number: kept.facts for number, kept in kept_of(layer.delta).items()}


def calls_are_at_rest(job: ArrowJob, keeper: HouseKeeper, store: LayerStore) -> None:
    """Who settles in time has all answers: those who go on ask nobody again."""
    for task, chain in keeper.layers.items():
        program = job.program(task)
        for layer in get_layers(store, chain):
            program.apply(layer.delta)
        count = len(program.open_calls()) if program.makes_calls else 0
        require(not count, "settled calls", f"task {task} has settled with {count} open calls")


def goes_on_or_has_not_begun(
    keeper: HouseKeeper, store: LayerStore
) -> dict[int, tuple[Layer, ...]]:
    """Whoever dies while the plan is replaced leaves the old one or the new one, whole."""
    try:
        layers = {task: get_layers(store, chain) for task, chain in keeper.layers.items()}
    except UnreadableLayer as error:
        raise Violation("one plan", f"a layer of the plan is not there: {error}") from error
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
    """No output has the name of one before, whichever plan made it."""
    require(name not in names, "stable output", f"two outputs are named {name}")
    names.add(name)


def each_row_once(delivered: Mapping[str, Rows], due: Mapping[str, Rows]) -> None:
    """All plans together deliver what one would have."""
    for sink, rows in due.items():
        told = delivered.get(sink, Counter())
        by_clock = Counter({row: n for row, n in told.items() if row[1:2] == ("id",)})
        twice = {row: n for row, n in by_clock.items() if n > 1}
        require(not twice, "conservation", f"{sink}: {twice} were reported again")
        rest = told - by_clock
        require(
            rest == rows, "conservation", f"{sink}: missing {rows - rest}, too many {rest - rows}"
        )
