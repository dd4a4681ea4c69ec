"""Control streams and their pulse, also of processes that are killed or frozen."""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection

from clonos.core.messages import Live, Stop
from clonos.errors import PeerUnreachable
from clonos.transport.events import ChannelClosed, ControlLost, ControlOpened, Heartbeat
from clonos.transport.inbox import Inbox
from clonos.transport.plane import Plane
from clonos.transport.pulse import Pulse
from clonos.transport.secret import Greeting, JobSecret, Purpose

from .conftest import (
    CHANNEL,
    LOOPBACK,
    SCHEMA,
    SECRET,
    WAIT_S,
    A,
    Node,
    batch_of,
    data,
    register_of,
    wait_for,
)


def beating(steps: int) -> tuple[int, int, str, str]:
    """The fields of a Heartbeat."""
    return steps, 99, "ask[0]", "line 7"


def test_control(node: Callable[..., Node]) -> None:
    driver, slot = node(), node()
    register = register_of(3, slot.plane.address)
    link = slot.do(
        lambda: slot.plane.control(driver.plane.address, register, lambda: beating(7), 0.01)
    )
    event = driver.next(ControlOpened)
    assert event.register == register
    assert driver.next(Heartbeat) == Heartbeat("nonce", *beating(7))
    driver.reply(event.incoming, Stop(is_complete=True))
    assert slot.next(Stop) == Stop(is_complete=True)
    slot.send(link, Live(0, A, 12))
    while (message := driver.events.get(timeout=WAIT_S)[1]) != Live(0, A, 12):
        assert isinstance(message, Heartbeat)
    slot.do(link.close)
    assert slot.next(ControlLost) == ControlLost(3, link.conn_id)
    while not isinstance(lost := driver.events.get(timeout=WAIT_S), ControlLost):
        pass
    assert lost.conn_id == event.conn_id


def test_a_heart_beats_while_the_loop_is_busy(plain: Callable[..., Node]) -> None:
    driver, slot = plain(), plain()
    register = register_of(3, slot.plane.address)
    slot.do(lambda: slot.plane.control(driver.plane.address, register, lambda: beating(1), 0.02))
    driver.next(ControlOpened)
    driver.next(Heartbeat)  # the stream is open
    slot.stop()
    assert driver.take(Heartbeat, 5)


def _slot(driver: str, key: bytes, pipe: Connection, *, has_child: bool) -> None:
    plane = Plane(LOOPBACK, JobSecret(key), "job", Inbox())
    plane.pin(CHANNEL, SCHEMA)
    plane.control(driver, register_of(1, plane.address), lambda: beating(0), heartbeat_s=0.1)
    pipe.send(plane.address)
    if has_child and not os.fork():  # it holds all that is open until it is killed, too
        pipe.send(os.getpid())
        signal.pause()
    while not any(isinstance(thing, ControlLost) for thing in plane.poll(1.0)):
        pass
    pipe.send("lost")


@contextmanager
def other_process(
    driver: Node, *, has_child: bool = False
) -> Iterator[tuple[int, str, Connection]]:
    mine, theirs = mp.Pipe()
    process = mp.get_context("spawn").Process(
        target=_slot,
        args=(driver.plane.address, SECRET.key, theirs),
        kwargs={"has_child": has_child},
        daemon=True,
    )
    process.start()
    try:
        assert process.pid is not None
        yield process.pid, mine.recv(), mine
    finally:
        process.kill()
        process.join()


def test_a_killed_process_is_noticed_at_once(plain: Callable[..., Node]) -> None:
    driver = plain()
    with other_process(driver) as (pid, address, _):
        driver.next(ControlOpened)
        outgoing = driver.connect_to(address)
        driver.send(outgoing, data(1))
        time.sleep(0.2)
        os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()
        events: set[type] = set()
        while not {ControlLost, ChannelClosed} <= events:
            events.add(type(driver.events.get(timeout=WAIT_S)))
        assert time.monotonic() - killed < 1


def test_a_killed_process_is_noticed_although_its_child_holds_its_files(
    plain: Callable[..., Node],
) -> None:
    driver = plain()
    with other_process(driver, has_child=True) as (pid, _, pipe):
        driver.next(ControlOpened)
        child = pipe.recv()
        try:
            driver.take(Heartbeat, 2)
            os.kill(pid, signal.SIGKILL)
            while type(driver.events.get(timeout=WAIT_S)) is not ControlLost:
                pass
        finally:
            os.kill(child, signal.SIGKILL)


