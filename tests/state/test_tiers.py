"""Which tiers a slot merges itself, and which it leaves to the driver."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from clonos.core.content import InMemory
from clonos.runtime.shelf import Order
from clonos.state import tiers
from clonos.state.runs import Index, Run, in_memory, write_values
from clonos.state.tiers import TIERS_MAX, Tiers


class Shelf:
    """Writes at once."""

    def write(self, fill: Callable[[Any], object], *, is_long: bool) -> Order:
        del is_long
        order = Order()
        order.do(fill)
        return order


class Tier:
    """A tier in memory with some of the keys."""

    def __init__(self, keys: range) -> None:
        self.values = {b"%d" % n: b"x" * 100 for n in keys}
        self.index: Index | None = None

    def fill(self, file: Any) -> None:
        self.index = write_values(self.values, (), file.write)


@pytest.fixture(autouse=True)
def _kilobytes_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "IN_PLACE_BYTES", 10_000)


def stored(keys: int) -> Run:
    return in_memory(keys, lambda writer: _write(writer, keys))


def _write(writer: Any, keys: int) -> None:
    blocks: list[bytes] = []
    tier = Tier(range(keys))
    index = write_values(tier.values, (), blocks.append)
    for rows in Run(index, InMemory(b"".join(blocks))).parts():
        writer.add(rows)


def made(*layers: int) -> Tiers[Any]:
    below: Tiers[Any] = Tiers()
    below.shelf = Shelf()
    for keys in layers:
        below.restored(stored(keys))
    return below


def grow(below: Tiers[Any], runs: int, keys: int) -> None:
    """So many runs are written here."""
    for _ in range(runs):
        below.all.append(Tier(range(keys)))
        below.write()
        below.settle()
        below.settle()


def test_large_runs_of_layers_are_the_drivers():
    below = made(*[200] * (2 * TIERS_MAX))
    large = below.runs
    for _ in range(3):
        below.settle()
    assert below.runs == large, "a task that was restored would copy all its state"
    grow(below, 3 * TIERS_MAX, 10)
    assert below.runs[: len(large)] == large
    assert len(below.runs) <= len(large) + TIERS_MAX + 1, "what is written here is merged here"


def test_small_runs_of_layers_are_merged_here():
    below = made(*[10] * (3 * TIERS_MAX))
    for _ in range(3):
        below.settle()
    assert len(below.runs) == 1


def test_small_runs_of_layers_do_not_outgrow_a_large_one():
    """They are no news: the driver merges them, too."""
    below = made(200, *[20] * (3 * TIERS_MAX))
    (large, *small) = below.runs
    assert sum(run.nbytes for run in small) > large.nbytes
    for _ in range(3):
        below.settle()
    assert below.runs[0] is large
    assert len(below.runs) == 2
    grow(below, 2 * TIERS_MAX, 2)
    assert below.runs[0] is large


def test_a_large_run_that_has_been_outgrown_is_merged_here():
    """Else what is deleted here would never leave the disk."""
    below = made(200)
    (large,) = below.runs
    for _ in range(10):
        grow(below, TIERS_MAX, 4)
    assert large in below.runs, "the same few keys again and again"
    grow(below, 2 * TIERS_MAX, 100)
    assert large not in below.runs
