"""The book of answers, sans-I/O: a log per task, with owner, floor and budget.

Like any holder, it has four operations. *Fence*: :meth:`AnswerBook.open` gives the log to one
attempt of the task. A second attempt follows the log while the owner lives, and takes over when it
is gone. *Append*: only by the owner, so that the log decides between two attempts (first writer
wins). *Read*: durable chunks. *Truncate*: a micro-batch starts only when the previous one is
committed, so the first task of batch n moves the floor of its query to n.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import msgpack

from clonos.causal import errors
from clonos.causal.entries import Entry, decode_chunk
from clonos.causal.messages import AnswerKey
from clonos.errors import MalformedMessage

CHUNK_OVERHEAD: Final = 64
"""Bytes charged to the budget for each chunk, besides its content."""

SEED_BYTES: Final = 16

_SEED, _CHUNK, _TRUNCATE = range(3)


@dataclass(slots=True)
class TaskLog:
    """One task's log. ``durable``: the number of chunks that others may read; ``record``: the
    number of its last journal record."""

    chunks: list[bytes] = field(default_factory=list)
    executions: list[str] = field(default_factory=list)
    durable: int = 0
    record: int = 0
    owner: object | None = None
    attempt: str = ""
    process: str = ""


@dataclass(slots=True)
class Scope:
    """A query or run. ``newest``: the batch that began last, which is the floor; ``record``: the
    number of the scope's own last journal record."""

    seed: bytes
    newest: int = -1
    record: int = 0
    logs: dict[AnswerKey, TaskLog] = field(default_factory=dict)


@dataclass(slots=True)
class _Index:
    """Answers of all partitions of an operator by digest, in order of arrival."""

    read: dict[int, int] = field(default_factory=dict)
    found: dict[bytes, list[tuple[int, str, Entry]]] = field(default_factory=dict)