def test_an_earlier_connection_of_a_pulse_ends_unnoticed(plain: Callable[..., Node]) -> None:
    """... which may be long after the slot has opened another one."""
    driver, slot = plain(), plain()
    register = register_of(3, slot.plane.address)
    link = slot.do(lambda: slot.plane.control(driver.plane.address, register, lambda: beating(1)))
    driver.next(ControlOpened)

    pulses = []
    for number in (7, 8):
        greet = partial(Greeting, "job", driver.plane.address, Purpose.PULSE, 3, A, A, b"")
        pulses.append(Pulse(SECRET, greet, "nonce", partial(beating, number), 0.02, None))
        pulses[-1].start()
        while driver.next(Heartbeat).progress != number:
            pass
    streams = len(driver.plane._streams)
    pulses[0].stop()
    wait_for(lambda: len(driver.plane._streams) == streams - 1)
    driver.take(Heartbeat, 5)
    pulses[1].stop()
    while not isinstance(driver.events.get(timeout=WAIT_S), ControlLost):
        pass
    slot.do(link.close)


def test_what_a_process_has_said_is_heard_before_its_end(plain: Callable[..., Node]) -> None:
    """The driver was busy, and then looks at the pulse first."""
    driver, slot = plain(), plain()
    register = register_of(3, slot.plane.address)
    link = slot.do(lambda: slot.plane.control(driver.plane.address, register, lambda: beating(1)))
    driver.next(ControlOpened)
    greet = partial(Greeting, "job", driver.plane.address, Purpose.PULSE, 3, A, A, b"")
    pulse = Pulse(SECRET, greet, "nonce", partial(beating, 7), 0.02, None)
    pulse.start()
    while driver.next(Heartbeat).progress != 7:
        pass
    driver.stop()
    said = [Live(0, A, position) for position in range(20)]
    slot.send(link, *said)
    for _ in range(2):  # the second turn begins when the first one has flushed all
        slot.do(lambda: None)
    heard = driver.plane._pulses["nonce"].end(PeerUnreachable("it is gone"))
    pulse.stop()
    assert [thing[1] for thing in heard[:-1]] == said  # type: ignore[index]
    assert isinstance(heard[-1], ControlLost)
    slot.do(link.close)


def test_a_pulse_ends_with_its_control_stream(node: Callable[..., Node]) -> None:
    before = pulses()
    driver, slot = node(), node()
    register = register_of(3, slot.plane.address)
    link = slot.do(lambda: slot.plane.control(driver.plane.address, register, lambda: beating(1)))
    driver.next(ControlOpened)
    mine = pulses() - before
    assert len(mine) == 1
    slot.do(link.close)
    mine.pop().join(WAIT_S)
    assert not pulses() - before


def pulses() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "clonos-pulse"}


def test_a_coordinator_to_whom_no_way_leads() -> None:
    plane = Plane(LOOPBACK, SECRET, "job", Inbox(), allow_plaintext=True)
    nowhere = "tcp://255.255.255.255:1"  # the system refuses it at once
    link = plane.control(nowhere, register_of(3, plane.address), lambda: beating(0))
    (lost,) = plane.poll(0)
    assert (lost.conn_id, type(lost.error)) == (link.conn_id, PeerUnreachable)
    plane.shutdown()


def test_a_frozen_process_blocks_nobody(plain: Callable[..., Node]) -> None:
    driver = plain()
    with other_process(driver) as (pid, address, _):
        driver.next(ControlOpened)
        outgoing = driver.connect_to(address)
        time.sleep(0.2)
        os.kill(pid, signal.SIGSTOP)
        payload = batch_of(list(range(10_000)), ["x"] * 10_000)
        driver.send(outgoing, *[data(seq, payload) for seq in range(300)])
        assert outgoing.unsent_bytes > 10_000_000
        started = time.monotonic()
        driver.shutdown(deadline_s=1.0)
        assert time.monotonic() - started < 1.5


def test_a_slot_notices_the_end_of_its_coordinator() -> None:
    driver = Node()
    with other_process(driver) as (_, _, pipe):
        driver.next(ControlOpened)
        driver.shutdown()
        assert pipe.poll(WAIT_S)
        assert pipe.recv() == "lost"
