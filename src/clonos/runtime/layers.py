"""Where a slot keeps the layers of its tasks: its memory, its machine's disk, the checkpoint store.

A machine's disk has a name, in a file in the folder of layers. So the driver knows which slots
share a disk, and recognizes a disk that comes back.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from clonos.core import events as ev
from clonos.core.levels import AUTO, LEVELS, LOCAL, STORE, LayerPart, LayerRef, MergeLayers
from clonos.core.plan import Incarnation
from clonos.nodes.events import (
    Fetched,
    FetchFailed,
    Kept,
    Looked,
    MergedHere,
    PartRead,
    Stored,
    WorkFailed,
)
from clonos.state.deltas import merge_into
from clonos.storage.files import Durability, own_folder, unusable
from clonos.storage.layers import LayerStore
from clonos.storage.leveled import LeveledLayers
from clonos.storage.opened import ScratchFile
from clonos.storage.retry import Retry
from clonos.transport.inbox import Inbox

NAME: Final = "disk"
"""The file that names the disk."""
_STATE: Final = "state on the local disk"


def local_folder(uri: str, local_dir: str | None) -> Path:
    """The folder on this machine's disk for the layers of a job: the same for all its processes and
    all its runs.

    Raises
    ------
    UnusableStore
        There is no folder for temporary files, or another user owns that folder there, where
        everybody may write.
    """
    name = Path(uri.rstrip("/")).name
    if local_dir is not None:
        return Path(local_dir) / name
    return own_folder(_STATE, "give clonos.Job(local_dir=...), a folder that is only yours") / name


def disk_of(folder: Path) -> str:
    """The name of the disk on which a folder is; the disk gets one if it has none.

    Raises
    ------
    UnusableStore
        The folder cannot be made, written or read.
    """
    path, own = folder / NAME, folder / f".{uuid4().hex}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():
            own.write_text(uuid4().hex, "utf-8")
            with suppress(FileExistsError):
                os.link(own, path)  # complete, or another process's
            own.unlink()
        return path.read_text("utf-8")
    except OSError as error:
        remedy = "give clonos.Job(local_dir=...), a folder that executors may create and use"
        raise unusable(folder, _STATE, error, remedy) from None


class Layers:
    """A :class:`~clonos.nodes.ports.Store`: fetching does not wait until a large layer is stored.

    If the store is away or full, writing is retried until the slot ends: epochs stay open
    meanwhile, and the job goes on.

    Parameters
    ----------
    levels
        The levels at which layers of this job are kept.

    Attributes
    ----------
    disk
        The name of the local disk; empty if no layers are kept there.
    """

    def __init__(
        self,
        uri: str,
        durability: Durability,
        inbox: Inbox,
        levels: Sequence[str] = (),
        local_dir: str | None = None,
    ) -> None:
        self._closed = threading.Event()
        retry = Retry("the state of tasks", self._closed.wait)
        local, self.disk = None, ""
        self._folder: Path | None = None
        self._is_complete = False
        if LOCAL in levels or AUTO in levels:
            folder = self._folder = local_folder(uri, local_dir)
            self.disk = disk_of(folder)
            local = LayerStore(folder / "layers", "process", retry=retry)
        self._layers = LeveledLayers(LayerStore(uri, durability, retry=retry), local)
        self._inbox = inbox
        # Each pool retries until it succeeds, so none may wait for another's disk or store.
        # Dropping has another thread than putting, because it makes room.
        self._fetching = {
            name: ThreadPoolExecutor(1, thread_name_prefix=f"clonos-fetch-{name}")
            for name in ("stored", "kept")
        }
        self._putting = {
            level: ThreadPoolExecutor(1, thread_name_prefix=f"clonos-{level}") for level in LEVELS
        }
        self._shelf = ThreadPoolExecutor(1, thread_name_prefix="clonos-shelf")
        self._merging = {
            level: ThreadPoolExecutor(1, thread_name_prefix=f"clonos-join-{level}")
            for level in LEVELS
        }

    @property
    def reads_in_place(self) -> bool:
        return self._layers.store.is_local

    def fetch(self, ticket: int, refs: Sequence[LayerRef]) -> None:
        is_stored = any(ref.level == STORE for ref in refs)
        self._fetching["stored" if is_stored else "kept"].submit(self._fetch, ticket, refs)

    def _fetch(self, ticket: int, refs: Sequence[LayerRef]) -> None:
        try:
            layers = self._layers.get(refs)
        except Exception as error:  # noqa: BLE001 - the node decides what it means
            self._inbox.put(FetchFailed(ticket, error))
        else:
            self._inbox.put(Fetched(ticket, layers))

    def put(self, life: int, sealed: ev.StoreLayer, level: str) -> None:
        def stored() -> Stored:
            began_s = time.thread_time()
            ref = self._layers.put(sealed, level)
            return Stored(life, ref, time.thread_time() - began_s)

        self._do(self._putting[level], stored, lambda error: WorkFailed(life, error))

    def look(self, ticket: int, refs: Sequence[LayerRef]) -> None:
        self._do(
            self._shelf,
            lambda: Looked(ticket, self._layers.look(refs)),
            lambda _: Looked(ticket, ()),
        )

    def keep(self, ticket: int, ref: LayerRef, content: bytes) -> None:
        def kept() -> Kept:
            self._layers.keep(ref, content)
            return Kept(ticket)

        self._do(self._putting[ref.level], kept, lambda error: Kept(ticket, error))

    def read(self, ticket: int, ref: LayerRef, start: int) -> None:
        self._do(
            self._shelf,
            lambda: PartRead(ticket, self._layers.part(ref, start)),
            lambda _: PartRead(ticket, LayerPart(ref.path, start, -1, b"")),
        )

    def merge(self, ticket: int, command: MergeLayers) -> None:
        def deltas(parts: Sequence[Any], *, is_base: bool) -> Any:
            return merge_into(ScratchFile(), parts, is_base=is_base)

        self._do(
            self._merging[command.level],
            lambda: MergedHere(ticket, self._layers.merge(command, deltas)),
            lambda _: MergedHere(ticket, None),
        )

    def drop(self, refs: Sequence[LayerRef]) -> None:
        self._shelf.submit(self._drop, tuple(refs))

    def _drop(self, refs: Sequence[LayerRef]) -> None:
        with suppress(Exception):  # a file that stays is not read by anybody
            self._layers.drop(refs)

    def tidy(self, task: int, life: Incarnation, named: Collection[str]) -> None:
        def tidied() -> None:
            with suppress(Exception):  # what stays is in nobody's way
                self._layers.tidy(task, life, named)

        self._shelf.submit(tidied)

    def clear(self) -> None:
        self._is_complete = True

    def _do(
        self,
        pool: ThreadPoolExecutor,
        work: Callable[[], Any],
        failed: Callable[[Exception], Any],
    ) -> None:
        def run() -> None:
            try:
                done = work()
            except Exception as error:  # noqa: BLE001 - the node decides what it means
                self._inbox.put(failed(error))
            else:
                self._inbox.put(done)

        pool.submit(run)

    def close(self) -> None:
        """The slot ends."""
        self._closed.set()
        pools = (*self._fetching.values(), *self._putting.values(), *self._merging.values())
        for pool in (*pools, self._shelf):
            pool.shutdown(wait=False, cancel_futures=True)
        if self._is_complete and self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)  # other processes may do the same
