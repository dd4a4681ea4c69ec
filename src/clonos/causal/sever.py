"""Cutting connections that gRPC does not end by itself."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path


def sever(peer: str, local_port: int | None = None) -> None:
    """Cut this process's TCP connections with the port of `peer`, if it does not leave otherwise.

    gRPC waits for a stream's reads and writes even after it was cancelled, and cannot end a single
    connection of a server at all.
    """
    peer_port = int(peer.rpartition(":")[2])
    for entry in Path("/dev/fd").iterdir():
        with contextlib.suppress(OSError):  # not a connection, or gone meanwhile
            _sever_if(os.dup(int(entry.name)), peer_port, local_port)


def _sever_if(fd: int, peer_port: int, local_port: int | None) -> None:
    """Shut the socket `fd` if it has these ports; `fd` itself is closed in any case."""
    try:
        connection = socket.socket(fileno=fd)
    except OSError:
        os.close(fd)
        raise
    with connection:
        if connection.family not in (socket.AF_INET, socket.AF_INET6):
            return
        ports = connection.getsockname()[1], connection.getpeername()[1]
        if ports[1] == peer_port and local_port in (None, ports[0]):
            connection.shutdown(socket.SHUT_RDWR)
