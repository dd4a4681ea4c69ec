"""Messages survive the way through bytes; anything else is a MalformedMessage, never worse."""

from __future__ import annotations

import types
from dataclasses import dataclass, fields, is_dataclass
from enum import IntEnum
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clonos.core import codec, levels, mandate, messages, sealed
from clonos.core.codec import CODEC, Codec, decode, encode
from clonos.core.messages import Credit, Data, Item, Kind, Run, TaskError
from clonos.core.plan import Incarnation
from clonos.core.program import Batch
from clonos.errors import MalformedMessage, ProtocolError

SIGNED = st.integers(-(1 << 63), (1 << 63) - 1)
UNSIGNED = st.integers(0, (1 << 64) - 1)
BATCHES = st.builds(Batch, st.none(), st.integers(0, 1 << 40), st.integers(0, 1 << 40), UNSIGNED)


def strategy_of(annotation: Any) -> st.SearchStrategy[Any]:
    """Values of a field's type."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is Item:
        return items()
    if annotation is int:
        return SIGNED | UNSIGNED
    if annotation in (bool, str, bytes):
        return st.from_type(annotation)
    if origin in (Union, types.UnionType):
        if bytes in arguments:  # what is not in memory goes into no message
            arguments = tuple(a for a in arguments if a in (bytes, type(None)))
        return st.one_of([st.none() if a is type(None) else strategy_of(a) for a in arguments])
    if origin is tuple and arguments[-1] is Ellipsis:
        return st.lists(strategy_of(arguments[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*[strategy_of(a) for a in arguments])
    if origin is dict:
        return st.dictionaries(strategy_of(arguments[0]), strategy_of(arguments[1]), max_size=3)
    if issubclass(annotation, IntEnum):
        return st.sampled_from(annotation)
    hints = get_type_hints(annotation)
    names = [f.name for f in fields(annotation)] if is_dataclass(annotation) else annotation._fields
    return st.builds(annotation, *[strategy_of(hints[name]) for name in names])


def items() -> st.SearchStrategy[Item]:
    def build(
        kind: Kind, batch: Batch, numbers: list[int], dep: messages.Dependencies, mark: int | None
    ) -> Item:
        seq, epoch, value, chain = numbers
        if kind is not Kind.BATCH:
            return Item(seq, kind, epoch, value, None, dep, chain)
        return Item(seq, kind, epoch, value, batch, dep, chain, 0, mark)

    numbers = st.lists(SIGNED, min_size=4, max_size=4)
    return st.builds(
        build,
        st.sampled_from(Kind),
        BATCHES,
        numbers,
        strategy_of(messages.Dependencies),
        st.none() | SIGNED,
    )


ANY_MESSAGE = st.one_of([strategy_of(kind) for kind in CODEC.table.values()])
PLAIN = st.recursive(
    st.none() | st.booleans() | SIGNED | st.floats() | st.binary(max_size=9) | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=7) | st.dictionaries(st.integers(0, 9) | st.text(), inner)
    ),
    max_leaves=20,
)


def is_refused_or_read(data: bytes, payload: object = None) -> None:
    try:
        message = decode(data, payload)
    except MalformedMessage:
        return
    assert type(message) in CODEC.table.values()


@given(ANY_MESSAGE)
def test_round_trip(message: Any) -> None:
    again = decode(encode(message))
    assert again == message
    assert encode(again) == encode(message)


def test_every_dataclass_of_the_protocol_has_a_number() -> None:
    declared = {
        value
        for module in (messages, levels, mandate, sealed)
        for value in vars(module).values()
        if isinstance(value, type) and is_dataclass(value) and value.__module__ == module.__name__
    }
    assert declared == set(CODEC.table.values())


def test_payload_travels_beside_the_message() -> None:
    batch = Batch(object(), 10, 80, (1 << 64) - 1)
    item = Item(1, Kind.BATCH, 0, 0, batch, {}, 5)
    data = Data(3, Incarnation(1, 1), item, (Run(2, Incarnation(1, 0), 7, (b"r",)),))
    assert decode(encode(data), batch.payload) == data
    assert decode(encode(item), batch.payload) == item
    assert decode(encode(item)).batch == batch._replace(payload=None)
    with pytest.raises(MalformedMessage, match="no batch"):
        decode(encode(Credit(1, 2)), batch.payload)


@given(st.binary(max_size=200))
def test_garbage_is_refused(data: bytes) -> None:
    is_refused_or_read(data)


@given(st.sampled_from(sorted(CODEC.table)) | st.integers(), st.lists(PLAIN, max_size=7))
def test_wrong_fields_are_refused(number: int, values: list[Any]) -> None:
    try:
        data = msgpack.packb([number, *values])
    except OverflowError:
        return
    is_refused_or_read(data)
    is_refused_or_read(data, object())


@given(ANY_MESSAGE, st.data())
def test_damaged_messages_are_refused(message: Any, data: st.DataObject) -> None:
    encoded = bytearray(encode(message))
    position = data.draw(st.integers(0, len(encoded) - 1))
    encoded[position] = data.draw(st.integers(0, 255))
    is_refused_or_read(bytes(encoded))
    is_refused_or_read(bytes(encoded[:position]))
    is_refused_or_read(bytes(encoded) + b"\x00")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc0",
        b"\x91" * 2000,  # nested deeper than msgpack allows
        msgpack.packb([4, 1, True, False, {}]),  # True is not a number
        msgpack.packb([4, 1, 1, False, {(1,): 1}]),
        msgpack.packb([4, 1, 1, False, {msgpack.Timestamp(0): 1}]),
        b"\x95\x04\x01\x01\xc2\x81\x81\x01\x01\x01",  # a map as the key of a map
        msgpack.packb([1, 1, (1, 1), (1, 0, 0, 0, None, {}, 0), ()]),  # BATCH without batch
        msgpack.packb([1, 1, (1, 1), (1, 9, 0, 0, None, {}, 0), ()]),  # no such kind
    ],
)
def test_known_bad_bytes(data: bytes) -> None:
    with pytest.raises(MalformedMessage):
        decode(data)


def test_what_an_error_says_may_be_no_text() -> None:
    """Python's names of files have half surrogate pairs where they are not UTF-8."""
    error = TaskError(3, Incarnation(1, 2), "OperatorError", "no file r\udce9sum\udce9", 7)
    assert decode(encode(error)).message == "no file r\\udce9sum\\udce9"


