"""A journal in a database: who may write, and what happens when the server is away."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from clonos.errors import JournalBroken, Superseded, UnusableStore
from clonos.storage import lease, postgres_disk
from clonos.storage.files import Locked
from clonos.storage.journal import Journal
from clonos.storage.postgres_disk import PostgresDisk
from tests.processes import free_port
from tests.storage.conftest import slow_clock

LEASE_S = 0.5
BEAT_S = 0.05
NEVER_S = 1e6


Drivers = Callable[..., PostgresDisk]


@pytest.fixture
def root(tmp_path) -> str:
    """A folder in the database."""
    return str(tmp_path)


@pytest.fixture
def driver(postgres, root) -> Iterator[Drivers]:
    """Makes processes with the database. Frozen, they do not beat, and break nothing off; all else
    is as in production."""
    made = []

    def make(*, is_frozen: bool = False) -> PostgresDisk:
        how = {"beat_s": NEVER_S, "answer_s": NEVER_S} if is_frozen else {"beat_s": BEAT_S}
        made.append(PostgresDisk(postgres, lease_s=LEASE_S, **how))
        return made[-1]

    make().make_folder(root)
    yield make
    for one in made:
        one.close()


def test_a_group_is_there_before_the_new_driver_reads_or_never(driver, root):
    """One appends as fast as it can, while another one takes over again and again."""
    with Journal(root, disk=driver()) as journal:
        journal.rotate([b"head"])
    for _ in range(5):
        old = Journal(root, disk=driver(is_frozen=True))
        committed = len(list(old.replay()))
        is_superseded = threading.Event()

        def write(journal: Journal = old, is_over: threading.Event = is_superseded) -> None:
            nonlocal committed
            try:
                while True:
                    journal.append([b"x"])
                    journal.commit()
                    committed += 1
            except Superseded:
                is_over.set()

        writer = threading.Thread(target=write)
        writer.start()
        with Journal(root, disk=driver()) as new:
            seen = len(list(new.replay()))
            writer.join()
            assert is_superseded.is_set()
            assert len(list(new.replay())) == seen == committed


def test_a_server_that_is_away_for_a_while(postgres_server, driver, root):
    with Journal(root, disk=driver()) as journal:
        journal.append([b"one"])
        journal.commit()
        postgres_server.stop()
        try:
            journal.append([b"two"])
            with pytest.raises(JournalBroken, match=r" in postgresql://127\.0.*check the store"):
                journal.commit()
            with pytest.raises(JournalBroken):
                journal.rotate([b"one", b"two"])
        finally:
            postgres_server.start()
        journal.rotate([b"one", b"two"])
        assert list(journal.replay()) == [b"one", b"two"]


def test_a_session_that_began_while_the_server_was_read_only_is_not_kept(postgres, driver, root):
    """It stays read-only for ever. A server may be read-only for a while: its disk is full, or it
    is a replica until it takes over."""
    import psycopg

    how: Any = {"autocommit": True, "options": "-c default_transaction_read_only=off"}
    disk = driver(is_frozen=True)
    with Journal(root, disk=disk) as journal, psycopg.connect(postgres, **how) as admin:
        admin.execute("alter database postgres set default_transaction_read_only = on")
        try:
            disk._line.close()
            journal.append([b"one"])
            with pytest.raises(JournalBroken, match="read-only"):
                journal.commit()
        finally:
            admin.execute("alter database postgres reset default_transaction_read_only")
        journal.rotate([b"one"])
        assert list(journal.replay()) == [b"one"]


def test_what_a_server_has_forgotten_is_written_anew(postgres, driver, root):
    """A replica that lacks the last commits has taken over. Groups that came after them would make
    the journal unreadable."""
    import psycopg

    with Journal(root, disk=driver()) as journal:
        for group in (b"one", b"two"):
            journal.append([group])
            journal.commit()
        with psycopg.connect(postgres, autocommit=True) as admin:
            newest = "select path, max(part) from clonos_files where path like %s group by path"
            admin.execute(
                f"delete from clonos_files where (path, part) in ({newest})", (f"{root}/%journal",)
            )
        journal.append([b"three"])
        with pytest.raises(JournalBroken, match="forgotten"):
            journal.commit()
        journal.rotate([b"one", b"two", b"three"])
        journal.append([b"four"])
        journal.commit()
    with Journal(root, disk=driver()) as journal:
        assert list(journal.replay()) == [b"one", b"two", b"three", b"four"]


@pytest.mark.parametrize("table", ["clonos_files", "clonos_locks"])
def test_a_table_that_is_dropped_is_no_outage(postgres, driver, root, table):
    import psycopg

    with Journal(root, disk=driver(is_frozen=True)) as journal:
        with psycopg.connect(postgres, autocommit=True) as admin:
            admin.execute(f"drop table {table}")
        journal.append([b"one"])
        with pytest.raises(UnusableStore, match=f"postgresql://.*{table}. does not.*restore"):
            journal.commit()
    driver()  # makes the tables again, for the tests that come after this one


def test_contents_larger_than_a_part(driver, root, monkeypatch):
    monkeypatch.setattr("clonos.storage.postgres_disk.PART_BYTES", 10)
    disk = driver()
    content = bytes(range(95))
    disk.write(f"{root}/a", content)
    disk.write(f"{root}/a.tmp", content[::-1])
    assert disk.read(f"{root}/a").to_pybytes() == content
    disk.rename(f"{root}/a.tmp", f"{root}/a")
    assert disk.read(f"{root}/a").to_pybytes() == content[::-1]
    info = disk.info(f"{root}/a")
    assert info is not None
    assert info.nbytes == len(content)
    disk.close()


def test_a_user_who_may_make_no_tables_uses_those_that_are_there(postgres, driver, root):
    import psycopg

    driver()
    with psycopg.connect(postgres, autocommit=True) as admin:
        admin.execute("revoke create on schema public from public")
        admin.execute("create role app login")
        admin.execute("grant select, insert, update, delete on clonos_files, clonos_locks to app")
    disk = PostgresDisk(postgres.replace("postgres@", "app@"))
    with Journal(root, disk=disk) as journal:
        journal.append([b"one"])
        journal.commit()
    disk.close()


@pytest.mark.parametrize(
    "setting",
    [
        "idle_session_timeout = '5s'",
        "statement_timeout = '5s'",
        "lock_timeout = '5s'",
        "default_transaction_isolation = 'serializable'",
    ],
)
def test_what_an_administrator_has_set_for_all_sessions(postgres, driver, root, setting):
    import psycopg

    name = setting.partition(" ")[0]
    with psycopg.connect(postgres, autocommit=True) as admin:
        admin.execute(f"alter database postgres set {setting}")
    try:
        disk = driver()
        with disk._asking() as cursor:
            cursor.execute("select current_setting(%s)", (name,))
            assert cursor.fetchone() == ("read committed" if "isolation" in name else "0",)
        with Journal(root, disk=disk) as journal:
            journal.append([b"one"])
            journal.commit()
    finally:
        with psycopg.connect(postgres, autocommit=True) as admin:
            admin.execute(f"alter database postgres reset {name}")


@pytest.mark.parametrize(
    ("dsn", "told"),
    [
        ("postgresql://me:secret@127.0.0.1:1/jobs", r"postgresql://127.0.0.1:1/jobs: "),
        ("postgresql://me:sec/ret@127.0.0.1:1/jobs", "cannot be understood.*%2F for /"),
        ("postgresql://m e:sec@127.0.0.1:1/jobs", "cannot be understood.*%2F for /"),
    ],
)
def test_a_server_that_is_not_there(dsn, told):
    with pytest.raises(UnusableStore, match=told) as caught:
        PostgresDisk(dsn)
    assert "sec" not in str(caught.value)


def test_a_process_that_has_died_is_known_by_its_session(postgres, driver, root):
    """Long before its lease is over."""
    script = (
        "import sys; from clonos.storage.postgres_disk import PostgresDisk\n"
        "lock = PostgresDisk(sys.argv[1]).lock(sys.argv[2], 'me')\n"
        "print('locked', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", script, postgres, f"{root}/lock"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        patient = PostgresDisk(postgres, lease_s=NEVER_S)
        with pytest.raises(Locked, match="me"):
            patient.lock(f"{root}/lock", "another")
        process.kill()
        process.wait()
        patient.lock(f"{root}/lock", "another").close()
        patient.close()


def test_who_beats_keeps_its_lock_however_long_the_server_was_frozen(
    postgres, driver, root, monkeypatch
):
    """It was frozen for its holder, too; once it answers, the holder's beats go on."""
    held = driver().lock(f"{root}/lock", "me")
    monkeypatch.setattr(postgres_disk, "time", slow_clock())
    monkeypatch.setattr(lease, "time", slow_clock())
    patient = PostgresDisk(postgres)
    with pytest.raises(Locked, match="me"):
        patient.lock(f"{root}/lock", "another")
    patient.close()
    held.close()


