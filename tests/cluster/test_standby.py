"""A standby driver while it waits for the journal's lock."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest

import clonos
from clonos.cluster import setup
from clonos.cluster.directory import JobDirectory
from clonos.cluster.durable import JournalFile
from clonos.cluster.former import NOBODY
from clonos.cluster.patience import Patience
from clonos.cluster.takeover import Takeover
from clonos.core.version import VERSION
from clonos.errors import (
    BadDirectory,
    ClonosError,
    JournalBroken,
    JournalInUse,
    NotSettled,
    OtherJob,
    PortTaken,
)
from clonos.graph.compile import CompiledJob
from clonos.nodes.events import JournalFailed
from clonos.nodes.waiting import Waiting
from clonos.storage.files import LocalFiles
from clonos.storage.journal import Journal
from clonos.storage.postgres_disk import PostgresDisk
from clonos.upgrade.names import ALL_STAYS


def fails(event: JournalFailed) -> None:
    pytest.fail(str(event))


def test_a_database_that_is_away_for_a_while(postgres_server, postgres, tmp_path, monkeypatch):
    waits, is_away = threading.Event(), threading.Event()

    def told(error: BaseException) -> str:
        is_away.set()
        return str(error)

    def look(_: Any) -> bool:
        waits.set()
        return False

    root = str(tmp_path)
    holder = PostgresDisk(postgres)
    holder.make_folder(root)
    journal = Journal(root, disk=holder)
    disk = PostgresDisk(postgres)
    monkeypatch.setattr(disk._line, "_told", told)
    takeover = Takeover("job", look=look, stands_by=True)
    opens = partial(JournalFile, root, "fsync", fails, disk)
    with ThreadPoolExecutor(1) as pool:
        opened = pool.submit(takeover.take, opens, root, lambda: None)
        assert waits.wait(60)
        postgres_server.stop()
        try:
            assert is_away.wait(60)
        finally:
            postgres_server.start()
        journal.close()
        found = opened.result(60)
    found.close()
    for one in (disk, holder):
        one.close()


def test_what_ends_the_wait_is_told_alone(tmp_path):
    """Not behind three tracebacks about the lock, which was expected to be held."""

    def look(_: Any) -> bool:
        raise NotSettled("it goes on as it was")

    root = str(tmp_path)
    journal = Journal(root)
    takeover = Takeover("job", look=look, stands_by=True)
    with pytest.raises(NotSettled) as caught:
        takeover.take(partial(JournalFile, root, "fsync", fails), root, lambda: None)
    assert caught.value.__context__ is None
    journal.close()


def test_only_who_stands_by_waits_and_warms_up_once(tmp_path):
    journal, warmed, looked = Journal(str(tmp_path)), list[str](), list[object]()

    def look(_: Any) -> bool:
        looked.append(None)
        if len(looked) == 3:
            journal.close()
        return True

    root = str(tmp_path)
    opens = partial(JournalFile, root, "fsync", fails)
    with pytest.raises(JournalInUse):
        Takeover("job").take(opens, root, lambda: warmed.append("at once"))
    takeover = Takeover("job", look=look, stands_by=True)
    takeover.take(opens, root, lambda: warmed.append("standing by")).close()
    assert (warmed, len(looked), takeover.has_waited) == (["standing by"], 3, True)


def test_a_driver_that_follows_another_does_not_end_for_want_of_a_page(tmp_path):
    """By then the switch is made, and nobody else runs the job."""
    warned: list[str] = []
    follower: Any = SimpleNamespace(
        snapshot=None, directory=SimpleNamespace(local_folder=tmp_path), warn=warned.append
    )
    open_page = partial(setup.DriverSetup._open_page, follower)
    with ExitStack() as undo:
        taken = open_page(0, undo, follows=False)
        assert taken is not None
        with pytest.raises(PortTaken):
            open_page(taken.port, undo, follows=False)
        found = open_page(taken.port, undo, follows=True)
        assert found is not None
        assert found.port != taken.port
    assert "another URL" in warned[0]


def opened(
    directory: JobDirectory,
    job: CompiledJob | None = None,
    *,
    wait: Callable[[], None] | None = None,
) -> JournalFile:
    """The journal of a driver that begins, perhaps with another graph. `wait`: it waits for the
    lock once, and this happens."""

    def look(_: Waiting | None) -> bool:
        if wait is None:
            pytest.fail("it waits")
        wait()
        return True

    driver: Any = SimpleNamespace(
        compiled=job or a_job(),
        directory=directory,
        inbox=SimpleNamespace(put=pytest.fail),
        durability="fsync",
        warn=pytest.fail,
        _warm_up=lambda: None,
        _look_back=lambda _: None,
        _begin_term=lambda *_: 1,
        _store=None,
    )
    takeover = Takeover("words", look=look, stands_by=True)
    file = setup.DriverSetup._open_journal(driver, takeover)
    how: Any = {"is_upgrade": job is not None, "changes": ALL_STAYS}
    how["has_waited"] = takeover.has_waited
    try:
        setup.DriverSetup._recover(driver, file, NOBODY, ExitStack(), **how)
    except ClonosError:
        file.close()
        raise
    return file


def a_job(*folders: Path) -> CompiledJob:
    job = clonos.Job("words")
    rows = job.source(clonos.sources.from_batches([], schema="n long"))
    rows.sink(clonos.sinks.collect())
    for folder in folders:
        rows.sink(clonos.sinks.parquet(str(folder)))
    return job.compile()


def test_what_the_last_driver_wrote_before_it_ended_is_known_to_the_next(tmp_path):
    """That the rows were written with Spark, for example: else they are written twice."""
    first = JobDirectory(str(tmp_path), None, on_one_machine=True)
    journal = opened(first)
    first.claim(a_job())
    second = JobDirectory(str(tmp_path), None, on_one_machine=True)
    second.check(a_job())
    first.set_written("out", a_job())
    journal.close()
    opened(second).close()
    assert second.is_written("out")


def test_a_job_whose_first_driver_died_before_it_began_can_be_started(tmp_path):
    first = JobDirectory(str(tmp_path), None, on_one_machine=True)
    opened(first).close()
    second = JobDirectory(str(tmp_path), None, on_one_machine=True)
    second.check(a_job())
    opened(second).close()


def test_if_the_journal_cannot_be_begun_anew_the_places_of_new_sinks_are_free(
    tmp_path, monkeypatch
):
    """The job may still have its old graph; then they could be nobody else's."""
    first = JobDirectory(str(tmp_path / "there"), None, on_one_machine=True)
    journal = opened(first)
    first.claim(a_job())
    journal.close()
    place = tmp_path / "out"
    for is_made in (False, True):
        switch = SimpleNamespace(make=lambda *_, is_made=is_made: is_made)
        monkeypatch.setattr(setup, "Switch", lambda *_, switch=switch: switch)
        with suppress(JournalBroken):
            opened(first, a_job(place)).close()
        assert (place / "_owner").exists() == is_made


