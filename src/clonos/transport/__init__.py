"""Streams between processes: data channels and the control stream, authenticated."""

from clonos.transport.errors import (
    AuthenticationFailed,
    PeerUnreachable,
    PlaintextRefused,
    SchemaMismatch,
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

__all__ = [
    "AuthenticationFailed",
    "ChannelClosed",
    "ChannelOpened",
    "ControlLost",
    "ControlOpened",
    "Heartbeat",
    "Inbox",
    "Incoming",
    "JobSecret",
    "Outgoing",
    "PeerUnreachable",
    "PlaintextRefused",
    "Plane",
    "Register",
    "SchemaMismatch",
]
