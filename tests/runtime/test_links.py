"""When a peer that cannot be connected to is more than late."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from clonos.core import events as ev
from clonos.core import messages as msg
from clonos.core.plan import Incarnation
from clonos.errors import ClonosError
from clonos.runtime import links
from clonos.runtime.links import ANSWERED, Links
from clonos.transport.errors import CannotConnect, PeerUnreachable
from clonos.transport.events import ChannelClosed

CHANNEL, LIMIT_S = 4, 20.0
PEER = "tcp://10.0.0.2:5000"


class Dialled:
    """Links whose peer never answers, on a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.conn = self.attempt = 0
        monkeypatch.setattr(links, "time", SimpleNamespace(monotonic=lambda: self.now))
        plane: Any = SimpleNamespace(address="tcp://10.0.0.1:4000", connect=self._connect)
        self.links = Links(plane, {CHANNEL: None}, LIMIT_S)

    def _connect(self, *_: Any) -> Any:
        self.conn += 1
        return SimpleNamespace(conn_id=self.conn, close=lambda: None)

    def fail(self, after_s: float, error: ClonosError | None, life: int = 1) -> Any:
        """Dial, and let it end after so long."""
        self.attempt += 1
        self.links.dial(
            ev.Dial(CHANNEL, self.attempt, Incarnation(1, life), PEER), Incarnation(1, 1)
        )
        self.now += after_s
        return self.links.closed(ChannelClosed(CHANNEL, self.conn, "sender", error))


@pytest.fixture
def dialled(monkeypatch: pytest.MonkeyPatch) -> Dialled:
    return Dialled(monkeypatch)


def test_silence_is_given_up_and_both_ends_are_named(dialled: Dialled) -> None:
    assert dialled.fail(10.1, CannotConnect("silence")) == ev.OutputClosed(CHANNEL, 1)
    with pytest.raises(CannotConnect, match=r"10\.0\.0\.1:4000 cannot .*10\.0\.0\.2:5000 for 20 s"):
        dialled.fail(10.1, CannotConnect("silence"))


def test_a_refusal_has_longer(dialled: Dialled) -> None:
    for _ in range(ANSWERED):
        dialled.fail(LIMIT_S - 0.1, PeerUnreachable("refused"))
    with pytest.raises(CannotConnect, match="refused"):
        dialled.fail(1.0, PeerUnreachable("refused"))


def test_a_process_in_a_long_call_is_waited_for(dialled: Dialled) -> None:
    for _ in range(10):
        assert dialled.fail(60.0, None) is not None


def test_another_life_of_the_peer_starts_the_clock_anew(dialled: Dialled) -> None:
    for life in range(1, 10):
        assert dialled.fail(19.0, CannotConnect("silence"), life) is not None


def test_so_does_an_answer(dialled: Dialled) -> None:
    for _ in range(5):
        dialled.fail(15.0, CannotConnect("silence"))
        dialled.attempt += 1
        dial = ev.Dial(CHANNEL, dialled.attempt, Incarnation(1, 1), PEER)
        dialled.links.dial(dial, Incarnation(1, 1))
        dialled.links.heard(dialled.conn, msg.Credit(CHANNEL, 1))
