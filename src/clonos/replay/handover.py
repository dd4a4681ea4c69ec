"""The items sent to a section of a job since a point, made again by the tasks upstream."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from clonos.core.history import Point
from clonos.core.housekeeper import HouseKeeper
from clonos.core.messages import Item, Kind
from clonos.errors import CannotRewind, Divergence, NothingToReplay
from clonos.replay import Replay
from clonos.replay.kept import since
from clonos.replay.past import Past
from clonos.replay.tasks import ReplayedTask
from clonos.storage.layers import LayerStore
from clonos.upgrade.section import borders


def go_back(keeper: HouseKeeper, point: Point, store: LayerStore) -> None:
    """Load the log since a point into the house-keeper of a stopped job.

    Raises
    ------
    CannotRewind
        No log leads from the point to the present.
    """
    try:
        keeper.rewind(point, since(keeper, point, store))
    except NothingToReplay as error:
        raise CannotRewind(error.what, where=error.where, remedy=error.remedy) from error


def sent_since(
    past: Past, section: Collection[int], taken: Mapping[int, int]
) -> dict[int, list[Item]]:
    """For each channel into the section, all items after those that it had taken.

    No calls are made, and rows of sources are compared with the log as they are read.

    Parameters
    ----------
    past
        From the point to the end of the log.
    taken
        By channel, the number of the last item taken at the point.

    Raises
    ------
    CannotRewind
        The items cannot be made again.
    """
    plan = past.compiled.plan
    found: dict[int, list[Item]] = {channel: [] for channel in borders(plan, section)}
    try:
        with Replay(replace(past, without=frozenset(section))) as replay:
            for sender in replay:  # items in its layer were sent before the point
                _take(sender, taken, found)
            while (step := replay.step()) is not None:
                _take(replay[step.task], taken, found)
    except (Divergence, NothingToReplay) as error:
        raise CannotRewind(
            f"its output since then cannot be made again: {error.what}",
            where=error.where,
            remedy="give the tasks that stay the functions and the rows that they had; or take the "
            "whole job back",
        ) from error
    return found


def _take(sender: ReplayedTask, taken: Mapping[int, int], found: dict[int, list[Item]]) -> None:
    for channel in sender.machine.outputs.keys() & found.keys():
        log = sender.machine.outputs[channel].log
        found[channel] += sender.items(channel, taken[channel])
        log.truncate(log.last)


def rows_of(past: Past, sent: Mapping[int, list[Item]]) -> dict[str, int]:
    """How many rows are sent again, by receiving operator."""
    plan, rows = past.compiled.plan, dict[str, int]()
    for channel, items in sent.items():
        receiver = plan.tasks[plan.channels[channel].receiver]
        batches = (item.batch.rows for item in items if item.kind is Kind.BATCH and item.batch)
        rows[receiver.operator] = rows.get(receiver.operator, 0) + sum(batches)
    return rows
