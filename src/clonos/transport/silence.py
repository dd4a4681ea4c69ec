"""What the kernel knows about a connection: whether the other machine still answers.

A kernel acknowledges what arrives even while its process computes or is stopped. So silence at this
level points to the network or the machine, never to a slow process. It is noticed within two
seconds, instead of the quarter of an hour after which TCP itself gives up.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import Final

KEEPALIVE_S: Final = 1
"""An idle connection is probed after this time, and then at this interval ..."""
PROBES: Final = 3
"""... until this many probes went unanswered."""
RETRIES: Final = 3
"""Retransmissions without an answer: some 1.5 seconds on a network that answers in less than
0.2."""
SILENT_MS: Final = 1_000
"""... and nothing else was heard for at least this long."""

_INFO: Final = struct.Struct("=8B13I")
"""The beginning of Linux's ``struct tcp_info``."""
_RETRANSMITS, _UNACKED, _LAST_ACK_MS = 2, 12, 20


def watch(connection: socket.socket) -> None:
    """Have the kernel probe an idle connection for a peer that is gone."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    with contextlib.suppress(AttributeError):  # Linux's names
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)


def is_silent(connection: socket.socket) -> bool:
    """Whether the other machine has stopped acknowledging, retransmissions included.

    Only Linux tells. Elsewhere no peer counts as silent, and TCP's own limits apply.
    """
    try:
        told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
    except (OSError, AttributeError):
        return False
    if len(told) < _INFO.size:
        return False
    info = _INFO.unpack(told)
    return bool(
        info[_UNACKED] and info[_RETRANSMITS] >= RETRIES and info[_LAST_ACK_MS] >= SILENT_MS
    )
