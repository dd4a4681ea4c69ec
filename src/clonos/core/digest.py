"""Digests that both ends of a channel compute alike (xxh3: they detect errors, not forgery)."""

from __future__ import annotations

import msgpack
import xxhash


def content_digest(content: bytes | memoryview) -> int:
    """64-bit digest of some bytes."""
    digest: int = xxhash.xxh3_64_intdigest(content)
    return digest


def chain(previous: int, kind: int, value: int, digest: int, watermark: int | None = None) -> int:
    """The running digest of a channel after one more item."""
    fields = (previous, int(kind), value, digest)
    packed = msgpack.packb(fields if watermark is None else (*fields, watermark))
    return content_digest(packed)
