"""State that does not fit into memory, on the local disk, in files without a name."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from clonos.core.content import Content, Writable
from clonos.errors import UnreadableLayer
from clonos.storage.opened import ScratchFile

_LOG: Final = logging.getLogger("clonos")


@dataclass
class Order:
    """A file that is being written; a :class:`~clonos.core.content.Shelved`."""

    content: Content | None = None
    failed: bool = False

    def do(self, fill: Callable[[Writable], object]) -> None:
        """Write it."""
        try:
            file = ScratchFile()
            fill(file)
            file.finish()
        except Exception as error:  # noqa: BLE001 - else the order would seem to be under way
            # The state stays in memory, or in several files, and is written when it has grown.
            is_known = isinstance(error, (OSError, MemoryError, UnreadableLayer))
            said = "state cannot be written to the local disk: %s"
            _LOG.warning(said, error, exc_info=not is_known)
            self.failed = True
        else:
            self.content = file


class LocalShelf:
    """A :class:`~clonos.core.content.Shelf`: one thread for short writes, and one for long ones."""

    def __init__(self) -> None:
        self._short = ThreadPoolExecutor(1, thread_name_prefix="clonos-shelf")
        self._long = ThreadPoolExecutor(1, thread_name_prefix="clonos-merge")

    def write(self, fill: Callable[[Writable], object], *, is_long: bool) -> Order:
        order = Order()
        (self._long if is_long else self._short).submit(order.do, fill)
        return order

    def close(self) -> None:
        """The slot ends."""
        for pool in (self._short, self._long):
            pool.shutdown(wait=False, cancel_futures=True)
