"""The real storage code on a disk that fails, fills up, tears, forgets and rots.

A *script* uses the code as a process does and writes down what it was promised. The process dies
at every call in turn, or the power fails, and its successor looks: what was acknowledged is there,
what was not is there whole or not at all.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import suppress
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clonos.errors import (
    ClonosError,
    JournalBroken,
    SinkFailed,
    StoreAway,
    UnreadableJournal,
    UnreadableLayer,
)
from clonos.simulator.world.disk import Died, Disk, SimulatedFiles, Tail
from clonos.sinks.delivered import DeliveredStore
from clonos.sinks.lanes import Output, OutputKey
from clonos.sinks.writers import ParquetWriter
from clonos.storage.folder import Folder
from clonos.storage.journal import Journal
from clonos.storage.layers import LayerStore
from clonos.storage.tables import Table

SEEDS = 2
"""Of what is lost, for each crash point."""


class JournalScript:
    """Groups, rotations and idle moments. A journal that is broken is rotated until it is not."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.promised: list[bytes] = []
        self.possible: list[list[bytes]] = []
        """What may be found instead, as nobody was told that it is not."""
        self.number = 0

    def records(self) -> list[bytes]:
        self.number += 1
        sizes = self.random.choices((0, 3, 20, 70), k=self.random.randint(1, 3))
        return [f"{self.number}-".encode() + bytes(size) for size in sizes]

    def run(self, files: SimulatedFiles) -> None:
        journal = Journal("/job/journal", disk=files)
        assert list(journal.replay()) == self.promised
        for _ in range(8):
            act = self.random.choice((self.commit, self.commit, self.rotate, self.vouch))
            try:
                act(journal)
            except JournalBroken:
                self.mend(journal)
        journal.close()

    def commit(self, journal: Journal) -> None:
        group = self.records()
        self.possible = [self.promised + group]
        journal.append(group)
        journal.commit()
        self.promised, self.possible = self.promised + group, []

    def vouch(self, journal: Journal) -> None:
        journal.vouch()

    def rotate(self, journal: Journal) -> None:
        head = self.records()
        self.possible.append(head)
        journal.rotate(head)
        self.promised, self.possible = head, []

    def mend(self, journal: Journal) -> None:
        for _ in range(1000):
            assert journal.is_broken
            with_unknown = self.promised + self.records()
            self.possible.append(with_unknown)
            try:
                journal.rotate(with_unknown)
            except JournalBroken:
                continue
            self.promised, self.possible = with_unknown, []
            return
        raise AssertionError("it does not mend, though faults are rare")

    def look(self, files: SimulatedFiles) -> None:
        journal = Journal("/job/journal", disk=files)
        found = list(journal.replay())
        assert found in (self.promised, *self.possible)
        self.promised, self.possible = found, []
        self.commit(journal)  # it goes on from there
        assert list(journal.replay()) == self.promised
        journal.close()


