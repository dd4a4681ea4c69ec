"""Small state of operators: facts, and values by key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from struct import Struct
from typing import Any, Final

from clonos.core.canonical import decode, encode
from clonos.state.deltas import FACTS, Changes, Frozen

_INT_BITS = 64

PLAIN = frozenset({bool, int, float, str})
"""Exactly these, no subclasses: immutable, and they survive serialization unchanged."""

ADDRESS: Final = Struct(">cq")
"""The key of what is kept of something that has a number: a letter says what it is. Operators share
a store among their parts, each of which has letters of its own."""


class Facts:
    """A few small values that an operator keeps beside its state by key, such as counters."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._dirty: dict[str, None] = {}

    def get(self, name: str, default: Any = None) -> Any:
        """The value, or `default` if it was never set."""
        return self._values.get(name, default)

    def set(self, name: str, value: Any) -> None:
        """Set a value of a plain type."""
        if name not in self._values or self._values[name] != value:
            self._values[name] = value
            self._dirty[name] = None

    def changes(self) -> Changes:
        """The facts set since the last call."""
        names, self._dirty = list(self._dirty), {}
        values: list[bytes | None] = [encode(self._values[name]) for name in names]
        return Changes([FACTS] * len(names), [name.encode() for name in names], values)

    def restore(self, keys: Iterable[bytes], values: Iterable[bytes | None]) -> None:
        """Take values from a delta."""
        for key, value in zip(keys, values, strict=True):
            if value is not None:
                self._values[key.decode()] = decode(value)

    def as_dict(self) -> Mapping[str, Any]:
        """All values, for reports."""
        return dict(self._values)


class Undo:
    """Undoes what was put into some stores since :meth:`begin`.

    Examples
    --------
    >>> undo = Undo()
    >>> store = KeyedStore(undo)
    >>> store.put(b"k", 0, 1)
    >>> undo.begin()
    >>> store.put(b"k", 0, 2)
    >>> undo.roll_back()
    >>> store.get(b"k")
    1
    """

    def __init__(self) -> None:
        self.puts: list[tuple[Any, bytes, int, Any]] | None = None
        """For each put: store, key, group and the earlier value."""

    def begin(self) -> None:
        """Record puts from now on, for :meth:`roll_back`."""
        self.puts = []

    def commit(self) -> None:
        """Keep what was put."""
        self.puts = None

    def roll_back(self) -> None:
        """Forget what was put."""
        puts, self.puts = self.puts or [], None
        for store, key, group, kept in reversed(puts):
            store.put_kept(key, group, kept)


class KeyedStore:
    """Values by encoded key, with a record of what changed since the last delta.

    Stored values are copies. Immutable plain values (numbers, strings) are encoded only when a
    layer is made, all others at once.
    """

    def __init__(self, undo: Undo | None = None) -> None:
        self._kept: dict[bytes, Any] = {}  # bytes: encoded
        self._dirty: dict[bytes, tuple[int, Any]] = {}  # present values, or None
        self._undo = undo or Undo()

    def __contains__(self, key: bytes) -> bool:
        return key in self._kept

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._kept)

    def get(self, key: bytes) -> Any:
        """The value of `key`; None if it has none."""
        kept = self._kept.get(key)
        if type(kept) is not bytes:
            return kept
        value = decode(kept)
        if type(value) in PLAIN:
            self._kept[key] = value
        return value

    def put(self, key: bytes, group: int, value: Any) -> None:
        """Set a value; None removes it. Raises `UnencodableValue`."""
        self.put_kept(key, group, kept_as(value))

    def put_kept(self, key: bytes, group: int, kept: Any) -> None:
        """Like :meth:`put`, for a result of :func:`kept_as`."""
        if (puts := self._undo.puts) is not None:
            puts.append((self, key, group, self._kept.get(key)))
        self._dirty[key] = group, kept
        if kept is None:
            self._kept.pop(key, None)
        else:
            self._kept[key] = kept

    def changes(self) -> Frozen:
        """What changed since the last call."""
        dirty, self._dirty = self._dirty, {}

        def work_out() -> list[Changes]:
            groups, kept = zip(*dirty.values(), strict=True) if dirty else ((), ())
            values = [encode(value) if type(value) in PLAIN else value for value in kept]
            return [Changes(groups, list(dirty), values)]

        return work_out

    def restore(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """Take values from a delta."""
        if None not in values:
            self._kept.update(zip(keys, values, strict=True))
            return
        for key, value in zip(keys, values, strict=True):
            if value is None:
                self._kept.pop(key, None)
            else:
                self._kept[key] = value


def kept_as(value: Any) -> Any:
    """The stored form of a value: immutable plain values as they are, all others encoded.

    Raises `UnencodableValue`, also for an integer that is too long to be encoded later.
    """
    is_plain = type(value) in PLAIN and (type(value) is not int or value.bit_length() <= _INT_BITS)
    return value if value is None or is_plain else encode(value)
