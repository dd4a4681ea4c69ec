"""Sources that the driver feeds while the job runs: streaming queries, tables that are read
again, and messages from inlets. Their rows go through spools; rows that all tasks have passed
are deleted."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from clonos.cluster.directory import JobDirectory
from clonos.cluster.lookout import require_office
from clonos.cluster.table_readers import TableReaders
from clonos.core.history import Chains
from clonos.core.layer import open_layer
from clonos.core.sealed import Layer
from clonos.errors import ClonosError
from clonos.graph.code import TaskCode
from clonos.graph.compile import CompiledJob
from clonos.nodes.events import OutsideFailed
from clonos.sources.inlet_feed import InletFeed
from clonos.sources.materialized import materialized
from clonos.sources.queries import STOP_S, FeedingQuery
from clonos.sources.spec import SourceSpec
from clonos.sources.spool import Spool
from clonos.sources.spool_reader import SpoolReader
from clonos.sources.versions import Refresher, Tables
from clonos.storage.files import Durability, folder_name
from clonos.storage.layers import LayerStore
from clonos.transport.inbox import Inbox

LOGGER: Final = logging.getLogger("clonos")

BACKLOG_BYTES: Final = 256 << 20
"""Limit on versions of a table, or messages, kept for recovery; newer ones wait."""

Feed = FeedingQuery | Refresher | InletFeed
"""What fills a spool."""


@dataclass(frozen=True)
class FeedView:
    """What was handed over to a source so far.

    ``batch``: the newest micro-batch with rows, or version of the table, that was taken (-1: none);
    ``backlog_bytes``: the size of the rows in the spool; ``is_waiting``: the query waits until that
    is less.
    """

    source: str
    batch: int
    rows: int
    backlog_bytes: int
    is_waiting: bool
    is_ended: bool


LOOK_S: Final = 0.2
"""Time between two looks at floors: each reads layers."""
AGAIN_S: Final = 1.0
"""The same after an error."""


class Feeds:
    """All sources of a job that are fed while it runs.

    Parameters
    ----------
    directory
        Where the rows are kept, and the layers of the tasks, which say how far they have read.
    inbox
        Takes an error that ends a query.
    warn
        Called with a text, from any thread.
    """

    def __init__(
        self,
        compiled: CompiledJob,
        directory: JobDirectory,
        durability: Durability,
        inbox: Inbox,
        warn: Callable[[str], None],
    ) -> None:
        self._compiled = compiled
        self._inbox = inbox
        self._warn = warn
        self._base = directory.spool_uri
        self._durability = durability
        self._layers = LayerStore(directory.layers_uri, durability)
        self._office = partial(require_office, directory)
        self._tables = Tables(directory.spool_uri, durability)
        self._readers = TableReaders(compiled, directory.checkpoint_id)
        self._spools: dict[str, Spool] = {}
        self._tasks: dict[str, list[TaskCode]] = {}
        self._working: list[Feed] = []
        self._looking: threading.Thread | None = None
        self._lock = threading.Lock()  # guards the next two
        self._newest: tuple[Chains, Chains] | None = None  # floors to look at
        self._is_looking = False
        self._is_closed = threading.Event()
        for code in fed(compiled):
            self._tasks.setdefault(code.source_name, []).append(code)
        for operator, codes in self._tasks.items():
            self._spools[operator] = self._spool(operator, codes[0])

    def _spool(self, operator: str, code: TaskCode) -> Spool:
        assert code.source is not None
        feeding = code.source.feeding
        return Spool(
            f"{self._folder(operator)}/batches",
            code.parallelism,
            self._durability,
            backlog_bytes_max=feeding.backlog_bytes if feeding else BACKLOG_BYTES,
            office=self._office,
        )

    def _folder(self, operator: str) -> str:
        return f"{self._base}/{folder_name(operator)}"

    def reading(self, compiled: CompiledJob) -> CompiledJob:
        """The job, with these sources reading the spools, and with the first content of tables.

        Raises
        ------
        TableFailed
            A table cannot be read.
        """
        pinned = self._tables.pinned
        codes = (replace(code, operators=pinned(code.operators)) for code in compiled.codes)
        return replace(compiled, codes=tuple(map(self._reading, codes)))

    def _reading(self, code: TaskCode) -> TaskCode:
        spool = self._spools.get(code.source_name)
        if spool is None or code.source is None:
            return code
        factory = partial(SpoolReader, spool.uri, code.source.schema)
        return replace(code, source=replace(code.source, dataframe=None, factory=factory))

    def start(self) -> None:
        """Start all feeds, or let them go on; those whose input is over are not needed.

        Raises
        ------
        SourceError
            Spark does not start a query, or an inlet does not open.
        """
        self._readers.register()
        for operator, spool in self._spools.items():
            if not spool.is_ended:
                feed = self._feed(operator, spool)
                self._working.append(feed)
                feed.start()

    def _feed(self, operator: str, spool: Spool) -> Feed:
        source = self._tasks[operator][0].source
        assert source is not None
        name = f"{self._compiled.name}: {operator}"
        if source.refresh_ms is not None:
            table = source.dataframe
            first = self._tables.first(table)
            return Refresher(name, table, first, source.refresh_ms, spool, self._warn)
        if source.inlet is not None:
            return InletFeed(name, source.inlet, spool, self._report, self._warn)
        assert source.feeding is not None
        checkpoint = f"{self._folder(operator)}/query"
        return FeedingQuery(
            name,
            source.dataframe,
            source.schema,
            source.feeding,
            spool,
            checkpoint,
            self._report,
        )

    def _report(self, error: ClonosError) -> None:
        self._inbox.put(OutsideFailed(error))

    def views(self) -> list[FeedView]:
        """Every source that is fed, as it is now."""
        return [
            FeedView(
                operator,
                spool.newest.batch if spool.newest is not None else -1,
                spool.rows,
                spool.backlog_bytes,
                spool.is_waiting,
                spool.is_ended,
            )
            for operator, spool in self._spools.items()
        ]

    # --- floors ---

    def after_floor(self, layers: Chains, kept: Chains) -> None:
        """A floor with these layers is complete: no recovery needs rows below it. Rows below the
        layers `kept` may be deleted."""
        if not self._spools and not self._readers:
            return
        with self._lock:
            self._newest = layers, kept
            if self._is_looking:
                return
            self._is_looking = True
        self._looking = threading.Thread(target=self._look_on, name="clonos-feeds", daemon=True)
        self._looking.start()

    def _look_on(self) -> None:
        """Look at the newest floors, until there are no newer ones: these may be the last."""
        while True:
            with self._lock:
                floors, self._newest = self._newest, None
                if floors is None:
                    self._is_looking = False
                    return
            is_done = self._look(*floors)
            if self._is_closed.wait(LOOK_S if is_done else AGAIN_S):
                return
            with self._lock:
                if not is_done and self._newest is None:
                    self._newest = floors

    def _look(self, layers: Chains, kept: Chains) -> bool:
        try:
            for operator, spool in self._spools.items():
                floors = self._floors(layers, self._tasks[operator]) if spool.kept_bytes else []
                oldest = floors
                if floors and kept is not layers:
                    oldest = self._floors(kept, self._tasks[operator])
                if floors:
                    passed = [floor.source_rows for floor in floors]
                    needed = [floor.source_rows for floor in oldest]  # empty: from the first row on
                    spool.truncate(passed, needed or [0] * len(passed))
            self._readers.look(lambda codes: self._floors(kept, codes))
            self._end_tables(layers)
        except Exception as error:  # noqa: BLE001 - tried again; a thread could not report it
            LOGGER.warning("files of a spool that were read could not be deleted: %s", error)
            return False
        return True

    def _floors(self, layers: Chains, codes: Sequence[TaskCode]) -> list[Layer]:
        """The newest layer of each of these tasks; none if one has none."""
        chains = [layers.get(code.task.id, ()) for code in codes]
        if not all(chains):
            return []
        return [open_layer(self._layers.get(chain[-1].path), chain[-1]) for chain in chains]

    def _end_tables(self, layers: Chains) -> None:
        """End the tables when all other inputs are over: nobody looks anything up in them any
        more."""
        tables = [
            spool
            for operator, spool in self._spools.items()
            if is_table(self._tasks[operator][0]) and not spool.is_ended
        ]
        others = [c for c in self._compiled.codes if c.source is not None and not is_table(c)]
        floors = self._floors(layers, others) if tables else []
        if floors and all(floor.source_ended for floor in floors):
            for spool in tables:
                spool.end()

    def complete(self) -> None:
        """The job is complete: it will read nothing again."""
        self._readers.forget()

    def close(self) -> None:
        """Stop feeding. Even if some feeds hang, this takes no longer than stopping one query."""
        until = time.monotonic() + STOP_S
        for feed in self._working:  # all at once
            feed.leave()
        for feed in self._working:
            feed.close(until)
        for spool in self._spools.values():
            spool.close()
        self._is_closed.set()
        if self._looking is not None:
            self._looking.join(max(0.0, until - time.monotonic()))
            if self._looking.is_alive():
                LOGGER.warning("deleting read files of a spool takes long; the job ends without it")


def with_materialized(compiled: CompiledJob, spark: Any, base: str) -> CompiledJob:
    """The job, with every source to be materialized reading files below `base`."""
    found: dict[str, SourceSpec] = {}
    for code in compiled.codes:
        operator, source = code.source_name, code.source
        if source is not None and source.kind == "materialized" and operator not in found:
            uri = f"{base}/{folder_name(operator)}"
            found[operator] = materialized(source, operator, code.parallelism, spark, uri)
    codes = (replace(c, source=found.get(c.source_name, c.source)) for c in compiled.codes)
    return replace(compiled, codes=tuple(codes))


def fed(compiled: CompiledJob) -> Iterator[TaskCode]:
    """The tasks that are fed while the job runs."""
    return (c for c in compiled.codes if c.source is not None and c.source.is_fed)


def is_table(code: TaskCode) -> bool:
    """Whether it reads the versions of a table."""
    return code.source is not None and code.source.refresh_ms is not None


def query_cores(compiled: CompiledJob) -> int:
    """How many cores of Spark are needed in addition to those of the slots, so that rows come at
    all: one, which all queries share."""
    sources = (code.source for code in compiled.codes)
    return 1 if any(source is not None and source.is_fed_by_spark for source in sources) else 0