class FilesScript:
    """Files, each written once; whoever was not told that it is written writes it again."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.promised: set[int] = set()

    def run(self, files: SimulatedFiles) -> None:
        store = self.open(files)
        for number in range(4):
            for _ in range(1000):
                try:
                    self.write(store, number)
                except (OSError, StoreAway, SinkFailed):
                    continue
                break
            self.promised.add(number)

    def look(self, files: SimulatedFiles) -> None:
        assert self.promised <= self.found(self.open(files)) <= set(range(4))
        self.run(files)
        assert self.found(self.open(files)) == set(range(4))

    def open(self, files: SimulatedFiles) -> Any:
        raise NotImplementedError

    def write(self, store: Any, number: int) -> None:
        raise NotImplementedError

    def found(self, store: Any) -> set[int]:
        """The numbers of what is there, each of which is whole."""
        raise NotImplementedError


def batch(number: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": [number] * 20})


class Layers(FilesScript):
    def open(self, files: SimulatedFiles) -> LayerStore:
        return LayerStore("/job/layers", files=files)

    def write(self, store: LayerStore, number: int) -> None:
        store.put(f"{number % 2}/{number}.layer", bytes([number]) * 50)

    def found(self, store: LayerStore) -> set[int]:
        numbers = {int(path.partition("/")[2][0]) for path in store.list()}
        for number in numbers:
            assert store.get(f"{number % 2}/{number}.layer") == bytes([number]) * 50
        for number in set(range(4)) - numbers:
            with pytest.raises(UnreadableLayer, match="missing"):
                store.get(f"{number % 2}/{number}.layer")
        return numbers


class Created(FilesScript):
    """Files of which the first has the name: terms, manifests."""

    def open(self, files: SimulatedFiles) -> Folder:
        return Folder(files, "/job/terms", "fsync")

    def write(self, store: Folder, number: int) -> None:
        store.create(str(number), bytes([number]) * 50)
        assert store.has(str(number))
        store.keep(str(number), bytes([number]) * 50, lambda _: False)

    def found(self, store: Folder) -> set[int]:
        numbers = {int(info.name) for info in store.entries()}
        assert all(store.read(str(n)).to_pybytes() == bytes([n]) * 50 for n in numbers)
        return numbers


class Delivered(FilesScript):
    def open(self, files: SimulatedFiles) -> DeliveredStore:
        return DeliveredStore("/job/delivered", files=files)

    def write(self, store: DeliveredStore, number: int) -> None:
        store.write("out", 0, 0, number + 1, number + 1, [batch(number)])

    def found(self, store: DeliveredStore) -> set[int]:
        read = list(store.read("out"))
        assert all(delivered.batch == batch(delivered.seq - 1) for delivered in read)
        return {delivered.seq - 1 for delivered in read}


class Segments(FilesScript):
    def open(self, files: SimulatedFiles) -> Table:
        return Table("/out", "fsync", files)

    def write(self, store: Table, number: int) -> None:
        store.create(batch(0).schema, "me")
        store.write(number % 2, 0, number * 200, batch(number))

    def found(self, store: Table) -> set[int]:
        segments = store.segments()
        for segment in segments:
            assert list(store.read(segment.path)) == [batch(segment.position.seq // 200)]
        return {segment.position.seq // 200 for segment in segments}


class Batches(FilesScript):
    """Batches of a query. Each attempt stages other files; one that was cut off is there or not."""

    def open(self, files: SimulatedFiles) -> Table:
        return Table("/out", "fsync", files)

    def write(self, store: Table, number: int) -> None:
        store.create(batch(0).schema, "query q")
        files = [
            *store.stage(number, 0, [batch(number)], batch(0).schema),
            *store.stage(number, 1, [batch(number)], batch(0).schema),
        ]
        if any(segment.position.generation > number for segment in store.segments()):
            store.discard(number, files)  # Spark would not offer it
        else:
            store.take(number, files, f"planned {number}")

    def found(self, store: Table) -> set[int]:
        segments = store.segments()
        numbers = {segment.position.generation for segment in segments}
        assert [s.position for s in segments] == [(n, i) for n in sorted(numbers) for i in (0, 1)]
        for segment in segments:
            assert list(store.read(segment.path)) == [batch(segment.position.generation)]
        return numbers


class Parquet(FilesScript):
    def open(self, files: SimulatedFiles) -> ParquetWriter:
        self.files = files
        return ParquetWriter("/out", "fsync", files=files)

    def write(self, store: ParquetWriter, number: int) -> None:
        store.claim(batch(0).schema, "me")
        store.write([Output(OutputKey(0, number), batch(number))])

    def found(self, store: ParquetWriter) -> set[int]:
        numbers = set()
        for info in self.files.entries("/out"):
            if info.name.startswith("part-"):
                content = pq.read_table(pa.BufferReader(self.files.read(info.path)))
                number = int(info.name.partition(".")[0][-12:])
                assert content.equals(pa.table(batch(number)))
                numbers.add(number)
        return numbers


Script = Callable[[Random], Any]
SCRIPTS: list[Script] = [JournalScript, Layers, Created, Delivered, Segments, Batches, Parquet]


def scenarios(script: Script, seed: int) -> Iterator[tuple[Disk, Any, int | None]]:
    """The script on a new disk, dying at each of its calls, and at last not at all."""
    disk = Disk(Random(seed))
    counted = disk.mount()
    script(Random(seed)).run(counted)
    for dies_at in (*range(counted.calls), None):
        yield Disk(Random(f"{seed} {dies_at}")), script(Random(seed)), dies_at


def end(disk: Disk, run: Any, dies_at: int | None) -> None:
    """Run until the process dies; then the power fails, or not."""
    with suppress(Died):
        run.run(disk.mount(dies_at))
    if disk.random.random() < 0.7:
        disk.lose_power()


@pytest.mark.parametrize("script", SCRIPTS)
def test_what_was_acknowledged_survives_a_crash_anywhere(script):
    for seed in range(SEEDS):
        for disk, run, dies_at in scenarios(script, seed):
            end(disk, run, dies_at)
            run.look(disk.mount())


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("drops_pages", [True, False])
def test_what_was_acknowledged_survives_a_disk_that_fails_now_and_then(script, drops_pages):
    for seed in range(SEEDS):
        for disk, run, dies_at in scenarios(script, seed):
            disk.drops_pages = drops_pages
            faults = Random(f"faults {seed} {dies_at}")

            def fail(call: str, _path: str, faults: Random = faults) -> int:
                if call in ("read", "info", "entries", "lock") or faults.random() > 0.1:
                    return 0
                return faults.choice((errno.EIO, errno.ENOSPC))

            disk.faults = fail
            with suppress(Died, OSError):
                run.run(disk.mount(dies_at))
            disk.faults = lambda *_: 0
            if disk.random.random() < 0.7:
                disk.lose_power()
            run.look(disk.mount())


class Careless(SimulatedFiles):
    """Storage that does without one kind of call."""

    def __init__(self, disk: Disk, dies_at: int | None, missing: str) -> None:
        super().__init__(disk, dies_at)
        setattr(self, missing, lambda _path: None)


@pytest.mark.parametrize("missing", ["sync", "sync_folder"])
@pytest.mark.parametrize("script", SCRIPTS)
def test_the_checks_above_bite(script, missing, monkeypatch):
    monkeypatch.setattr(Disk, "mount", lambda disk, dies_at=None: Careless(disk, dies_at, missing))
    with pytest.raises((AssertionError, ClonosError, OSError, pa.ArrowException)):
        test_what_was_acknowledged_survives_a_crash_anywhere(script)


# --- rot ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["idle", "closed", "busy"])
def test_any_flipped_bit_of_what_was_acknowledged_is_found(how):
    """Before, one in the newest frame was taken for a write that never ended."""
    groups = [[b"one", b""], [b"two" * 9], [b"three"]]
    expected = [record for group in groups for record in group]
    disk = Disk(Random(1))
    journal = Journal("/job/journal", disk=disk.mount())
    for group in groups:
        journal.append(group)
        journal.commit()
    if how == "idle":
        journal.vouch()
        journal.vouch()  # once is enough
    elif how == "closed":
        journal.close()
    else:
        journal.append([b"newest"])  # it vouches for those before it, not for itself
        journal.commit()
    disk.lose_power()
    (path,) = (i.path for i in disk.mount().entries("/job/journal") if i.name != "lock")
    content = bytes(disk.file(path).data)
    missed = []
    for bit in range(8 * len(content)):
        disk = Disk(Random(1))
        files = disk.mount()
        files.make_folder("/job/journal")
        files.write(path, content)
        disk.flip(path, bit)
        try:
            other = Journal("/job/journal", disk=disk.mount())
            found = list(other.replay())[: len(expected)]
            other._release()
            if found != expected:
                missed.append(bit)
        except UnreadableJournal as error:
            assert "at byte" in error.what  # noqa: PT017 - or it is not damaged at all
    assert not missed


def test_a_torn_write_is_no_damage():
    """A group that was never acknowledged is torn in any way, and the journal opens."""
    for seed in range(200):
        disk = Disk(Random(seed))
        files = disk.mount()
        journal = Journal("/job/journal", disk=files)
        journal.append([b"kept"])
        journal.commit()
        disk.faults = lambda call, _: errno.EIO if call == "sync" else 0
        disk.drops_pages = False
        journal.append([b"lost" * 30])
        with pytest.raises(JournalBroken):
            journal.commit()
        disk.faults = lambda *_: 0
        disk.lose_power()
        with Journal("/job/journal", disk=disk.mount()) as again:
            assert list(again.replay()) in ([b"kept"], [b"kept", b"lost" * 30])


@pytest.mark.parametrize("seed", range(40))
def test_what_a_killed_writer_has_not_synced_is_safe_before_it_counts(seed):
    """Two processes die before their sync, one after the other; then the power fails. What the
    second has read counted as committed, and it wrote behind it."""
    disk = Disk(Random(seed))
    with Journal("/job/journal", disk=disk.mount()) as journal:
        journal.append([b"first"])
        journal.commit()
    read = []
    for record in (b"second" * 20, b"third" * 20):
        journal = Journal("/job/journal", disk=disk.mount(dies_at=None))
        read = list(journal.replay())
        journal.append([record])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Tail, "sync", dies)
            with pytest.raises(Died):
                journal.commit()
        journal._release()
    assert read == [b"first", b"second" * 20]
    disk.lose_power()
    with Journal("/job/journal", disk=disk.mount()) as journal:
        assert list(journal.replay())[:2] == read


@pytest.mark.parametrize("seed", range(20))
def test_what_a_failed_sync_has_left_is_not_built_upon(seed):
    """The kernel has dropped what was to be written, and shows it all the same: as good, and clean.
    The process that was told so dies before it has begun another segment."""
    disk = Disk(Random(seed))
    journal = Journal("/job/journal", disk=disk.mount())
    journal.append([b"first"])
    journal.commit()
    journal.append([b"second" * 20])
    disk.faults = lambda call, _: errno.EIO if call == "sync" else 0
    with pytest.raises(JournalBroken):
        journal.commit()
    journal._release()
    disk.heal()
    with Journal("/job/journal", disk=disk.mount()) as journal:
        read = list(journal.replay())
        journal.append([b"third"])
        journal.commit()
    assert read == [b"first", b"second" * 20]
    disk.lose_power()
    with Journal("/job/journal", disk=disk.mount()) as journal:
        assert list(journal.replay()) == [*read, b"third"]


@pytest.mark.parametrize("seed", range(20))
def test_a_frame_that_vouches_is_not_built_upon_if_its_sync_has_failed(seed):
    """The kernel shows it, and the disk does not have it."""
    disk = Disk(Random(seed))
    journal = Journal("/job/journal", disk=disk.mount())
    journal.append([b"first"])
    journal.commit()
    disk.faults = lambda call, _: errno.EIO if call == "sync" else 0
    with pytest.raises(JournalBroken):
        journal.vouch()
    journal._release()
    disk.heal()
    journal = Journal("/job/journal", disk=disk.mount())
    journal.append([b"second"])
    journal.commit()
    journal._release()
    disk.lose_power()
    with Journal("/job/journal", disk=disk.mount()) as journal:
        assert list(journal.replay()) == [b"first", b"second"]


def dies(_: Tail) -> None:
    raise Died


def test_a_full_disk_that_gets_room_again():
    disk = Disk(Random(1))
    journal = Journal("/job/journal", disk=disk.mount())
    disk.capacity = disk.used + 100
    kept: list[bytes] = []

    def fill() -> None:
        while True:
            journal.append([record := f"{len(kept)}".encode()])
            journal.commit()
            kept.append(record)

    with pytest.raises(JournalBroken, match="No space"):
        fill()
    for _ in range(5):
        with pytest.raises(JournalBroken, match="No space"):
            journal.rotate([*kept, bytes(200)])
    disk.capacity += 1000
    journal.rotate([*kept, b"lost"])
    journal.append([b"next"])
    journal.commit()
    disk.lose_power()
    with Journal("/job/journal", disk=disk.mount()) as again:
        assert list(again.replay()) == [*kept, b"lost", b"next"]
    names = [info.name for info in disk.mount().entries("/job/journal")]
    assert len(names) == 2, "the lock and one segment: what was given up is gone"


def test_every_flipped_bit_of_a_layer_is_found():
    disk = Disk(Random(1))
    run = Layers(Random(1))
    run.run(disk.mount())
    store = run.open(disk.mount())
    path = "/job/layers/0/0.layer"
    for bit in range(8 * len(disk.file(path).data)):
        disk.flip(path, bit)
        with pytest.raises(UnreadableLayer):
            store.get("0/0.layer")
        disk.flip(path, bit)
    assert run.found(store) == set(range(4))
    disk.lose(path)
    assert run.found(store) == {1, 2, 3}


@pytest.mark.parametrize("script", [Segments, Parquet])
def test_what_a_careless_predecessor_left_is_written_again(script, monkeypatch, caplog):
    """With durability="process" a name may survive the machine and what it names may not."""
    for seed in range(60):
        disk = Disk(Random(seed))
        run = script(Random(seed))
        with monkeypatch.context() as careless:
            careless.setattr(SimulatedFiles, "sync", lambda *_: None)
            run.run(disk.mount())
        disk.lose_power()
        run.run(disk.mount())
        assert run.found(run.open(disk.mount())) == set(range(4))
    assert "was damaged and is written again" in caplog.text
