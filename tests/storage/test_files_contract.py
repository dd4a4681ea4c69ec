"""What storage asks of a file system: the real one, pyarrow's, the simulated one and a database do
the same."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from pyarrow.fs import LocalFileSystem

from clonos.simulator.world.disk import Disk
from clonos.storage.files import ArrowFiles, Files, LocalFiles, Locked
from clonos.storage.objects.disk import ObjectDisk
from clonos.storage.objects.stores import FolderObjects
from clonos.storage.postgres_disk import PostgresDisk

BEAT_S = 0.05


def in_database(request) -> PostgresDisk:
    made = PostgresDisk(request.getfixturevalue("postgres"), beat_s=BEAT_S)
    request.addfinalizer(made.close)
    return made


def of_objects(tmp_path) -> ObjectDisk:
    return ObjectDisk(FolderObjects(f"file://{tmp_path}/objects"), lease_s=2.0, beat_s=BEAT_S)


@pytest.fixture(params=["local", "arrow", "simulated", "postgres", "objects"])
def place(request, tmp_path):
    """A file system, and a folder in it."""
    kinds: dict[str, Callable[[], Files]] = {
        "local": LocalFiles,
        "arrow": lambda: ArrowFiles(LocalFileSystem()),
        "simulated": Disk(Random(1)).mount,
        "postgres": lambda: in_database(request),
        "objects": lambda: of_objects(tmp_path),
    }
    made = kinds[request.param]()
    made.make_folder(str(tmp_path))
    return made, str(tmp_path)


@pytest.fixture(params=["local", "simulated", "postgres", "objects"])
def disk(request, tmp_path):
    """A file system for journals, twice: as two processes see it; and a folder in it."""
    kinds: dict[str, Callable[[], Any]] = {
        "local": LocalFiles,
        "simulated": Disk(Random(1)).mount,
        "postgres": lambda: in_database(request),
        "objects": lambda: of_objects(tmp_path),
    }
    make = kinds[request.param]
    one, other = make(), make()
    one.make_folder(str(tmp_path))
    return one, other, str(tmp_path)


def test_what_was_written_is_read(place):
    files, root = place
    for content in (b"one", b"", b"another"):
        files.write(f"{root}/a", content)
        files.sync(f"{root}/a")
        files.sync_folder(root)
        assert files.read(f"{root}/a").to_pybytes() == content
        info = files.info(f"{root}/a")
        assert (info.name, info.nbytes, info.is_folder) == ("a", len(content), False)
    assert info.mtime_s > 0


def test_what_is_not_there(place):
    files, root = place
    assert files.info(f"{root}/a") is None
    assert files.info(f"{root}/no/a") is None
    assert files.entries(f"{root}/no") == []
    for call in (files.read, files.delete):
        with pytest.raises(FileNotFoundError):
            call(f"{root}/a")
    with pytest.raises(FileNotFoundError):
        files.write(f"{root}/no/a", b"")


def test_folders(place):
    files, root = place
    files.make_folder(f"{root}/x/y")
    files.make_folder(f"{root}/x/y")
    files.write(f"{root}/x/y/a", b"1")
    files.write(f"{root}/b", b"22")
    assert [(i.path, i.nbytes) for i in files.entries(root)] == [(f"{root}/b", 2), (f"{root}/x", 0)]
    found = files.entries(root, recursive=True)
    assert [i.path for i in found] == [f"{root}/{n}" for n in ("b", "x", "x/y", "x/y/a")]
    assert [i.is_folder for i in found] == [False, True, True, False]
    with pytest.raises(OSError):  # noqa: PT011 - whichever it is
        files.write(f"{root}/x", b"a folder has that name")
    with pytest.raises(OSError):  # noqa: PT011 - whichever it is
        files.make_folder(f"{root}/b/c")


def test_an_empty_folder_is_deleted(disk):
    files, _, root = disk
    files.make_folder(f"{root}/x")
    files.write(f"{root}/x/a", b"1")
    with pytest.raises(OSError, match="not empty"):
        files.delete_folder(f"{root}/x")
    files.delete(f"{root}/x/a")
    files.delete_folder(f"{root}/x")
    assert files.entries(root) == []


def test_a_new_name_takes_the_place_of_the_old_file(place):
    files, root = place
    files.write(f"{root}/a", b"old")
    files.write(f"{root}/a.tmp", b"new")
    files.rename(f"{root}/a.tmp", f"{root}/a")
    assert files.read(f"{root}/a").to_pybytes() == b"new"
    assert [i.name for i in files.entries(root)] == ["a"]


def test_a_name_is_given_once(place):
    files, root = place
    for content, is_first in ((b"first", True), (b"second", False)):
        files.write(f"{root}/a.tmp", content)
        assert files.name(f"{root}/a.tmp", f"{root}/a") is is_first
    assert files.read(f"{root}/a").to_pybytes() == b"first"
    assert [i.name for i in files.entries(root)] == ["a"]


def test_a_name_is_given_once_where_there_are_no_links(tmp_path, monkeypatch):
    def link(source, target):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.link", link)
    test_a_name_is_given_once((LocalFiles(), str(tmp_path)))


def test_a_tail_grows(disk):
    files, other, root = disk
    files.write(f"{root}/a", b"one")
    tail = files.append(f"{root}/a")
    tail.write(b"two")
    tail.sync()
    assert other.read(f"{root}/a").to_pybytes() == b"onetwo"
    files.truncate(f"{root}/a", 4)
    tail.write(b"three")
    tail.close()
    assert other.read(f"{root}/a").to_pybytes() == b"onetthree"
    with pytest.raises(FileNotFoundError):
        files.append(f"{root}/b")


def test_one_has_the_lock(disk):
    files, other, root = disk
    lock = files.lock(f"{root}/lock", "me")
    for process in (files, other):
        with pytest.raises(Locked, match="me"):
            process.lock(f"{root}/lock", "another")
    lock.close()
    lock.close()
    other.lock(f"{root}/lock", "another").close()
