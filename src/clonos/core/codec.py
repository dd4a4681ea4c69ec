"""Messages as bytes: one msgpack array ``[type number, field, field, ...]`` per message.

A :class:`Codec` is a table of types. Writing needs no description of the fields: msgpack itself
knows tuples (so NamedTuples), integers (so enums), dicts and bytes, and asks for a tuple when it
meets a dataclass. Reading trusts nothing: for every field a small *reader* made from its type
annotation checks what came and builds it, and whatever is wrong with the bytes ends as one
:class:`~clonos.errors.MalformedMessage`.

The payload of a batch never goes through here: it travels beside the message (as Arrow, without
being copied) and is given to :meth:`Codec.decode` to be put back.

:class:`~clonos.core.messages.Data` is written and read by hand: there is one for every batch, while
all other messages are rare.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import IntEnum
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

import msgpack

from clonos.core import levels, mandate
from clonos.core import messages as m
from clonos.core.plan import Incarnation
from clonos.core.program import Batch
from clonos.core.sealed import Layer
from clonos.errors import MalformedMessage, ProtocolError

MESSAGE_BYTES_MAX: Final = 256 << 20
"""No message is larger. A whole log may travel in one (that of a source that cannot be read again
contains its rows), yet a wrong length must not make a process allocate without limit."""

Reader = Callable[[Any], Any]

_UNION: Final = type(int | None)  # `X | None` and `Optional[X]` are of different types


class _Wrong(Exception):
    """A field does not match its type; becomes a MalformedMessage at the surface."""


# --- readers: from what msgpack read to what the annotation says -----------------------------


def _exactly(kind: type) -> Reader:
    def read(value: Any) -> Any:
        # `type is`, because True is an int and a msgpack Timestamp or ExtType is neither.
        if type(value) is not kind:
            raise _Wrong(f"{kind.__name__} expected, not {type(value).__name__}")
        return value

    return read


def _optional(inner: Reader) -> Reader:
    return lambda value: None if value is None else inner(value)


def _tuple_of(inner: Reader) -> Reader:
    def read(value: Any) -> Any:
        if type(value) is not tuple:
            raise _Wrong(f"array expected, not {type(value).__name__}")
        return tuple([inner(element) for element in value])

    return read


def _record(kind: Callable[..., Any], readers: tuple[Reader, ...]) -> Reader:
    """A fixed number of fields: a dataclass, a NamedTuple or a plain ``tuple[X, Y]``."""
    name, size = getattr(kind, "__name__", "tuple"), len(readers)

    def read(value: Any) -> Any:
        if type(value) is not tuple or len(value) != size:
            raise _Wrong(f"{name} is an array of {size}")
        return kind(*[reader(field) for reader, field in zip(readers, value, strict=True)])

    return read


def _dict_of(key: Reader, inner: Reader) -> Reader:
    def read(value: Any) -> Any:
        if type(value) is not dict:
            raise _Wrong(f"map expected, not {type(value).__name__}")
        return {key(k): inner(v) for k, v in value.items()}

    return read


def _enum(kind: type[IntEnum]) -> Reader:
    members = {int(member): member for member in kind}

    def read(value: Any) -> Any:
        if type(value) is not int or value not in members:
            raise _Wrong(f"{value!r} is not a {kind.__name__}")
        return members[value]

    return read


def _reader_of(annotation: Any) -> Reader:
    """The reader for a type annotation (only the shapes that messages use)."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is m.Item:
        return _read_item
    if annotation is m.Run:
        return _read_run
    if annotation in (int, bool, str, bytes):
        return _exactly(annotation)
    if origin in (Union, _UNION):
        inner, *others = sorted((a for a in arguments if a is not type(None)), key=_bytes_last)
        if others == [bytes]:  # content that is not in memory never travels in a message
            return _exactly(bytes)
        assert not others
        return _optional(_reader_of(inner))
    if origin is tuple and arguments[-1] is Ellipsis:
        return _tuple_of(_reader_of(arguments[0]))
    if origin is tuple:
        return _record(lambda *values: values, tuple(_reader_of(a) for a in arguments))
    if origin is dict:
        return _dict_of(_reader_of(arguments[0]), _reader_of(arguments[1]))
    if isinstance(annotation, type) and issubclass(annotation, IntEnum):
        return _enum(annotation)
    if is_dataclass(annotation) or hasattr(annotation, "_fields"):
        return _record(annotation, _field_readers(annotation))
    raise TypeError(f"no message has a field of type {annotation!r}")


