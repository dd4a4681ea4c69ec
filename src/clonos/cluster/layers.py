"""The driver's care for stored layers: merging them in the background, deleting what was merged."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from clonos.cluster.compaction import Compactor, CompactorDied, choose
from clonos.core import coordinator as co
from clonos.core.messages import LayerRef
from clonos.errors import ClonosError
from clonos.storage.files import Durability
from clonos.storage.layers import LayerStore
from clonos.transport.inbox import Inbox

_LOG: Final = logging.getLogger("clonos")

GARBAGE_S: Final = 30.0
"""Layers that were merged away stay so long: a slot may have been told to read them."""


class Layers:
    """Keeps every task's chain of layers short.

    Parameters
    ----------
    inbox
        Where :class:`~clonos.core.coordinator.Compacted` (or an error) is put.
    """

    def __init__(self, uri: str, durability: Durability, inbox: Inbox) -> None:
        self._store = LayerStore(uri, durability)
        self._compactor = Compactor(uri, durability)
        self._inbox = inbox
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="clonos-compact")
        self._compacting: set[int] = set()
        self._closed = False
        self._garbage: list[tuple[float, str]] = []

    def after_floor(self, layers: Mapping[int, tuple[LayerRef, ...]]) -> None:
        """A floor is complete with these layers: look for work."""
        due = time.monotonic() - GARBAGE_S
        old = [path for since, path in self._garbage if since < due]
        if old:
            self._garbage = [(since, path) for since, path in self._garbage if since >= due]
            self._worker.submit(self._store.delete, old)
        for task, chain in layers.items():
            chosen = choose(chain)
            if chosen and task not in self._compacting:
                self._compacting.add(task)
                self._worker.submit(self._compact, task, chain, tuple(chosen))

    def _compact(
        self, task: int, chain: tuple[LayerRef, ...], chosen: tuple[LayerRef, ...]
    ) -> None:
        try:
            merged = self._compactor.merge(chain, chosen)
        except CompactorDied as error:
            if not self._closed:
                _LOG.warning("%s; the layers of task %d are merged another time", error, task)
            self._inbox.put(lambda: self._compacting.discard(task))
        except ClonosError as error:
            self._inbox.put(error)
        except Exception as error:  # noqa: BLE001 - told to the loop
            self._inbox.put(ClonosError(f"merging layers of task {task} failed: {error}"))
        else:
            self._inbox.put(co.Compacted(merged, chosen))

    def compacted(self, event: co.Compacted, chain: tuple[LayerRef, ...]) -> None:
        """The coordinator has decided, `chain` is what counts now: the rest may go, later."""
        self._compacting.discard(event.merged.task)
        now = time.monotonic()
        unused = [ref for ref in (event.merged, *event.replaced) if ref not in chain]
        self._garbage += [(now, ref.path) for ref in unused]

    def close(self) -> None:
        """Break off what has begun."""
        self._closed = True
        self._worker.shutdown(wait=False, cancel_futures=True)
        self._compactor.close()
        self._worker.shutdown(wait=True)
