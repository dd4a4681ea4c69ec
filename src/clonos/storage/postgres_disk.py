"""Files and locks in a PostgreSQL database: a journal there outlives the driver's machine.

It is a :class:`~clonos.storage.files.Disk` in two tables. A file has rows in ``clonos_files``, one
for each append; so a group of the journal is one ``insert``, which is durable when it returns. A
lock is a row of ``clonos_locks``.

A lock is a lease. Its holder renews it by *beats*: a thread increments a count in its row. A
process that wants the lock watches the count, and takes the lock when the count has not changed for
some time, by its own stopwatch; no clocks are compared. That time is short if the server knows that
the holder's session is over, as it does when a process has died (:data:`GONE_S`), and longer if the
holder may be busy or frozen (:data:`LEASE_S`).

Taking the lock changes the row's *fence*, and each change that a holder makes checks, in the same
transaction, that the fence is still its own. So a driver that was frozen or cut off writes nothing
after another one took over, however late its statements arrive. A change locks the row only against
a new fence (``for key share``): beats and changes do not wait for each other. A holder may be
frozen within a change, and keep the row locked. So whoever wants it then has the server end the
sessions of its holder, which are named by lock and fence.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import pyarrow as pa

from clonos.core.content import Content, content_of, pieces_of
from clonos.errors import UnusableStore
from clonos.storage.files import Info, Lock, Locked, Tail
from clonos.storage.lease import Stopwatch
from clonos.storage.postgres_line import ANSWER_S, NAME, NO_PLACE, Line
from clonos.storage.terms import taken_over

_LOG: Final = logging.getLogger("clonos")

LEASE_S: Final = 10.0
"""A lock may be taken from a holder that has not beaten for this long ..."""
GONE_S: Final = 1.0
"""... or for this long, if it has no session any more. (After a restart of the server, its holder
connects again.)"""
BEAT_S: Final = 0.3
"""Time from one beat to the next."""
WATCH_S: Final = 0.1
"""Time from one look at the count to the next."""
TAKE_S: Final = 1.0
"""How long a change under way may hold up who takes the lock, before its session is ended."""
STEP_S: Final = 0.5
"""What counts of this time, at most, if the server is slow to answer."""
BYE_S: Final = 1.0
"""How long the last beat is waited for, if the server does not answer."""
PART_BYTES: Final = 64 << 20
"""Larger contents are cut into parts: a value must fit into the server's memory several times."""

_FILES: Final = """
create table if not exists clonos_files (
    path text collate "C" not null, part bigint not null, content bytea not null,
    modified timestamptz not null default clock_timestamp(), primary key (path, part))
"""
_LOCKS: Final = """
create table if not exists clonos_locks (
    path text collate "C" primary key, holder text not null, is_free boolean not null,
    fence bigint not null, beats bigint not null, session int not null, unique (path, fence))
"""
_FOLDER: Final = -1
"""The part number of a folder, which has one row."""


