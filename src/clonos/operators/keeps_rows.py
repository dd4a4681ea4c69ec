"""Operators whose state is rows by key, which need not fit into memory."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

from clonos.operators.base import Operator
from clonos.operators.shares import Heir, Share
from clonos.state.deltas import Frozen, both
from clonos.state.large_rows import LargeRowStore
from clonos.state.placed import with_rows

if TYPE_CHECKING:
    from clonos.core.content import Shelf
    from clonos.state.runs import Run


class KeepsRows(Operator):
    """An operator that keeps rows in stores."""

    has_values = True

    @property
    def row_stores(self) -> Sequence[LargeRowStore]:
        """All stores of the operator. They share no row numbers, because layers mix their rows."""
        raise NotImplementedError

    def changes(self) -> Frozen:
        return reduce(both, [store.changes() for store in self.row_stores])

    def use(self, shelf: Shelf, nbytes: int) -> None:
        stores = self.row_stores
        for store in stores:
            store.use(shelf, nbytes // len(stores))

    def restore_values(self, run: Run) -> None:
        for store in self.row_stores:
            store.restore_run(run)

    def adopt(self, shares: Sequence[Share], heir: Heir, where: str) -> None:
        # Rows get new numbers, which are their keys in layers, so whole rows must be read.
        mine = [Share(share.facts, *with_rows(*share[1:])) for share in shares]
        super().adopt(mine, heir, where)
