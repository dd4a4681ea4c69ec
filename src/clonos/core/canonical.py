"""Python values as bytes: the same bytes for the same value on every machine, and no pickle.

Whatever is kept beyond a step (state, answers of calls) passes through here at once, so that a
task that goes on and a task that was restored hold the same thing: a set that came out of bytes
iterates differently from the one that went in, a ``numpy.float64`` comes back as a ``float``.

MessagePack carries None, bool, int, float, str, bytes, list and dict; the rest are its extension
types, listed in ``_Code``. Other layers may :func:`register` more (Arrow batches, rows).
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from dataclasses import is_dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import IntEnum
from typing import Any, Final, NamedTuple

import msgpack

from clonos.errors import (
    AnswerTooLarge,
    BudgetSpent,
    CallError,
    ClonosError,
    EffectUnknown,
    OtherArguments,
    PoisonRecord,
    ProtocolError,
    UnencodableValue,
    WrongLength,
)
from clonos.errors.base import message_of


class _Code(IntEnum):
    TUPLE = 1
    SET = 2
    FROZENSET = 3
    BIG_INT = 4
    DECIMAL = 5
    INSTANT = 6
    DATETIME = 7
    DATE = 8
    TIME = 9
    TIMEDELTA = 10


FIRST_FREE_CODE = 32
"""Codes from here to 127 are for :func:`register`."""

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_NAIVE_EPOCH = _EPOCH.replace(tzinfo=None)
_MICROSECOND = timedelta(microseconds=1)
_NATIVE = (bool, int, float, str, bytes)


class _Codec(NamedTuple):
    code: int
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]


_registered: dict[type, _Codec] = {}
_decoders: dict[int, Callable[[bytes], Any]] = {}


def register(
    code: int, cls: type, encode: Callable[[Any], bytes], decode: Callable[[bytes], Any]
) -> None:
    """Teach :func:`encode` a class (and its subclasses) that the core knows nothing about.

    The code is part of the format of logs and layers: once given it must not change.
    """
    if not FIRST_FREE_CODE <= code <= 127 or (code in _decoders and cls not in _registered):
        raise ProtocolError(f"extension code {code} for {cls.__name__} is taken or out of range")
    _registered[cls] = _Codec(code, encode, decode)
    _decoders[code] = decode


def encode(value: Any) -> bytes:
    """Encode `value`.

    Raises
    ------
    UnencodableValue
        The value, or something in it, is of a class that has no canonical form.

    Examples
    --------
    >>> decode(encode({"seen": (1, {3, 2})}))
    {'seen': (1, {2, 3})}
    """
    try:
        packed: bytes = msgpack.packb(
            value, default=_extend, strict_types=True, unicode_errors="surrogatepass"
        )
    except (ValueError, TypeError, OverflowError) as error:
        raise UnencodableValue(
            f"a value of type {_type_name(value)} cannot be kept: {error}",
            remedy="keep plain values of moderate depth and size",
        ) from error
    return packed


def decode(data: bytes) -> Any:
    """Inverse of :func:`encode`; anything else raises :class:`ProtocolError`."""
    try:
        return msgpack.unpackb(
            data, ext_hook=_restore, strict_map_key=False, unicode_errors="surrogatepass"
        )
    except ClonosError:
        raise
    except Exception as error:
        raise ProtocolError(f"unreadable value of {len(data)} bytes: {error}") from error


def split(data: bytes) -> tuple[Any, bytes]:
    """The value that `data` begins with, and what comes behind it.

    Examples
    --------
    >>> split(encode("name") + b"rest")
    ('name', b'rest')
    """
    unpacker = msgpack.Unpacker(ext_hook=_restore, strict_map_key=False)
    unpacker.feed(data)
    return unpacker.unpack(), data[unpacker.tell() :]


def placed(encoded: bytes, place: str) -> bytes:
    """An encoded error with the place where it was raised: what it is decoded to has it, too.

    Examples
    --------
    >>> decode_error(placed(encode_error(ValueError("no")), "mine.py:3, in call")).raised_at
    'mine.py:3, in call'
    """
    return encode([True, place, encoded])


def encode_error(error: BaseException) -> bytes:
    """Encode what a call raised, so that :func:`decode_error` can rebuild it."""
    if isinstance(error, CallError):
        return encode([None, error.type_name, error.message])
    if isinstance(error, ClonosError) and _type_name(error) in _OURS:
        return encode([None, _type_name(error), error.what, error.remedy])
    name = type(error).__name__
    if getattr(builtins, name, None) is type(error):
        try:
            encoded = encode([name, list(error.args)])
            if type(decode_error(encoded)) is type(error):
                return encoded
        except ClonosError:
            pass
    return encode([None, _type_name(error), message_of(error)])


def outcome_of(ask: Callable[[], Any]) -> tuple[bool, bytes]:
    """Whether a call was answered, and the answer, or the exception that it raised, encoded.

    Examples
    --------
    >>> ok, answer = outcome_of(lambda: 6 * 7)
    >>> ok, decode(answer)
    (True, 42)
    >>> ok, answer = outcome_of(lambda: 1 // 0)
    >>> ok, decode_error(answer)
    (False, ZeroDivisionError('integer division or modulo by zero'))
    """
    try:
        return True, encode(ask())
    except Exception as error:  # noqa: BLE001 - any failure of a call is an answer
        return False, encode_error(error)


def decode_error(data: bytes) -> Exception:
    """Rebuild an exception: the same builtin class, or a :class:`CallError` that describes it."""
    match decode(data):
        case [True, str(place), bytes(encoded)]:
            error = decode_error(encoded)
            error.raised_at = place  # type: ignore[attr-defined]
            return error
        case [None, str(name), str(what), str(remedy)] if name in _OURS:
            return _OURS[name](what, remedy=remedy)
        case [None, str(name), str(what)] if name in _WITHOUT_REMEDY:
            return _OURS[name](what)
        case [None, str(name), str(message)]:
            return CallError(name, message)
        case [str(name), list(args)]:
            cls = getattr(builtins, name, None)
            if isinstance(cls, type) and issubclass(cls, Exception):
                try:
                    return cls(*args)
                except TypeError as error:
                    raise ProtocolError(f"{name} cannot be rebuilt: {error}") from error
    raise ProtocolError("not an encoded exception")


def _extend(value: Any) -> Any:
    """Types that MessagePack does not know, or of which it knows only a base class."""
    for cls in type(value).__mro__:
        codec = _registered.get(cls)
        if codec is not None:
            return msgpack.ExtType(codec.code, codec.encode(value))
    if type(value).__module__ == "numpy" and hasattr(value, "dtype") and not value.shape:
        item = value.item()
        return item if isinstance(item, _NATIVE) else _extend(item)
    plain = _plain(value)
    return plain if plain is not None else msgpack.ExtType(*_extension(value))


def _plain(value: Any) -> Any:
    """Subclasses of what MessagePack knows (IntEnum, defaultdict, ...) become their base."""
    if isinstance(value, str):
        return str.__str__(value)  # not str(value): that of an Enum is its name
    bases: tuple[Callable[[Any], Any], ...] = (bytes, float, dict, list)
    for base in bases:
        if isinstance(value, base):  # type: ignore[arg-type]
            return base(value)
    if isinstance(value, int) and type(value) is not int:
        return int(value)
    return None


def _extension(value: Any) -> tuple[int, bytes]:
    match value:
        case tuple():
            return _Code.TUPLE, encode(list(value))
        case frozenset():
            return _Code.FROZENSET, b"".join(sorted(map(encode, value)))
        case set():
            return _Code.SET, b"".join(sorted(map(encode, value)))
        case int():
            return _Code.BIG_INT, str(value).encode()
        case Decimal():
            return _Code.DECIMAL, str(value).encode()
        case datetime() if value.tzinfo is not None:
            return _Code.INSTANT, encode((value - _EPOCH) // _MICROSECOND)
        case datetime():
            return _Code.DATETIME, encode((value - _NAIVE_EPOCH) // _MICROSECOND)
        case date():
            return _Code.DATE, encode(value.toordinal())
        case time() if value.tzinfo is None:
            return _Code.TIME, value.isoformat().encode()
        case timedelta():
            return _Code.TIMEDELTA, encode(value // _MICROSECOND)
    raise UnencodableValue(
        f"a value of type {_type_name(value)} cannot be kept in state or in the log",
        remedy=_plain_form(value),
    )


def _plain_form(value: Any) -> str:
    """How to make a plain value of one that cannot be kept, if it says so."""
    if is_dataclass(value):
        return "keep what dataclasses.asdict makes of it"
    for name in ("model_dump", "tolist", "to_dict"):  # of pydantic, NumPy, pandas
        if callable(getattr(type(value), name, None)):
            return f"keep what its {name}() returns"
    return UnencodableValue.usual_remedy


_OURS: Final[dict[str, type[ClonosError]]] = {
    f"{cls.__module__}.{cls.__name__}": cls
    for cls in (
        AnswerTooLarge,
        BudgetSpent,
        EffectUnknown,
        OtherArguments,
        PoisonRecord,
        UnencodableValue,
        WrongLength,
    )
}
"""Errors of calls that are raised by clonos itself: they come back as they are."""
_WITHOUT_REMEDY: Final = {
    f"clonos.errors.{name}" for name in ("BudgetSpent", "EffectUnknown", "WrongLength")
}
"""Logs may also have these without one."""


def _elements(data: bytes) -> list[Any]:
    unpacker = msgpack.Unpacker(
        ext_hook=_restore, strict_map_key=False, unicode_errors="surrogatepass"
    )
    unpacker.feed(data)
    return list(unpacker)


_decoders.update(
    {
        _Code.TUPLE: lambda data: tuple(decode(data)),
        _Code.SET: lambda data: set(_elements(data)),
        _Code.FROZENSET: lambda data: frozenset(_elements(data)),
        _Code.BIG_INT: lambda data: int(data.decode()),
        _Code.DECIMAL: lambda data: Decimal(data.decode()),
        _Code.INSTANT: lambda data: _EPOCH + decode(data) * _MICROSECOND,
        _Code.DATETIME: lambda data: _NAIVE_EPOCH + decode(data) * _MICROSECOND,
        _Code.DATE: lambda data: date.fromordinal(decode(data)),
        _Code.TIME: lambda data: time.fromisoformat(data.decode()),
        _Code.TIMEDELTA: lambda data: decode(data) * _MICROSECOND,
    }
)


def _restore(code: int, data: bytes) -> Any:
    decoder = _decoders.get(code)
    if decoder is None:
        raise ProtocolError(f"value of unknown kind {code}")
    return decoder(data)


def _type_name(value: object) -> str:
    cls = type(value)
    return cls.__name__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
