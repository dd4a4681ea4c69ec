"""When a peer that cannot be connected to is more than late."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from clonos.core import events as ev
from clonos.core import messages as msg
from clonos.core.plan import Incarnation
from clonos.errors import CannotConnect, ClonosError, PeerUnreachable
from clonos.nodes.links import ANSWERED, Links
from clonos.nodes.local import Local
from clonos.transport.events import ChannelClosed

CHANNEL, LIMIT_S = 4, 20.0
PEER = "tcp://10.0.0.2:5000"


class Dialled:
    """Links whose peer never answers, on a clock of its own."""

    def __init__(self) -> None:
        self.conn = self.attempt = 0
        plane: Any = SimpleNamespace(
            address="tcp://10.0.0.1:4000", connect=self._connect, listened_s=100.0
        )
        self.plane = plane
        self.complaints: list[str] = []
        self.silent: list[str] = []
        self.links = Links(plane, LIMIT_S, self._complain, Local(lambda _: None))

    def _complain(self, channel: int, peer: Incarnation, why: str, is_silent: bool) -> None:
        (self.silent if is_silent else self.complaints).append(why)

    def _connect(self, *_: Any) -> Any:
        self.conn += 1
        return SimpleNamespace(conn_id=self.conn, close=lambda: None, stood=self._stands)

    def fail(
        self, after_s: float, error: ClonosError | None, life: int = 1, *, stood: bool = False
    ) -> Any:
        """Dial, and let it end after so long, in which it was connected or was not."""
        self.attempt += 1
        self._stands = stood
        self.links.dial(
            ev.Dial(CHANNEL, self.attempt, Incarnation(1, life), PEER), Incarnation(1, 1)
        )
        self.plane.listened_s += after_s
        return self.links.closed(ChannelClosed(CHANNEL, self.conn, "sender", error))


@pytest.fixture
def dialled() -> Dialled:
    return Dialled()


def test_silence_is_given_up_and_both_ends_are_named(dialled: Dialled) -> None:
    assert dialled.fail(10.1, CannotConnect("silence")) == ev.OutputClosed(CHANNEL, 1)
    assert not dialled.complaints
    assert dialled.fail(10.1, CannotConnect("silence")) == ev.OutputClosed(CHANNEL, 2)
    (said,) = dialled.complaints
    assert "10.0.0.1:4000 cannot connect to tcp://10.0.0.2:5000: silence" in said


def test_a_complaint_is_repeated_but_not_at_once(dialled: Dialled) -> None:
    for _ in range(6):
        dialled.fail(10.1, CannotConnect("silence"))
    assert len(dialled.complaints) == 3


def test_a_refusal_has_longer(dialled: Dialled) -> None:
    for _ in range(ANSWERED):
        dialled.fail(LIMIT_S - 0.1, PeerUnreachable("refused"))
    assert not dialled.complaints
    dialled.fail(1.0, PeerUnreachable("refused"))
    assert "refused" in dialled.complaints[0]


def test_a_process_in_a_long_call_is_waited_for(dialled: Dialled) -> None:
    for _ in range(10):
        assert dialled.fail(60.0, None, stood=True) is not None
    assert not dialled.complaints


def test_what_accepts_connections_and_never_answers_is_told(dialled: Dialled) -> None:
    """A proxy that keeps its clients, or a process that restores much: the coordinator knows."""
    for _ in range(4):
        dialled.fail(60.0, None, stood=True)
    assert len(dialled.silent) == 2
    assert (
        f"{PEER}: connections are accepted, and nothing comes back for 120 s" in dialled.silent[0]
    )


def test_the_time_of_a_restore_is_none_of_being_refused(dialled: Dialled) -> None:
    """It was there, restored for long, and died."""
    dialled.fail(10.0, PeerUnreachable("refused"))
    dialled.fail(60.0, None, stood=True)
    dialled.fail(61.0, PeerUnreachable("reset"), stood=True)
    dialled.fail(ANSWERED * LIMIT_S - 11.0, PeerUnreachable("refused"))
    assert not dialled.complaints
    dialled.fail(2.0, PeerUnreachable("refused"))
    assert dialled.complaints


def test_what_lets_in_and_hangs_up_is_given_up(dialled: Dialled) -> None:
    """A proxy that has nobody behind it. Links are dialled again at the next tick."""
    for _ in range(ANSWERED * int(LIMIT_S)):
        dialled.fail(0.001, PeerUnreachable("reset"), stood=True)
        dialled.plane.listened_s += 1.0
    dialled.plane.listened_s += 1.0
    assert not dialled.complaints
    dialled.fail(0.001, PeerUnreachable("reset"), stood=True)
    assert "reset" in dialled.complaints[0]


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
