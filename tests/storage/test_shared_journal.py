"""A journal where other machines reach it, in a database or in objects: who may write."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from clonos.errors import JournalInUse, Superseded
from clonos.storage.files import Disk, Locked
from clonos.storage.journal import Journal
from clonos.storage.objects.disk import ObjectDisk
from clonos.storage.postgres_disk import PostgresDisk
from tests.storage.conftest import PLACES, objects_in

LEASE_S = 1.0
BEAT_S = 0.05
NEVER_S = 1e6

Drivers = Callable[..., Disk]


@pytest.fixture
def root(tmp_path) -> str:
    """A folder there."""
    return str(tmp_path)


@pytest.fixture(params=["postgres", *PLACES])
def driver(request, root, tmp_path) -> Iterator[Drivers]:
    """Makes processes that reach it. Frozen, they do not beat; all else is as in production."""
    made: list[PostgresDisk | ObjectDisk] = []
    is_database = request.param == "postgres"
    at: Any = (
        request.getfixturevalue("postgres") if is_database else objects_in(request.param, tmp_path)
    )

    def make(*, is_frozen: bool = False) -> Disk:
        how = {"lease_s": LEASE_S, "beat_s": NEVER_S if is_frozen else BEAT_S}
        made.append(PostgresDisk(at, **how) if is_database else ObjectDisk(at, **how))
        return made[-1]

    make().make_folder(root)
    yield make
    for one in made:
        if isinstance(one, PostgresDisk):
            one.close()


def test_a_journal(driver, root):
    disk = driver()
    with Journal(root, disk=disk) as journal:
        journal.append([b"one", b"two"])
        journal.commit()
        journal.append([b"never committed"])
    with Journal(root, disk=disk) as journal:
        assert list(journal.replay()) == [b"one", b"two"]
        journal.rotate([b"head"])
        journal.append([b"three"])
        journal.commit()
        with pytest.raises(JournalInUse, match="on "):
            Journal(root, disk=driver())
    with Journal(root, disk=driver()) as journal:
        assert list(journal.replay()) == [b"head", b"three"]


def test_a_frozen_driver_writes_nothing_after_another_one_took_over(driver, root):
    frozen = driver(is_frozen=True)
    old = Journal(root, disk=frozen)
    old.append([b"one"])
    old.commit()
    with Journal(root, disk=driver()) as new:
        assert list(new.replay()) == [b"one"]
        old.append([b"late"])
        for change in (
            old.commit,
            lambda: old.rotate([b"late"]),
            lambda: frozen.write(f"{root}/late", b""),
            lambda: frozen.delete(f"{root}/000000000001.journal"),
            lambda: frozen.make_folder(f"{root}/late"),
        ):
            with pytest.raises(Superseded, match="another driver"):
                change()
        assert list(new.replay()) == [b"one"]


def test_a_holder_who_lives_keeps_the_lock(driver, root):
    lock = driver().lock(f"{root}/lock", "me")
    for _ in range(3):  # each try watches for longer than the lease, if nobody beats
        with pytest.raises(Locked, match="me"):
            driver().lock(f"{root}/lock", "another")
    lock.close()
    driver().lock(f"{root}/lock", "another").close()
