"""The state of a ``StatefulProcessor``: PySpark's value, list and map states, by key.

Each state is one value of the operator per key. With a time to live, its content is stored with its
expiry. From then on it is invisible, and it is removed soon after.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa

from clonos.columns.schema import parse_schema
from clonos.core.canonical import encode
from clonos.errors import WrongType
from clonos.state.stores import kept_as

if TYPE_CHECKING:
    from clonos.operators.base import Services
    from clonos.state.values import ValueStore

PROCESSING: Final = "processingtime"
"""The time mode in which states may have a time to live."""
TIMERS: Final = "~timers"
TTL: Final = "~ttl"
"""Names of hidden states: the times of a key's timers, and its next expiry."""

_STATE: Final = b"s"
"""The prefix of states' addresses, as in :mod:`clonos.operators.process.process`."""

_CLASSES: Final[tuple[tuple[Callable[[pa.DataType], bool], tuple[type, ...]], ...]] = (
    (pa.types.is_boolean, (bool,)),
    (pa.types.is_integer, (int,)),
    (pa.types.is_floating, (float, int)),
    (pa.types.is_string, (str,)),
    (pa.types.is_binary, (bytes, bytearray)),
    (pa.types.is_timestamp, (datetime,)),
    (pa.types.is_date, (date,)),
    (pa.types.is_decimal, (Decimal,)),
    (pa.types.is_list, (list, tuple)),
    (pa.types.is_struct, (tuple, dict)),
    (pa.types.is_map, (dict,)),
)


class Owner(Protocol):
    """The operator that keeps states."""

    values: ValueStore
    key_group: int
    services: Services

    @property
    def encoded_key(self) -> bytes:
        """The encoding of the current key."""

    def expects(self, prefix: bytes) -> None:
        """Look up values of this prefix together."""

    def sweep_by(self, due: int) -> None:
        """Some state of the current key expires at `due`."""


class HiddenState:
    """A value per key that users do not see."""

    def __init__(self, name: str, operator: Owner) -> None:
        self._prefix = _STATE + encode(name)
        self._operator = operator
        operator.expects(self._prefix)

    def get(self) -> Any:
        """The current key's value."""
        return self._operator.values.get(self._prefix + self._operator.encoded_key)

    def put(self, value: Any) -> None:
        """Replace it; None removes it."""
        operator = self._operator
        address = self._prefix + operator.encoded_key
        if value is not None or address in operator.values:
            operator.values.put_kept(address, operator.key_group, kept_as(value))


class State:
    """Base of the three kinds, which keep tuples of a declared schema."""

    def __init__(self, operator: Owner | None, name: str, ttl_ms: int | None, where: str) -> None:
        self._name = name
        self._ttl_ms = ttl_ms
        self._where = where
        self._operator = operator
        self._hidden = None if operator is None else HiddenState(name, operator)

    def clear(self) -> None:
        """Forget the current key's state."""
        self._state.put(None)

    @property
    def _state(self) -> HiddenState:
        if self._hidden is None:
            raise WrongType(
                f"the state {self._name!r} belongs to a key, and in init there is none",
                where=self._where,
                remedy="use it in handleInputRows and handleExpiredTimer",
            )
        return self._hidden

    def _get(self) -> Any:
        return self._state.get()

    def _stamped(self, value: Any) -> Any:
        """A value as it is stored: with its expiry, if there is a time to live."""
        if self._ttl_ms is None:
            return value
        assert self._operator is not None
        over = self._operator.services.step.clock_ms() + self._ttl_ms
        self._operator.sweep_by(over)
        return (value, over)

    def _is_there(self, kept: Any) -> bool:
        """Whether a stored value has not expired."""
        if self._ttl_ms is None:
            return True
        assert self._operator is not None
        return bool(kept[1] > self._operator.services.step.clock_ms())

    def _bare(self, kept: Any) -> Any:
        return kept if self._ttl_ms is None else kept[0]

    def sweep(self, now_ms: int) -> list[int]:
        """Remove expired values; return the expiries of the rest."""
        raise NotImplementedError