@pytest.fixture
def pool(postgres, tmp_path) -> Iterator[str]:
    """The address of a PgBouncer before the server, which has a session per transaction."""
    program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip("PgBouncer is not installed here (Debian's package: pgbouncer)")
    port = free_port()
    server = urlsplit(postgres)
    with tempfile.TemporaryDirectory(prefix="pool-") as folder:
        config = Path(folder, "pgbouncer.ini")
        config.write_text(
            f"[databases]\npostgres = host=127.0.0.1 port={server.port} user=postgres\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
            "auth_type = any\npool_mode = transaction\n"
        )
        prefix = []
        if os.geteuid() == 0:
            Path(folder).chmod(0o755)
            prefix = ["runuser", "-u", "postgres", "--"]
        with subprocess.Popen([*prefix, program, "-q", str(config)], cwd="/") as process:
            try:
                while True:
                    assert process.poll() is None, "it has not started"
                    with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                        break
                yield f"postgresql://postgres@127.0.0.1:{port}/postgres"
            finally:
                process.terminate()


def test_a_connection_pool_is_refused(pool):
    """What one transaction has set would not be in force in the next."""
    with pytest.raises(UnusableStore, match="connection pool") as caught:
        PostgresDisk(pool)
    assert "the server itself" in caught.value.remedy


