"""The running task of this process, and its logs: it first reuses answers, then adds new ones.

An answer is *sent* to its log soon after it came (:data:`LINGER_S`), so that the next attempt of a
dead task has few calls to repeat. It is *durable* before any byte of output leaves the task (see
:mod:`clonos.causal.gate`), so that no output depends on an answer that could be lost. An exception
becomes an answer only at that moment: if it fails the task instead, nothing depends on it, and the
next attempt makes the call again.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from clonos.causal import errors
from clonos.causal.entries import Entry, decode_chunk, encode_chunk
from clonos.causal.holder import Holder
from clonos.causal.messages import AnswerKey, Opened
from clonos.errors.causal import BelowFloor, CausalError, Fenced, LogUnreachable

LINGER_S: Final = 0.02
LINGER_MAX_S: Final = 0.25
"""Longest time that answers are held back; if the task is killed, these calls are repeated."""

SENDING_SHARE: Final = 1 / 40
"""Share of its time that a task may spend on early sending; if slow, it sends less often."""

BEAT_S: Final = 3.0
"""Heartbeat interval of a task that has nothing else to send."""

CHUNK_BYTES_MAX: Final = 4 << 20
"""Approximate size of the pieces in which answers are appended."""

ANSWER_BYTES_MAX: Final = 64 << 20
"""Size limit of a single answer."""

REOPEN_S: Final = 10.0
"""How long a task tries to reach its log again."""


class OperatorLog:
    """The log of one operator of a task, as its current attempt sees it.

    Parameters
    ----------
    patience_s
        How long to wait for another living attempt that makes no progress.
    """

    def __init__(
        self, holder: Holder, key: AnswerKey, attempt: str, execution: str, patience_s: float
    ) -> None:
        self.key = key
        self._holder = holder
        self._attempt = attempt
        self._execution = execution
        self._patience_s = patience_s
        self._known: dict[bytes, deque[Entry]] = {}
        self._from_others: dict[bytes, int] = {}
        self._counts: dict[bytes, int] = {}
        self._fresh: deque[Entry] = deque()
        self._held: list[Entry] = []
        self._chunks = 0
        self._broken: Exception | None = None
        self._lock = threading.RLock()
        self._open()

    def _open(self, *, take_over: bool = False) -> Opened:
        opened = self._holder.open(self.key, self._attempt, self._execution, take_over=take_over)
        while self._chunks < opened.length:
            chunks = self._holder.read(self.key, self._chunks).chunks
            if not chunks:
                raise BelowFloor(
                    f"the log of {self.key} was truncated while it was read: its batch has been "
                    "committed",
                    remedy="nothing: this attempt is a leftover",
                )
            self._absorb(chunks)
        self.is_owner, self.seed, self._shared = opened.owner, opened.seed, opened.shared
        return opened

    def _absorb(self, chunks: tuple[bytes, ...]) -> None:
        for chunk in chunks:
            for entry in decode_chunk(chunk):
                self._known.setdefault(entry.digest, deque()).append(entry)
        self._chunks += len(chunks)

    # --- reuse --------------------------------------------------------------------------------

    def take(self, digest: bytes, *, anywhere: bool = True) -> Entry | None:
        """The next logged answer to a question; None if the call must be made.

        Parameters
        ----------
        anywhere
            Also look among answers of other partitions in earlier executions.
        """
        entry = self._next(digest)
        if entry is None and not self.is_owner:
            entry = self._follow(digest)
        if entry is None and self._shared and anywhere:
            with self._lock:
                rank = self._from_others.get(digest, 0)
                entry = self._holder.lookup(self.key, self._execution, digest, rank)
                if entry is not None:
                    self._from_others[digest] = rank + 1
                    self._fresh.append(entry)  # so that this log has it the next time
        return entry

    def _next(self, digest: bytes) -> Entry | None:
        waiting = self._known.get(digest)
        try:
            return waiting.popleft() if waiting else None
        except IndexError:  # another thread of this task was faster
            return None

    def _follow(self, digest: bytes) -> Entry | None:
        """Wait for an answer of the attempt that owns the log, or for its end."""
        with self._lock:
            progress_s = time.monotonic()
            while not self.is_owner:
                news = self._holder.read(self.key, self._chunks, wait_s=1.0)
                self._absorb(news.chunks)
                entry = self._next(digest)
                if entry is not None:
                    return entry
                if news.chunks:
                    progress_s = time.monotonic()
                elif news.is_free or time.monotonic() - progress_s > self._patience_s:
                    self._open(take_over=not news.is_free)
            return self._next(digest)

    def count(self, what: bytes) -> int:
        """How often this attempt has counted `what` before."""
        with self._lock:
            counted = self._counts[what] = self._counts.get(what, 0) + 1
        return counted - 1

    # --- add ----------------------------------------------------------------------------------

    def add(self, entry: Entry) -> None:
        """Keep an answer."""
        self._fresh.append(entry)

    def send(self, *, failures: bool) -> None:
        """Make kept answers durable; exceptions only with `failures`."""
        with self._lock:
            self.check()
            entries = [*self._held, *_drain(self._fresh)]
            self._held = []
            if not failures:
                entries, self._held = _split(entries)
            try:
                for chunk in _chunks(entries):
                    self._append(chunk)
            except Exception as error:
                self._broken = error
                raise

    def check(self) -> None:
        """Raise the error for which an earlier answer could not be kept."""
        if self._broken is not None:
            raise self._broken

    def _append(self, chunk: bytes) -> None:
        try:
            self._holder.append(self.key, self._execution, chunk)
        except (LogUnreachable, Fenced):
            # The stream may have broken, and with it the ownership of the log.
            if not self._was_taken():
                self._holder.append(self.key, self._execution, chunk)
        self._chunks += 1

    def _was_taken(self) -> bool:
        """Reach the log again; returns whether the chunk whose reply is missing was appended."""
        give_up_s = time.monotonic() + REOPEN_S
        while True:
            try:
                opened = self._holder.open(self.key, self._attempt, self._execution)
                break
            except LogUnreachable:
                if time.monotonic() > give_up_s:
                    raise
                time.sleep(0.1)
        more = opened.length - self._chunks
        if not opened.owner or more not in (0, 1):
            raise errors.fenced(self.key)
        return more == 1

    def close(self) -> None:
        """Give the log up to the next attempt."""
        self._holder.close_log(self.key)


def _drain(entries: deque[Entry]) -> list[Entry]:
    drained = []
    while True:
        try:
            drained.append(entries.popleft())
        except IndexError:
            return drained


def _split(entries: list[Entry]) -> tuple[list[Entry], list[Entry]]:
    """Split entries into those that may be sent early, and failures with later answers to the same.

    Entries with the same digest must stay in order, because answers are matched by it.
    """
    early, held, failed = [], [], set()
    for entry in entries:
        if entry.ok and entry.digest not in failed:
            early.append(entry)
        else:
            failed.add(entry.digest)
            held.append(entry)
    return early, held


def _chunks(entries: list[Entry]) -> list[bytes]:
    chunks: list[bytes] = []
    first = size = 0
    for i, entry in enumerate(entries):
        size += len(entry.answer) + len(entry.digest)
        if size >= CHUNK_BYTES_MAX:
            chunks.append(encode_chunk(entries[first : i + 1]))
            first, size = i + 1, 0
    if first < len(entries):
        chunks.append(encode_chunk(entries[first:]))
    return chunks


@dataclass(eq=False)
class Task:
    """One attempt of a Spark task (or of a ``foreachBatch`` function), with its logs.

    Parameters
    ----------
    attempt, number
        The attempt's ids: a unique one for the log, and Spark's own.
    execution
        The same for all attempts and stages of one run of a query's plan.
    is_gated
        Whether output passes the gate; otherwise every answer is made durable at once.
    is_over
        Tells whether the attempt has ended, which is not reported without a gate.
    """

    holder: Holder
    scope: str
    batch: int
    partition: int
    attempt: str
    execution: str
    patience_s: float
    number: int = -1
    is_gated: bool = True
    is_over: Callable[[], bool] = lambda: False
    is_dirty: bool = False
    logs: dict[str, OperatorLog] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    last_clock_ms: int = 0

    def log(self, operator: str) -> OperatorLog:
        """The log of one of the task's operators, opened when it is first needed."""
        log = self.logs.get(operator)
        if log is None:
            with self.lock:
                log = self.logs.get(operator)
                if log is None:
                    key = AnswerKey(self.scope, self.batch, operator, self.partition)
                    log = OperatorLog(
                        self.holder, key, self.attempt, self.execution, self.patience_s
                    )
                    self.logs[operator] = log
                    flusher.watch(self)
        return log

    def keep(self, log: OperatorLog, entry: Entry) -> None:
        """Keep an answer."""
        log.check()
        log.add(entry)
        self.is_dirty = True
        if self.is_gated:
            flusher.wake()
        elif entry.ok or self.partition >= 0:
            self.settle()
        # else: on the driver a failure becomes an answer when the function goes on after it.

    def settle(self) -> None:
        """Make all answers durable: output that depends on them is about to leave."""
        self.is_dirty = False
        self.send(failures=True)

    def send(self, *, failures: bool) -> None:
        """Send new answers to the logs."""
        for log in list(self.logs.values()):
            log.send(failures=failures)

    def end(self, *, succeeded: bool) -> None:
        """The attempt is over. If it failed, the exception that failed it is not kept."""
        flusher.unwatch(self)
        try:
            self.send(failures=succeeded)
        except CausalError:
            if succeeded:
                raise
        finally:
            for log in self.logs.values():
                try:
                    log.close()
                except CausalError:
                    break  # the log cannot be reached; it notices the end by itself