class ValueState(State):
    """PySpark's ``ValueState``."""

    def __init__(
        self, operator: Owner | None, name: str, ttl_ms: int | None, where: str,
        schema: pa.Schema,
    ) -> None:  # fmt: skip
        super().__init__(operator, name, ttl_ms, where)
        self._shape = Shape(schema, name, where)

    def exists(self) -> bool:
        """Whether the current key has a value."""
        return self.get() is not None

    def get(self) -> tuple[Any, ...] | None:
        """The current key's value, if it has one."""
        kept = self._get()
        return self._bare(kept) if kept is not None and self._is_there(kept) else None

    def update(self, newValue: Any) -> None:
        """Replace it."""
        self._state.put(self._stamped(self._shape.fitted(newValue)))

    def sweep(self, now_ms: int) -> list[int]:
        kept = self._get()
        if kept is None:
            return []
        if kept[1] <= now_ms:
            self.clear()
            return []
        return [kept[1]]


class ListState(State):
    """PySpark's ``ListState``."""

    def __init__(
        self, operator: Owner | None, name: str, ttl_ms: int | None, where: str,
        schema: pa.Schema,
    ) -> None:  # fmt: skip
        super().__init__(operator, name, ttl_ms, where)
        self._shape = Shape(schema, name, where)

    def exists(self) -> bool:
        """Whether the current key has values."""
        return any(map(self._is_there, self._get() or ()))

    def get(self) -> Iterator[tuple[Any, ...]]:
        """The current key's values, as they are now."""
        return iter([self._bare(kept) for kept in self._get() or () if self._is_there(kept)])

    def put(self, newState: Iterable[Any]) -> None:
        """Replace them."""
        self._put([self._stamped(self._shape.fitted(value)) for value in newState])

    def appendValue(self, newState: Any) -> None:
        """Append a value."""
        self.appendList([newState])

    def appendList(self, newState: Iterable[Any]) -> None:
        """Append several values."""
        fresh = [self._stamped(self._shape.fitted(value)) for value in newState]
        self._put([*filter(self._is_there, self._get() or ()), *fresh])

    def sweep(self, now_ms: int) -> list[int]:
        kept = self._get() or ()
        left = [each for each in kept if each[1] > now_ms]
        if len(left) < len(kept):
            self._put(left)
        return [over for _, over in left]

    def _put(self, values: list[Any]) -> None:
        self._state.put(values or None)


class MapState(State):
    """PySpark's ``MapState``; iterates in order of insertion."""

    def __init__(
        self, operator: Owner | None, name: str, ttl_ms: int | None, where: str,
        schemas: tuple[pa.Schema, pa.Schema],
    ) -> None:  # fmt: skip
        super().__init__(operator, name, ttl_ms, where)
        self._keys, self._values = (Shape(schema, name, where) for schema in schemas)

    def exists(self) -> bool:
        """Whether the current key has anything in its map."""
        return bool(self._there())

    def getValue(self, key: Any) -> tuple[Any, ...] | None:
        """The value of a key of the map, if there is one."""
        return self._there().get(self._keys.fitted(key))

    def containsKey(self, key: Any) -> bool:
        """Whether the map has this key."""
        return self._keys.fitted(key) in self._there()

    def updateValue(self, key: Any, value: Any) -> None:
        """Set the value of a key of the map."""
        fitted = self._stamped(self._values.fitted(value))
        self._state.put({**(self._get() or {}), self._keys.fitted(key): fitted})

    def iterator(self) -> Iterator[tuple[Any, Any]]:
        """All keys and values of the map, as they are now."""
        return iter(self._there().items())

    def keys(self) -> Iterator[tuple[Any, ...]]:
        """All keys of the map."""
        return iter(self._there())

    def values(self) -> Iterator[tuple[Any, ...]]:
        """All values of the map."""
        return iter(self._there().values())

    def removeKey(self, key: Any) -> None:
        """Remove a key from the map, if it is there."""
        kept = self._get() or {}
        if kept.pop(self._keys.fitted(key), None) is not None:
            self._state.put(kept or None)

    def sweep(self, now_ms: int) -> list[int]:
        kept = self._get() or {}
        left = {key: each for key, each in kept.items() if each[1] > now_ms}
        if len(left) < len(kept):
            self._state.put(left or None)
        return [over for _, over in left.values()]

    def _there(self) -> dict[tuple[Any, ...], tuple[Any, ...]]:
        kept = self._get() or {}
        return {key: self._bare(each) for key, each in kept.items() if self._is_there(each)}


