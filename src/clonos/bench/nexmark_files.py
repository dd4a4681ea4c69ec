"""Nexmark's events in files that follow each other in time, the same for all engines."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pyarrow.parquet as pq

import clonos
from clonos.nexmark import KINDS, Generator
from clonos.nexmark.source import batches
from clonos.operators.specs import SourceSpec

FILES: Final = 24
"""Per kind."""

KINDS_APART: Final = ("person", "auction", "bid")


def write(folder: Path, generator: Generator) -> None:
    """Write ``<folder>/<kind>/<number>.parquet``, not compressed: reading costs least then."""
    for kind in KINDS_APART:
        (folder / kind).mkdir(parents=True)
        rows = generator.rows(kind)
        for i in range(FILES):
            first, last = rows * i // FILES, rows * (i + 1) // FILES
            path = folder / kind / f"{i:03d}.parquet"
            with pq.ParquetWriter(path, KINDS[kind], compression="none") as writer:
                for batch in batches(generator, kind, first=first, last=last):
                    writer.write_batch(batch)


def source(folder: Path, kind: str) -> SourceSpec:
    """The rows of a kind as a source of a job."""
    return clonos.sources.files(str(folder / kind), "parquet")
