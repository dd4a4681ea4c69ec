"""Streams between processes: data channels and the control stream, authenticated."""

from clonos.transport.errors import (
    AuthenticationFailed,
    CannotConnect,
    PeerUnreachable,
    PlaintextRefused,
    SchemaMismatch,
    TlsUnavailable,
)
from clonos.transport.events import (
    ChannelClosed,
    ChannelOpened,
    ControlLost,
    ControlOpened,
    Heartbeat,
    Register,
)
from clonos.transport.inbox import Inbox
from clonos.transport.plane import Plane
from clonos.transport.secret import JobSecret
from clonos.transport.streams import Incoming, Outgoing
from clonos.transport.tls import Identity

__all__ = [
    "AuthenticationFailed",
    "CannotConnect",
    "ChannelClosed",
    "ChannelOpened",
    "ControlLost",
    "ControlOpened",
    "Heartbeat",
    "Identity",
    "Inbox",
    "Incoming",
    "JobSecret",
    "Outgoing",
    "PeerUnreachable",
    "PlaintextRefused",
    "Plane",
    "Register",
    "SchemaMismatch",
    "TlsUnavailable",
]
