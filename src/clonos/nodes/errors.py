"""What the driver may conclude about its slots."""

from __future__ import annotations

from clonos.errors import ClonosError


class SlotsLost(ClonosError):
    """A slot ends again and again before it has registered."""


class OtherVersion(ClonosError):
    """An executor runs other versions than the driver: a replay would not be bit-exact."""
