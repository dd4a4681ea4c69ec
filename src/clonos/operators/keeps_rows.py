"""Operators whose state is rows by key, which need not fit into memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from typing import TYPE_CHECKING

from clonos.operators.base import Operator
from clonos.state.deltas import Frozen, both
from clonos.state.large_rows import LargeRowStore

if TYPE_CHECKING:
    from clonos.core.content import Shelf
    from clonos.state.renumbered import Numbered
    from clonos.state.runs import Run


class KeepsRows(Operator):
    """An operator that keeps rows in stores."""

    has_values = True

    @property
    def row_stores(self) -> Mapping[str, LargeRowStore]:
        """All stores of the operator, by the fact that counts their rows. They share no row
        numbers, because layers mix their rows."""
        raise NotImplementedError

    @property
    def numbered(self) -> Mapping[str, Numbered]:
        return {fact: store.numbered for fact, store in self.row_stores.items()}

    def changes(self) -> Frozen:
        return reduce(both, [store.changes() for store in self.row_stores.values()])

    @property
    def stores(self) -> Iterable[LargeRowStore]:
        return self.row_stores.values()

    def use(self, shelf: Shelf, nbytes: int) -> None:
        stores = self.row_stores.values()
        for store in stores:
            store.use(shelf, nbytes // len(stores))

    def restore_values(self, run: Run) -> None:
        for store in self.row_stores.values():
            store.restore_run(run)