def test_sizes_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "MESSAGE_BYTES_MAX", 100)
    life = Incarnation(1, 0)
    with pytest.raises(ProtocolError, match="more than 100"):
        encode(messages.Unreachable(0, life, 0, life, "x" * 200, False))
    with pytest.raises(MalformedMessage, match="more than 100"):
        decode(msgpack.packb([25, "x" * 200]))


def test_what_is_no_message_is_not_written() -> None:
    with pytest.raises(ProtocolError):
        encode("a string")
    with pytest.raises(ProtocolError):
        encode(Credit(1 << 70, 0))
    with pytest.raises(ProtocolError):
        encode(messages.Stop(object()))  # type: ignore[arg-type]


def test_a_table_can_be_extended_but_not_changed() -> None:
    @dataclass(frozen=True)
    class Ping:
        n: int

    more = CODEC.extended({100: Ping})
    assert more.decode(more.encode(Ping(1))) == Ping(1)
    assert more.decode(encode(Credit(1, 2))) == Credit(1, 2)
    with pytest.raises(MalformedMessage):
        decode(more.encode(Ping(1)))
    with pytest.raises(ValueError, match="twice"):
        more.extended({100: Credit})
    with pytest.raises(ValueError, match="two numbers"):
        Codec({1: Ping, 2: Ping})
