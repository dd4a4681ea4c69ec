"""A transactional sink of one's own: an Iceberg table, by the package ``pyiceberg``.

A commit of Iceberg says which snapshot it was made for, and is refused if there is a newer one. So
marks are properties of the table, set in the commit that adds the rows. That pyiceberg tries such a
commit again by itself is turned off: it would not look at the marks again.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

import clonos
from clonos.sinks import Lane, OutputKey

_ONCE = {"commit.retry.num-retries": "0"}


@dataclass
class Open:
    """A lane's table, as it was when it was last read."""

    table: Any
    incarnation: int


def iceberg(catalog: Callable[[], Any], name: str, schema: pa.Schema) -> Any:
    """Rows into an Iceberg table; it is created if there is none.

    Parameters
    ----------
    catalog
        Makes the catalogue in a task: ``lambda: load_catalog("default")``.
    name
        ``"shop.orders"``; the namespace must exist.
    """

    def open_lane(lane: Lane) -> Open:
        table = catalog().create_table_if_not_exists(name, schema=schema, properties=_ONCE)
        db = Open(table, lane.incarnation)
        incarnation, mark = mark_of(db, lane)
        if incarnation > lane.incarnation:
            raise clonos.Fenced(f"{lane.name} has a later life")
        commit(db, lane, schema.empty_table(), mark)
        return db

    def last_key(db: Open, lane: Lane) -> tuple[int, int] | None:
        mark = mark_of(db, lane)[1]
        return None if mark is None else (mark[0], mark[1])

    def write(
        db: Open, lane: Lane, outputs: list[Any], before: OutputKey | None, last: OutputKey
    ) -> None:
        db.table.refresh()
        expected = (lane.incarnation, None if before is None else list(before))
        if mark_of(db, lane) != expected:
            raise clonos.Fenced(f"{lane.name} has a later life")
        commit(db, lane, pa.Table.from_batches(outputs, schema), list(last))

    return clonos.sinks.transactional(open=open_lane, last_key=last_key, write=write)


def mark_of(db: Open, lane: Lane) -> tuple[int, list[int] | None]:
    """A lane's incarnation, and the key of its newest output."""
    said = db.table.properties.get(f"clonos.{lane.name}")
    incarnation, mark = json.loads(said) if said else (0, None)
    return incarnation, mark


def commit(db: Open, lane: Lane, rows: pa.Table, mark: list[int] | None) -> None:
    """Add rows and set the mark, if there is no newer snapshot than the one that was read."""
    from pyiceberg.exceptions import CommitFailedException

    try:
        with db.table.transaction() as transaction:
            transaction.append(rows)
            said = json.dumps([db.incarnation, mark])
            transaction.set_properties({f"clonos.{lane.name}": said})
    except CommitFailedException as error:
        raise clonos.sinks.StoreAway(f"somebody else has committed: {error}") from error