class PostgresDisk:
    """A :class:`~clonos.storage.files.Disk` in a database, for several threads.

    Parameters
    ----------
    dsn
        Such as ``postgresql://user@host:5432/database``. Its tables are made in the user's schema.
    lease_s, beat_s, answer_s
        See :data:`LEASE_S`, :data:`BEAT_S` and
        :data:`~clonos.storage.postgres_line.ANSWER_S`.

    Raises
    ------
    UnusableStore
        The server cannot be reached or refuses us, or there is a connection pool before it.

    Examples
    --------
    >>> disk = PostgresDisk("postgresql://clonos@db/jobs")  # doctest: +SKIP
    >>> disk.make_folder("/fraud")  # doctest: +SKIP
    >>> disk.write("/fraud/job.json", b"{}")  # doctest: +SKIP
    >>> disk.read("/fraud/job.json").to_pybytes()  # doctest: +SKIP
    b'{}'
    """

    is_local = False
    refuses = True

    def __init__(
        self,
        dsn: str,
        *,
        lease_s: float = LEASE_S,
        beat_s: float = BEAT_S,
        answer_s: float = ANSWER_S,
    ) -> None:
        self._line = Line(dsn, answer_s)
        self._dsn, self._lease_s, self._beat_s = dsn, lease_s, beat_s
        self._mutex = threading.RLock()
        self._held: _HeldLock | None = None
        if self.place == NO_PLACE:
            raise UnusableStore(
                "the database cannot be used: its URI cannot be understood",
                where="a journal in PostgreSQL",
                remedy="write postgresql://user:password@host:5432/database, and in a name or "
                "password %2F for /, %40 for @ and so on",
            )
        try:
            with self._change() as cursor:
                # Several drivers may start at once, and "if not exists" is no help against a race.
                cursor.execute("select pg_advisory_xact_lock(hashtext('clonos_files'))")
                # "If not exists" demands the right to create tables, even if they exist.
                for name, table in (("clonos_files", _FILES), ("clonos_locks", _LOCKS)):
                    cursor.execute("select to_regclass(%s) is null", (name,))
                    if cursor.fetchone()[0]:
                        cursor.execute(table)
        except OSError as error:
            self.close()
            raise UnusableStore(
                f"the database cannot be used: {error}",
                where=self.place,
                remedy="check that the driver reaches the server, and may create tables there",
            ) from None

    @property
    def place(self) -> str:
        """The server, without the password."""
        return self._line.place

    def line(self) -> Line:
        """Another connection."""
        return Line(self._dsn)

    @contextmanager
    def _asking(self, nbytes: int | None = 0) -> Iterator[Any]:
        """A cursor; see :meth:`Line.ask`."""
        with (
            self._mutex,
            self._line.ask(nbytes) as connection,
            connection.cursor(binary=True) as cursor,
        ):
            yield cursor

    @contextmanager
    def _change(self, nbytes: int = 0) -> Iterator[Any]:
        """A cursor in a transaction that fails if this disk had a lock and has lost it."""
        with self._asking(nbytes) as cursor, cursor.connection.transaction():
            if self._held is not None:
                cursor.execute(f"select 1 {_OURS} for key share", self._held.key)
                self.require_ours(cursor.rowcount)
            yield cursor

    def require_ours(self, rows: int) -> None:
        """Raise :class:`Superseded` if a statement that checks our fence has found no row."""
        if not rows:
            raise taken_over(self.place)

    def hurry(self) -> None:
        """Do not wait long for the server any more: the job is to end."""
        self._line.hurry()

    def close(self) -> None:
        """Close the connection. A lock is given up by closing it."""
        with self._mutex:
            self._line.close()

    # --- files -----------------------------------------------------------------------------------

    def read(self, path: str) -> pa.Buffer:
        with self._asking(None) as cursor:
            cursor.execute(
                "select content from clonos_files where path = %s and part >= 0 order by part",
                (path,),
            )
            parts = [content for (content,) in cursor]
        if not parts:
            raise _missing(path)
        return pa.py_buffer(parts[0] if len(parts) == 1 else b"".join(parts))

    def open(self, path: str) -> Content:
        return content_of(self.read(path).to_pybytes())

    def write(self, path: str, content: Any, mode: int = 0o666) -> None:
        view = memoryview(b"".join(pieces_of(content))).cast("B")
        parts = [view[at : at + PART_BYTES] for at in range(0, max(len(view), 1), PART_BYTES)]
        with self._change(len(view)) as cursor:
            self._require_folder(cursor, path.rpartition("/")[0])
            if self._kind(cursor, path) == _FOLDER:
                raise IsADirectoryError(errno.EISDIR, "a folder has that name", path)
            cursor.execute("delete from clonos_files where path = %s", (path,))
            for part, held in enumerate(parts):
                cursor.execute(_INSERT, (path, part, bytes(held)))

    def sync(self, path: str) -> None:
        """Nothing to do: each statement is durable."""

    def sync_folder(self, path: str) -> None:
        """Nothing to do: each statement is durable."""

    def make_folder(self, path: str) -> None:
        with self._change() as cursor:
            around = ""
            for name in path.strip("/").split("/"):
                around = f"{around}/{name}"
                kind = self._kind(cursor, around)
                if kind is None:
                    cursor.execute(
                        f"{_INSERT} on conflict do nothing", (around, _FOLDER, b"")
                    )  # another driver may make it now
                elif kind != _FOLDER:
                    raise NotADirectoryError(errno.ENOTDIR, "it is a file", around)

    def rename(self, path: str, new: str) -> None:
        with self._change() as cursor:
            self._require_folder(cursor, new.rpartition("/")[0])
            cursor.execute("delete from clonos_files where path = %s and part >= 0", (new,))
            self._rename(cursor, path, new)

    def name(self, path: str, new: str) -> bool:
        try:
            with self._change() as cursor:
                self._require_folder(cursor, new.rpartition("/")[0])
                is_free = self._kind(cursor, new) is None
                if is_free:
                    self._rename(cursor, path, new)
        except FileExistsError:  # another driver was faster
            is_free = False
        if not is_free:
            self.delete(path)
        return is_free

    def _rename(self, cursor: Any, path: str, new: str) -> None:
        try:
            cursor.execute(
                "update clonos_files set path = %s, modified = clock_timestamp() "
                "where path = %s and part >= 0",
                (new, path),
            )
        except self._line.driver.errors.UniqueViolation:
            raise FileExistsError(errno.EEXIST, "the name is taken", new) from None
        if not cursor.rowcount:
            raise _missing(path)

    def delete(self, path: str) -> None:
        with self._change() as cursor:
            cursor.execute("delete from clonos_files where path = %s and part >= 0", (path,))
            if not cursor.rowcount:
                raise _missing(path)

    def delete_folder(self, path: str) -> None:
        with self._change() as cursor:
            cursor.execute(f"select 1 {_BELOW} limit 1", _below(path))
            if cursor.rowcount:
                raise OSError(errno.ENOTEMPTY, "the folder is not empty", path)
            cursor.execute(
                "delete from clonos_files where path = %s and part = %s", (path, _FOLDER)
            )
            if not cursor.rowcount:
                raise _missing(path)

    def info(self, path: str) -> Info | None:
        found = self._infos("from clonos_files where path = %s", (path,))
        return found[0] if found else None

    def entries(self, folder: str, *, recursive: bool = False) -> list[Info]:
        start = len(folder) + 1
        return [
            info
            for info in self._infos(_BELOW, _below(folder))
            if recursive or "/" not in info.path[start:]
        ]

    def _infos(self, where: str, values: tuple[str, ...]) -> list[Info]:
        with self._asking() as cursor:
            cursor.execute(f"{_INFO} {where} group by path order by path", values)
            return [Info(*row) for row in cursor]

    def _kind(self, cursor: Any, path: str) -> int | None:
        """:data:`_FOLDER`, or another number for a file; None: nothing is there."""
        cursor.execute("select min(part) from clonos_files where path = %s", (path,))
        (found,) = cursor.fetchone()
        return None if found is None else int(found)

    def _require_folder(self, cursor: Any, path: str) -> None:
        if path and self._kind(cursor, path) != _FOLDER:
            raise _missing(path)

    # --- what a journal needs --------------------------------------------------------------------

    def append(self, path: str) -> Tail:
        with self._asking() as cursor:
            cursor.execute(
                "select max(part) from clonos_files where path = %s and part >= 0", (path,)
            )
            (last,) = cursor.fetchone()
        if last is None:
            raise _missing(path)
        return _Tail(self, path, last + 1)

    def add(self, path: str, part: int, data: bytes) -> None:
        """Append to a file, in one statement."""
        held = self._held
        with self._asking(len(data)) as cursor:
            if held is None:
                cursor.execute(_INSERT, (path, part, data))
                return
            before = path, part - 1
            cursor.execute(_ADD, (path, part, data, *held.key, *before))
            if not cursor.rowcount:
                cursor.execute(f"select 1 {_OURS}", held.key)
                self.require_ours(cursor.rowcount)
                raise OSError(errno.EIO, _FORGOTTEN, path)

    def truncate(self, path: str, nbytes: int) -> None:
        kept = self.read(path).slice(0, nbytes)
        self.write(path, kept)

    def lock(self, path: str, holder: str) -> Lock:
        """Take the lock, which takes :data:`GONE_S` if its holder has died; raises
        :class:`~clonos.storage.files.Locked` if the holder lives."""
        with self._mutex:
            held = _HeldLock(self, path, self._take(path, holder), self._beat_s)
            if self._held is None:
                self._held = held
                self._be_called(_named(*held.key))
            return held

    def _be_called(self, name: str) -> None:
        """The server calls this session so from now on, and those that follow it."""
        self._line.name = name
        with suppress(OSError), self._asking() as cursor:  # if it fails, another session follows
            cursor.execute("select set_config('application_name', %s, false)", (name,))

    def _take(self, path: str, holder: str) -> int:
        """Watch the lock until it can be taken; return our fence."""
        first, watch, silent_s, gone_s = None, Stopwatch(STEP_S), 0.0, 0.0
        while True:
            with self._asking() as cursor:
                cursor.execute(_LOCK, (path,))
                cursor.execute(_LOOK, (path,))
                is_free, fence, beats, has_session, theirs = cursor.fetchone()
                first = first or (fence, beats)
                if (fence, beats) != first and not is_free:
                    raise Locked(theirs)
                passed_s = watch.since_last_look()
                silent_s += passed_s
                gone_s = 0.0 if has_session else gone_s + passed_s
                if is_free or gone_s > GONE_S or silent_s > self._lease_s:
                    ours = self._take_over(cursor, holder, path, fence, beats)
                    if ours is not None:
                        return ours
            time.sleep(WATCH_S)

    def _take_over(self, cursor: Any, holder: str, path: str, fence: int, beats: int) -> int | None:
        """Take the lock if fence and beats are still these, and return our fence; None: not yet."""
        errors = self._line.driver.errors
        try:
            with cursor.connection.transaction():
                cursor.execute(_WAIT)
                cursor.execute(_TAKE, (holder, path, fence, beats))
                found = cursor.fetchone()
        except errors.LockNotAvailable:  # the holder is frozen within a change
            with suppress(errors.InsufficientPrivilege):  # it is another user's session
                cursor.execute(_END, (_named(path, fence),))
            return None
        return None if found is None else int(found[0])

    def free(self, held: _HeldLock) -> None:
        """Give a lock up, if we still have it: at once, unless the server is away. Then others may
        take it :data:`GONE_S` after it has come back."""
        if not self._line.is_away:
            with suppress(OSError, UnusableStore), self._asking() as cursor:
                cursor.execute(
                    "update clonos_locks set is_free = true where path = %s and fence = %s",
                    held.key,
                )
        if self._held is held:
            self._held = None
            self._line.name = NAME
            self.close()


