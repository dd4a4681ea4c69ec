"""A day that takes less than a minute: payments arrive when they are due, by HTTP."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any, Final

from examples.demo.process import LOOPBACK
from examples.fraud.payments import DAY_S, Payment

PAUSE_S: Final = 0.02
"""... before a request that was not taken is sent again."""


def free_port() -> int:
    """A port that nobody uses."""
    with socket.socket() as found:
        found.bind((LOOPBACK, 0))
        return int(found.getsockname()[1])


class Day:
    """Sends payments, each with its name, again and again until it has been taken.

    The day waits at an hour for which somebody has something to do before, until it is done.

    Parameters
    ----------
    seconds
        What a day takes.
    waits
        The hours at which it may wait.
    """

    def __init__(
        self, payments: Sequence[Payment], port: int, seconds: float, waits: Sequence[float] = ()
    ) -> None:
        self.payments, self._port, self._seconds = payments, port, seconds
        self._done = {hour: threading.Event() for hour in waits}
        self._moved = threading.Condition()
        self._is_over = False
        self.sent_at: list[float] = []
        """When each payment had its 200 (s since the epoch)."""
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="day", daemon=True)

    def start(self) -> None:
        """The first payment comes now."""
        self._thread.start()

    def allow(self, hour: float) -> None:
        """What was to be done before this hour is done."""
        self._done[hour].set()

    def close(self) -> None:
        """No more payments come."""
        self._is_over = True
        for done in self._done.values():
            done.set()
        self._thread.join()

    def wait(self, hour: float = 24.0) -> None:
        """... until this hour, or the last payment."""
        with self._moved:
            self._moved.wait_for(lambda: self._has_come(hour) or self.error is not None)
        if self.error is not None:
            raise self.error

    def count(self, hour: float) -> int:
        """How many payments come before this hour."""
        return sum(payment.at_s < hour * 3600 for payment in self.payments)

    def _has_come(self, hour: float) -> bool:
        sent = len(self.sent_at)
        return sent == len(self.payments) or self.payments[sent].at_s >= hour * 3600

    def _run(self) -> None:
        try:
            self._send_all()
        except Exception as error:  # noqa: BLE001 - whoever waits raises it
            self.error = error
        with self._moved:
            self._moved.notify_all()

    def _send_all(self) -> None:
        begun_s = time.monotonic()
        for payment in self.payments:
            for hour, done in self._done.items():
                if payment.at_s >= hour * 3600 and not done.is_set():
                    waits_s = time.monotonic()
                    done.wait()
                    begun_s += time.monotonic() - waits_s
            due_s = begun_s + payment.at_s / DAY_S * self._seconds
            time.sleep(max(0.0, due_s - time.monotonic()))
            while not self._is_over and not self._is_taken(payment):
                time.sleep(PAUSE_S)
            if self._is_over:
                return
            with self._moved:
                self.sent_at.append(time.time())
                self._moved.notify_all()

    def _is_taken(self, payment: Payment) -> bool:
        """A job that is starting, or being replaced, does not listen, or says 503."""
        connection = http.client.HTTPConnection(LOOPBACK, self._port, timeout=30)
        headers = {"Idempotency-Key": f"payment-{payment.id}"}
        try:
            connection.request("POST", "/", json.dumps(payment.row()), headers)
            answer: Any = connection.getresponse()
            if answer.status not in {200, 503}:
                raise RuntimeError(f"{answer.status}: {answer.read()!r}")
            return bool(answer.status == 200)
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
