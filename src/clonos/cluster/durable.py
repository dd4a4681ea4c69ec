"""The driver's disk: the house-keeper's journal, and files of delivered output."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from clonos.columns.batches import from_bytes, kept_bytes, to_bytes
from clonos.core.history import Keep
from clonos.core.housekeeper import Deliver, HouseKeeper
from clonos.core.messages import Kind
from clonos.core.plan import Plan
from clonos.core.program import Batch
from clonos.core.version import version_of
from clonos.errors import ClonosError, JournalBroken, UnusableStore
from clonos.nodes.events import JournalFailed, OutsideFailed
from clonos.sinks.delivered import DeliveredStore
from clonos.storage.files import Disk, Durability
from clonos.storage.journal import Journal
from clonos.storage.retry import may_pass


def _encode(batch: Batch) -> bytes:
    return to_bytes(batch.payload) if batch.rows else b""


def _decode(content: bytes) -> pa.RecordBatch | None:
    return from_bytes(content) if content else None


def house_keeper(plan: Plan, keep: Keep | None = None) -> HouseKeeper:
    """A new house-keeper for Arrow batches."""
    return HouseKeeper(plan, _encode, _decode, keep)


class JournalFile:
    """A :class:`~clonos.nodes.ports.Journal` on a local disk: records are durable when a call
    returns.

    Parameters
    ----------
    directory
        It has only the journal's files. For one thread at a time, but for :meth:`close`.
    tell
        Called with failures.
    disk
        This machine's disk, unless it is simulated.
    """

    def __init__(
        self,
        directory: str | Path,
        durability: Durability,
        tell: Callable[[JournalFailed], object],
        disk: Disk | None = None,
    ) -> None:
        self._journal = Journal(directory, durability, disk)
        self._tell = tell
        self._writing, self._is_over = threading.Lock(), False

    def recover(self, keeper: HouseKeeper) -> list[Deliver]:
        """Let a new house-keeper read the file; return the outputs that the file still has."""
        return keeper.recover(self._journal.replay())

    def records(self) -> list[bytes]:
        """All records in the file."""
        return list(self._journal.replay())

    @property
    def version(self) -> int:
        """How often the plan of the job has been replaced."""
        return version_of(self._journal.replay())

    @property
    def where(self) -> str:
        """Its place, for messages."""
        return self._journal.where

    @property
    def nbytes(self) -> int:
        return self._journal.nbytes

    @property
    def next_seq(self) -> int:
        """How many records were ever written."""
        return self._journal.next_seq

    def append(self, records: Sequence[bytes]) -> bool:
        return self._write(self._append, records)

    def _append(self, records: Sequence[bytes]) -> None:
        if records:
            self._journal.append(records)
            self._journal.commit()
        else:
            self._journal.vouch()

    def prove(self) -> bool:
        return self._write(lambda _: self._journal.prove(), ())

    def rotate(self, head: Sequence[bytes]) -> bool:
        return self._write(self._journal.rotate, head)

    def _write(self, write: Callable[[Sequence[bytes]], None], records: Sequence[bytes]) -> bool:
        try:
            with self._writing:
                write(records)
        except JournalBroken as error:
            self._tell(JournalFailed(error))
            return False
        finally:
            if self._is_over:
                self.close()
        return True

    def close(self) -> None:
        """Release the lock; if a write hangs in another thread, only when it has ended. It may yet
        take effect, and the next driver has to see that."""
        self._is_over = True
        if self._writing.acquire(blocking=False):
            try:
                self._journal.close()
            finally:
                self._writing.release()


class _Output(NamedTuple):
    """What a file has of a delivered output; ``nbytes``: what that takes in memory."""

    seq: int
    payload: Any
    nbytes: int


_Fresh = tuple[tuple[int, int], list[_Output]]
"""A channel and a generation, and their delivered output."""


class DeliveredOutputs:
    """The :class:`~clonos.nodes.ports.Outputs` of a job: its consumers, and files.

    Parameters
    ----------
    tell
        Called when a consumer fails (it then gets nothing more), and when files can never be
        written.
    rows
        Makes the rows in a file from the payload of a batch: Arrow's own, unless the job is
        simulated.
    size
        Tells what a batch takes in memory.
    each
        Calls a function with each element of a list, one by one or at the same time: a disk syncs
        several files in little more time than one.
    freed
        Called when output is in files, so that it takes no memory any more.
    """

    def __init__(
        self,
        plan: Plan,
        store: DeliveredStore,
        consumers: Callable[[Deliver], object],
        tell: Callable[[OutsideFailed], object],
        rows: Callable[[Any], pa.RecordBatch] = lambda payload: payload,
        size: Callable[[Batch], int] = lambda batch: kept_bytes(batch.payload),
        each: Callable[[Callable[[_Fresh], _Fresh], list[_Fresh]], Iterable[_Fresh]] = map,
        freed: Callable[[], object] = lambda: None,
    ) -> None:
        self._plan, self._store, self._consumers, self._tell = plan, store, consumers, tell
        self._rows, self._size, self._each, self._freed = rows, size, each, freed
        self._fresh: dict[tuple[int, int], list[_Output]] = {}
        self._begun: tuple[list[_Fresh], Iterable[_Fresh]] | None = None
        self.nbytes = 0
        self._failure: ClonosError | None = None  # of a consumer
        self._is_given_up = False

    def take(self, output: Deliver) -> None:
        if self._failure is not None:
            return  # it stays in the journal: the next run begins with it
        batch = output.item.batch
        if output.item.kind is Kind.BATCH and batch is not None and batch.payload is not None:
            kept = _Output(output.item.seq, batch.payload, self._size(batch))
            self._fresh.setdefault((output.channel, output.generation), []).append(kept)
            self.nbytes += kept.nbytes
            if output.again and self._plan.leaves_gaps:
                return  # a file is written only once; a consumer would get it twice
        try:
            self._consumers(output)
        except ClonosError as error:
            self._failure = error
            self._tell(OutsideFailed(error))

    def begin_flush(self) -> None:
        with suppress(ClonosError, OSError):  # `flush` tries again, and says why not
            self._end()
            self._begin()

    def flush(self) -> ClonosError | None:
        if self._failure is not None:
            return self._failure  # what the consumer has not got is in the journal alone
        try:
            self._end()
            self._begin()
            self._end()
        except ClonosError as error:  # such as OtherContent
            return self._give_up(error)
        except OSError as error:
            failed = UnusableStore(
                f"delivered output cannot be put into files: {error}",
                where=self._store.directory,
                remedy="check the disk and the folder; delivered output is safe in the journal",
            )
            return failed if may_pass(error) else self._give_up(failed)
        return None

    def _begin(self) -> None:
        if self._fresh:
            lanes, self._fresh = list(self._fresh.items()), {}
            self._begun = lanes, self._each(self._written, lanes)

    def _end(self) -> None:
        """Wait for what was begun; if it fails, it is to be written as before."""
        if self._begun is not None:
            begun, self._begun = self._begun, None
            self._await(*begun)
            del begun
            self._freed()

    def _await(self, lanes: list[_Fresh], written: Iterable[_Fresh]) -> None:
        left = dict(lanes)
        try:
            for lane, outputs in written:
                del left[lane]
                self.nbytes -= sum(output.nbytes for output in outputs)
        finally:
            for lane, outputs in left.items():
                self._fresh[lane] = outputs + self._fresh.get(lane, [])

    def _give_up(self, error: ClonosError) -> ClonosError:
        """Waiting does not mend this: the job ends, or it would wait for ever."""
        if not self._is_given_up:
            self._is_given_up = True
            self._tell(OutsideFailed(error))
        return error

    def _written(self, fresh: _Fresh) -> _Fresh:
        (channel, generation), outputs = fresh
        task = self._plan.tasks[self._plan.channels[channel].sender]
        numbers = [output.seq for output in outputs]
        assert task.sink is not None
        self._store.write(
            task.sink,
            task.index,
            generation,
            numbers[0],
            numbers[-1],
            [self._rows(output.payload) for output in outputs],
            seqs=numbers,
        )
        return fresh