_LOCK: Final = "insert into clonos_locks values (%s, '', true, 0, 0, 0) on conflict do nothing"
_LOOK: Final = (
    "select is_free, fence, beats, exists (select 1 from pg_stat_activity where pid = session), "
    "holder from clonos_locks where path = %s"
)
_TAKE: Final = (
    "update clonos_locks set is_free = false, fence = fence + 1, beats = 0, "
    "session = pg_backend_pid(), holder = %s where path = %s and fence = %s and beats = %s "
    "returning fence"
)
_WAIT: Final = f"set local lock_timeout = {int(TAKE_S * 1000)}"
_END: Final = (
    "select pg_terminate_backend(pid) from pg_stat_activity "
    "where application_name = %s and pid <> pg_backend_pid()"
)
_BEAT: Final = (
    "update clonos_locks set beats = beats + 1, session = pg_backend_pid() "
    "where path = %s and fence = %s"
)
_INSERT: Final = "insert into clonos_files (path, part, content) values (%s, %s, %s)"
_INFO: Final = (
    "select path, sum(length(content))::bigint, extract(epoch from max(modified))::float8, "
    "min(part) < 0"
)
_OURS: Final = "from clonos_locks where path = %s and fence = %s"
_ADD: Final = (
    "insert into clonos_files (path, part, content) select %s, %s, %s "
    "from clonos_locks where path = %s and fence = %s "
    "and exists (select 1 from clonos_files where path = %s and part = %s) for key share"
)
_FORGOTTEN: Final = (
    "PostgreSQL has forgotten what was committed: a replica may have taken over that lacked it"
)
_BELOW: Final = "from clonos_files where path >= %s and path < %s"


