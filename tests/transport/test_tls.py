"""Encrypted streams: who may take part in them."""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import pytest

from clonos.core.messages import Data
from clonos.errors import AuthenticationFailed, PeerUnreachable
from clonos.transport.certificates import Authority
from clonos.transport.events import ChannelClosed, ControlLost, ControlOpened
from clonos.transport.tls import Identity

from .conftest import (
    AUTHORITY,
    LOOPBACK,
    WAIT_S,
    Node,
    batch_of,
    data,
    opened,
    register_of,
    wait_for,
)


@pytest.mark.parametrize(
    "identity", [Authority("job").issue("slot-3"), None], ids=["other authority", "none"]
)
@pytest.mark.parametrize("stranger_serves", [True, False])
def test_only_certificates_of_the_job_are_taken(
    plain: Callable[..., Node], identity: Identity | None, stranger_serves: bool
) -> None:
    """... and the others, who hold the secret, go on among themselves."""
    mine, other = (plain(identity=AUTHORITY.issue(name)) for name in ("slot-3", "slot-4"))
    stranger = plain(identity=identity)
    sender, receiver = (mine, stranger) if stranger_serves else (stranger, mine)
    name = "slot-3@" if receiver.plane.address.startswith("tls") else ""
    port = receiver.plane.address.rpartition(":")[2]
    sender.connect_to(f"tls://{name or 'slot-3@'}{LOOPBACK}:{port}")
    error = sender.next(ChannelClosed).error
    assert isinstance(error, AuthenticationFailed if sender.plane._keys else PeerUnreachable)
    assert receiver.events.empty()
    if receiver is mine:
        wait_for(lambda: mine.plane.strangers_refused == 1)
    outgoing, _ = opened(other, mine)
    other.send(outgoing, data(1))
    assert mine.next(Data) == data(1)


def test_a_client_checks_whom_it_has_reached(plain: Callable[..., Node]) -> None:
    sender, receiver = (plain(identity=AUTHORITY.issue(name)) for name in ("slot-3", "slot-4"))
    sender.connect_to(receiver.plane.address.replace("slot-4", "driver"))
    error = sender.next(ChannelClosed).error
    assert isinstance(error, AuthenticationFailed)
    assert "CERTIFICATE_VERIFY_FAILED" in str(error)
    wait_for(lambda: receiver.plane.strangers_refused == 1)


def test_a_slot_registers_under_the_name_in_its_certificate(plain: Callable[..., Node]) -> None:
    driver = plain(identity=AUTHORITY.issue("driver"))
    slot = plain(identity=AUTHORITY.issue("slot-3"))
    for number, kind in ((4, ControlLost), (3, type(None))):
        register = register_of(number, slot.plane.address)
        slot.do(partial(slot.plane.control, driver.plane.address, register, lambda: (0, 0, "", "")))
        assert kind is type(None) or "secret" in str(slot.next(kind).error)
    assert driver.next(ControlOpened).register.slot == 3


def test_what_is_said_is_not_seen(
    plain: Callable[..., Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tap between the two hears neither their greetings nor their rows."""
    sender, receiver = (plain(identity=AUTHORITY.issue(name)) for name in ("slot-3", "slot-4"))
    outgoing, _ = opened(sender, receiver)
    sealed = bytearray()
    append = outgoing._append

    def overhear(piece: Any) -> None:
        sealed.extend(piece)
        append(piece)

    monkeypatch.setattr(outgoing, "_append", overhear)
    payload = batch_of([1], ["confidential"])
    sender.send(outgoing, data(1, payload))
    assert receiver.next(Data) == data(1, payload)
    assert len(sealed) > 100
    assert b"confidential" not in sealed


def test_no_greeting_is_remembered_that_nobody_can_overhear(plain: Callable[..., Node]) -> None:
    sender, receiver = (plain(identity=AUTHORITY.issue(name)) for name in ("slot-3", "slot-4"))
    opened(sender, receiver)
    assert not receiver.plane._nonces


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x00\x05hello"])
def test_whoever_shakes_no_hands_is_sent_away(
    plain: Callable[..., Node], monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr("clonos.transport.plane.STRANGER_S", 0.3)
    monkeypatch.setattr("clonos.transport.plane.STRANGERS_MAX", 1)
    receiver = plain(identity=AUTHORITY.issue("slot-4"))
    peer = urlsplit(receiver.plane.address)
    with socket.create_connection((peer.hostname, peer.port or 0), timeout=WAIT_S) as client:
        client.sendall(said)
        while client.recv(4096):  # an alert
            pass
        sender = plain(identity=AUTHORITY.issue("slot-3"))
        outgoing, _ = opened(sender, receiver)
        sender.send(outgoing, data(1))
        assert receiver.next(Data) == data(1)


@pytest.mark.parametrize(
    "job", ["支付" * 32, "заказы и возвраты клиентов по всем магазинам", "a" * 200]
)
def test_a_job_may_have_any_name(plain: Callable[..., Node], job: str) -> None:
    authority = Authority(f"{job}-0123456789ab")
    sender, receiver = (plain(identity=authority.issue(name)) for name in ("slot-3", "slot-4"))
    opened(sender, receiver)


def test_the_key_is_not_shown() -> None:
    identity = AUTHORITY.issue("slot-3")
    assert "KEY" not in repr(identity)
    assert b"PRIVATE KEY" in identity.key