class _Flusher:
    """Sends tasks' answers after a short delay, and sends heartbeats."""

    def __init__(self) -> None:
        self._tasks: set[Task] = set()
        self._news = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def watch(self, task: Task) -> None:
        with self._lock:
            self._tasks.add(task)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="clonos-causal-send", daemon=True
                )
                self._thread.start()

    def unwatch(self, task: Task) -> None:
        with self._lock:
            self._tasks.discard(task)

    def wake(self) -> None:
        if not self._news.is_set():
            self._news.set()

    def _run(self) -> None:
        linger_s = LINGER_S
        while True:
            has_news = self._news.wait(BEAT_S)
            if has_news:
                time.sleep(linger_s)
                self._news.clear()
            with self._lock:
                tasks = list(self._tasks)
                if not tasks:
                    self._thread = None
                    return
            began_s = time.monotonic()
            for task in tasks:
                _send(task, beat=not has_news)
            took_s = time.monotonic() - began_s
            linger_s = min(max(LINGER_S, took_s / SENDING_SHARE), LINGER_MAX_S)


def _send(task: Task, *, beat: bool) -> None:
    # The task itself raises any error at its next call.
    with contextlib.suppress(Exception):
        if task.is_over():
            task.end(succeeded=True)
        elif beat:
            task.holder.beat()
        else:
            task.send(failures=False)


flusher: Final = _Flusher()
