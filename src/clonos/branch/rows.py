"""Rows of a source in a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa


class Rows:
    """Batches in a file, in order, because a source may have too many for memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writer: Any = None

    def add(self, batch: pa.RecordBatch) -> None:
        """Append a batch."""
        if self._writer is None:
            self._writer = pa.ipc.new_stream(str(self.path), batch.schema)
        self._writer.write_batch(batch)

    def close(self) -> None:
        """The last batch was added; without batches there is no file."""
        if self._writer is not None:
            self._writer.close()

    def read(self) -> Iterator[pa.RecordBatch]:
        """All batches; call it after :meth:`close`."""
        self.close()
        if self.path.exists():
            with pa.memory_map(str(self.path)) as file:
                yield from pa.ipc.open_stream(file)
