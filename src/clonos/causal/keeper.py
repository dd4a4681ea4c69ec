"""The house-keeper's book of answers, sans-I/O: a log per task, with owner, floor and budget.

The four verbs are those of any holder. *Fence*: :meth:`Keeper.open` gives the log to one attempt of
the task; an attempt that comes while the owner lives follows it, and takes over when it is
gone. *Append*: the owner only, so that the log decides between two attempts (first writer wins).
*Read*: what is durable. *Truncate*: a micro-batch is started only when the one before it is
committed, so the first task of batch n puts the floor of its query there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import msgpack

from clonos.causal import errors
from clonos.causal.entries import Entry, decode_chunk
from clonos.causal.messages import Place
from clonos.errors import MalformedMessage

CHUNK_OVERHEAD: Final = 64
"""Bytes that the budget is charged for a chunk besides its own."""

SEED_BYTES: Final = 16

_SEED, _CHUNK, _TRUNCATE = range(3)


@dataclass(slots=True)
class TaskLog:
    """One task's log; ``durable`` chunks of it may be read by others."""

    chunks: list[bytes] = field(default_factory=list)
    executions: list[str] = field(default_factory=list)
    durable: int = 0
    owner: object | None = None
    attempt: str = ""
    process: str = ""


@dataclass(slots=True)
class Scope:
    """A query or run. ``newest`` is the batch that was begun last: its floor."""

    seed: bytes
    newest: int = -1
    logs: dict[Place, TaskLog] = field(default_factory=dict)


@dataclass(slots=True)
class _Index:
    """Answers of all partitions of an operator by digest, in the order in which they came."""

    read: dict[int, int] = field(default_factory=dict)
    found: dict[bytes, list[tuple[int, str, Entry]]] = field(default_factory=dict)


