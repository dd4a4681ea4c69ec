"""Nexmark's events as a source of a job and as files, and its side input."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from clonos.sources.readers import BaseReader, EndOfInput
from clonos.sources.spec import SourceSpec
from clonos_bench.nexmark.generator import KINDS, PROPORTION, Generator, schema_of

SIDE_ROWS: Final = 500

BLOCK_EVENTS: Final = 200 * PROPORTION
"""Tasks take blocks of so many events in turn, and so stay close to each other in event time."""

_FILE_ROWS: Final = 65_536


class NexmarkReader(BaseReader):
    """One task's share of the rows of a kind."""

    def __init__(
        self,
        generator: Generator,
        kind: str,
        block_events: int,
        index: int,
        parallelism: int,
        columns: Sequence[str] | None = None,
    ) -> None:
        self.schema = schema_of(kind, columns)
        self._columns = columns
        self._generator = generator
        self._kind = kind
        self._rows = generator.rows(kind)
        self._block = Generator(block_events, group=generator.group).rows(kind)
        self._index = index
        self._parallelism = parallelism
        self._next = 0

    def open(self, rows_consumed: int) -> None:
        """See :meth:`Reader.open`."""
        self._next = rows_consumed

    def skip(self, rows: int) -> None:
        """See :meth:`Reader.skip`; a standby that follows does not make the rows."""
        self._next += rows

    def read(self, max_rows: int, max_wait_s: float) -> pa.RecordBatch | None:
        """See :meth:`Reader.read`; never waits."""
        del max_wait_s
        ranges: list[tuple[int, int]] = []
        while max_rows:
            block, place = divmod(self._next, self._block)
            first = (block * self._parallelism + self._index) * self._block + place
            rows = min(max_rows, self._block - place, self._rows - first)
            if rows <= 0:
                break
            ranges.append((first, rows))
            self._next += rows
            max_rows -= rows
        if not ranges:
            raise EndOfInput
        return self._generator.batch_of(self._kind, ranges, self._columns)


def events(
    kind: str,
    events: int,
    *,
    delay_us: int = 100,
    group: int = 1,
    block_events: int = BLOCK_EVENTS,
) -> SourceSpec:
    """A source of the rows of one kind among the first `events` events.

    Parameters
    ----------
    kind
        "person", "auction", "bid", or "event" for all.
    events
        Events of all kinds, whatever `kind` is: sources of different kinds fit together.
    delay_us, group
        See :class:`~clonos_bench.nexmark.generator.Generator`.
    block_events
        A task takes so many events in a row, then the next task does; a multiple of 50 and
        `group`.

    Examples
    --------
    >>> events("bid", 1000).rows_schema.names
    ['auction', 'bidder', 'price', 'date_time', 'extra']
    """
    generator = Generator(events, delay_us, group)
    generator.rows(kind)  # complains about unknown kinds
    return _source(generator, kind, block_events, None)


def _source(
    generator: Generator, kind: str, block_events: int, columns: Sequence[str] | None
) -> SourceSpec:
    schema = schema_of(kind, columns)
    factory = partial(_reader, generator, kind, block_events, columns)
    narrow = partial(_source, generator, kind, block_events)
    return SourceSpec(
        "nexmark", schema, factory, True, schema, narrow=None if kind == "event" else narrow
    )


def side_input() -> pa.RecordBatch:
    """Rows (key, value) = (i, str(i)).

    Examples
    --------
    >>> side_input().slice(499, 1).to_pylist()
    [{'key': 499, 'value': '499'}]
    """
    keys = range(SIDE_ROWS)
    return pa.RecordBatch.from_pydict({"key": pa.array(keys), "value": [str(key) for key in keys]})


def batches(
    generator: Generator, kind: str, rows: int = _FILE_ROWS, first: int = 0, last: int | None = None
) -> Iterator[pa.RecordBatch]:
    """Rows `first` to `last` (by default all) of a kind."""
    last = generator.rows(kind) if last is None else last
    for start in range(first, last, rows):
        yield generator.batch(kind, start, min(rows, last - start))


def write_parquet(generator: Generator, folder: str | Path) -> None:
    """Write the files ``person.parquet``, ``auction.parquet`` and ``bid.parquet``."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for kind in ("person", "auction", "bid"):
        with pq.ParquetWriter(folder / f"{kind}.parquet", KINDS[kind]) as writer:
            for batch in batches(generator, kind):
                writer.write_batch(batch)


# A function of this module, so that it can be shipped to other processes.


def _reader(
    generator: Generator,
    kind: str,
    block_events: int,
    columns: Sequence[str] | None,
    index: int,
    parallelism: int,
) -> NexmarkReader:
    return NexmarkReader(generator, kind, block_events, index, parallelism, columns)
