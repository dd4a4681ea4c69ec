"""Small limits and short times, so that a small simulation reaches them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from clonos.core import blame as blame_module
from clonos.core import channels as channels_module
from clonos.core import holdings as holdings_module
from clonos.core import inbounds as inbounds_module
from clonos.core import log as log_module
from clonos.core import merges as merges_module
from clonos.core import outbounds as outbounds_module
from clonos.core import standbys as standbys_module
from clonos.nodes import layers as care_module
from clonos.nodes import one_by_one as one_by_one_module
from clonos.nodes import standby as standby_module


@contextmanager
def limits(backlog: int, credit: int, coalesce: int, piece: int = 1 << 20) -> Iterator[None]:
    """Small buffers, layers of any size that are used where they lie, and merges that are soon
    tried again."""
    owners = (
        (outbounds_module, "BACKLOG_ITEMS", backlog),
        (channels_module, "CREDIT_ITEMS", credit),
        (inbounds_module, "COALESCE_BATCHES", coalesce),
        (log_module, "PIECE_BYTES", piece),
        (standby_module, "IN_PLACE_BYTES", 0),
        (care_module, "AGAIN_S", 0.1),  # there are many times more seals in a second here
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
    owners = (
        (blame_module, "HOLD_MS", 100),
        (blame_module, "TOGETHER_MS", 50),
        (one_by_one_module, "ELSEWHERE_S", 0.03),
    )
    with _changed(*owners):
        yield


@contextmanager
def merged_early(chain_max: int) -> Iterator[None]:
    """Merge layers at shorter chains than production does, and smaller ones, and ask slots again
    sooner."""
    owners = (
        (merges_module, "CHAIN_MAX", chain_max),
        (merges_module, "TIER_MAX", chain_max // 2),
        (merges_module, "SMALL_BYTES", 256),
        (holdings_module, "AGAIN_MS", 100),
        (standbys_module, "AGAIN_MS", 100),
    )
    with _changed(*owners):
        yield


@contextmanager
def _changed(*owners: tuple[object, str, float]) -> Iterator[None]:
    before = [getattr(owner, name) for owner, name, _ in owners]
    for owner, name, value in owners:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for (owner, name, _), value in zip(owners, before, strict=True):
            setattr(owner, name, value)
