"""Channels within a process: what is sent is what is heard."""

from __future__ import annotations

from typing import Any

from clonos.core import messages as msg
from clonos.core.plan import Incarnation
from clonos.nodes.local import Local
from clonos.transport.events import ChannelClosed, ChannelOpened

SENDER, RECEIVER = Incarnation(1, 2), Incarnation(1, 5)


def test_both_ends_hear_each_other_in_order_and_without_a_copy() -> None:
    heard: list[Any] = []
    local = Local(heard.append)
    outgoing = local.connect(7, SENDER, RECEIVER)
    (opened,) = heard
    assert isinstance(opened, ChannelOpened)
    assert (opened.channel, opened.conn_id) == (7, outgoing.conn_id)
    assert (opened.sender_incarnation, opened.receiver_incarnation) == (SENDER, RECEIVER)
    data = msg.Data(7, SENDER, None, ())
    outgoing.send(data)
    opened.incoming.send(msg.Credit(7, 1))
    assert heard[1][1] is data
    assert [conn for conn, _ in heard[1:]] == [outgoing.conn_id] * 2


def test_who_closes_tells_the_other_end_after_all_that_it_has_sent() -> None:
    heard: list[Any] = []
    local = Local(heard.append)
    first, second = local.connect(7, SENDER, RECEIVER), local.connect(7, SENDER, RECEIVER)
    assert first.conn_id != second.conn_id
    assert first.conn_id < 0  # the network's are not
    first.send(msg.Data(7, SENDER, None, ()))
    first.close()
    assert heard[-1] == ChannelClosed(7, first.conn_id, "receiver")
    heard[1].incoming.close()
    assert heard[-1] == ChannelClosed(7, second.conn_id, "sender")
