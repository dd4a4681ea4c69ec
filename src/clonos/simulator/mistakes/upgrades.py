"""Deliberate mistakes in the switch to another plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow.compute as pc

from clonos.core.housekeeper import HouseKeeper
from clonos.nodes.waiting import Waiting
from clonos.state.runs import Rows
from clonos.state.timers import EVENT_TIME, PROCESSING_TIME
from clonos.storage.layers import LayerStore
from clonos.transport.events import ControlLost
from clonos.upgrade.flow import Flow
from clonos.upgrade.switch import Switch


def every_group(original: Any) -> Any:
    """Every task takes over the state of all key groups."""
    del original
    return lambda groups, heir: groups >= 0  # noqa: ARG005 - it is given by name


def values_alone(original: Any) -> Any:
    """Of what processes keep, only values are taken over."""

    def add(self: Any, rows: Rows) -> None:
        are_timers = [pc.starts_with(rows.keys, kind) for kind in (EVENT_TIME, PROCESSING_TIME)]
        kept = pc.invert(pc.or_(*are_timers))
        original(self, rows.chosen(kept.to_numpy(zero_copy_only=False)))

    return add


def by_index_alone(original: Any) -> Any:
    """A task continues the old task of the same index, whatever rows it gets now."""
    del original

    def predecessor(self: Flow, operator: str, index: int) -> int | None:
        former, now = self._before.homes.get(operator, []), self._now.homes[operator]
        return former[index] if len(former) == len(now) else None

    return predecessor


def fastest(original: Any) -> Any:
    """Event time is taken from the fastest former task."""
    del original

    def of(marks: Sequence[int | None]) -> int | None:
        return max((mark for mark in marks if mark is not None), default=None)

    return of


def same_generation(original: Any) -> Any:
    """Outputs stay in the old generation."""

    def sealed(maker: Any, epoch: int, generation: int) -> Any:
        return original(maker, epoch, generation - 1)

    return sealed


def in_the_same_generation(original: Any) -> Any:
    """... and so does the house-keeper."""

    def succeed(self: HouseKeeper, before: HouseKeeper, first: Any, **how: bool) -> None:
        original(self, before, first, **how)
        self.generation = self.floor_generation = before.generation

    return succeed


def numbers_begin_anew(original: Any) -> Any:
    """The lanes of sinks count from 1 again."""
    del original
    return lambda *_: (0, 0)


class _Later:
    """A store that does not store yet."""

    def __init__(self, store: LayerStore) -> None:
        self.get, self.has = store.get, store.has
        self.waiting: dict[str, bytes] = {}

    def put(self, path: str, data: bytes) -> int:
        self.waiting[path] = data
        return len(data) + 24


def stored_afterwards(original: Any) -> Any:
    """The layers are stored only after the journal refers to them."""

    def make(self: Switch, store: LayerStore, *rest: Any) -> bool:
        later = _Later(store)
        done: bool = original(self, later, *rest)
        for path, data in later.waiting.items():
            store.put(path, data)
        return done

    return make


def counted_on(original: Any) -> Any:
    """Slots that leave while the driver waits for a plan still count."""

    def lost(self: Waiting, event: ControlLost) -> None:
        ready = dict(self.ready)
        original(self, event)
        self.ready = ready

    return lost


def all_are_answered(_: Any) -> Any:
    """A settling task does not wait for its open calls, or for what sources have taken."""
    return property(lambda _: True)
