"""Deliberate mistakes with items on local disks."""

from __future__ import annotations

from typing import Any

from clonos.core.events import DropSpilled
from clonos.core.inflight import InFlightLog
from clonos.core.outbounds import Outbounds
from clonos.core.program import Batch


def believed(original: Any) -> Any:
    """Whatever is read from a file is believed."""

    def read_back(self: InFlightLog, number: int, batches: list[Batch]) -> bool:
        file = self.spilled.find(number)
        if file is not None:
            kept = [self.item(seq) for seq in range(max(file.first, self.first), file.last + 1)]
            digests = [item.batch.digest for item in kept if item.batch is not None]
            came = batches[len(batches) - len(digests) :]
            batches = [b._replace(digest=d) for b, d in zip(came, digests, strict=True)]
        result: bool = original(self, number, batches)
        return result

    return read_back


def until_taken(original: Any) -> Any:
    """A file is deleted when the receiver has processed its items, although its floor is lower."""

    def truncate(self: Outbounds, channel: int, seq: int) -> None:
        original(self, channel, seq)
        log = self.ends[channel].log
        for file in log.spilled.files:
            if file.is_written and file.last <= log.processed:
                self._do(DropSpilled(channel, file.number))

    return truncate
