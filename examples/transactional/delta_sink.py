"""A transactional sink of one's own: a Delta table, by the package ``deltalake``, without a JVM.

Delta keeps a number per application in its log, and refuses a commit whose numbers somebody else
has moved since the table was read. A lane uses two: one for its mark, one for its life. Each commit
names both, so the later life wins, whatever sleeps and wakes up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

import clonos
from clonos.sinks import Lane, OutputKey

_SEQ_BITS = 40
"""A mark is one number: the generation above these bits, the output's number in them."""


@dataclass
class Open:
    """A lane's table, as it was when it was last read."""

    table: Any
    incarnation: int


def delta(path: str, schema: pa.Schema) -> Any:
    """Rows into a Delta table that all tasks reach; it is created if there is none.

    Each group of outputs is a commit, so give the sink a ``linger`` that suits the table.
    """

    def open_lane(lane: Lane) -> Open:
        from deltalake import DeltaTable

        DeltaTable.create(path, schema=schema, mode="ignore")
        db = Open(DeltaTable(path), lane.incarnation)
        life = db.table.transaction_version(life_of(lane)) or 0
        if life > lane.incarnation:
            raise clonos.Fenced(f"{lane.name} has a later life")
        commit(db, lane, schema.empty_table(), {})
        return db

    def last_key(db: Open, lane: Lane) -> tuple[int, int] | None:
        mark = db.table.transaction_version(lane.name)
        return None if mark is None else (mark >> _SEQ_BITS, mark & ((1 << _SEQ_BITS) - 1))

    def write(
        db: Open, lane: Lane, outputs: list[Any], before: OutputKey | None, last: OutputKey
    ) -> None:
        db.table.update_incremental()
        life = db.table.transaction_version(life_of(lane))
        if life != lane.incarnation or last_key(db, lane) != (before and tuple(before)):
            raise clonos.Fenced(f"{lane.name} has a later life")
        rows = pa.Table.from_batches(outputs, schema)
        commit(db, lane, rows, {lane.name: (last.generation << _SEQ_BITS) + last.seq})

    return clonos.sinks.transactional(open=open_lane, last_key=last_key, write=write)


def life_of(lane: Lane) -> str:
    """The application under whose name a lane's incarnation is kept."""
    return f"{lane.name} life"


def commit(db: Open, lane: Lane, rows: pa.Table, marks: dict[str, int]) -> None:
    """Add rows and move marks, if nobody has moved them since the table was read."""
    from deltalake import CommitProperties, Transaction, write_deltalake
    from deltalake.exceptions import CommitFailedError

    numbers = {**marks, life_of(lane): db.incarnation}
    transactions = [Transaction(name, number) for name, number in numbers.items()]
    properties = CommitProperties(app_transactions=transactions)
    try:
        write_deltalake(db.table, rows, mode="append", commit_properties=properties)
    except CommitFailedError as error:
        if "Concurrent transaction" in str(error):
            raise clonos.Fenced(f"{lane.name} has a later life") from error
        raise clonos.sinks.StoreAway(str(error)) from error
    db.table.update_incremental()