def _below(folder: str) -> tuple[str, str]:
    """The parameters of :data:`_BELOW`. In the order of bytes "0" comes after "/"."""
    return f"{folder}/", f"{folder}0"


def _named(path: str, fence: int) -> str:
    """The name of the sessions in which the holder of a lock makes changes. (The server cuts names
    off after 63 bytes.)"""
    return f"{NAME} {hashlib.sha256(path.encode()).hexdigest()[:24]} {fence}"


def _missing(path: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "there is no such file or folder", path)


class _Tail:
    """A file that grows by one row at a time."""

    def __init__(self, disk: PostgresDisk, path: str, part: int) -> None:
        self._disk, self._path, self._part = disk, path, part

    def write(self, data: bytes) -> None:
        # A number is never reused: the outcome of a failed statement is unknown.
        part, self._part = self._part, self._part + 1
        self._disk.add(self._path, part, data)

    def sync(self) -> None:
        """Nothing to do: each statement is durable."""

    def close(self) -> None:
        """Nothing is open."""


class _HeldLock:
    """A lock whose beats come from a thread with its own connection."""

    def __init__(self, disk: PostgresDisk, path: str, fence: int, pause_s: float) -> None:
        self.key: Final = (path, fence)
        self._disk, self._pause_s, self._line = disk, pause_s, disk.line()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="clonos-lease", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(self._pause_s):
            try:
                with self._line.ask() as connection:
                    found = connection.execute(_BEAT, self.key)
                if not found.rowcount:
                    _LOG.warning("another driver has taken the lock of %s", self.key[0])
                    break  # the next change fails, and tells
            except Exception as error:  # noqa: BLE001 - the server is away: the next write tells
                _LOG.debug("no beat of the lock of %s: %s", self.key[0], error)
        self._line.close()

    def close(self) -> None:
        if self._over.is_set():
            return
        self._over.set()
        self._thread.join(BYE_S)
        self._line.cut()
        self._disk.free(self)
