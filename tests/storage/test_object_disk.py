"""A journal of objects: who may write, and what happens when the store is away.

The stores are a folder, obstore's own store in memory, and S3 itself, or what speaks like it, if
CLONOS_S3 has the URI of a place that may be filled (keys and endpoint are in the environment, as
obstore reads them).
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable

import pytest

from clonos.storage.files import Locked, UnusableStore
from clonos.storage.journal import Journal, JournalBroken, JournalInUse
from clonos.storage.objects import disk as module
from clonos.storage.objects.disk import ObjectDisk
from clonos.storage.objects.stores import FolderObjects, Objects, RemoteObjects, objects_of
from clonos.storage.terms import Superseded

LEASE_S = 1.0
BEAT_S = 0.05
NEVER_S = 1e6
ROOT = "/job"

Drivers = Callable[..., ObjectDisk]


@pytest.fixture(params=["folder", "memory", "s3"])
def objects(request, tmp_path) -> Objects:
    """Where objects are."""
    if request.param == "folder":
        return FolderObjects(f"file://{tmp_path}/objects")
    if request.param == "memory":
        return RemoteObjects("memory:///")
    if "CLONOS_S3" not in os.environ:
        pytest.skip("CLONOS_S3 names no place")
    return RemoteObjects(f"{os.environ['CLONOS_S3'].rstrip('/')}/{secrets.token_hex(8)}")


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


def test_a_journal_of_objects(driver):
    disk = driver()
    with Journal(ROOT, disk=disk) as journal:
        journal.append([b"one", b"two"])
        journal.commit()
        journal.append([b"never committed"])
    with Journal(ROOT, disk=disk) as journal:
        assert list(journal.replay()) == [b"one", b"two"]
        journal.rotate([b"head"])
        journal.append([b"three"])
        journal.commit()
        with pytest.raises(JournalInUse, match="on "):
            Journal(ROOT, disk=driver())
    with Journal(ROOT, disk=driver()) as journal:
        assert list(journal.replay()) == [b"head", b"three"]


def test_a_frozen_driver_writes_nothing_after_another_one_took_over(driver):
    frozen = driver(is_frozen=True)
    old = Journal(ROOT, disk=frozen)
    old.append([b"one"])
    old.commit()
    with Journal(ROOT, disk=driver()) as new:
        assert list(new.replay()) == [b"one"]
        old.append([b"late"])
        for change in (
            old.commit,
            lambda: old.rotate([b"late"]),
            lambda: frozen.write(f"{ROOT}/late", b""),
            lambda: frozen.delete(f"{ROOT}/000000000001.journal"),
            lambda: frozen.make_folder(f"{ROOT}/late"),
        ):
            with pytest.raises(Superseded, match="another driver"):
                change()
        assert list(new.replay()) == [b"one"]


def test_a_holder_who_lives_keeps_the_lock(driver):
    lock = driver().lock(f"{ROOT}/lock", "me")
    for _ in range(3):  # each try watches for longer than the lease, if nobody beats
        with pytest.raises(Locked, match="me"):
            driver().lock(f"{ROOT}/lock", "another")
    lock.close()
    driver().lock(f"{ROOT}/lock", "another").close()


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


def test_old_changes_are_put_together(driver, objects, monkeypatch):
    monkeypatch.setattr(module, "CHANGES_MAX", 20)
    disk = driver(is_frozen=True)
    with Journal(ROOT, disk=disk) as journal:
        for n in range(50):
            journal.append([b"%d" % n])
            journal.commit()
        assert disk.beat(1)
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
