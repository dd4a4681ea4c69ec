"""Messages that are offered once: the driver acknowledges them only after it has spooled them.

::

    sender ──► inlet (listens in the driver) ──► queue ──► group ──► spool, durably
       ▲                                                                  │
       └────────────────────────── thanks ◄───────────────────────────────┘

A group holds the messages that came while the previous group was written. If anything dies before
the thanks (the acknowledgement), the sender gets none, and a sender that retries offers the message
again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple

import pyarrow as pa

from clonos.blame import in_short
from clonos.errors import ClonosError, SourceError
from clonos.sources.offered import OFFERED
from clonos.sources.spec import Inlet, Listener
from clonos.sources.spool import Spool, write_parts

WAITING_MESSAGES: Final = 10_000
WAITING_BYTES: Final = 32 << 20
"""How much may wait in the driver's memory; further messages are refused."""
STOP_S: Final = 5.0
"""How long a write under way may hold up the end of a job."""

_QUERY: Final = "inlet"


class _Offered(NamedTuple):
    """A message, and the function that tells its sender the outcome."""

    row: tuple[bytes, str | None, str | None, int]
    thank: Callable[[bool], object]

    @property
    def nbytes(self) -> int:
        value, key, topic, _ = self.row
        return len(value) + len(key or "") + len(topic or "")


class InletFeed:
    """An inlet and the spool that it fills.

    Parameters
    ----------
    report
        Called, from a separate thread, with the error that ended the feed.
    warn
        Called, from any thread, with what the user should hear.
    """

    def __init__(
        self,
        name: str,
        inlet: Inlet,
        spool: Spool,
        report: Callable[[ClonosError], object],
        warn: Callable[[str], object],
    ) -> None:
        self._name, self._inlet, self._spool, self._report = name, inlet, spool, report
        self._warn = warn
        self._listener: Listener | None = None
        self._waiting: list[_Offered] = []
        self._nbytes = 0
        self._is_over = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name=f"clonos-inlet {name}", daemon=True)

    def start(self) -> None:
        """Begin to listen.

        Raises
        ------
        SourceError
            It cannot listen.
        """
        self._thread.start()
        self._listener = self._inlet.open(self.offer, self.fail, self._tell)

    def offer(
        self, value: bytes, key: str | None, topic: str | None, thank: Callable[[bool], object]
    ) -> bool:
        """Take a message, if there is room.

        Parameters
        ----------
        thank
            Called once if the message is taken, from a thread of the feed; True: it is durable.

        Returns
        -------
        bool
            Whether the message was taken.
        """
        offered = _Offered((value, key, topic, time.time_ns() // 1000), thank)
        with self._changed:
            is_full = len(self._waiting) >= WAITING_MESSAGES or self._nbytes >= WAITING_BYTES
            if self._is_over or is_full:
                return False
            self._waiting.append(offered)
            self._nbytes += offered.nbytes
            self._changed.notify()
            return True

    def fail(self, error: Exception) -> None:
        """The inlet has ended unexpectedly."""
        with self._changed:
            if self._is_over:
                return
        if not isinstance(error, ClonosError):
            error = SourceError(f"messages cannot be kept: {in_short(error)}", where=self._name)
        self._report(error)

    def _tell(self, text: str) -> None:
        self._warn(f"{self._name}: {text}")

    def leave(self) -> None:
        """Begin to refuse messages."""
        with self._changed:
            self._is_over = True
            self._changed.notify()
        self._spool.close()

    def close(self, until: float | None = None) -> None:
        """Stop taking messages: when this returns, or soon after the time `until`."""
        self.leave()
        if self._listener is not None:
            self._listener.close()
        if self._thread.is_alive():
            left_s = STOP_S if until is None else max(0.0, until - time.monotonic())
            self._thread.join(min(STOP_S, left_s))

    def _run(self) -> None:
        group: list[_Offered] = []
        try:
            while group := self._next():
                self._keep(group)
                _thank(group, is_durable=True)
        except Exception as error:  # noqa: BLE001 - whatever it is, senders and the job must hear
            self.fail(error)
        finally:
            with self._changed:
                self._is_over = True
                group, self._waiting = [*group, *self._waiting], []
            _thank(group, is_durable=False)

    def _next(self) -> list[_Offered]:
        """The messages that have come meanwhile; none when the feed is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or self._waiting)
            if self._is_over:
                return []
            group, self._waiting, self._nbytes = self._waiting, [], 0
            return group

    def _keep(self, group: list[_Offered]) -> None:
        self._spool.wait_for_room()
        newest = self._spool.newest
        number = 0 if newest is None else newest.batch + 1
        columns = zip(*(offered.row for offered in group), strict=True)
        rows = pa.RecordBatch.from_arrays(
            [pa.array(c, f.type) for c, f in zip(columns, OFFERED, strict=True)], schema=OFFERED
        )
        self._spool.take(
            _QUERY, number, list(write_parts(self._spool.store, number, 0, [rows], OFFERED))
        )


def _thank(group: list[_Offered], *, is_durable: bool) -> None:
    for offered in group:
        offered.thank(is_durable)