class AnswerBook:
    """Holds the logs of all tasks of a job.

    Parameters
    ----------
    bytes_max
        The largest size; beyond it answers are refused with
        :class:`~clonos.errors.causal.LogFull`.
    new_seed
        Draws the seed of a scope's random numbers.

    Attributes
    ----------
    made, taken, durable
        The numbers of journal records that were made, handed to the journal, and are durable.

    Examples
    --------
    >>> book = AnswerBook(1 << 20, lambda: bytes(16))
    >>> key, me = AnswerKey("query", 0, "enrich", 3), object()
    >>> book.open(me, key, "attempt 1", "process 1")
    (True, 0)
    >>> book.append(me, key, "execution 1", b"...")
    >>> book.open(object(), key, "attempt 2", "process 2")
    (False, 1)
    """

    def __init__(self, bytes_max: int, new_seed: Callable[[], bytes]) -> None:
        self.bytes_max = bytes_max
        self.nbytes = 0
        self._new_seed = new_seed
        self._scopes: dict[str, Scope] = {}
        self._indexes: dict[tuple[str, int, str], _Index] = {}
        self.made = self.taken = self.durable = 0
        self._records: list[bytes] = []
        self._staged: list[TaskLog] = []
        self._written: list[TaskLog] = []

    # --- operations ---------------------------------------------------------------------------

    def open(
        self,
        session: object,
        key: AnswerKey,
        attempt: str,
        process: str,
        *,
        take_over: bool = False,
    ) -> tuple[bool, int]:
        """An attempt begins; returns whether it owns the log now, and the log's length.

        If the same process of the same attempt opens the log again, it simply goes on, even if the
        end of its earlier session is not known yet.
        """
        scope = self._scope(key)
        log = scope.logs.setdefault(key, TaskLog())
        goes_on = (log.attempt, log.process) == (attempt, process)
        if log.owner is not None and log.owner is not session and not (take_over or goes_on):
            if log.attempt == attempt:
                raise errors.used_twice(key)
            return False, len(log.chunks)
        log.owner, log.attempt, log.process = session, attempt, process
        return True, len(log.chunks)

    def append(self, session: object, key: AnswerKey, execution: str, chunk: bytes) -> None:
        """Stage a chunk; it counts once the records of :meth:`take_records` are durable."""
        log = self.find(key)
        if log is None or log.owner is not session:
            self._check_floor(key)
            raise errors.fenced(key)
        size = len(chunk) + CHUNK_OVERHEAD
        if self.nbytes + size > self.bytes_max:
            raise errors.full(key, len(chunk), self.nbytes, self.bytes_max)
        self._add(log, execution, chunk)
        self._staged.append(log)
        log.record = self._write(_CHUNK, tuple(key), execution, chunk)

    def read(self, key: AnswerKey, since: int) -> list[bytes]:
        """The durable chunks from number `since` on."""
        log = self.find(key)
        return [] if log is None else log.chunks[since : log.durable]

    def owner(self, key: AnswerKey) -> object | None:
        """The session that may append to this log."""
        log = self.find(key)
        return None if log is None else log.owner

    def close(self, session: object, key: AnswerKey) -> None:
        """An attempt has ended; its log waits for the next one."""
        log = self.find(key)
        if log is not None and log.owner is session:
            log.owner = None

    def leave(self, session: object) -> None:
        """A process is gone, with all its attempts."""
        for scope in self._scopes.values():
            for log in scope.logs.values():
                if log.owner is session:
                    log.owner = None

    def truncate(self, scope: str, below: int | None) -> None:
        """Forget committed batches; the whole scope if `below` is None."""
        record = self._write(_TRUNCATE, scope, below)
        self._truncate(scope, below)
        if scope in self._scopes:
            self._scopes[scope].record = record

    def seed(self, key: AnswerKey) -> bytes:
        """The seed of a scope's random numbers."""
        return self._scopes[key.scope].seed

    # --- answers of other partitions ----------------------------------------------------------

    def is_shared(self, key: AnswerKey, execution: str) -> bool:
        """Whether earlier executions have logged answers in other partitions of this operator."""
        return any(
            other.partition != key.partition
            and other.operator == key.operator
            and log.executions[:1] not in ([], [execution])  # the earlier ones come first
            for other, log in self._scopes[key.scope].logs.items()
            if other.batch == key.batch
        )

    def lookup(self, key: AnswerKey, execution: str, digest: bytes, rank: int) -> Entry | None:
        """The `rank`-th answer to a question in other partitions, by earlier executions."""
        index = self._indexes.setdefault((key.scope, key.batch, key.operator), _Index())
        scope = self._scopes.get(key.scope)
        for other, log in scope.logs.items() if scope else ():
            if (other.batch, other.operator) == (key.batch, key.operator):
                read = index.read.get(other.partition, 0)
                for number in range(read, log.durable):
                    for entry in decode_chunk(log.chunks[number]):
                        answer = (other.partition, log.executions[number], entry)
                        index.found.setdefault(entry.digest, []).append(answer)
                index.read[other.partition] = log.durable
        answers = [
            entry
            for partition, by, entry in index.found.get(digest, ())
            if by != execution and partition != key.partition
        ]
        return answers[rank] if rank < len(answers) else None

    # --- durability ---------------------------------------------------------------------------

    def depends(self, key: AnswerKey) -> int:
        """The last record on which a task depends that has opened this log."""
        scope = self._scopes[key.scope]
        return max(scope.record, scope.logs[key].record)

    def take_records(self) -> list[bytes]:
        """The records to write next; :meth:`committed` confirms them."""
        records, self._records = self._records, []
        self._written += self._staged  # a write that failed is repeated
        self._staged = []
        self.taken = self.made
        return records

    def committed(self) -> None:
        """All records taken are durable."""
        for log in self._written:  # each log occurs once per chunk
            log.durable += 1
        self._written = []
        self.durable = self.taken

    def snapshot(self) -> Iterator[bytes]:
        """Records that restore the whole content."""
        for name, scope in self._scopes.items():
            yield msgpack.packb((_SEED, name, scope.seed, scope.newest))
            for key, log in scope.logs.items():
                for execution, chunk in zip(log.executions, log.chunks, strict=True):
                    yield msgpack.packb((_CHUNK, tuple(key), execution, chunk))

    def recover(self, records: Iterable[bytes]) -> None:
        """Restore the content from a journal."""
        try:
            for record in records:
                self._replay(*msgpack.unpackb(record, use_list=False))
        except (ValueError, TypeError, KeyError, msgpack.UnpackException) as error:
            raise MalformedMessage(f"the journal holds no log of answers: {error}") from error

    def _replay(self, kind: int, name: Any, *rest: Any) -> None:
        if kind == _SEED:
            seed, newest = rest
            known = self._scopes.setdefault(name, Scope(seed))
            known.newest = newest
        elif kind == _TRUNCATE:
            self._truncate(name, *rest)
        else:
            key = AnswerKey(*name)
            log = self._scopes[key.scope].logs.setdefault(key, TaskLog())
            self._add(log, *rest)
            log.durable += 1

    # --- inside -------------------------------------------------------------------------------

    def _write(self, *fields: Any) -> int:
        self._records.append(msgpack.packb(fields))
        self.made += 1
        return self.made

    def _add(self, log: TaskLog, execution: str, chunk: bytes) -> None:
        log.chunks.append(chunk)
        log.executions.append(execution)
        self.nbytes += len(chunk) + CHUNK_OVERHEAD

    def find(self, key: AnswerKey) -> TaskLog | None:
        """The log of a task, if it has one."""
        scope = self._scopes.get(key.scope)
        return None if scope is None else scope.logs.get(key)

    def _scope(self, key: AnswerKey) -> Scope:
        scope = self._scopes.get(key.scope)
        if scope is None:
            scope = self._scopes[key.scope] = Scope(self._new_seed())
        self._check_floor(key)
        if key.batch > scope.newest:
            scope.newest = key.batch
            scope.record = self._write(_SEED, key.scope, scope.seed, scope.newest)
            if any(known.batch < key.batch for known in scope.logs):
                self.truncate(key.scope, key.batch)
        return scope

    def _check_floor(self, key: AnswerKey) -> None:
        scope = self._scopes.get(key.scope)
        if scope is not None and key.batch < scope.newest:
            raise errors.below_floor(key, scope.newest)

    def _truncate(self, name: str, below: int | None) -> None:
        scope = self._scopes.get(name)
        if scope is None:
            return
        for key in [p for p in scope.logs if below is None or p.batch < below]:
            log = scope.logs.pop(key)
            self.nbytes -= sum(len(chunk) + CHUNK_OVERHEAD for chunk in log.chunks)
        if below is None:
            del self._scopes[name]
        for index in [k for k in self._indexes if k[0] == name and (below is None or k[1] < below)]:
            del self._indexes[index]
