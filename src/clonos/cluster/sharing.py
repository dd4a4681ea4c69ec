"""Shares out the state of a running job to the tasks of its next plan, in a process beside the
driver."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from clonos.cluster.aside import told
from clonos.core.plan import Incarnation
from clonos.storage.files import Durability
from clonos.storage.layers import LayerStore
from clonos.upgrade.names import Renamed
from clonos.upgrade.prepare import NOTHING, Prepared, prepare
from clonos.upgrade.shape import Shape


def share_out(
    is_to_end: Callable[[float], bool],
    before: str,
    now: str,
    uri: str,
    durability: Durability,
    maker: Incarnation,
    drop_state: tuple[Any, ...],
    renamed: Renamed,
) -> Iterator[Prepared | None]:
    """Do one round for each floor that the driver sends; see :mod:`clonos.upgrade.prepare`.

    Parameters
    ----------
    before, now
        Descriptions of the graphs, in JSON.
    renamed
        What has another name in the second.
    """
    del is_to_end
    was, becomes = Shape(json.loads(before), renamed), Shape(json.loads(now))
    store, found = LayerStore(uri, durability), NOTHING
    for chains in told():
        more: Any = prepare(was, becomes, chains, store, maker, drop_state, found)
        yield more
        if more is None:
            return
        found = more
