"""Errors between two processes."""

from __future__ import annotations

from clonos.errors import ProtocolError


class SchemaMismatch(ProtocolError):
    """A batch's schema differs from the one pinned for its channel."""
