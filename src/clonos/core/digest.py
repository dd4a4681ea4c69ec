"""Digests that both ends of a channel compute alike (xxh3: not against forgery, against error)."""

from __future__ import annotations

import msgpack
import xxhash


def content_digest(content: bytes | memoryview) -> int:
    """64-bit digest of some bytes."""
    digest: int = xxhash.xxh3_64_intdigest(content)
    return digest


def chain(previous: int, kind: int, value: int, digest: int) -> int:
    """The running digest of a channel after one more item."""
    packed = msgpack.packb((previous, int(kind), value, digest))
    return content_digest(packed)