def _bytes_last(kind: Any) -> bool:
    return kind is bytes


def _field_readers(kind: Any) -> tuple[Reader, ...]:
    hints = get_type_hints(kind)
    names = [f.name for f in fields(kind)] if is_dataclass(kind) else kind._fields
    return tuple(_reader_of(hints[name]) for name in names)


# --- the path of every batch, by hand ---------------------------------------------------------

_KINDS: Final = tuple(m.Kind)


def _read_incarnation(value: Any) -> Incarnation:
    if type(value) is not tuple:
        raise _Wrong("an incarnation is an array")
    term, n = value
    if type(term) is not int or type(n) is not int:
        raise _Wrong("an incarnation is two integers")
    return Incarnation(term, n)


def _read_dependencies(value: Any) -> m.Dependencies:
    if type(value) is not dict:
        raise _Wrong("dependencies are a map")
    result = {}
    for task, ((term, n), position) in value.items():
        # One comparison for the four: this loop is most of what decoding a Data costs.
        if not (type(task) is type(term) is type(n) is type(position) is int):
            raise _Wrong("a dependency is made of integers")
        result[task] = m.Dependency(Incarnation(term, n), position)
    return result


def _read_item(value: Any) -> m.Item:
    seq, kind, epoch, number, batch, dep, chain, born, mark = value
    if not (
        type(seq) is type(kind) is type(epoch) is type(number) is type(chain) is type(born) is int
    ):
        raise _Wrong("an item's numbers are integers")
    if not 0 <= kind < len(_KINDS):
        raise _Wrong(f"{kind} is not a Kind")
    if (kind == 0) != (batch is not None):
        raise _Wrong("an item of kind BATCH, and no other, has a batch")
    if mark is not None and (type(mark) is not int or batch is None):
        raise _Wrong("a watermark is an integer and follows a batch")
    if batch is not None:
        rows, nbytes, digest = batch
        if not (type(rows) is type(nbytes) is type(digest) is int) or rows < 0 or nbytes < 0:
            raise _Wrong("a batch is described by rows, bytes and digest")
        batch = Batch(None, rows, nbytes, digest)
    depends_on = _read_dependencies(dep)
    return m.Item(seq, _KINDS[kind], epoch, number, batch, depends_on, chain, born, mark)


def _read_run(value: Any) -> m.Run:
    task, incarnation, start, records, stable = value
    if not (type(task) is type(start) is type(stable) is int) or type(records) is not tuple:
        raise _Wrong("a run is numbers and records")
    for record in records:
        if type(record) is not bytes:
            raise _Wrong("a record is bytes")
    return m.Run(task, _read_incarnation(incarnation), start, records, stable)


def _read_data(value: Any) -> m.Data:
    channel, incarnation, item, runs = value
    if type(channel) is not int or type(runs) is not tuple:
        raise _Wrong("a Data is a channel, an incarnation, an item and runs")
    return m.Data(
        channel,
        _read_incarnation(incarnation),
        None if item is None else _read_item(item),
        tuple([_read_run(run) for run in runs]),
    )


def _item_fields(item: m.Item) -> tuple[Any, ...]:
    batch = item.batch
    return (
        item.seq,
        item.kind,
        item.epoch,
        item.value,
        None if batch is None else batch[1:],
        item.dep,
        item.chain,
        item.born_ms,
        item.watermark,
    )


def _run_fields(run: m.Run) -> tuple[Any, ...]:
    return (run.task, run.incarnation, run.start, run.records, run.stable)


def _data_fields(data: m.Data) -> tuple[Any, ...]:
    item = data.item
    return (
        data.channel,
        data.incarnation,
        None if item is None else _item_fields(item),
        [_run_fields(run) for run in data.runs],
    )


