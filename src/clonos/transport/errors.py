"""Errors between two processes."""

from __future__ import annotations

from typing import Final

from clonos.errors import ProtocolError

OPEN_PORTS: Final = (
    "let the machines of the job's executors and driver connect to one another on any port above "
    "1023 (net.ipv4.ip_local_port_range): see docs/deploy.md"
)
"""Remedy if two machines cannot connect."""


class SchemaMismatch(ProtocolError):
    """A batch's schema differs from the one pinned for its channel."""
