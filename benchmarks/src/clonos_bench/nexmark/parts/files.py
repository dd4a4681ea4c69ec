"""Nexmark's events in files that follow each other in time, the same for all engines."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

import clonos
from clonos.sources.spec import SourceSpec
from clonos_bench.nexmark import KINDS, Generator
from clonos_bench.nexmark.source import batches

FILES: Final = 48
"""Per kind."""

KINDS_APART: Final = ("person", "auction", "bid")
END: Final = "end"
"""Name of the file, in a folder beside a kind's, with which event time ends."""

_AFTER_ALL: Final = dt.datetime(2100, 1, 1, tzinfo=dt.timezone.utc)


def write(folder: Path, generator: Generator) -> None:
    """Write ``<folder>/<kind>/<number>.parquet``, not compressed: reading costs least then.

    And ``<folder>/<kind>-end/end.parquet``, for engines that are not told that their input ends: a
    row from long after all others, by which their last windows close. Its numbers are negative and
    differ by kind: it is joined with nothing.
    """
    for kind in KINDS_APART:
        (folder / kind).mkdir(parents=True)
        rows = generator.rows(kind)
        for i in range(FILES):
            first, last = rows * i // FILES, rows * (i + 1) // FILES
            path = folder / kind / f"{i:03d}.parquet"
            with pq.ParquetWriter(path, KINDS[kind], compression="none") as writer:
                for batch in batches(generator, kind, first=first, last=last):
                    writer.write_batch(batch)
    for number, kind in enumerate(KINDS_APART):
        (folder / f"{kind}-{END}").mkdir()
        schema = KINDS[kind]
        row = {field.name: _nothing(field.type, -1 - number) for field in schema}
        last_row = pa.Table.from_pylist([row], schema)
        pq.write_table(last_row, folder / f"{kind}-{END}" / f"{END}.parquet", compression="none")


def _nothing(of: pa.DataType, number: int) -> object:
    if pa.types.is_timestamp(of):
        return _AFTER_ALL
    return number if pa.types.is_integer(of) else ""


def source(folder: Path, kind: str) -> SourceSpec:
    """The rows of a kind as a source of a job."""
    return clonos.sources.files(str(folder / kind), "parquet")
