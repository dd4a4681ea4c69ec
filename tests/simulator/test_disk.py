"""The simulated disk does every harm that it says it does."""

from __future__ import annotations

import errno
from collections import Counter
from random import Random

import pytest

from clonos.simulator.world.disk import SECTOR, Died, Disk


def outcomes(do, path="/a", seeds=60):
    """What is found in a file when the power fails after `do`, over many seeds."""
    found: Counter[bytes | None] = Counter()
    for seed in range(seeds):
        disk = Disk(Random(seed))
        do(disk.mount())
        disk.lose_power()
        files = disk.mount()
        found[files.read(path).to_pybytes() if files.info(path) else None] += 1
    return set(found)


def test_what_was_not_synced_may_be_lost_in_part():
    def unsynced(files):
        files.write("/a", b"x" * SECTOR + b"y" * SECTOR)
        files.sync_folder("/")

    found = outcomes(unsynced)
    assert {b"", b"x" * SECTOR, bytes(SECTOR) + b"y" * SECTOR} <= found
    assert b"x" * SECTOR + b"y" * SECTOR in found


def test_a_name_that_was_not_synced_may_be_lost():
    def unnamed(files):
        files.write("/a", b"x")
        files.sync("/a")

    assert outcomes(unnamed) == {None, b"x"}


def test_a_rename_that_was_not_synced_leaves_the_old_file_or_the_new_one():
    def renamed(files):
        for content in (b"old", b"new"):
            files.write("/a.tmp", content)
            files.sync("/a.tmp")
            files.rename("/a.tmp", "/a")
            if content == b"old":
                files.sync_folder("/")

    assert outcomes(renamed) == {b"old", b"new"}


def test_a_folder_that_was_not_synced_may_be_lost_with_all_that_is_in_it():
    def deep(files):
        files.make_folder("/x/y")
        files.write("/x/y/a", b"1")
        files.sync("/x/y/a")
        files.sync_folder("/x/y")
        files.sync_folder("/")

    assert outcomes(deep, "/x/y/a") == {None, b"1"}


def test_what_was_synced_stays():
    def synced(files):
        files.write("/a", b"x" * 100)
        files.sync("/a")
        files.sync_folder("/")

    assert outcomes(synced) == {b"x" * 100}


def test_a_failed_sync_drops_pages_and_the_next_one_does_not_say_so():
    disk = Disk(Random(1))
    files = disk.mount()
    files.write("/a", b"one")
    files.sync("/a")
    files.sync_folder("/")
    tail = files.append("/a")
    tail.write(b"two")
    disk.faults = lambda call, _: errno.EIO if call == "sync" else 0
    with pytest.raises(OSError, match="Input/output"):
        tail.sync()
    disk.faults = lambda *_: 0
    tail.write(b"three")
    tail.sync()
    assert files.read("/a").to_pybytes() == b"onetwothree"
    disk.lose_power()
    assert disk.mount().read("/a").to_pybytes() == b"one\0\0\0three"


def test_a_full_disk_takes_a_part():
    disk = Disk(Random(1), capacity=10)
    files = disk.mount()
    files.write("/a", b"x" * 6)
    with pytest.raises(OSError, match="No space"):
        files.write("/b", b"y" * 6)
    assert (files.read("/b").to_pybytes(), disk.used) == (b"y" * 4, 10)
    files.delete("/a")
    files.write("/c", b"z" * 6)


def test_a_process_dies_at_a_call_and_what_it_did_stays():
    seen = set()
    for seed in range(20):
        disk = Disk(Random(seed))
        files = disk.mount(dies_at=2)
        files.lock("/lock", "me")
        with pytest.raises(Died):
            files.write("/a", b"x" * 40)
        with pytest.raises(Died):
            files.delete("/lock")
        other = disk.mount()
        other.lock("/lock", "you").close()
        info = other.info("/a")
        seen.add(info.nbytes if info else None)
    assert 40 in seen
    assert seen - {40, None}, "torn"


def test_rot():
    disk = Disk(Random(1))
    files = disk.mount()
    files.write("/a", b"\0\0")
    files.sync("/a")
    files.sync_folder("/")
    disk.flip("/a", 9)
    assert files.read("/a").to_pybytes() == b"\0\2"
    disk.lose_power()
    assert disk.mount().read("/a").to_pybytes() == b"\0\2"
    disk.lose("/a")
    disk.lose_power()
    assert disk.mount().info("/a") is None