class Shape:
    """The schema that tuples must match."""

    def __init__(self, schema: pa.Schema, name: str, where: str) -> None:
        self._fields = [
            (field.name, next((c for is_one, c in _CLASSES if is_one(field.type)), (object,)))
            for field in schema
        ]
        self._name = name
        self._where = where

    def fitted(self, given: Any) -> tuple[Any, ...]:
        """A tuple of plain values.

        Raises
        ------
        WrongType
            It does not match the schema: Spark would fail, or store nulls.
        """
        if not isinstance(given, (tuple, list)):
            raise self._unfit(f"a {type(given).__name__}, not a tuple")
        if len(given) != len(self._fields):
            raise self._unfit(f"{len(given)} values for {len(self._fields)} columns")
        made = tuple(map(_plain, given))
        for value, (column, classes) in zip(made, self._fields, strict=True):
            is_odd = isinstance(value, bool) and bool not in classes and object not in classes
            if value is not None and (is_odd or not isinstance(value, classes)):
                wanted = " or ".join(cls.__name__ for cls in classes)
                raise self._unfit(f"a {type(value).__name__} in column {column!r}, not {wanted}")
        return made

    def _unfit(self, what: str) -> WrongType:
        return WrongType(
            f"state {self._name!r} is given {what}",
            where=self._where,
            remedy="give a tuple of the schema with which the state was declared",
        )


def _plain(value: Any) -> Any:
    """Convert Rows and named tuples to tuples, NumPy's numbers to Python's."""
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    if isinstance(value, list):
        return list(map(_plain, value))
    if isinstance(value, dict):
        return {_plain(key): _plain(each) for key, each in value.items()}
    if type(value).__module__ == "numpy" and hasattr(value, "item"):
        return value.item()
    return value


class States:
    """The states that a processor declares."""

    def __init__(self, operator: Owner | None, mode: str, where: str) -> None:
        self._operator = operator
        self._mode = mode
        self._where = where
        self._known: dict[str, tuple[tuple[Any, ...], State]] = {}

    @property
    def declared(self) -> list[tuple[Any, ...]]:
        """Kind, name, types and time to live of each state."""
        return [told for told, _ in self._known.values()]

    def sweep(self, now_ms: int) -> int | None:
        """Remove expired state of the current key; return the next expiry, if any."""
        timed = [state for told, state in self._known.values() if told[-1] is not None]
        return min((over for state in timed for over in state.sweep(now_ms)), default=None)

    def value(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> Any:
        """PySpark's ``getValueState``."""
        parsed = parse_schema(schema)
        told = ("value", stateName, str(parsed), ttlDurationMs)
        return self._known_as(
            told, lambda: ValueState(*self._common(stateName, ttlDurationMs), parsed)
        )

    def list(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> Any:
        """PySpark's ``getListState``."""
        parsed = parse_schema(schema)
        told = ("list", stateName, str(parsed), ttlDurationMs)
        return self._known_as(
            told, lambda: ListState(*self._common(stateName, ttlDurationMs), parsed)
        )

    def map(
        self,
        stateName: str,
        userKeySchema: Any,
        valueSchema: Any,
        ttlDurationMs: int | None = None,
    ) -> Any:
        """PySpark's ``getMapState``."""
        parsed = parse_schema(userKeySchema), parse_schema(valueSchema)
        told = ("map", stateName, str(parsed[0]), str(parsed[1]), ttlDurationMs)
        return self._known_as(
            told, lambda: MapState(*self._common(stateName, ttlDurationMs), parsed)
        )

    def _known_as(self, told: tuple[Any, ...], make: Callable[[], State]) -> State:
        name = told[1]
        if name in self._known:
            before, state = self._known[name]
            if before != told:
                raise WrongType(
                    f"the state {name!r} is declared twice, and differently",
                    where=self._where,
                    remedy="give it another name",
                )
            return state
        if not isinstance(name, str) or not name or name.startswith("~"):
            raise WrongType(f"a state called {name!r}", where=self._where, remedy="name it")
        state = make()
        self._known[name] = told, state
        return state

    def _common(self, name: str, ttl_ms: int | None) -> tuple[Owner | None, str, int | None, str]:
        if ttl_ms is not None and (type(ttl_ms) is not int or ttl_ms <= 0):
            raise WrongType(
                f"ttlDurationMs={ttl_ms!r}",
                where=self._where,
                remedy="give a whole number of milliseconds, 1 or more",
            )
        if ttl_ms is not None and self._mode != PROCESSING:
            raise WrongType(
                f"the state {name!r} has a time to live, which is processing time",
                where=self._where,
                remedy='say timeMode="ProcessingTime"',
            )
        return self._operator, name, ttl_ms, self._where