_BY_HAND_FIELDS: Final[dict[type, Callable[[Any], tuple[Any, ...]]]] = {
    m.Data: _data_fields,
    m.Item: _item_fields,
    m.Run: _run_fields,
}
_BY_HAND_READERS: Final[dict[type, Reader]] = {
    m.Data: _read_data,
    m.Item: _read_item,
    m.Run: _read_run,
}

# --- the table --------------------------------------------------------------------------------

_TASK_COMMANDS: Final = frozenset(get_args(m.TaskCommand))


def _getter_of(kind: type) -> Callable[[Any], tuple[Any, ...]]:
    names = [field.name for field in fields(kind)]
    return lambda message: tuple([getattr(message, name) for name in names])


def _parts(annotation: Any) -> Iterable[type]:
    """The dataclasses an annotation mentions, however deep."""
    if isinstance(annotation, type) and is_dataclass(annotation):
        yield annotation
        for hint in get_type_hints(annotation).values():
            yield from _parts(hint)
    for argument in get_args(annotation):
        yield from _parts(argument)


class Codec:
    """Turns the message types of a table into bytes and back.

    Parameters
    ----------
    table
        From type number to dataclass. A number, once given, is never given to another type.

    Examples
    --------
    >>> from clonos.core.messages import Credit
    >>> from clonos.core.codec import CODEC
    >>> CODEC.decode(CODEC.encode(Credit(channel=3, processed=17)))
    Credit(channel=3, processed=17, relaxed=False, stable={})
    """

    def __init__(self, table: Mapping[int, type]) -> None:
        self._table = dict(table)
        self._numbers = {kind: number for number, kind in table.items()}
        if len(self._numbers) != len(self._table):
            raise ValueError("a message type has two numbers")
        by_hand = {**_BY_HAND_READERS, m.ToTask: self._read_to_task}
        self._readers = {
            number: by_hand.get(kind) or _record(kind, _field_readers(kind))
            for number, kind in table.items()
        }
        self._getters = {part: _getter_of(part) for kind in table.values() for part in _parts(kind)}
        self._getters |= {**_BY_HAND_FIELDS, m.ToTask: self._to_task_fields}

    def extended(self, more: Mapping[int, type]) -> Codec:
        """Return this table with more types (what a transport says besides the protocol)."""
        if set(more) & set(self._table):
            raise ValueError("a type number is given twice")
        return Codec({**self._table, **more})

    @property
    def table(self) -> Mapping[int, type]:
        """From type number to type."""
        return dict(self._table)

    def _to_task_fields(self, message: m.ToTask) -> tuple[Any, ...]:
        """A message in a message: with its number."""
        kind = type(message.command)
        return message.task, (self._numbers[kind], *self._getters[kind](message.command))

    def _read_to_task(self, value: Any) -> m.ToTask:
        task, (number, *values) = value
        if type(task) is not int or self._table.get(number) not in _TASK_COMMANDS:
            raise _Wrong("a task's number and a command for tasks expected")
        return m.ToTask(task, self._readers[number](tuple(values)))

    def _nested(self, value: Any) -> tuple[Any, ...]:
        getter = self._getters.get(type(value))
        if getter is None:
            raise TypeError(f"{type(value).__name__} cannot be part of a message")
        return getter(value)

    def encode(self, message: Any) -> bytes:
        """Return the bytes of `message`; the payload of its batch, if any, is left out.

        Raises
        ------
        ProtocolError
            It is not in the table or holds something that no message can hold.
        """
        kind = type(message)
        try:
            number = self._numbers[kind]
            fields_of = self._getters[kind](message)
            result: bytes = msgpack.packb(
                (number, *fields_of),
                default=self._nested,
                unicode_errors="backslashreplace",  # an error may name any file
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ProtocolError(
                f"a {kind.__name__} cannot be written as a message: {error}",
                remedy="report this: it is a bug in clonos",
            ) from error
        if len(result) > MESSAGE_BYTES_MAX:
            raise ProtocolError(
                f"a {kind.__name__} takes {len(result)} bytes, more than {MESSAGE_BYTES_MAX}",
                remedy="checkpoint more often, so that logs stay shorter",
            )
        return result

    def decode(self, data: Any, payload: Any = None) -> Any:
        """Return the message in `data` (any buffer), with `payload` as that of its batch.

        Raises
        ------
        MalformedMessage
            `data` is not exactly one well-formed message; nothing else is ever raised.
        """
        size = getattr(data, "nbytes", None) or len(data)
        if size > MESSAGE_BYTES_MAX:
            raise _malformed(f"{size} bytes, more than {MESSAGE_BYTES_MAX}", size)
        try:
            raw = msgpack.unpackb(data, use_list=False, strict_map_key=False)
            number, *values = raw
            reader = self._readers[number]
            message = reader(tuple(values))
            if payload is not None:
                message = _with_payload(message, payload)
        except (_Wrong, KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            # msgpack's own errors (truncated, extra, too deep, not UTF-8) are ValueErrors.
            raise _malformed(str(error), size) from error
        return message


def _with_payload(message: Any, payload: Any) -> Any:
    item = message.item if type(message) is m.Data else message
    if type(item) is not m.Item or item.batch is None:
        raise _Wrong("a payload came with a message that has no batch")
    item = m.Item(
        item.seq,
        item.kind,
        item.epoch,
        item.value,
        Batch(payload, *item.batch[1:]),
        item.dep,
        item.chain,
        item.born_ms,
        item.watermark,
    )
    if type(message) is m.Data:
        return m.Data(message.channel, message.incarnation, item, message.runs)
    return item


def _malformed(why: str, size: int) -> MalformedMessage:
    return MalformedMessage(
        f"{size} bytes are not a message: {why[:200]}",
        remedy="check that every process of the job runs the same version of clonos",
    )


CODEC: Final = Codec(
    {
        # Along a data channel.
        1: m.Data,
        2: m.Hello,
        3: m.Welcome,
        4: m.Credit,
        # Between coordinator and slot, about effects.
        5: mandate.MandateAsked,
        6: mandate.MandateGiven,
        # Of planned moves.
        7: m.Prepare,  # coordinator to slot
        8: m.Prepared,  # slot to coordinator
        9: m.Handed,  # a part of messages of both
        15: m.Resting,  # slot to coordinator
        # Coordinator to slot.
        16: m.Fence,
        17: m.Resolve,
        18: m.Activate,
        19: m.Connect,
        20: m.Inject,
        21: m.Floor,
        22: m.Follow,
        23: m.Drop,
        24: m.ReadLog,
        25: m.Stop,
        26: m.Throttle,
        27: m.LogPiece,
        28: m.ToTask,
        29: m.SealLayer,
        30: m.Yield,
        31: m.Resume,
        # Slot to coordinator.
        32: m.FenceAnswer,
        33: m.LogPrefix,
        34: m.Restored,
        35: m.Live,
        36: m.LayerAck,
        37: m.Finished,
        38: m.TaskError,
        39: m.Followed,
        40: m.Unreachable,
        41: m.Announced,
        42: m.Survived,
        43: m.LastWords,
        44: m.Unreadable,
        45: m.Yielded,
        46: m.Claim,
        47: m.Granted,
        # Parts that are also stored by themselves.
        48: m.Item,
        49: m.Run,
        50: levels.LayerRef,
        51: m.Peer,
        52: Layer,
        # Slot to coordinator, too.
        53: m.Reached,
        # Of layers that slots keep.
        54: levels.Hold,
        55: levels.Discard,
        56: levels.MergeLayers,
        57: levels.Held,
        58: levels.LayersMerged,
        59: levels.LayerWanted,
        60: levels.LayerPart,
        61: levels.LayersHere,
        62: levels.Lacks,
        63: levels.LevelInUse,
    }
)
"""Every message of :mod:`clonos.core.messages`, :mod:`~clonos.core.levels` and
:mod:`~clonos.core.mandate`, and what is stored in the same way. Numbers up to 63 are the core's."""

encode = CODEC.encode
decode = CODEC.decode
