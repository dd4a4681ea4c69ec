"""A server that sends a text line by line, for sources that read a socket.

On connection the client may say, within 300 ms, where it wants to go on and which part it wants::

    RESUME <n> PART <i>/<k>

Line number L of the text (repeated) belongs to part ``L % k``; `n` is how many lines *of its part*
the client has already. Without RESUME it starts at the first line, without PART the parts are dealt
out in the order of connection among ``--clients``. With a rate, line L is due L/rate seconds after
the first connection, whether or not anybody is there to read it: who reconnects finds what has
piled up, as with any live feed. The connection is closed after the last line.
"""

from __future__ import annotations

import argparse
import itertools
import re
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from examples.demo.process import LOOPBACK, announce, die_with_parent
from examples.demo.text import load_text

GREETING_SECONDS: Final = 0.3
_GREETING_BYTES_MAX: Final = 100
_GREETING: Final = re.compile(r"(?:RESUME (\d+))? ?(?:PART (\d+)/(\d+))?\r?\n")
_SEND_LINES: Final = 1000
_PAUSE_SECONDS: Final = 0.002


class Wish(NamedTuple):
    """What a client wants: `part` of `parts`, from its line number `resume` on."""

    resume: int
    part: int
    parts: int


class LineServer:
    """Sends the lines of a text to whoever connects.

    Parameters
    ----------
    lines
        Without line ends.
    repeats
        How often the text is sent; 0: without end.
    rate
        Lines per second over all parts; 0: as fast as the clients read.
    clients
        Number of parts for clients that name none.
    until
        The text is sent again and again until there is this file, and then up to its end.
    """

    def __init__(
        self,
        lines: Sequence[str],
        repeats: int,
        rate: float,
        clients: int,
        until: Path | None = None,
    ) -> None:
        self._lines = [line.encode() + b"\n" for line in lines]
        self._repeats, self._rate, self._clients = repeats, rate, clients
        self._until = until
        self._sent = 0  # lines that somebody may have, and all before them
        self._lock = threading.Lock()
        self._order = itertools.count()
        self._started = 0.0
        self._listener = socket.create_server((LOOPBACK, 0))

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    def serve(self) -> None:
        """Accept clients until killed."""
        while True:
            connection, _ = self._listener.accept()
            self._started = self._started or time.monotonic()
            threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                wish = self._wish(_greeting(connection))
                if wish is None:
                    connection.sendall(b"expected: RESUME <n> PART <i>/<k>\n")
                else:
                    self._send(connection, wish)
            except OSError:
                return  # the client is gone; it will be back

    def _wish(self, greeting: str) -> Wish | None:
        match = _GREETING.fullmatch(greeting) if greeting else _GREETING.fullmatch("\n")
        if match is None:
            return None
        resume, part, parts = match.groups()
        if part is None:
            return Wish(int(resume or 0), next(self._order) % self._clients, self._clients)
        if int(part) >= int(parts):
            return None
        return Wish(int(resume or 0), int(part), int(parts))

    def _send(self, connection: socket.socket, wish: Wish) -> None:
        number = wish.part + wish.resume * wish.parts
        while self._lines and (numbers := self._take(number, wish.parts)) is not None:
            if not numbers:
                time.sleep(_PAUSE_SECONDS)
                continue
            connection.sendall(b"".join([self._lines[n % len(self._lines)] for n in numbers]))
            number = numbers[-1] + wish.parts

    def _take(self, number: int, parts: int) -> range | None:
        """The next lines from `number` on that may be sent now; None at the end.

        They count as sent before they are: a client that has a line finds it whenever it comes
        back, although the connection broke before all of them had left.
        """
        with self._lock:
            self._sent = max(self._sent, number)
            end = self._end()
            if number >= end:
                return None
            numbers = range(number, min(self._due(end), number + _SEND_LINES * parts), parts)
            if numbers:
                self._sent = max(self._sent, numbers[-1] + 1)
            return numbers

    def _end(self) -> int:
        """The number of lines that there are, as far as that is known."""
        if self._until is not None and self._until.exists():
            self._repeats = max(1, -(-self._sent // len(self._lines)))
            self._until = None  # decided once: the same for all that come later
        if self._until is not None:
            return sys.maxsize
        return self._repeats * len(self._lines) if self._repeats else sys.maxsize

    def _due(self, end: int) -> int:
        """The lines below this number may be sent."""
        if not self._rate:
            return end
        return min(end, 1 + int((time.monotonic() - self._started) * self._rate))


def _greeting(connection: socket.socket) -> str:
    """What the client says within 300 ms; once it has begun, its whole line."""
    said = b""
    poller = select.poll()
    poller.register(connection, select.POLLIN)
    while poller.poll(1000 * (1 if said else GREETING_SECONDS)):
        byte = connection.recv(1)
        said += byte
        if byte in {b"", b"\n"} or len(said) >= _GREETING_BYTES_MAX:
            break
    return said.decode(errors="replace")


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(prog="python -m examples.demo.lines", description=__doc__)
    parser.add_argument("file", nargs="?", help="text, plain or .gz (default: the novels)")
    parser.add_argument("--repeat", type=int, default=1, help="0: without end")
    parser.add_argument("--rate", type=float, default=0.0, help="lines/s; 0: at once")
    parser.add_argument("--until", type=Path, help="repeat until there is this file")
    parser.add_argument("--clients", type=int, default=1, help="parts, for clients that name none")
    options = parser.parse_args(arguments)
    die_with_parent()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides, also at Ctrl-C
    lines = load_text(Path(options.file) if options.file else None)
    server = LineServer(lines, options.repeat, options.rate, options.clients, options.until)
    announce(server.port)
    server.serve()


if __name__ == "__main__":
    main()
