"""What is kept of an answer, and by what it is found again.

The engine finds a determinant by its position: a task's steps come in the same order on replay.
The rows of a Spark partition may not, so here an entry carries the digest of what was asked, and
the *n*-th time a digest is asked for gets the *n*-th entry that has it. Where the rows do come in
the same order this is the same thing as the position; where they do not, equal questions may swap
answers, and nothing else can.

A *chunk* is what a task appends at once: a flat msgpack array of entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import msgpack

from clonos.causal.errors import ServiceTooSlow
from clonos.core import canonical
from clonos.core.determinants import Cause
from clonos.errors import CallError, MalformedMessage

DIGEST_BYTES: Final = 16
"""A user must not be able to construct two questions with one digest: no xxhash here."""

CALL: Final = int(Cause.CALL)
CLOCK: Final = int(Cause.CLOCK)

_FIELDS: Final = 4
_TOO_SLOW: Final = f"{ServiceTooSlow.__module__}.{ServiceTooSlow.__name__}"


class Entry(NamedTuple):
    """One determinant: its kind, what was asked, and what the world said.

    ``answer`` is a canonical encoding, of an error if not ``ok``.
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
        Something in it has no canonical form.

    Examples
    --------
    >>> digest_of(("score", "to be")) == digest_of(("score", "to be"))
    True
    >>> len(digest_of(None))
    16
    """
    return blake2b(canonical.encode(question), digest_size=DIGEST_BYTES).digest()


def encode_chunk(entries: Sequence[Entry]) -> bytes:
    """The bytes of some entries.

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
        The bytes are something else.
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
    """The exception to raise for an answer; the same class live and when used again."""
    error = canonical.decode_error(data)
    if isinstance(error, CallError) and error.type_name == _TOO_SLOW:
        return ServiceTooSlow(
            error.message, remedy="give it more time (timeout=...), or catch this and go on"
        )
    return error
