"""The layers of a task with the level "auto", until each is kept at some level."""

from __future__ import annotations

from collections.abc import Callable

from clonos.core.dial import Dial
from clonos.core.events import StoreLayer
from clonos.core.levels import STORE, LayerRef, MergeLayers


class Levels:
    """Keeps layers at the level in use, and also at a weaker one if that takes too long.

    Parameters
    ----------
    dial
        Chooses the level.
    keep
        Keeps a layer at a level.
    tell
        Called with the level in use and the reason, whenever the level changes.
    """

    def __init__(
        self,
        dial: Dial,
        keep: Callable[[StoreLayer, str], None],
        tell: Callable[[str, str], None],
    ) -> None:
        self._dial, self._keep, self._tell = dial, keep, tell
        self._under_way: dict[int, tuple[StoreLayer, list[str]]] = {}  # by epoch: levels asked

    def put(self, sealed: StoreLayer, now_s: float) -> None:
        """Keep a layer."""
        self.look(now_s)
        self._under_way[sealed.layer.epoch] = sealed, []
        self._ask(sealed.layer.epoch, now_s)

    def _ask(self, epoch: int, now_s: float) -> None:
        sealed, asked = self._under_way[epoch]
        asked.append(self._dial.level)
        self._dial.asked(self._dial.level, epoch, now_s)
        self._keep(sealed, self._dial.level)

    def stored(self, ref: LayerRef, now_s: float) -> bool:
        """A layer is kept at a level. Return whether it is the first one."""
        self._dial.answered(ref.level, ref.epoch, now_s)
        return self._under_way.pop(ref.epoch, None) is not None

    def merges(self, command: MergeLayers, now_s: float, *, is_over: bool) -> None:
        """Layers from other levels are being merged into the store, or are there."""
        if command.level == STORE:
            note = self._dial.answered if is_over else self._dial.asked
            note(STORE, command.path, now_s)

    def look(self, now_s: float) -> None:
        """Time passes: layers that wait may go to a weaker level."""
        if not self._dial.look(now_s):
            return
        self._tell(self._dial.level, self._dial.why)
        for epoch, (_, asked) in self._under_way.items():
            if self._dial.is_weaker(asked):
                self._ask(epoch, now_s)

    def due_s(self) -> float | None:
        """When to look again, if nothing happens before; None: never."""
        return self._dial.due_s()
