"""Sources that streaming queries feed: their spools, their queries, and what of them may go."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Final
from urllib.parse import quote

from clonos.cluster.directory import JobDirectory
from clonos.core.layer import decode_layer
from clonos.core.messages import LayerRef
from clonos.errors import ClonosError
from clonos.graph.compile import CompiledJob, TaskCode
from clonos.spark.feeding import FeedingQuery, hadoop_path
from clonos.storage.files import Durability
from clonos.storage.layers import LayerStore
from clonos.storage.spool import Spool, SpoolReader
from clonos.transport.inbox import Inbox

LOGGER: Final = logging.getLogger("clonos")


@dataclass(frozen=True)
class FeedView:
    """What a streaming query has handed over so far.

    ``batch``: the newest micro-batch with rows that was taken (-1: none); ``backlog_bytes``: what
    is still spooled; ``is_waiting``: the query waits until that is less.
    """

    source: str
    batch: int
    rows: int
    backlog_bytes: int
    is_waiting: bool
    is_ended: bool


class Feeds:
    """All sources of a job that streaming queries feed.

    Parameters
    ----------
    directory
        Where the rows are kept, and where the tasks' floors say how far they have read.
    inbox
        Where an error that ends a query is put.
    """

    def __init__(
        self,
        compiled: CompiledJob,
        directory: JobDirectory,
        durability: Durability,
        inbox: Inbox,
    ) -> None:
        self._compiled = compiled
        self._inbox = inbox
        self._base = directory.spool_uri
        self._layers = LayerStore(directory.layers_uri, durability)
        self._spools: dict[str, Spool] = {}
        self._tasks: dict[str, list[TaskCode]] = {}
        self._queries: list[FeedingQuery] = []
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="clonos-feeds")
        self._truncating: Future[None] | None = None
        for code in fed(compiled):
            assert code.source is not None
            operator = code.task.operator
            if operator not in self._spools:
                most = code.source.feeding.backlog_bytes if code.source.feeding else 0
                self._spools[operator] = Spool(
                    f"{self._folder(operator)}/batches",
                    code.parallelism,
                    durability,
                    backlog_bytes_max=most,
                )
            self._tasks.setdefault(operator, []).append(code)

    def _folder(self, operator: str) -> str:
        return f"{self._base}/{quote(operator, safe='')}"

    def reading(self, compiled: CompiledJob) -> CompiledJob:
        """The job with these sources reading the spools."""
        return replace(compiled, codes=tuple(map(self._reading, compiled.codes)))

    def _reading(self, code: TaskCode) -> TaskCode:
        spool = self._spools.get(code.task.operator)
        if spool is None or code.source is None:
            return code
        factory = partial(SpoolReader, spool.uri, code.source.schema)
        return replace(code, source=replace(code.source, dataframe=None, factory=factory))

    def start(self) -> None:
        """Start the queries where they were; those whose input is over are not needed.

        Raises
        ------
        SourceError
            Spark does not start one.
        """
        for operator, spool in self._spools.items():
            source = self._tasks[operator][0].source
            assert source is not None
            assert source.feeding is not None
            if spool.is_ended:
                continue
            query = FeedingQuery(
                f"{self._compiled.name}: {operator}",
                source.dataframe,
                source.schema,
                source.feeding,
                spool,
                hadoop_path(f"{self._folder(operator)}/query"),
                self._inbox.put,
            )
            self._queries.append(query)
            query.start()

    def views(self) -> list[FeedView]:
        """Every query as it is now."""
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

    def after_floor(self, layers: Mapping[int, tuple[LayerRef, ...]]) -> None:
        """A floor is complete with these layers: what it has passed may go."""
        is_busy = self._truncating is not None and not self._truncating.done()
        if not is_busy and any(spool.backlog_bytes for spool in self._spools.values()):
            self._truncating = self._worker.submit(self._truncate, dict(layers))

    def _truncate(self, layers: Mapping[int, tuple[LayerRef, ...]]) -> None:
        try:
            for operator, spool in self._spools.items():
                chains = [layers.get(code.task.id, ()) for code in self._tasks[operator]]
                if all(chains) and spool.backlog_bytes:
                    newest = [decode_layer(self._layers.get(chain[-1].path)) for chain in chains]
                    spool.truncate([layer.source_rows for layer in newest])
        except (ClonosError, OSError) as error:  # the next floor's turn
            LOGGER.warning("what has been read of a spool could not be deleted: %s", error)

    def close(self) -> None:
        """Stop the queries."""
        for query in self._queries:
            query.close()
        for spool in self._spools.values():
            spool.close()
        self._worker.shutdown(wait=True)


def fed(compiled: CompiledJob) -> Iterator[TaskCode]:
    """The tasks that a streaming query feeds."""
    return (c for c in compiled.codes if c.source is not None and c.source.feeding is not None)


def query_cores(compiled: CompiledJob) -> int:
    """Cores of Spark, beyond those of the slots, without which no row would ever come: one, which
    all queries share."""
    return 1 if any(fed(compiled)) else 0
