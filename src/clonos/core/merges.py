"""Which of a task's layers to merge: size-tiered, as in a log-structured merge tree.

A *tier* is a range of sizes; its largest layer is :data:`TIER_TIMES` as large as its smallest. Too
many neighbours of one tier become a layer of the next one, so state is rewritten once per tier,
however long the job runs. A merge needs nothing of those in other tiers: while large layers are
merged, which may take minutes, smaller ones are, too.

Within the lowest tier sizes differ by more than that. So of the oldest of the chosen layers those
are left out that are much larger than all newer ones together.

Keys that are overwritten or deleted leave garbage in older layers. Once the newer layers are as
large as the oldest one, all of them are merged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from clonos.core.levels import LayerRef

CHAIN_MAX: Final = 16
"""More small layers than this are merged."""
TIER_MAX: Final = 8
"""The same for each tier of larger ones."""
SMALL_BYTES: Final = 1 << 20
"""Smaller layers are all in the lowest tier: they are read as a whole, so their number counts."""
TIER_TIMES: Final = 8
"""How many times as large a tier's layers may be as those of the tier below."""
SHARE: Final = 0.5
"""An older layer takes part in a merge if the newer ones together reach this share of its size."""


def choose(chain: Sequence[LayerRef], *, has_base: bool = True) -> Sequence[LayerRef]:
    """Which of a task's layers to merge now (none: empty).

    Parameters
    ----------
    chain
        Consecutive layers, the oldest first.
    has_base
        Whether the first of them is the first of the task.

    Examples
    --------
    >>> from clonos.core.plan import Incarnation
    >>> MB = 1 << 20
    >>> def chosen(*sizes):
    ...     chain = [LayerRef(0, e, Incarnation(1, 0), e, "", n, 0) for e, n in enumerate(sizes)]
    ...     return [ref.epoch for ref in choose(chain)]
    >>> chosen(*[10] * 16)
    []
    >>> len(chosen(*[10] * 17))
    17
    >>> len(chosen(1000, *[10] * 16))
    16

    Nine layers of 3 MB, while smaller ones wait for more of their kind:

    >>> chosen(500 * MB, *[3 * MB] * 9, *[10] * 5)
    [1, 2, 3, 4, 5, 6, 7, 8, 9]

    All layers, because the newer ones are larger than the oldest:

    >>> chosen(20 * MB, *[3 * MB] * 7, 10)
    [0, 1, 2, 3, 4, 5, 6, 7, 8]
    """
    if has_base and _is_outgrown(chain):
        return chain
    end, tier = len(chain), 0
    while end:
        start = end
        while start and tier_of(chain[start - 1].nbytes) <= tier:
            start -= 1
        if end - start > _most(tier):
            return _without_large(chain[start:end])
        end = start
        tier = tier_of(chain[end - 1].nbytes) if end else tier
    return ()


def _without_large(layers: Sequence[LayerRef]) -> Sequence[LayerRef]:
    """At least the two newest of these layers."""
    start, above = len(layers) - 2, layers[-1].nbytes
    for i in range(len(layers) - 2, -1, -1):
        if above >= SHARE * layers[i].nbytes:
            start = i
        above += layers[i].nbytes
    return layers[start:]


def tier_of(nbytes: int) -> int:
    """The tier of a layer of this size.

    Examples
    --------
    >>> [tier_of(mb << 20) for mb in (0, 1, 7, 8, 63, 64)]
    [0, 1, 1, 2, 2, 3]
    """
    tier = 0
    while nbytes >= SMALL_BYTES:
        tier, nbytes = tier + 1, nbytes // TIER_TIMES
    return tier


def tier_of_merge(layers: Sequence[LayerRef]) -> int:
    """The tier of the largest of these layers."""
    return max(tier_of(ref.nbytes) for ref in layers)


def longest(chain: Sequence[LayerRef]) -> int:
    """How many layers there are at most if none of this chain have to be merged."""
    return CHAIN_MAX + TIER_MAX * (tier_of_merge(chain) if chain else 0)


def _is_outgrown(chain: Sequence[LayerRef]) -> bool:
    """Whether the layers above the oldest are many, and together as large."""
    if not chain or len(chain) <= _most(tier_of(chain[0].nbytes)):
        return False
    return sum(ref.nbytes for ref in chain[1:]) >= chain[0].nbytes


def _most(tier: int) -> int:
    """How many layers of a tier are left alone."""
    return TIER_MAX if tier else CHAIN_MAX
