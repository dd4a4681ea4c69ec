"""Values by key, more than fit into memory.

What was put lately is in memory, and so is what was looked up lately. All else lies in *levels*:
runs (:mod:`clonos.state.runs`), those that the task was restored from and those that it has written
to the local disk since. A newer level hides what older ones say of a key. Nobody can tell where a
value was: it is kept as its encoding, in memory and elsewhere.

Local runs are no part of a checkpoint: a slot writes them because it has no room, and forgets them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any, Final

import numpy as np

from clonos.core.canonical import decode, encode
from clonos.core.content import Shelf, Shelved, Writable
from clonos.core.layer import UnreadableLayer
from clonos.state.deltas import Frozen, Values
from clonos.state.runs import Index, Run, RunWriter, hashes_of, merge_runs, write_values
from clonos.state.stores import PLAIN, Undo, kept_as

LOADED_BYTES: Final = 4 * 1024 * 1024
"""A smaller run is loaded as a whole when it is restored."""
LEVELS_MAX: Final = 8
"""If there are more runs, the newest ones are merged."""
SHARE: Final = 0.5
"""An older run is merged, too, if those above it together reach this share of its size."""

_ENTRY_BYTES: Final = 200
"""What a key costs in memory beside its own bytes and those of its value, about."""


class _Memory:
    """A level that is in memory until it is written. Nothing of it changes."""

    def __init__(self, values: dict[bytes, Any]) -> None:
        self.values = values
        self.index: Index | None = None

    def fill(self, file: Writable) -> None:
        encoded = {key: _encoded(kept) for key, kept in self.values.items()}
        self.index = write_values(encoded, (), file.write)


class _Merge:
    """Runs that become one."""

    def __init__(self, runs: Sequence[Run], *, is_base: bool) -> None:
        self.runs, self._is_base = runs, is_base
        self.index: Index | None = None

    def fill(self, file: Writable) -> None:
        writer = RunWriter(sum(map(len, self.runs)), file.write)
        merge_runs(self.runs, writer, is_base=self._is_base)
        self.index = writer.index()


class ValueStore:
    """Values by encoded key, with a record of what changed since the last delta."""

    def __init__(self, undo: Undo | None = None) -> None:
        self._kept: dict[bytes, Any] = {}  # what no level has; bytes: encoded; None: gone
        self._dirty: dict[bytes, tuple[int, Any]] = {}
        self._undo = undo or Undo()
        self._shelf: Shelf | None = None
        self._limit = 0
        self._bytes = 0  # of what is kept, without what each key costs
        self._levels: list[Run | _Memory] = []  # the oldest first
        self._cache: dict[bytes, Any] = {}  # of what is in levels; None: it is not
        self._older: dict[bytes, Any] = {}
        self._cached = 0  # bytes
        self._flushing: tuple[_Memory, Shelved] | None = None
        self._merging: tuple[_Merge, Shelved] | None = None
        self._damage: UnreadableLayer | None = None

    def use(self, shelf: Shelf, nbytes: int) -> None:
        """Take no more memory than that, about; what has no room goes on the shelf."""
        self._shelf, self._limit = shelf, nbytes

    def __contains__(self, key: bytes) -> bool:
        return self._now(key) is not None

    def __iter__(self) -> Iterator[bytes]:
        """All keys; with many of them that takes a while, and memory."""
        known: dict[bytes, bool] = {}
        for level in self._levels:
            items = level.items() if isinstance(level, Run) else level.values.items()
            known.update((key, value is not None) for key, value in items)
        known.update((key, value is not None) for key, value in self._kept.items())
        return (key for key, is_there in known.items() if is_there)

    def get(self, key: bytes) -> Any:
        """The value of `key`; None if it has none."""
        kept = self._kept.get(key)
        if kept is None and self._levels:
            kept = self._now(key)
        if type(kept) is not bytes:
            return kept
        value = decode(kept)
        if type(value) in PLAIN:
            (self._kept if key in self._kept else self._cache)[key] = value
        return value

    def put_kept(self, key: bytes, group: int, kept: Any) -> None:
        """Set a value that :func:`~clonos.state.stores.kept_as` has made; None removes it."""
        before = self._kept.get(key)
        if (puts := self._undo.puts) is not None:
            puts.append((self, key, group, self._now(key) if before is None else before))
        self._dirty[key] = group, kept
        if kept is None:
            self._keep(key, kept)
            return
        self._kept[key] = kept
        kind = type(before)
        if kind is bytes or kind is str:
            self._bytes -= len(before)  # type: ignore[arg-type]
        kind = type(kept)
        if kind is bytes or kind is str:
            self._bytes += len(kept)

    def put(self, key: bytes, group: int, value: Any) -> None:
        """Set a value; None removes it. Raises `UnencodableValue`."""
        self.put_kept(key, group, kept_as(value))

    def require_sound(self) -> None:
        """Raise `UnreadableLayer` if a value could not be read, and whoever wanted it has gone on
        all the same."""
        if self._damage is not None:
            raise self._damage

    def changes(self) -> Frozen:
        """What changed since the last call."""
        dirty, self._dirty = self._dirty, {}

        def work_out() -> list[Values]:
            values = {key: _encoded(kept) for key, (_, kept) in dirty.items()}
            return [Values(values, [group for group, _ in dirty.values()])]

        return work_out

    def restore(self, run: Run) -> None:
        """Take values from a delta. A large run is not read but used where it lies."""
        if self._shelf is None or run.nbytes <= min(LOADED_BYTES, self._limit // 4):
            for key, value in run.items():
                self._keep(key, value)
        else:
            self._freeze()
            self._levels.append(run)
        self._cache, self._older, self._cached = {}, {}, 0
        self.relieve()

    # --- memory -----------------------------------------------------------------------------------

    def expect(self, keys: Sequence[bytes]) -> None:
        """These will be wanted: look for them together, which is much faster."""
        kept, cache, older = self._kept, self._cache, self._older
        wanted = [key for key in keys if key not in kept and key not in cache]
        if older:
            for key in wanted:
                if key in older:
                    cache[key] = older[key]
            wanted = [key for key in wanted if key not in cache]
        if wanted:
            self._look_up(wanted)

    @property
    def has_levels(self) -> bool:
        """Whether there are values that are not in memory."""
        return bool(self._levels)

    def relieve(self) -> None:
        """Make room, if there is too little. Not while something may be rolled back."""
        if self._shelf is None:
            return
        self._settle()
        if self._flushing is None and self._too_much(self._bytes, self._kept, 3):
            self._freeze()
            self._flush()
        if self._too_much(self._cached, self._cache, 6):
            self._older, self._cache, self._cached = self._cache, {}, 0

    def _too_much(self, nbytes: int, values: Mapping[bytes, Any], part: int) -> bool:
        return nbytes + _ENTRY_BYTES * len(values) > self._limit // part

    def _now(self, key: bytes) -> Any:
        """What is kept of a key, wherever it is."""
        kept = self._kept.get(key)
        if kept is not None or not self._levels or key in self._kept:
            return kept
        for cache in (self._cache, self._older):
            if key in cache:
                kept = self._cache[key] = cache[key]
                return kept
        self._look_up([key])
        return self._cache[key]

    def _keep(self, key: bytes, kept: Any) -> None:
        before = self._kept.get(key)
        if type(before) is bytes or type(before) is str:
            self._bytes -= len(before)
        if kept is None and not self._levels:
            self._kept.pop(key, None)
            return
        self._kept[key] = kept
        if type(kept) is bytes or type(kept) is str:
            self._bytes += len(kept)

    def _look_up(self, keys: list[bytes]) -> None:
        """Find keys in the levels; what is not there is noted, too."""
        hashes = hashes_of(keys)
        order = np.argsort(hashes)
        keys, hashes = [keys[i] for i in order.tolist()], hashes[order]
        cache = self._cache
        for level in reversed(self._levels):
            if isinstance(level, Run):
                try:
                    found = level.find(hashes, keys)
                except UnreadableLayer as error:
                    self._damage = error
                    raise
                known = {keys[i]: value for i, value in found.items()}
            else:
                known = {key: level.values[key] for key in keys if key in level.values}
            if known:
                cache.update(known)
                self._cached += sum(len(v) for v in known.values() if type(v) is bytes)
                is_left = [key not in known for key in keys]
                hashes = hashes[np.array(is_left)]
                keys = [key for key in keys if key not in known]
                if not keys:
                    return
        cache.update(dict.fromkeys(keys))

    # --- levels -----------------------------------------------------------------------------------

    def _freeze(self) -> None:
        """What is kept becomes the newest level."""
        kept = {k: v for k, v in self._kept.items() if v is not None or self._levels}
        if kept:
            self._levels.append(_Memory(kept))
        self._kept, self._bytes = {}, 0
        self._cache, self._older, self._cached = {}, {}, 0

    def _flush(self) -> None:
        """Have the oldest level written that is in memory."""
        assert self._shelf is not None
        level = next((one for one in self._levels if isinstance(one, _Memory)), None)
        if level is not None:
            self._flushing = level, self._shelf.write(level.fill, is_long=False)

    def _settle(self) -> None:
        """Take over what was written meanwhile."""
        if self._flushing is not None:
            level, shelved = self._flushing
            if shelved.content is not None:
                assert level.index is not None
                self._levels[self._levels.index(level)] = Run(level.index, shelved.content)
                self._flushing = None
                self._flush()
            elif shelved.failed:  # again when there is more
                self._flushing = None
        if self._merging is not None:
            merge, shelved = self._merging
            if shelved.content is not None:
                assert merge.index is not None
                start = self._levels.index(merge.runs[0])
                merged = Run(merge.index, shelved.content)
                self._levels[start : start + len(merge.runs)] = [merged]
            if shelved.content is not None or shelved.failed:
                self._merging = None
        if self._merging is None:
            self._merge()

    def _merge(self) -> None:
        """If there are many runs, have the newest ones merged."""
        assert self._shelf is not None
        levels = takewhile(lambda level: isinstance(level, Run), self._levels)
        runs = [level for level in levels if isinstance(level, Run)]
        if len(runs) > LEVELS_MAX:
            chosen = runs[_first_to_merge([run.nbytes for run in runs]) :]
            merge = _Merge(chosen, is_base=chosen[0] is self._levels[0])
            self._merging = merge, self._shelf.write(merge.fill, is_long=True)


def _first_to_merge(sizes: Sequence[int]) -> int:
    start, above = len(sizes) - 2, sizes[-1]
    for i in range(len(sizes) - 2, -1, -1):
        if above >= SHARE * sizes[i]:
            start = i
        above += sizes[i]
    return start


def _encoded(kept: Any) -> bytes | None:
    encoded: bytes | None = encode(kept) if type(kept) in PLAIN else kept
    return encoded
