"""The driver's background work on stored layers."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from clonos.cluster.compaction import Compactor
from clonos.core.levels import LayerRef
from clonos.errors import ClonosError
from clonos.nodes.events import Archived, ArchiveFailed, Merged, MergeFailed, Surveyed
from clonos.storage.files import Durability
from clonos.storage.layers import LayerStore
from clonos.transport.inbox import Inbox

_LOG: Final = logging.getLogger("clonos")


LARGE_BYTES: Final = 512 << 20
"""A merge of more than this is slow. Small merges overtake it, because chains grow meanwhile."""
NICENESS: Final = 5
"""Niceness of the process that makes small merges. Where all processors are busy, it has to merge
as fast as state is stored ..."""
LARGE_NICENESS: Final = 10
"""... and of the other one, for which nobody waits."""


class _Lane:
    """One thread, which waits for one process."""

    def __init__(self, name: str, compactor: Compactor) -> None:
        self.compactor = compactor
        self.worker = ThreadPoolExecutor(1, thread_name_prefix=name)


class BackgroundMerger:
    """A :class:`~clonos.nodes.ports.Merger` with a process for small merges and one for large ones.
    Deletions and reads wait for large merges, so no file goes while it is being merged.
    """

    def __init__(self, uri: str, durability: Durability, term: int, inbox: Inbox) -> None:
        self._store = LayerStore(uri, durability)
        self._inbox = inbox
        small = Compactor(uri, durability, term, NICENESS)
        self._small = _Lane("clonos-compact", small)
        large = Compactor(uri, durability, term, LARGE_NICENESS)
        self._large = _Lane("clonos-compact-large", large)
        self._worker = self._large.worker
        self._is_closed = False

    def merge(self, chain: Sequence[LayerRef], chosen: Sequence[LayerRef]) -> None:
        is_large = sum(ref.nbytes for ref in chosen) > LARGE_BYTES
        lane = self._large if is_large else self._small
        lane.worker.submit(self._merge, lane.compactor, chain, tuple(chosen))

    def _merge(
        self, compactor: Compactor, chain: Sequence[LayerRef], chosen: tuple[LayerRef, ...]
    ) -> None:
        if self._is_closed:
            return
        try:
            merged = compactor.merge(chain, chosen)
        except ClonosError as error:
            self._inbox.put(MergeFailed(chosen, error))
        except Exception as error:  # noqa: BLE001 - told to the loop
            text = f"merging layers of task {chosen[0].task} failed: {error}"
            self._inbox.put(MergeFailed(chosen, ClonosError(text)))
        else:
            self._inbox.put(Merged(merged, chosen))

    def delete(self, paths: Sequence[str]) -> None:
        self._worker.submit(self._delete, list(paths))

    def _delete(self, paths: list[str]) -> None:
        try:
            self._store.delete(paths)
        except ClonosError as error:
            _LOG.warning("unused layers could not be deleted: %s", error)

    def archive(self, number: int, path: str, content: bytes) -> None:
        self._worker.submit(self._archive, number, path, content)

    def _archive(self, number: int, path: str, content: bytes) -> None:
        try:
            self._inbox.put(Archived(number, path, self._store.put(path, content)))
        except ClonosError as error:
            self._inbox.put(ArchiveFailed(number, error))
        except Exception as error:  # noqa: BLE001 - told to the loop
            text = f"storing a part of the history failed: {error}"
            self._inbox.put(ArchiveFailed(number, ClonosError(text)))

    def survey(self, going: int = 0) -> None:
        self._worker.submit(self._survey_at_rest, going)

    def _survey_at_rest(self, going: int) -> None:
        """No merge is under way in either process: its unfinished file would seem to be left by a
        process that was killed, and be deleted."""
        self._small.worker.submit(self._survey, going).result()

    def _survey(self, going: int) -> None:
        try:
            self._inbox.put(Surveyed(tuple(self._store.everything()), going))
        except ClonosError as error:
            _LOG.warning("files that earlier drivers have left could not be deleted: %s", error)

    def close(self) -> None:
        """Abort merges under way."""
        self._is_closed = True
        for lane in (self._small, self._large):
            lane.worker.shutdown(wait=False, cancel_futures=True)
            lane.compactor.close()
            lane.worker.shutdown(wait=True)
