"""Two machines (network namespaces) with a cable between them, and what the kernel knows of it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clonos.transport.silence import is_silent, watch

NEW_NETWORK = 0x40000000
"""What Linux calls CLONE_NEWNET."""
WAIT_S = 30.0


class Machines:
    """``here`` and ``there``."""

    def __init__(self) -> None:
        tag = secrets.token_hex(2)
        self.names = {"here": f"clonos-h{tag}", "there": f"clonos-t{tag}"}
        self.addresses = {"here": "10.83.0.1", "there": "10.83.0.2"}
        self._own = os.open("/proc/self/ns/net", os.O_RDONLY)
        self._sockets: list[socket.socket] = []
        self._links = {"here": f"vh{tag}", "there": f"vt{tag}"}
        for name in self.names.values():
            self._ip("netns", "add", name)
        one, other = self._links.values()
        self._ip("link", "add", one, "type", "veth", "peer", "name", other)
        for end, link in self._links.items():
            self._ip("link", "set", link, "netns", self.names[end])
            inside = ("-n", self.names[end])
            self._ip(*inside, "addr", "add", f"{self.addresses[end]}/24", "dev", link)
            self._ip(*inside, "link", "set", link, "up")

    @staticmethod
    def _ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)

    def plug(self, *, plugged: bool) -> None:
        state = "up" if plugged else "down"
        self._ip("-n", self.names["there"], "link", "set", self._links["there"], state)

    @contextlib.contextmanager
    def on(self, end: str) -> Iterator[None]:
        """Sockets made inside belong to that machine."""
        libc = ctypes.CDLL(None, use_errno=True)
        with (Path("/run/netns") / self.names[end]).open() as space:
            assert libc.setns(space.fileno(), NEW_NETWORK) == 0, os.strerror(ctypes.get_errno())
        try:
            yield
        finally:
            assert libc.setns(self._own, NEW_NETWORK) == 0

    def connect(self, *, is_far_watched: bool = True) -> tuple[socket.socket, socket.socket]:
        with self.on("there"):
            listener = socket.create_server((self.addresses["there"], 0))
        with self.on("here"):
            near = socket.create_connection(listener.getsockname(), timeout=WAIT_S)
        far, _ = listener.accept()
        listener.close()
        self._sockets += (near, far)
        for end in (near, far):
            end.setblocking(False)
        for end in (near, far) if is_far_watched else (near,):
            watch(end)
        return near, far

    def close(self) -> None:
        for end in self._sockets:
            end.close()
        for name in self.names.values():
            with contextlib.suppress(subprocess.CalledProcessError):
                self._ip("netns", "del", name)
        os.close(self._own)


@pytest.fixture
def machines() -> Iterator[Machines]:
    if os.geteuid() != 0:
        pytest.skip("only root can make network namespaces")
    try:
        made = Machines()
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no network namespaces here: {error}")
    yield made
    made.close()


def within(wait_s: float, condition: Callable[[], object]) -> float:
    since = time.monotonic()
    while not condition():
        assert time.monotonic() - since < wait_s
        time.sleep(0.05)
    return time.monotonic() - since


def test_what_is_not_acknowledged_is_known_in_seconds(machines: Machines) -> None:
    # However long the cable is out: the far end does not give the connection up.
    near, far = machines.connect(is_far_watched=False)
    near.send(b"heard")
    within(WAIT_S, lambda: _received(far))
    assert not is_silent(near)
    machines.plug(plugged=False)
    assert not is_silent(near)  # nothing is due
    near.send(b"lost")
    within(WAIT_S, lambda: is_silent(near))
    machines.plug(plugged=True)
    within(WAIT_S, lambda: _received(far))
    within(WAIT_S, lambda: not is_silent(near))


def test_the_end_that_only_listens_finds_out_too(machines: Machines) -> None:
    _near, far = machines.connect()
    machines.plug(plugged=False)

    def is_broken() -> bool:
        try:
            return not far.recv(1)
        except BlockingIOError:
            return False
        except TimeoutError:
            return True

    within(WAIT_S, is_broken)


def test_a_process_that_does_not_read_is_not_silent(machines: Machines) -> None:
    """It computes for long, or is stopped: its kernel still answers."""
    near, _far = machines.connect()
    with contextlib.suppress(BlockingIOError):
        while True:
            near.send(bytes(1 << 16))
    until = time.monotonic() + 5.0
    while time.monotonic() < until:
        assert not is_silent(near)
        time.sleep(0.1)


def _received(end: socket.socket) -> bool:
    try:
        return bool(end.recv(100))
    except BlockingIOError:
        return False
