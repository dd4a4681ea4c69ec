"""A disk of objects: what is put together, and what happens when the store is away."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest

from clonos.core.canonical import encode
from clonos.errors import JournalBroken, UnusableStore
from clonos.storage import lease
from clonos.storage.files import Locked
from clonos.storage.journal import Journal
from clonos.storage.objects import disk as module
from clonos.storage.objects import stores
from clonos.storage.objects.disk import ObjectDisk
from clonos.storage.objects.stores import FolderObjects, Objects, RemoteObjects, objects_of
from tests.storage.conftest import PLACES, objects_in, slow_clock

LEASE_S = 1.0
BEAT_S = 0.05
NEVER_S = 1e6
ROOT = "/job"

Drivers = Callable[..., ObjectDisk]


@pytest.fixture(params=PLACES)
def objects(request, tmp_path) -> Objects:
    """Where objects are."""
    return objects_in(request.param, tmp_path)


@pytest.fixture
def driver(objects) -> Drivers:
    """Makes processes that see them. Frozen, they do not beat; all else is as in production."""

    def make(*, is_frozen: bool = False, lease_s: float = LEASE_S) -> ObjectDisk:
        return ObjectDisk(objects, lease_s=lease_s, beat_s=NEVER_S if is_frozen else BEAT_S)

    return make


def test_objects(objects):
    assert objects.names("changes") == []
    assert objects.create("changes/1", b"one")
    assert not objects.create("changes/1", b"two")
    objects.put("changes/2", b"two")
    objects.put("changes/2", b"three")
    objects.put("bases/1", b"")
    assert [objects.read(f"changes/{n}") for n in (1, 2)] == [b"one", b"three"]
    assert objects.names("changes") == ["changes/1", "changes/2"]
    assert objects.names("changes", after="changes/1") == ["changes/2"]
    objects.delete(["changes/1", "changes/never"])
    assert objects.names("changes") == ["changes/2"]
    with pytest.raises(FileNotFoundError):
        objects.read("changes/1")


def test_nobody_writes_beside_the_holder(driver):
    holder = driver()
    lock = holder.lock(f"{ROOT}/lock", "me")
    with pytest.raises(PermissionError, match="in use: me"):
        driver().write("/a", b"")
    holder.write("/a", b"mine")
    assert driver().read("/a").to_pybytes() == b"mine"
    lock.close()
    driver().write("/a", b"another's")
    assert holder.read("/a").to_pybytes() == b"another's"


def test_who_beats_keeps_its_lock_however_long_the_store_was_away(driver, monkeypatch):
    """It was away for its holder, too."""
    held = driver().lock(f"{ROOT}/lock", "me")
    monkeypatch.setattr(module, "time", slow_clock())
    monkeypatch.setattr(lease, "time", slow_clock())
    with pytest.raises(Locked, match="me"):
        driver(lease_s=module.LEASE_S).lock(f"{ROOT}/lock", "another")
    held.close()


def test_a_large_change_is_no_silence(driver, objects, monkeypatch):
    """Its holder beats while it is written, which may take longer than the lease."""
    hangs, gate, create = threading.Event(), threading.Event(), objects.create

    def slow(name: str, content: bytes) -> bool:
        if len(content) > 1000:
            hangs.set()
            assert gate.wait(60)
        return bool(create(name, content))

    disk = driver()
    held = disk.lock(f"{ROOT}/lock", "me")
    monkeypatch.setattr(objects, "create", slow)
    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(disk.write, "/a", bytes(2000))
        assert hangs.wait(60)
        try:
            with pytest.raises(Locked, match="me"):
                driver().lock(f"{ROOT}/lock", "another")
        finally:
            gate.set()
        written.result(60)
    held.close()


def test_beats_of_one_who_has_lost_the_lock_are_no_sign_of_life(driver, objects):
    old = driver(is_frozen=True)
    old.lock(f"{ROOT}/lock", "me")
    lost = old._chain.last
    driver(is_frozen=True, lease_s=0.0).lock(f"{ROOT}/lock", "another")
    looks = driver()
    before = looks._signs()
    objects.put("beat", encode((lost, 7)))
    assert looks._signs() == before
    objects.put("beat", encode((looks._chain.last, 7)))
    assert looks._signs() != before


def test_without_hard_links_nobody_sees_half_an_object(tmp_path, monkeypatch):
    """As on some mounts of network drives."""
    objects, right = FolderObjects(f"file://{tmp_path}"), os.open

    def link(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "there are no hard links")

    def opened(path: Any, flags: int, *how: Any) -> int:
        assert not flags & os.O_EXCL, "it would be empty"
        return right(path, flags, *how)

    monkeypatch.setattr(os, "link", link)
    monkeypatch.setattr(os, "open", opened)
    assert objects.create("changes/1", b"one")
    assert not objects.create("changes/1", b"two")
    assert objects.read("changes/1") == b"one"
    assert len(list((tmp_path / "changes").iterdir())) == 1


def test_an_object_that_has_its_name_before_its_content_is_not_there_yet(driver, objects):
    writer, reader = driver(), driver()
    writer.write("/a", b"old")
    writer.write("/a", b"new")
    number = writer._chain.last
    name = f"changes/{number:015d}"
    content = objects.read(name)
    objects.put(name, b"")
    assert reader.read("/a").to_pybytes() == b"old"
    objects.put(name, content)
    assert reader.read("/a").to_pybytes() == b"new"


class SlowServer(BaseHTTPRequestHandler):
    """Something like S3, which answers at once, or takes its time: `pauses` of each request."""

    pauses: ClassVar[list[float]] = []
    content = bytes(3 << 20)

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        for pause_s in self.pauses:
            time.sleep(pause_s)
        self.send_response(200)
        self.send_header("ETag", '"1"')
        self.end_headers()

    def do_GET(self) -> None:
        self.send_response(200)
        for name, value in (
            ("ETag", '"1"'),
            ("Content-Length", str(len(self.content))),
            ("Last-Modified", "Sat, 28 Nov 2026 20:00:00 GMT"),
        ):
            self.send_header(name, value)
        self.end_headers()
        part = len(self.content) // (len(self.pauses) or 1)
        for n, pause_s in enumerate(self.pauses):
            time.sleep(pause_s)
            self.wfile.write(self.content[n * part : (n + 1) * part])

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_large_contents_have_longer(monkeypatch):
    """However slow the network is, a journal can be begun anew, and read."""
    monkeypatch.setattr(stores, "_SILENCE_S", 2)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    with ThreadingHTTPServer(("127.0.0.1", 0), SlowServer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        objects = RemoteObjects(
            "s3://bucket/jobs",
            endpoint=f"http://127.0.0.1:{server.server_address[1]}",
            access_key_id="me",
            secret_access_key="hidden",
            region="us-east-1",
        )
        monkeypatch.setattr(SlowServer, "pauses", [3.0])
        assert objects.create("changes/1", SlowServer.content)
        objects.put("bases/1", SlowServer.content)
        with pytest.raises(OSError, match="s3://bucket/jobs"):
            objects.put("beat", b"small")
        monkeypatch.setattr(SlowServer, "pauses", [1.1, 1.1, 1.1])
        assert objects.read("bases/1") == SlowServer.content
        server.shutdown()


def test_old_changes_are_put_together(driver, objects, monkeypatch):
    monkeypatch.setattr(module, "CHANGES_MAX", 20)
    disk = driver(is_frozen=True)
    with Journal(ROOT, disk=disk) as journal:
        for n in range(50):
            journal.append([b"%d" % n])
            journal.commit()
        assert disk._chain.fence is not None
        assert disk.beat(disk._chain.fence.number, 1)
        assert len(objects.names("changes")) < 10
        assert len(objects.names("bases")) == 1
        journal.append([b"50"])
        journal.commit()
    with Journal(ROOT, disk=driver()) as journal:
        assert list(journal.replay()) == [b"%d" % n for n in range(51)]


def test_a_store_that_is_away_for_a_while(driver, objects, monkeypatch):
    with Journal(ROOT, disk=driver()) as journal:
        journal.append([b"one"])
        journal.commit()
        with monkeypatch.context() as away:
            for call in ("create", "read", "read_all", "names", "put"):

                def fail(*_args: object, **_how: object) -> None:
                    raise OSError("the store is away")

                away.setattr(objects, call, fail)
            journal.append([b"two"])
            with pytest.raises(JournalBroken, match="away"):
                journal.commit()
            with pytest.raises(JournalBroken):
                journal.rotate([b"one", b"two"])
        journal.rotate([b"one", b"two"])
        assert list(journal.replay()) == [b"one", b"two"]


def test_a_server_that_is_not_there():
    objects = RemoteObjects(
        "s3://bucket/jobs",
        endpoint="http://127.0.0.1:1",
        access_key_id="me",
        secret_access_key="hidden",
        region="us-east-1",
        client_options={"allow_http": True},
        retry_config={"max_retries": 0},
    )
    with pytest.raises(OSError, match="s3://bucket/jobs") as told:
        objects.create("changes/1", b"")
    assert "hidden" not in str(told.value)


@pytest.mark.parametrize("uri", ["s3://", "nothing://bucket/a"])
def test_a_place_that_is_none(uri):
    with pytest.raises(UnusableStore, match=uri):
        objects_of(uri)


@pytest.mark.parametrize("how", ["killed", "away"])
def test_who_is_killed_while_it_writes_without_the_lock_stops_nobody(objects, driver, how):
    """Before the journal's first lock its folder is made."""

    class Away:
        """The store is away after the first object of a change that takes several."""

        def __getattr__(self, name):
            return getattr(objects, name)

        def create(self, name, content):
            if not objects.create(name, content):
                return False
            raise OSError("no answer") if how == "away" else KeyboardInterrupt

    with pytest.raises((OSError, KeyboardInterrupt)):
        ObjectDisk(Away()).make_folder(ROOT)
    another = driver(lease_s=NEVER_S)
    another.make_folder(ROOT)
    another.lock(f"{ROOT}/lock", "me").close()
    assert [info.path for info in driver().entries("")] == [ROOT]
