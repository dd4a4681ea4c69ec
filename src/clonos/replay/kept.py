"""Finds and pins the points of a job's history."""

from __future__ import annotations

import secrets
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from datetime import time as time_of_day
from typing import Final

from clonos.core.history import History, Point, decode_segment, joined, pin_path
from clonos.core.housekeeper import HouseKeeper
from clonos.core.messages import Run
from clonos.errors import ClonosError, NothingToReplay, UnreadableHistory, UnreadableLayer
from clonos.storage.files import in_this_process
from clonos.storage.layers import LayerStore

At = int | str | datetime
"""A point: its number, ``"oldest"``, or a time, which means the newest point at or before it. Times
without a zone are local; ``"14:03"`` means the last time when the clock showed this."""

PIN_S: Final = 24 * 3600
"""A pin expires after this long, because its reader may have died."""


class Pin:
    """Keeps a running job from deleting files that are being read, until it is closed.

    If the folder is not writable, no pin is made: it is a copy, from which no job deletes.
    """

    def __init__(self, store: LayerStore, number: int) -> None:
        until_s = int(time.time()) + PIN_S
        path = pin_path(number, until_s, secrets.token_hex(6))
        with suppress(ClonosError):
            store.put(path, b"")
        self.close = weakref.finalize(self, in_this_process(_unpin), store, path)


def _unpin(store: LayerStore, path: str) -> None:
    with suppress(ClonosError):
        store.delete([path])


def find(history: History, at: At, *, now_s: float | None = None) -> Point:
    """Find a point.

    Raises
    ------
    NothingToReplay
        There is no such point (any more).
    """
    points = [point for point in history.points if point.number > history.going]
    if not points:
        raise NothingToReplay(
            "the job keeps no history: its past begins at the newest checkpoint",
            remedy='make it keep one from now on: clonos.Job(history="6 hours")',
        )
    if at == "oldest":
        return points[0]
    number = at if isinstance(at, int) else int(at) if isinstance(at, str) and at.isdigit() else 0
    if number:
        found = [point for point in points if point.number == number]
        what = f"there is no point {number}"
    else:
        moment = parse_time(at, time.time() if now_s is None else now_s)
        newest = history.newest_before(int(moment.timestamp() * 1000))
        found = [] if newest is None else [newest]
        what = f"there is no point at or before {moment.isoformat(timespec='seconds')}"
    if not found:
        first, last = points[0], points[-1]
        raise NothingToReplay(
            what,
            remedy=f"the points that are kept are {first.number} ({shown(first)}) to {last.number} "
            f"({shown(last)}); clonos history DIR lists them",
        )
    return found[0]


def parse_time(at: At, now_s: float) -> datetime:
    """Parse a time.

    Raises
    ------
    NothingToReplay
        It is not a time.

    Examples
    --------
    >>> noon = datetime(2030, 5, 4, 12, 0, 0).timestamp()
    >>> [parse_time(at, noon).strftime("%d %H:%M") for at in ("11:59", "12:01")]
    ['04 11:59', '03 12:01']
    >>> parse_time("2030-05-04T10:00:00+00:00", noon).astimezone(timezone.utc).hour
    10
    """
    if isinstance(at, datetime):
        return at.astimezone()
    now = datetime.fromtimestamp(now_s).astimezone()
    text = str(at).strip()
    with suppress(ValueError):
        today = datetime.combine(now.date(), time_of_day.fromisoformat(text))
        found = today.astimezone()
        return found if found <= now else (today - timedelta(days=1)).astimezone()
    with suppress(ValueError):
        return datetime.fromisoformat(text).astimezone()
    raise NothingToReplay(
        f"{at!r} is neither a time nor a point",
        remedy='write it like "14:03:05" or "2030-05-04 14:03", or give the number of a point, or '
        '"oldest"',
    )


def shown(point: Point) -> str:
    """The time of a point, for messages."""
    moment = datetime.fromtimestamp(point.at_ms / 1000, timezone.utc).astimezone()
    return moment.isoformat(sep=" ", timespec="seconds")


def require_there(history: History, point: Point) -> None:
    """Check that a point still exists after it was pinned.

    Raises
    ------
    NothingToReplay
        The job has deleted it meanwhile.
    """
    if all(point.number != p.number for p in history.points) or point.number <= history.going:
        raise NothingToReplay(
            f"point {point.number} has just been deleted: it was older than what the job keeps",
            remedy="begin at a later one",
        )


def since(keeper: HouseKeeper, point: Point, store: LayerStore) -> list[Run]:
    """All log entries after a point: those in segments, and those in the journal.

    Raises
    ------
    NothingToReplay
        Some entries are missing.
    """
    history = keeper.history
    behind = [p.number for p in history.points if p.number >= point.number]
    held = [run for task in keeper.positions for run in keeper.book.runs(task, 1)]
    try:
        runs = joined(point, [*(_segment(history, n, store) for n in behind), held])
        _require_to_here(keeper, point, runs)
    except (UnreadableLayer, UnreadableHistory) as error:
        raise NothingToReplay(
            error.what,
            where=error.where,
            remedy="begin at a later point; if the job went back in time, at one made since",
        ) from error
    return runs


def _require_to_here(keeper: HouseKeeper, point: Point, runs: Sequence[Run]) -> None:
    """Raise `UnreadableHistory` if the point belongs to a past that a rewind has left."""
    ends = dict(point.positions)
    for run in runs:
        ends[run.task] = max(ends[run.task], run.end)
    for task in keeper.plan.tasks:
        if ends[task.id] < keeper.positions[task.id] and not task.is_implied:
            raise UnreadableHistory(
                f"no log leads from point {point.number} to where the job is", where=task.name
            )


def _segment(history: History, number: int, store: LayerStore) -> list[Run]:
    if (segment := history.segments.get(number)) is not None:
        return decode_segment(store.get(segment.path), segment.path)
    return history.closed.get(number, history.open)
