"""Lines from a TCP socket."""

from __future__ import annotations

import socket

import pyarrow as pa

from clonos.errors import SourceError
from clonos.sources.lines import LINES
from clonos.sources.readers import BaseReader, EndOfInput

LINE_BYTES_MAX = 1 << 20
"""A longer line is a bad record, because it must not fill the task's memory."""

_RECEIVE_BYTES = 1 << 16
_CONNECT_TIMEOUT_S = 10.0


class SocketReader(BaseReader):
    """Connects to a server that sends lines.

    A socket cannot replay, so the log keeps all lines. With `resume` the reader sends
    ``RESUME <rows>`` on connecting. A server that understands this continues from there, so that
    lines under way when the task died are not lost.
    """

    replayable = False
    schema = LINES

    def __init__(
        self, host: str, port: int, *, resume: bool = False, line_bytes_max: int = LINE_BYTES_MAX
    ) -> None:
        self._address = (host, port)
        self._resume = resume
        self._line_bytes_max = line_bytes_max
        self._socket: socket.socket | None = None
        self._lines: list[bytes | None] = []
        self._partial = b""
        self._is_skipping = False
        self._is_over = False

    def open(self, rows_consumed: int) -> None:
        """See :meth:`Reader.open`."""
        self.close()
        self._lines, self._partial = [], b""
        self._is_skipping = self._is_over = False
        host, port = self._address
        try:
            self._socket = socket.create_connection(self._address, _CONNECT_TIMEOUT_S)
            if self._resume:
                self._socket.sendall(b"RESUME %d\n" % rows_consumed)
        except OSError as error:
            raise SourceError(
                f"cannot connect to {host}:{port}: {error}", remedy="start the server first"
            ) from error

    def read(self, max_rows: int, max_wait_s: float) -> pa.RecordBatch | None:
        """See :meth:`Reader.read`."""
        if not self._lines:
            self._receive(max_wait_s)
        if not self._lines:
            if self._is_over:
                raise EndOfInput
            return None
        taken, self._lines = self._lines[:max_rows], self._lines[max_rows:]
        return pa.RecordBatch.from_arrays([pa.array(taken, pa.binary())], schema=LINES)

    def close(self) -> None:
        """See :meth:`Reader.close`."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _receive(self, max_wait_s: float) -> None:
        if self._socket is None:
            raise SourceError("the socket is closed")
        if self._is_over:
            return
        self._socket.settimeout(max(max_wait_s, 0.001))  # 0 would mean non-blocking
        try:
            received = self._socket.recv(_RECEIVE_BYTES)
        except TimeoutError:
            return
        except OSError as error:
            host, port = self._address
            raise SourceError(f"lost the connection to {host}:{port}: {error}") from error
        if received:
            self._split(received)
        else:
            self._is_over = True
            if self._partial and not self._is_skipping:
                self._lines.append(self._partial.rstrip(b"\r"))

    def _split(self, received: bytes) -> None:
        *whole, self._partial = (self._partial + received).split(b"\n")
        for line in whole:
            if self._is_skipping:
                self._is_skipping = False  # the end of a line already reported
            else:
                self._lines.append(self._bounded(line))
        if self._is_skipping:
            self._partial = b""
        elif len(self._partial) > self._line_bytes_max:
            self._lines.append(None)
            self._partial = b""
            self._is_skipping = True

    def _bounded(self, line: bytes) -> bytes | None:
        return line.rstrip(b"\r") if len(line) <= self._line_bytes_max else None
