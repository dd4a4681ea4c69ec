"""Arrow Flight between processes: data channels and the control stream, authenticated."""

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
from clonos.transport.plane import FlightPlane
from clonos.transport.secret import JobSecret
from clonos.transport.streams import Incoming, Outgoing

__all__ = [
    "AuthenticationFailed",
    "ChannelClosed",
    "ChannelOpened",
    "ControlLost",
    "ControlOpened",
    "FlightPlane",
    "Heartbeat",
    "Incoming",
    "JobSecret",
    "Outgoing",
    "PeerUnreachable",
    "PlaintextRefused",
    "Register",
    "SchemaMismatch",
]
