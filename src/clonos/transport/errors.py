"""What can go wrong between two processes."""

from __future__ import annotations

from typing import Final

from clonos.errors import ClonosError, ProtocolError

OPEN_PORTS: Final = (
    "let the machines of the job's executors and driver connect to one another on any port above "
    "1023 (net.ipv4.ip_local_port_range): see docs/deploy.md"
)
"""What to do if two machines cannot connect."""


class AuthenticationFailed(ClonosError):
    """A peer does not hold the job's secret, or repeats somebody else's greeting."""


class PlaintextRefused(ClonosError):
    """The address is not a loopback one (or not one at all), and plaintext was not asked for."""


class TlsUnavailable(ClonosError):
    """Streams are to be encrypted, and the certificates for that cannot be made."""


class SchemaMismatch(ProtocolError):
    """A batch has another schema than the one pinned for its channel."""


class PeerUnreachable(ClonosError):
    """A stream could not be opened or broke; the peer or the network between is gone."""


class CannotConnect(PeerUnreachable):
    """Nothing that is sent to that address comes back: it, or what lies between, drops it."""
