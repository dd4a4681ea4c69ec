"""Small limits and short times, so that a small simulation reaches them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from clonos.core import blame as blame_module
from clonos.core import channels as channels_module
from clonos.core import inbounds as inbounds_module
from clonos.core import log as log_module
from clonos.core import outbounds as outbounds_module


@contextmanager
def limits(backlog: int, credit: int, coalesce: int, piece: int = 1 << 20) -> Iterator[None]:
    """Small buffers."""
    owners = (
        (outbounds_module, "BACKLOG_ITEMS", backlog),
        (channels_module, "CREDIT_ITEMS", credit),
        (inbounds_module, "COALESCE_BATCHES", coalesce),
        (log_module, "PIECE_BYTES", piece),
    )
    with _changed(*owners):
        yield


@contextmanager
def few_steps_watched() -> Iterator[None]:
    """Watch fewer steps than a small simulation takes between two checkpoints."""
    with _changed((blame_module, "WATCHED_STEPS", 4)):
        yield


@contextmanager
def soon_blamed() -> Iterator[None]:
    """Hold calls back for less time: everything is faster here."""
    with _changed((blame_module, "HOLD_MS", 100), (blame_module, "TOGETHER_MS", 50)):
        yield


@contextmanager
def _changed(*owners: tuple[object, str, int]) -> Iterator[None]:
    before = [getattr(owner, name) for owner, name, _ in owners]
    for owner, name, value in owners:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for (owner, name, _), value in zip(owners, before, strict=True):
            setattr(owner, name, value)
