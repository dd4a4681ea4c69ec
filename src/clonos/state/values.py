"""Values by key that need not fit into memory.

Recently written and recently read values are in memory. All others are in *tiers*
(:mod:`clonos.state.tiers`); for each key the newest tier counts. Where a value is kept makes no
difference, because it is kept in its encoded form everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from clonos.core.canonical import decode, encode
from clonos.core.content import InMemory, Shelf, Writable
from clonos.errors import UnreadableLayer
from clonos.state.deltas import Frozen, Values
from clonos.state.runs import HASH, Index, Placing, Run, hashes_of, write_values
from clonos.state.sieves import Sieves
from clonos.state.stores import PLAIN, Undo, kept_as
from clonos.state.tiers import LOADED_BYTES, Tiers

_ENTRY_BYTES: Final = 200
"""Approximate overhead of a key in memory, besides the bytes of key and value."""


class _Memory:
    """An immutable tier that is in memory until it is written."""

    def __init__(self, values: dict[bytes, Any], placing: Placing) -> None:
        self.values, self._placing = values, placing
        self.index: Index | None = None

    def fill(self, file: Writable) -> None:
        self.index = self.write(file.write)

    def write(self, write: Callable[[bytes], object]) -> Index:
        """As a run."""
        encoded = {key: _encoded(kept) for key, kept in self.values.items()}
        return write_values(encoded, (), write, self._placing)


class ValueStore:
    """Values by encoded key, with a record of what changed since the last delta.

    ``placing``: where in runs they lie. ``when_written`` is told what has left memory.
    """

    def __init__(self, undo: Undo | None = None, placing: Placing = HASH) -> None:
        self._kept: dict[bytes, Any] = {}  # what no tier has; bytes: encoded; None: gone
        self._dirty: dict[bytes, tuple[int, Any]] = {}
        self._undo, self._placing = undo or Undo(), placing
        self.when_written: Callable[[Mapping[bytes, Any]], None] | None = None
        self._limit = 0
        self._bytes = 0  # of what is kept, and of its keys
        self._below = Tiers[_Memory]()
        self._sieves = Sieves()
        self._cache: dict[bytes, Any] = {}  # of tiers; None: absent
        self._older: dict[bytes, Any] = {}
        self._cached = 0  # bytes
        self._damage: UnreadableLayer | None = None

    def use(self, shelf: Shelf, nbytes: int) -> None:
        """Use about this much memory; the rest goes on the shelf."""
        self._below.shelf, self._limit = shelf, nbytes

    def __contains__(self, key: bytes) -> bool:
        kept = self._kept.get(key)
        if kept is None and self._below.all:
            kept = self._now(key)
        return kept is not None

    def __iter__(self) -> Iterator[bytes]:
        """All keys; with many keys this takes time and memory."""
        known: dict[bytes, bool] = {}
        for tier in self._below.all:
            items = tier.items() if isinstance(tier, Run) else tier.values.items()
            known.update((key, value is not None) for key, value in items)
        known.update((key, value is not None) for key, value in self._kept.items())
        return (key for key, is_there in known.items() if is_there)

    def get(self, key: bytes) -> Any:
        """The value of `key`; None if it has none."""
        kept = self._kept.get(key)
        if kept is None and self._below.all:
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
            was = self._now(key) if before is None and self._below.all else before
            puts.append((self, key, group, was))
        self._dirty[key] = group, kept
        if kept is None:
            self._keep(key, kept)
            return
        if before is None:
            if key not in self._kept:
                self._bytes += len(key)
        elif (kind := type(before)) is bytes or kind is str:
            self._bytes -= len(before)
        self._kept[key] = kept
        kind = type(kept)
        if kind is bytes or kind is str:
            self._bytes += len(kept)

    def put(self, key: bytes, group: int, value: Any) -> None:
        """Set a value; None removes it. Raises `UnencodableValue`."""
        self.put_kept(key, group, kept_as(value))

    def require_sound(self) -> None:
        """Raise `UnreadableLayer` if a value could not be read and user code has caught the
        error."""
        if self._damage is not None:
            raise self._damage

    def changes(self) -> Frozen:
        """What changed since the last call."""
        dirty, self._dirty = self._dirty, {}

        def work_out() -> list[Values]:
            values: dict[bytes, bytes | None] = {
                key: encode(kept) if type(kept) in PLAIN else kept
                for key, (_, kept) in dirty.items()
            }
            return [Values(values, [group for group, _ in dirty.values()], self._placing)]

        return work_out

    def restore(self, run: Run) -> Mapping[bytes, bytes | None] | None:
        """Take values from a delta, and return them. A large run is not read but used where it
        lies; then so is all that was restored before, and nothing is returned."""
        loaded: dict[bytes, bytes | None] | None = None
        if self._below.shelf is None or run.nbytes <= min(LOADED_BYTES, self._limit // 4):
            loaded = dict(run.items())
            for key, value in loaded.items():
                self._keep(key, value)
        else:
            self._sink()
            self._below.restored(run)
        self._cache, self._older, self._cached = {}, {}, 0
        return loaded

    # --- memory -----------------------------------------------------------------------------------

    def expect(self, keys: Sequence[bytes]) -> None:
        """Look up keys in advance, together, which is much faster."""
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
    def has_tiers(self) -> bool:
        """Whether there are values that are not in memory."""
        return bool(self._below.all)

    def let_go(self) -> None:
        """Give them up: the store is needed no more."""
        self._below.let_go()

    @property
    def has_runs(self) -> bool:
        """Whether some of them are in runs."""
        return bool(self._below.all) and isinstance(self._below.all[0], Run)

    @property
    def runs(self) -> list[Run]:
        """What is not in memory, the oldest first."""
        return self._below.runs

    def lately(self, key: bytes, default: Any = None) -> Any:
        """What is kept of `key` in memory, and in no run: None if it is gone; or the default."""
        kept = self._kept.get(key)
        if kept is not None or key in self._kept:
            return kept
        for tier in reversed(self._below.all):
            if isinstance(tier, Run):
                break
            if key in tier.values:
                return tier.values[key]
        return default

    def relieve(self) -> None:
        """Make room, if necessary. Not while something may be rolled back."""
        if self._below.shelf is None:
            return
        written = self._below.settle()
        if written is not None and self.when_written is not None:
            self.when_written(written.values)
        if not self._below.is_writing and self._too_much(self._bytes, self._kept, 3):
            self._freeze()
            self._below.write()
        if self._too_much(self._cached, self._cache, 6):
            self._older, self._cache, self._cached = self._cache, {}, 0

    def _too_much(self, nbytes: int, values: Mapping[bytes, Any], part: int) -> bool:
        return nbytes + _ENTRY_BYTES * len(values) > self._limit // part

    def _now(self, key: bytes) -> Any:
        """The stored value of a key, wherever it is."""
        kept = self._kept.get(key)
        if kept is not None or not self._below.all or key in self._kept:
            return kept
        for cache in (self._cache, self._older):
            if key in cache:
                kept = self._cache[key] = cache[key]
                return kept
        kept = self._cache[key] = self._look_up_one(key)
        if type(kept) is bytes:
            self._cached += len(kept)
        return kept

    def _keep(self, key: bytes, kept: Any) -> None:
        before = self._kept.get(key)
        if type(before) is bytes or type(before) is str:
            self._bytes -= len(before)
        is_new = before is None and key not in self._kept
        if kept is None and not self._below.all:
            if not is_new:
                del self._kept[key]
                self._bytes -= len(key)
            return
        self._kept[key] = kept
        if is_new:
            self._bytes += len(key)
        if type(kept) is bytes or type(kept) is str:
            self._bytes += len(kept)

    def _look_up_one(self, key: bytes) -> Any:
        place = self._placing(key)
        for tier in reversed(self._below.all):
            if isinstance(tier, Run):
                try:
                    found = tier.find_one(place, key)
                except UnreadableLayer as error:
                    self._damage = error
                    raise
                if found is not None:
                    return found[0]
            elif key in tier.values:
                return tier.values[key]
        return None

    def _look_up(self, keys: list[bytes]) -> None:
        """Find keys in the tiers; what is not there is noted, too."""
        cache, left = self._cache, keys
        for tier in reversed(self._below.all):
            if isinstance(tier, Run):
                break
            known = {key: tier.values[key] for key in left if key in tier.values}
            self._cache_all(known)
            left = [key for key in left if key not in known]
        if left:
            hashes = hashes_of(left, self._placing)
            order = np.argsort(hashes)
            left = [left[i] for i in order.tolist()]
            try:
                found = self._sieves.newest(self._below.runs, hashes[order], left)
            except UnreadableLayer as error:
                self._damage = error
                raise
            self._cache_all({left[i]: value for i, value in found.items()})
        cache.update(dict.fromkeys(key for key in keys if key not in cache))

    def _cache_all(self, values: Mapping[bytes, Any]) -> None:
        self._cache.update(values)
        self._cached += sum(len(v) for v in values.values() if type(v) is bytes)

    # --- tiers -----------------------------------------------------------------------------------

    def _freeze(self) -> None:
        """Turn the values in memory into the newest tier."""
        kept = {k: v for k, v in self._kept.items() if v is not None or self._below.all}
        if kept:
            self._below.all.append(_Memory(kept, self._placing))
        self._kept, self._bytes = {}, 0
        self._cache, self._older, self._cached = {}, {}, 0

    def _sink(self) -> None:
        """Make runs of all that is in memory, so that a newer one can lie above it."""
        self._freeze()
        tiers = [tier for tier in self._below.all if not isinstance(tier, Run)]
        self._below.give_up()
        for tier in tiers:
            blocks: list[bytes] = []
            index = tier.write(blocks.append)
            self._below.all.append(Run(index, InMemory(b"".join(blocks))))


def _encoded(kept: Any) -> bytes | None:
    encoded: bytes | None = encode(kept) if type(kept) in PLAIN else kept
    return encoded
