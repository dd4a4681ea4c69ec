"""A server that is frozen, though its kernel is not: TCP finds nothing wrong with it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator

import pytest

from clonos.errors import JournalBroken
from clonos.storage.journal import Journal
from clonos.storage.postgres_disk import PostgresDisk
from clonos.storage.postgres_line import Line

FOR_EVER = 1e6
Freeze = Callable[[], None]


def limit(disk: PostgresDisk, answer_s: float) -> None:
    """From now on; what comes before depends on no limit, however slow the machine is."""
    disk._line._cord.watchdog.hangs_s = answer_s


@pytest.fixture
def freeze(postgres) -> Iterator[tuple[Freeze, Freeze]]:
    """Stops all sessions of journals, which answer nothing more; and lets them go on. The server
    itself goes on, and takes new ones."""
    stopped: list[int] = []
    ours = Line(postgres)

    def stop() -> None:
        with ours.ask() as connection:
            found = connection.execute(
                "select pid from pg_stat_activity where application_name like 'clonos journal%' "
                "and pid <> pg_backend_pid()"
            )
            stopped.extend(pid for (pid,) in found)
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)

    def go_on() -> None:
        while stopped:
            os.kill(stopped.pop(), signal.SIGCONT)

    yield stop, go_on
    go_on()
    ours.close()


def test_a_write_is_broken_off_and_what_comes_of_it_later_counts_once(postgres, tmp_path, freeze):
    stop, go_on = freeze
    root = str(tmp_path)
    disk = PostgresDisk(postgres, answer_s=FOR_EVER)
    disk.make_folder(root)
    with Journal(root, disk=disk) as journal:
        journal.append([b"one"])
        journal.commit()
        stop()
        limit(disk, 0.1)
        journal.append([b"two"])
        with pytest.raises(JournalBroken, match="PostgreSQL: no answer within"):
            journal.commit()
        limit(disk, FOR_EVER)
        journal.rotate([b"one", b"two"])  # on a new connection
        go_on()  # what the session has read of the statement may now be done
        journal.append([b"three"])
        journal.commit()
    with Journal(root, disk=PostgresDisk(postgres)) as journal:
        assert list(journal.replay()) == [b"one", b"two", b"three"]


def test_a_large_write_has_longer(postgres, tmp_path):
    disk = PostgresDisk(postgres, answer_s=FOR_EVER)
    disk.make_folder(str(tmp_path))
    content = os.urandom(60_000_000)
    limit(disk, 0.001)  # and a minute more for so much
    disk.write(f"{tmp_path}/large", content)
    assert disk.read(f"{tmp_path}/large").to_pybytes() == content
    disk.close()


def test_a_lock_is_given_up_without_an_answer(postgres, tmp_path, freeze):
    stop, go_on = freeze
    disk = PostgresDisk(postgres, answer_s=FOR_EVER)
    disk.make_folder(str(tmp_path))
    held = disk.lock(f"{tmp_path}/lock", "me")
    stop()
    limit(disk, 0.1)
    held.close()  # returns
    go_on()
    successor = PostgresDisk(postgres)
    successor.lock(f"{tmp_path}/lock", "another").close()
    successor.close()


def test_who_hurries_breaks_off_sooner(postgres, freeze):
    stop, _ = freeze
    line = Line(postgres, answer_s=FOR_EVER)
    with line.ask() as connection:
        connection.execute("select 1")
    stop()
    line.hurry()
    with pytest.raises(OSError, match="PostgreSQL: no answer within"), line.ask() as connection:
        connection.execute("select 1")
    assert line.is_away
    line.close()