def test_who_stood_by_while_the_job_went_back_does_not_take_over(tmp_path):
    """It has the functions because of which the job went back, and its slots were told when they
    started which outputs were discarded: they would find that a store has lost a mark."""
    rewinder = JobDirectory(str(tmp_path), None, on_one_machine=True)
    journal = opened(rewinder)
    rewinder.claim(a_job())
    standby = JobDirectory(str(tmp_path), None, on_one_machine=True)
    standby.check(a_job())
    about = {"point": 3, "lanes": {"out": {"0": 17}}}
    rewinder.announce(a_job(), 1, rewound=about)
    journal.rotate([msgpack.packb((VERSION, 1))])
    journal.close()
    for _ in range(2):
        with pytest.raises(OtherJob, match="went back to point 3"):
            opened(standby)
    started = JobDirectory(str(tmp_path), None, on_one_machine=True)
    started.check(a_job())
    opened(started).close()


def test_who_began_to_stand_by_while_the_job_went_back_does_not_take_over(tmp_path):
    """What was announced by then took effect while it waited for the journal's lock."""
    rewinder = JobDirectory(str(tmp_path), None, on_one_machine=True)
    journal = opened(rewinder)
    rewinder.claim(a_job())
    rewinder.announce(a_job(), 1, rewound={"point": 3, "lanes": {}})
    standby, late = (JobDirectory(str(tmp_path), None, on_one_machine=True) for _ in range(2))
    standby.check(a_job())

    def goes_back() -> None:
        journal.rotate([msgpack.packb((VERSION, 1))])
        journal.close()

    with pytest.raises(OtherJob, match="went back to point 3"):
        opened(standby, wait=goes_back)
    late.check(a_job())  # the driver that is started after the rewind, with the right functions
    opened(late).close()


def test_who_takes_over_while_the_checkpoint_is_away_waits_for_it(tmp_path, monkeypatch):
    """It used to end, and then nobody ran the job."""
    directory = JobDirectory(str(tmp_path), None, on_one_machine=True)
    right, waited, warned = LocalFiles.write, list[float](), list[str]()

    def write(*how: Any) -> None:
        if len(waited) < 2:
            raise OSError(errno.EIO, "the store is away")
        right(*how)

    monkeypatch.setattr(LocalFiles, "write", write)
    begin = partial(directory.begin_term, position=0, before=0)
    with pytest.raises(BadDirectory, match="away"):
        Patience("job", waited.append, warned.append, is_needed=False)(begin)
    assert Patience("job", waited.append, warned.append, is_needed=True)(begin) == 1
    assert len(waited) == 2
    assert "away" in warned[0]


def test_who_takes_over_does_not_wait_for_what_never_passes(tmp_path):
    (tmp_path / "terms").touch()
    directory = JobDirectory(str(tmp_path), None, on_one_machine=True)
    with pytest.raises(BadDirectory):
        Patience("job", lambda _: pytest.fail("it waits"), pytest.fail, is_needed=True)(
            partial(directory.begin_term, position=0, before=0)
        )
