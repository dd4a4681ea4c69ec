"""Layers at every level, as one process reaches them: its memory, its disk, the checkpoint store.

A process that has a layer at the first two levels gives its bytes to others. A copy is compared
with its reference before it is kept, so it is the right layer or none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from clonos.core.content import Chunks, Content, InMemory, content_of, encoded
from clonos.core.events import StoreLayer
from clonos.core.layer import (
    layer_chunks,
    layer_path,
    left_by_earlier,
    merge_layers,
    open_layer,
    refer_to,
)
from clonos.core.levels import LOCAL, MEMORY, STORE, LayerPart, LayerRef, MergeLayers
from clonos.core.plan import Incarnation
from clonos.core.sealed import Layer
from clonos.errors import UnreadableLayer
from clonos.storage.layers import OPENED_BYTES, LayerStore

PART_BYTES: Final = 4 << 20
"""Layers travel between slots in parts of this size."""


class MemoryLayers:
    """Layers in the memory of this process, as long as it lives; for any thread.

    Examples
    --------
    >>> layers = MemoryLayers()
    >>> layers.put("3/17.layer", b"state")
    5
    >>> layers.get("3/17.layer")
    b'state'
    """

    def __init__(self) -> None:
        self._kept: dict[str, bytes] = {}

    def put(self, path: str, content: bytes | Chunks) -> int:
        """Keep a layer."""
        self._kept[path] = bytes(content)
        return len(content)

    def get(self, path: str) -> bytes:
        """The layer with this path."""
        try:
            return self._kept[path]
        except KeyError:
            raise UnreadableLayer(
                "the layer is not in the memory of this process", where=path
            ) from None

    def open(self, path: str) -> Content:
        """The same, to be read part by part."""
        return InMemory(self.get(path))

    def delete(self, paths: Iterable[str]) -> None:
        """Forget these layers."""
        for path in paths:
            self._kept.pop(path, None)

    @property
    def nbytes(self) -> int:
        """The size of all layers."""
        return sum(map(len, list(self._kept.values())))


class LeveledLayers:
    """The layers that one process can reach.

    Parameters
    ----------
    store, local
        The checkpoint store, and a folder on this machine's disk; None: there is none.
    """

    def __init__(self, store: LayerStore, local: LayerStore | None) -> None:
        self.memory = MemoryLayers()
        self.store = store
        self._at: Mapping[str, LayerStore | MemoryLayers] = {
            MEMORY: self.memory,
            STORE: store,
            **({LOCAL: local} if local is not None else {}),
        }

    def put(self, sealed: StoreLayer, level: str) -> LayerRef:
        """Keep a sealed layer, which is encoded only now."""
        return self._put(replace(sealed.layer, delta=encoded(sealed.delta)), level)

    def _put(self, layer: Layer, level: str, path: str = "") -> LayerRef:
        content = layer_chunks(layer)
        path = path or layer_path(layer.task, layer.epoch, layer.incarnation)
        return refer_to(layer, content, path, self._at[level].put(path, content), level)

    def get(self, refs: Iterable[LayerRef], opened_bytes: int = OPENED_BYTES) -> tuple[Layer, ...]:
        """Read layers, and check that each is the right one; see
        :func:`~clonos.storage.layers.get_layers`."""
        return tuple(
            open_layer(at.open(ref.path) if ref.nbytes >= opened_bytes else at.get(ref.path), ref)
            for ref in refs
            for at in (self._at[ref.level],)
        )

    def look(self, refs: Iterable[LayerRef]) -> tuple[str, ...]:
        """Which of these layers are here and undamaged."""
        return tuple(ref.path for ref in refs if self._is_here(ref))

    def _is_here(self, ref: LayerRef) -> bool:
        try:
            self.get([ref])
        except UnreadableLayer:
            return False
        return True

    def keep(self, ref: LayerRef, content: bytes) -> None:
        """Keep a copy of a layer that another process has.

        Raises
        ------
        UnreadableLayer
            The content is not that layer.
        """
        open_layer(content, ref)
        self._at[ref.level].put(ref.path, content)

    def part(self, ref: LayerRef, start: int) -> LayerPart:
        """A part of a layer, for another process; its size is -1 if the layer is not here.

        The layer is verified before its first part is sent: a process that got something else would
        ask again and again.
        """
        if not start and not self._is_here(ref):
            return LayerPart(ref.path, start, -1, b"")
        try:
            whole = content_of(self._at[ref.level].open(ref.path))
            return LayerPart(ref.path, start, len(whole), whole.read(start, start + PART_BYTES))
        except (UnreadableLayer, OSError):
            return LayerPart(ref.path, start, -1, b"")

    def merge(self, command: MergeLayers, deltas: Callable[..., bytes | Content]) -> LayerRef:
        """Merge layers into one, and keep it."""
        layer = merge_layers(self.get(command.layers), deltas, is_base=command.is_base)
        return self._put(layer, command.level, command.path)

    def tidy(self, task: int, life: Incarnation, named: Collection[str]) -> tuple[str, ...]:
        """Delete from this machine's disk what earlier lives of a task have left there, but for
        these layers. Returns what is gone."""
        local = self._at.get(LOCAL)
        if not isinstance(local, LayerStore):
            return ()
        found = tuple(left_by_earlier(local.everything(), task, life, named))
        local.delete(found)
        return found

    def drop(self, refs: Sequence[LayerRef]) -> None:
        """Delete these layers: nobody needs them here any more."""
        for ref in refs:
            if ref.level != STORE:
                self._at[ref.level].delete([ref.path])