def test_a_driver_that_is_frozen_within_a_change_holds_up_nobody(driver, root):
    """Its session, which has locked the row of its fence, lives as long as it is frozen."""
    frozen = driver(is_frozen=True)
    old = Journal(root, disk=frozen)

    def change(successor: Callable[[], None]) -> None:
        with frozen._change() as cursor:
            successor()
            cursor.execute("select 1")  # it goes on

    def take_over() -> None:
        with Journal(root, disk=driver()) as new:
            new.rotate([b"head"])

    with pytest.raises(OSError, match="PostgreSQL: terminating connection"):
        change(take_over)
    old.append([b"late"])
    with pytest.raises(Superseded):
        old.commit()
    old.close()
    with Journal(root, disk=driver()) as last:
        assert list(last.replay()) == [b"head"]


def test_a_last_beat_that_comes_late_does_not_take_a_lock_back(driver, root, monkeypatch):
    """Its holder has given it up meanwhile."""
    holder, successor = driver(is_frozen=True), driver()
    held = holder.lock(f"{root}/lock", "me")
    held.close()
    take_over = successor._take_over

    def late(cursor: Any, *which: Any) -> Any:
        monkeypatch.undo()
        cursor.execute(postgres_disk._BEAT, held.key)
        return take_over(cursor, *which)

    monkeypatch.setattr(successor, "_take_over", late)
    successor.lock(f"{root}/lock", "another").close()