class Keeper:
    """Holds the logs of all tasks of a job.

    Parameters
    ----------
    bytes_max
        More is refused with :class:`~clonos.causal.errors.LogFull`.
    new_seed
        Draws the seed of a scope's random numbers, once.

    Examples
    --------
    >>> keeper = Keeper(1 << 20, lambda: bytes(16))
    >>> place, me = Place("query", 0, "enrich", 3), object()
    >>> keeper.open(me, place, "attempt 1", "process 1")
    (True, 0)
    >>> keeper.append(me, place, "execution 1", b"...")
    >>> keeper.open(object(), place, "attempt 2", "process 2")
    (False, 1)
    """

    def __init__(self, bytes_max: int, new_seed: Callable[[], bytes]) -> None:
        self.bytes_max = bytes_max
        self.nbytes = 0
        self._new_seed = new_seed
        self._scopes: dict[str, Scope] = {}
        self._indexes: dict[tuple[str, int, str], _Index] = {}
        self._records: list[bytes] = []
        self._staged: list[TaskLog] = []

    # --- the verbs ----------------------------------------------------------------------------

    def open(
        self,
        session: object,
        place: Place,
        attempt: str,
        process: str,
        *,
        take_over: bool = False,
    ) -> tuple[bool, int]:
        """An attempt begins; says whether it owns the log now, and the log's length.

        A session that ended is known by then, or not yet: the same process of the same attempt
        simply goes on.
        """
        scope = self._scope(place)
        log = scope.logs.setdefault(place, TaskLog())
        goes_on = (log.attempt, log.process) == (attempt, process)
        if log.owner is not None and log.owner is not session and not (take_over or goes_on):
            if log.attempt == attempt:
                raise errors.OperatorUsedTwice(
                    f"two processes of one task attempt ask as {place}",
                    remedy="give one of the two functions that you hand to Spark another name: "
                    'causal.operator(fn, name="...")',
                )
            return False, len(log.chunks)
        log.owner, log.attempt, log.process = session, attempt, process
        return True, len(log.chunks)

    def append(self, session: object, place: Place, execution: str, chunk: bytes) -> None:
        """Stage a chunk: it counts when what :meth:`take_records` gives is durable."""
        log = self.find(place)
        if log is None or log.owner is not session:
            self._check_floor(place)
            raise errors.Fenced(
                f"another attempt has taken over {place}",
                remedy="nothing: this attempt ends, the other one goes on with the same answers",
            )
        size = len(chunk) + CHUNK_OVERHEAD
        if self.nbytes + size > self.bytes_max:
            raise errors.LogFull(
                f"{place} has {len(chunk)} bytes more, and {self.nbytes} of {self.bytes_max} bytes "
                "are in use",
                remedy="let batches be smaller, end finished runs (log.done()), give more "
                "(causal.start(bytes_max=...)) or a PostgreSQL store",
            )
        self._add(log, execution, chunk)
        self._staged.append(log)
        self._write(_CHUNK, tuple(place), execution, chunk)

    def read(self, place: Place, since: int) -> list[bytes]:
        """The durable chunks from number `since` on."""
        log = self.find(place)
        return [] if log is None else log.chunks[since : log.durable]

    def length(self, place: Place) -> int:
        """How many chunks a log has, durable or not."""
        log = self.find(place)
        return 0 if log is None else len(log.chunks)

    def owner(self, place: Place) -> object | None:
        """Who may append to this log."""
        log = self.find(place)
        return None if log is None else log.owner

    def close(self, session: object, place: Place) -> None:
        """An attempt has ended; its log waits for the next one."""
        log = self.find(place)
        if log is not None and log.owner is session:
            log.owner = None

    def leave(self, session: object) -> None:
        """A process is gone, and with it all its attempts."""
        for scope in self._scopes.values():
            for log in scope.logs.values():
                if log.owner is session:
                    log.owner = None

    def truncate(self, scope: str, below: int | None) -> None:
        """Forget batches that are committed; the whole scope if `below` is None."""
        self._write(_TRUNCATE, scope, below)
        self._truncate(scope, below)

    def seed(self, place: Place) -> bytes:
        """The seed of a scope's random numbers."""
        return self._scopes[place.scope].seed

    # --- answers of other partitions ----------------------------------------------------------

    def is_shared(self, place: Place, execution: str) -> bool:
        """Whether an earlier execution has asked in other partitions of this operator."""
        return any(
            other.partition != place.partition
            and other.operator == place.operator
            and log.executions[:1] not in ([], [execution])  # the earlier ones come first
            for other, log in self._scopes[place.scope].logs.items()
            if other.batch == place.batch
        )

    def lookup(self, place: Place, execution: str, digest: bytes, rank: int) -> Entry | None:
        """The `rank`-th answer to a question that other partitions had in earlier executions."""
        index = self._indexes.setdefault((place.scope, place.batch, place.operator), _Index())
        scope = self._scopes.get(place.scope)
        for other, log in scope.logs.items() if scope else ():
            if (other.batch, other.operator) == (place.batch, place.operator):
                read = index.read.get(other.partition, 0)
                for number in range(read, log.durable):
                    for entry in decode_chunk(log.chunks[number]):
                        answer = (other.partition, log.executions[number], entry)
                        index.found.setdefault(entry.digest, []).append(answer)
                index.read[other.partition] = log.durable
        answers = [
            entry
            for partition, by, entry in index.found.get(digest, ())
            if by != execution and partition != place.partition
        ]
        return answers[rank] if rank < len(answers) else None

    # --- durability ---------------------------------------------------------------------------

    @property
    def has_records(self) -> bool:
        """Whether something waits to be written."""
        return bool(self._records)

    def take_records(self) -> tuple[list[bytes], list[TaskLog]]:
        """What has to be written, and what of it is told to :meth:`committed` afterwards."""
        records, self._records = self._records, []
        staged, self._staged = self._staged, []
        return records, staged

    @staticmethod
    def committed(staged: Iterable[TaskLog]) -> None:
        """The records are durable (each log is there once per chunk)."""
        for log in staged:
            log.durable += 1

    def snapshot(self) -> Iterator[bytes]:
        """Records that stand for everything that is held."""
        for name, scope in self._scopes.items():
            yield msgpack.packb((_SEED, name, scope.seed, scope.newest))
            for place, log in scope.logs.items():
                for execution, chunk in zip(log.executions, log.chunks, strict=True):
                    yield msgpack.packb((_CHUNK, tuple(place), execution, chunk))

    def recover(self, records: Iterable[bytes]) -> None:
        """Take up what a journal holds."""
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
            place = Place(*name)
            log = self._scopes[place.scope].logs.setdefault(place, TaskLog())
            self._add(log, *rest)
            log.durable += 1

    # --- inside -------------------------------------------------------------------------------

    def _write(self, *fields: Any) -> None:
        self._records.append(msgpack.packb(fields))

    def _add(self, log: TaskLog, execution: str, chunk: bytes) -> None:
        log.chunks.append(chunk)
        log.executions.append(execution)
        self.nbytes += len(chunk) + CHUNK_OVERHEAD

    def find(self, place: Place) -> TaskLog | None:
        """The log of a task, if it has one."""
        scope = self._scopes.get(place.scope)
        return None if scope is None else scope.logs.get(place)

    def _scope(self, place: Place) -> Scope:
        scope = self._scopes.get(place.scope)
        if scope is None:
            scope = self._scopes[place.scope] = Scope(self._new_seed())
        self._check_floor(place)
        if place.batch > scope.newest:
            scope.newest = place.batch
            self._write(_SEED, place.scope, scope.seed, scope.newest)
            if any(known.batch < place.batch for known in scope.logs):
                self.truncate(place.scope, place.batch)
        return scope

    def _check_floor(self, place: Place) -> None:
        scope = self._scopes.get(place.scope)
        if scope is not None and place.batch < scope.newest:
            raise errors.BelowFloor(
                f"{place} asks, but batch {scope.newest} has begun: this one was committed",
                remedy="if it is a leftover of a lost executor, nothing; if you have reset the "
                "query's checkpoint, tell the log: log.forget(query_id)",
            )

    def _truncate(self, name: str, below: int | None) -> None:
        scope = self._scopes.get(name)
        if scope is None:
            return
        for place in [p for p in scope.logs if below is None or p.batch < below]:
            log = scope.logs.pop(place)
            self.nbytes -= sum(len(chunk) + CHUNK_OVERHEAD for chunk in log.chunks)
        if below is None:
            del self._scopes[name]
        for key in [k for k in self._indexes if k[0] == name and (below is None or k[1] < below)]:
            del self._indexes[key]
