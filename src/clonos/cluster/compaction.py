"""Merging layers in the background, so that a fresh slot never has to apply thousands of them.

Size-tiered, as in a log-structured merge tree: many small layers become one; the large one at
the bottom is rewritten only when what lies on it has grown to a good part of its size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from clonos.core.layer import decode_layer, encode_layer, layer_path
from clonos.core.messages import LayerRef
from clonos.storage.layers import LayerStore

CHAIN_MAX: Final = 12
"""A task's layers are merged when there are more."""
BASE_SHARE: Final = 0.5
"""The bottom layer takes part when the others together reach this share of its size."""


def choose(chain: Sequence[LayerRef]) -> Sequence[LayerRef]:
    """Which consecutive layers of a task to merge now (none: empty).

    Examples
    --------
    >>> from clonos.core.plan import Incarnation
    >>> sizes = [1000, *[10] * 12]
    >>> chain = [LayerRef(0, e, Incarnation(1, 0), e, "", n) for e, n in enumerate(sizes)]
    >>> [ref.epoch for ref in choose(chain)]
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]
    """
    if len(chain) <= CHAIN_MAX:
        return ()
    upper = chain[1:]
    whole = sum(ref.nbytes for ref in upper) >= BASE_SHARE * chain[0].nbytes
    return chain if whole else upper


def merge(
    store: LayerStore,
    chain: Sequence[LayerRef],
    chosen: Sequence[LayerRef],
    merge_deltas: Callable[..., bytes],
) -> LayerRef:
    """Store one layer with the effect of those chosen; it stands where the last of them stood."""
    layers = [decode_layer(store.get(ref.path)) for ref in chosen]
    delta = merge_deltas([layer.delta for layer in layers], is_base=chosen[0] == chain[0])
    merged = replace(layers[-1], delta=delta)
    last = chosen[-1]
    plain = layer_path(last.task, last.epoch, last.incarnation)
    path = plain.replace(".layer", f"-from-{chosen[0].epoch:012d}.layer")
    nbytes = store.put(path, encode_layer(merged))
    return replace(last, path=path, nbytes=nbytes)
