"""Log entries of answers, and how they are found again.

The engine finds a determinant by its position, because a task's steps come in the same order on
replay. The rows of a Spark partition may not. So an entry carries the digest of its question, and
the *n*-th call with a digest gets the *n*-th entry that has it. If rows come in the same order,
this equals the position. If they do not, equal questions may swap answers, but nothing else can.

A *chunk* holds the entries that a task appends at once: a flat msgpack array.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import msgpack

from clonos.core import canonical
from clonos.core.determinants import Cause
from clonos.errors import CallError, MalformedMessage
from clonos.errors.causal import ServiceTooSlow

DIGEST_BYTES: Final = 16
"""Not xxhash: nobody must be able to construct two questions with the same digest."""

CALL: Final = int(Cause.CALL)
CLOCK: Final = int(Cause.CLOCK)

_FIELDS: Final = 4
_TOO_SLOW: Final = f"{ServiceTooSlow.__module__}.{ServiceTooSlow.__name__}"


class Entry(NamedTuple):
    """One determinant: its kind, the question's digest, and the answer.

    ``answer`` is a canonical encoding; of an error, if not ``ok``.
    """

    digest: bytes
    kind: int
    ok: bool
    answer: bytes


def digest_of(question: Any) -> bytes:
    """Digest of a question.

    Raises
    ------
    UnencodableValue
        Some part of it has no canonical form.

    Examples
    --------
    >>> digest_of(("score", "to be")) == digest_of(("score", "to be"))
    True
    >>> len(digest_of(None))
    16
    """
    return blake2b(canonical.encode(question), digest_size=DIGEST_BYTES).digest()


def encode_chunk(entries: Sequence[Entry]) -> bytes:
    """Encode entries.

    Examples
    --------
    >>> entry = Entry(digest_of("what?"), CALL, True, canonical.encode(42))
    >>> decode_chunk(encode_chunk([entry, entry])) == [entry, entry]
    True
    """
    flat: list[Any] = []
    for entry in entries:
        flat.extend(entry)
    packed: bytes = msgpack.packb(flat)
    return packed


def decode_chunk(chunk: bytes) -> list[Entry]:
    """Inverse of :func:`encode_chunk`.

    Raises
    ------
    MalformedMessage
        The bytes are not a chunk.
    """
    try:
        flat = msgpack.unpackb(chunk)
        whole = len(flat) % _FIELDS == 0
        fields = [flat[i::_FIELDS] for i in range(_FIELDS)]
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise MalformedMessage(f"a chunk of the log cannot be read: {error}") from error
    types = (bytes, int, bool, bytes)
    if not whole or any(set(map(type, f)) - {t} for f, t in zip(fields, types, strict=True)):
        raise MalformedMessage("a chunk of the log does not consist of entries")
    return list(map(Entry._make, zip(*fields, strict=True)))


def encode_error(error: BaseException) -> bytes:
    """An exception as an answer."""
    if type(error) is ServiceTooSlow:
        return canonical.encode_error(CallError(_TOO_SLOW, error.what))
    return canonical.encode_error(error)


def decode_error(data: bytes) -> Exception:
    """The exception to raise for an answer; its class is the same live and on reuse."""
    error = canonical.decode_error(data)
    if isinstance(error, CallError) and error.type_name == _TOO_SLOW:
        return ServiceTooSlow(
            error.message, remedy="give it more time (timeout=...), or catch this and go on"
        )
    return error
