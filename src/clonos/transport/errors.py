"""Errors between two processes."""

from __future__ import annotations

from typing import Final

from clonos.errors import ClonosError, ProtocolError

OPEN_PORTS: Final = (
    "let the machines of the job's executors and driver connect to one another on any port above "
    "1023 (net.ipv4.ip_local_port_range): see docs/deploy.md"
)
"""Remedy if two machines cannot connect."""


class AuthenticationFailed(ClonosError):
    """A peer does not hold the job's secret, or replays another peer's greeting."""


class PlaintextRefused(ClonosError):
    """The address is not a loopback address, and plaintext was not requested."""


class TlsUnavailable(ClonosError):
    """Streams must be encrypted, but their certificates cannot be made."""


class SchemaMismatch(ProtocolError):
    """A batch's schema differs from the one pinned for its channel."""


class PeerUnreachable(ClonosError):
    """A stream could not be opened, or broke: the peer, or the network to it, is gone."""


class CannotConnect(PeerUnreachable):
    """No reply comes from that address: the peer, or something in between, drops packets."""
