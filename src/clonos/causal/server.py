"""The log of a job beside its driver: a node, a plane for the clients' messages, a journal.

One thread turns the node. While the disk is quick, this thread writes, too. When it is slow, a
second thread writes, so that other clients get their answers meanwhile.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from clonos.causal.book import SEED_BYTES, AnswerBook
from clonos.causal.holder import LogAccess
from clonos.causal.messages import ANSWERS
from clonos.causal.node import TURN_S, AnswerNode, Judged, Stop, WriteFailed, Written
from clonos.errors import ClonosError, JournalBroken
from clonos.storage.disk_thread import DiskThread, Worker
from clonos.storage.files import Durability
from clonos.storage.journal import Journal
from clonos.transport.certificates import Authority
from clonos.transport.inbox import Inbox
from clonos.transport.plane import Plane, is_loopback
from clonos.transport.secret import JobSecret
from clonos.transport.tls import CLIENT_NAME, DRIVER_NAME

CLOSE_S: Final = 3.0
"""Grace period for a disk that hangs while the log is closed."""

HANG_UP_S: Final = 0.05
"""Time for the last replies to go out; idle clients would not disconnect by themselves."""

Judge = Callable[[str, int], None]


class LogServer:
    """The log of one job, served from a directory.

    Parameters
    ----------
    directory
        Created if it does not exist; answers that an earlier server acknowledged are restored.
    host
        Address of the interface to listen on; never all of them.
    bytes_max
        The largest size of answers that are not truncated; they are also in memory.
    durability
        ``"fsync"``: survives the machine. ``"process"``: only the death of processes.
    tls
        Encrypt (TLS 1.3), with an authority made for this log alone; clients then need its
        :attr:`identity`. Default: if the address is not a loopback one. False requests plaintext
        explicitly.
    judge
        Called with scope and batch, in a separate thread, before the first log of that batch is
        opened. If it raises an error of Clonos, the tasks get that error.

    Raises
    ------
    JournalInUse
        Another driver serves this directory.
    UnreadableJournal
        The journal is damaged before its end.

    Examples
    --------
    >>> import tempfile
    >>> with LogServer(tempfile.mkdtemp()) as server:
    ...     server.address.startswith("tcp://127.0.0.1:")
    True
    """

    def __init__(
        self,
        directory: str | Path,
        host: str = "127.0.0.1",
        *,
        bytes_max: int = 1 << 30,
        durability: Durability = "fsync",
        tls: bool | None = None,
        judge: Judge | None = None,
    ) -> None:
        self.secret = JobSecret.new()
        self.job = secrets.token_hex(8)
        is_encrypted = not is_loopback(host) if tls is None else tls
        authority = Authority(self.job) if is_encrypted else None
        self.identity = authority.issue(CLIENT_NAME) if authority else None
        self._book = AnswerBook(bytes_max, lambda: secrets.token_bytes(SEED_BYTES))
        self._journal = Journal(directory, durability)
        self._inbox = Inbox()
        try:
            self._book.recover(self._journal.replay())
            self._plane = Plane(
                host,
                self.secret,
                self.job,
                self._inbox,
                identity=authority.issue(DRIVER_NAME) if authority else None,
                allow_plaintext=tls is False,
                clients=ANSWERS,
            )
        except BaseException:
            self._journal.close()
            self._inbox.close()
            raise
        self.address = self._plane.address
        self._disk = _Disk(self._journal, self._inbox)
        self._judging = _Judging(judge, self._inbox) if judge else None
        self._node = AnswerNode(self._book, self._disk, self._journal.nbytes, self._judging)
        self._thread = threading.Thread(target=self._run, name="clonos-causal-log", daemon=True)
        self._thread.start()

    @property
    def nbytes(self) -> int:
        """Bytes of answers held."""
        return self._book.nbytes

    @property
    def journal_bytes(self) -> int:
        """Size of the journal file."""
        return self._journal.nbytes

    def _run(self) -> None:
        plane, node = self._plane, self._node
        wait_s = TURN_S
        try:
            while not node.is_over:
                wait_s = node.turn(plane.poll(wait_s), plane.listened_s)
        finally:
            plane.shutdown(HANG_UP_S)
            self._disk.thread.close(CLOSE_S)
            if self._judging is not None:
                self._judging.worker.stop()
            self._journal.close()

    def reached_by(self, access: LogAccess) -> LogAccess:
        """Add to `access` how executors reach this server."""
        address, identity = self.address, self.identity
        return replace(access, address=address, job=self.job, secret=self.secret, identity=identity)

    def close(self) -> None:
        """Stop answering, and unlock the directory."""
        self._inbox.put(Stop())
        self._thread.join(CLOSE_S)

    def __enter__(self) -> LogServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Disk:
    """The node's port to a journal."""

    def __init__(self, journal: Journal, inbox: Inbox) -> None:
        self._journal = journal
        self._inbox = inbox
        self.thread = DiskThread("clonos-causal-disk")

    def write(self, records: Sequence[bytes]) -> None:
        def job() -> None:
            self._journal.append(records)
            self._journal.commit()

        self._do(job)

    def rotate(self, head: Sequence[bytes]) -> None:
        self._do(lambda: self._journal.rotate(head), is_long=True)

    def vouch(self) -> None:
        self._do(self._journal.vouch)

    def _do(self, job: Callable[[], None], *, is_long: bool = False) -> None:
        def attempt() -> Written | WriteFailed:
            try:
                job()
            except JournalBroken as error:
                return WriteFailed(error)
            return Written(self._journal.nbytes)

        outcome = self.thread.do(attempt, self._inbox.put, is_long=is_long)
        if outcome is not None:
            self._inbox.put(outcome)


class _Judging:
    """The node's port to the judge, which asks Spark and may be slow."""

    def __init__(self, judge: Judge, inbox: Inbox) -> None:
        self._judge = judge
        self._inbox = inbox
        self.worker = Worker("clonos-causal-judge")

    def __call__(self, scope: str, batch: int) -> None:
        self.worker.do(lambda: self._do(scope, batch))

    def _do(self, scope: str, batch: int) -> None:
        error = None
        try:
            self._judge(scope, batch)
        except ClonosError as refused:
            error = refused
        self._inbox.put(Judged(scope, batch, error))
