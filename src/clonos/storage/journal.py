"""The durable append file of the house-keeper.

Records are appended to a group in memory; :meth:`Journal.commit` writes the group as one *frame*
with one write and one ``fdatasync``. A frame is all or nothing: it is what a crash can leave half
written.

There is one segment file at a time, ``<number>.journal``. It begins with a preamble and a frame
with the *head*, the snapshot that stands for everything before it. :meth:`Journal.rotate` writes
the next segment under another name, makes it durable and only then gives it its name, so a preamble
and a head are never torn. Layout, little-endian::

    preamble: magic "CLONJRNL" | version u32 | salt u64 | seq u64 | xxh3_64 u64
    frame:    mark C1 "JRN" | records u32 | bytes u64 | seq u64 | xxh3_64 u64 | body
    body:     lengths of the records u32... | records...

``seq`` is the number of the frame's first record over the whole life of the journal. The salt is
drawn for each segment and seeds its checksums, so that a record which happens to contain a frame
(of this or another journal) never passes for one.

After a crash the last frame may be torn: it was never committed and is cut. A bad frame *before* a
good one cannot come from a crash, as a frame is begun only when the one before is on the disk: it
is damage, and an error. (Damage to the very last frame looks like a torn one: no file can tell.)

Local filesystems only: network filesystems keep neither the lock nor the order of writes.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple

from xxhash import xxh3_64_intdigest

from clonos.errors import ClonosError, ProtocolError
from clonos.storage.files import UNFINISHED, Durability, sync_directory, write_atomically

RECORD_BYTES_MAX: Final = (1 << 32) - 1
"""The length of a record is written as 32 bits."""

_MAGIC: Final = b"CLONJRNL"
_VERSION: Final = 2
_PREAMBLE: Final = struct.Struct("<8sIQQ")
_MARK: Final = b"\xc1JRN"
_FRAME: Final = struct.Struct("<4sIQQ")
_CHECKSUM: Final = struct.Struct("<Q")
_SUFFIX: Final = ".journal"


class UnreadableJournal(ClonosError):
    """A journal's file is damaged before its end, or of another version."""


class JournalInUse(ClonosError):
    """Another process (or this one, twice) writes this journal."""


class JournalBroken(ClonosError):
    """A write failed: what is on the disk is unknown until the journal is opened again."""


class _Frame(NamedTuple):
    """Where a frame's parts are in its file."""

    seq: int
    records: int
    body_at: int
    end: int


class _Segment(NamedTuple):
    """A checked segment file: its salt, where its frames are, and what follows them."""

    salt: int
    frames: tuple[_Frame, ...]
    end: int
    next_seq: int


class Journal:
    """Append, commit, replay; one writer at a time, on a local filesystem.

    Opening it takes the lock, checks the whole segment and cuts a torn tail. Not for use by
    several threads, nor after a fork.

    Parameters
    ----------
    directory
        Made if it does not exist. Only the journal's files are in it.
    durability
        ``"fsync"``: a committed record survives the machine. ``"process"``: only the death of the
        process (one write, nothing is waited for).

    Attributes
    ----------
    next_seq
        Number of the next record, counted from 0 over the life of the journal, heads included.
    nbytes
        Size of the segment: when to rotate is the caller's choice.

    Raises
    ------
    JournalInUse
        Someone else has it open.
    UnreadableJournal
        It is damaged elsewhere than at its end.

    Examples
    --------
    >>> import tempfile
    >>> directory = tempfile.mkdtemp()
    >>> with Journal(directory) as journal:
    ...     journal.append([b"one", b"two"])
    ...     journal.commit()
    ...     journal.append([b"never committed"])
    >>> with Journal(directory) as journal:
    ...     list(journal.replay())
    [b'one', b'two']
    """

    def __init__(self, directory: str | Path, durability: Durability = "fsync") -> None:
        self._directory = Path(directory)
        self._durability = durability
        self._buffered: list[bytes] = []
        self._fd = -1
        self._broken: JournalBroken | None = None
        self._directory.mkdir(parents=True, exist_ok=True)
        sync_directory(self._directory.parent)
        self._lock_fd = _lock(self._directory / "lock")
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        for leftover in self._directory.glob(f"*{UNFINISHED}"):
            leftover.unlink()
        numbers = sorted(int(path.stem) for path in self._directory.glob(f"*{_SUFFIX}"))
        if not numbers:
            self._start_segment(1, 0, ())
            return
        self._number = numbers[-1]
        path = self._path(self._number)
        segment = _check(path)
        self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        if os.fstat(self._fd).st_size > segment.end:
            os.ftruncate(self._fd, segment.end)
            os.fsync(self._fd)
        self._salt, self.nbytes, self.next_seq = segment.salt, segment.end, segment.next_seq
        self._delete_older()

    def _path(self, number: int) -> Path:
        return self._directory / f"{number:012d}{_SUFFIX}"

    def append(self, records: Sequence[bytes]) -> None:
        """Add records to the group that the next :meth:`commit` writes."""
        self._usable()
        self._check_lengths(records)
        self._buffered.extend(records)

    def commit(self) -> None:
        """Write the group; when this returns, it is durable as a whole.

        Raises
        ------
        JournalBroken
            The disk refused. Open the journal again to learn what it holds.
        """
        self._usable()
        if not self._buffered:
            return
        frame = _frame(self.next_seq, self._buffered, self._salt)
        try:
            _write_all(self._fd, frame)
            if self._durability == "fsync":
                os.fdatasync(self._fd)
        except OSError as error:
            # After a failed write or sync the kernel may have dropped what was not written, and
            # say that all is well the next time: nothing may follow in this file.
            raise self._break(error) from error
        self.nbytes += len(frame)
        self.next_seq += len(self._buffered)
        self._buffered.clear()

    def replay(self) -> Iterator[bytes]:
        """Every committed record in order: the head of the segment and what came after it."""
        self._usable()
        path = self._path(self._number)
        segment = _check(path, self.nbytes)
        with path.open("rb") as file:
            for frame in segment.frames:
                file.seek(frame.body_at)
                yield from _split(file.read(frame.end - frame.body_at), frame.records)

    def rotate(self, head: Sequence[bytes]) -> None:
        """Start a new segment that begins with `head`, and forget the one before.

        `head` stands for everything appended until now, uncommitted records included. It is durable
        when this returns; until then a crash leaves the old segment.
        """
        self._usable()
        self._check_lengths(head)
        old_fd = self._fd
        try:
            self._start_segment(self._number + 1, self.next_seq, head)
        except OSError as error:
            # The new segment may have its name already, and then it is the one that counts.
            raise self._break(error) from error
        os.close(old_fd)
        self._buffered.clear()
        self._delete_older()

    def _start_segment(self, number: int, seq: int, head: Sequence[bytes]) -> None:
        salt = secrets.randbits(64)
        preamble = _PREAMBLE.pack(_MAGIC, _VERSION, salt, seq)
        checksum = _CHECKSUM.pack(xxh3_64_intdigest(preamble))
        content = preamble + checksum + _frame(seq, head, salt)
        path = self._path(number)

        def write(unfinished: Path) -> None:
            unfinished.write_bytes(content)

        # Durable whatever the setting: it replaces what was durable before, and is rare.
        write_atomically(path, write, "fsync")
        self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        self._number, self._salt = number, salt
        self.nbytes, self.next_seq = len(content), seq + len(head)

    def _delete_older(self) -> None:
        for path in self._directory.glob(f"*{_SUFFIX}"):
            if int(path.stem) < self._number:
                path.unlink()

    def _check_lengths(self, records: Sequence[bytes]) -> None:
        for record in records:
            if len(record) > RECORD_BYTES_MAX:
                raise ProtocolError(
                    f"a record of {len(record)} bytes is longer than {RECORD_BYTES_MAX}",
                    where=str(self._directory),
                    remedy="use smaller batches",
                )

    def _usable(self) -> None:
        if self._broken is not None:
            raise self._broken
        if self._fd < 0:
            raise ProtocolError("the journal is closed", where=str(self._directory))

    def _break(self, cause: OSError) -> JournalBroken:
        self._broken = JournalBroken(
            f"the journal could not be written: {cause}",
            where=str(self._directory),
            remedy="see to the disk, then start the job again: it recovers from what is there",
        )
        return self._broken

    def close(self) -> None:
        """Give up the lock. Records not committed are gone."""
        for descriptor in (self._fd, self._lock_fd):
            if descriptor >= 0:
                os.close(descriptor)
        self._fd = self._lock_fd = -1

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _lock(path: Path) -> int:
    """Take the lock; it goes with the process, however that ends."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # flock, not lockf: it also refuses a second journal of the same process.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.read(descriptor, 32).decode(errors="replace") or "unknown"
        os.close(descriptor)
        raise JournalInUse(
            f"another journal has it open (process {holder})",
            where=str(path.parent),
            remedy="stop the other driver, or give this job a directory of its own",
        ) from error
    os.ftruncate(descriptor, 0)
    os.write(descriptor, str(os.getpid()).encode())
    return descriptor


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _frame(seq: int, records: Sequence[bytes], salt: int) -> bytes:
    lengths = struct.pack(f"<{len(records)}I", *map(len, records))
    body = b"".join((lengths, *records))
    head = _FRAME.pack(_MARK, len(records), len(body), seq)
    return b"".join((head, _CHECKSUM.pack(_checksum(head, body, salt)), body))


def _checksum(head: bytes, body: bytes | memoryview, salt: int) -> int:
    # The head is mixed in as the seed: the body, which may be large, is hashed where it lies.
    return xxh3_64_intdigest(body, seed=xxh3_64_intdigest(head, seed=salt))


def _check(path: Path, size: int | None = None) -> _Segment:
    """Check a segment (its first `size` bytes); raises on damage, stops at a torn tail."""
    with path.open("rb") as file:
        actual = os.fstat(file.fileno()).st_size
        preamble_bytes = _PREAMBLE.size + _CHECKSUM.size
        if actual < preamble_bytes:
            raise _unreadable(path, 0, "its preamble is missing")
        with (
            mmap.mmap(file.fileno(), size or actual, access=mmap.ACCESS_READ) as data,
            memoryview(data) as view,
        ):
            preamble = bytes(view[: _PREAMBLE.size])
            magic, version, salt, seq = _PREAMBLE.unpack(preamble)
            (checksum,) = _CHECKSUM.unpack_from(view, _PREAMBLE.size)
            if magic != _MAGIC or checksum != xxh3_64_intdigest(preamble):
                raise _unreadable(path, 0, "its preamble is damaged")
            if version != _VERSION:
                raise _unreadable(path, 0, f"it has format version {version}, not {_VERSION}")
            frames: list[_Frame] = []
            offset = preamble_bytes
            while (frame := _frame_at(view, offset, salt)) and frame.seq == seq:
                frames.append(frame)
                offset, seq = frame.end, seq + frame.records
            if not frames:
                raise _unreadable(path, offset, "its head is damaged")
            if _good_frame_after(data, view, offset, salt):
                raise _unreadable(path, offset, "it is damaged there, and good records follow")
    return _Segment(salt, tuple(frames), offset, seq)


def _frame_at(view: memoryview, offset: int, salt: int) -> _Frame | None:
    """The good frame that begins at `offset`, if one does."""
    body_at = offset + _FRAME.size + _CHECKSUM.size
    if body_at > len(view):
        return None
    head = bytes(view[offset : offset + _FRAME.size])
    mark, records, nbytes, seq = _FRAME.unpack(head)
    if mark != _MARK or nbytes > len(view) - body_at or 4 * records > nbytes:
        return None
    (checksum,) = _CHECKSUM.unpack_from(view, offset + _FRAME.size)
    if checksum != _checksum(head, view[body_at : body_at + nbytes], salt):
        return None
    return _Frame(seq, records, body_at, body_at + nbytes)


def _good_frame_after(data: mmap.mmap, view: memoryview, offset: int, salt: int) -> bool:
    """Does any good frame begin at or after `offset`? (The salt: no record looks like one.)"""
    at = data.find(_MARK, offset)
    while at >= 0:
        if _frame_at(view, at, salt):
            return True
        at = data.find(_MARK, at + 1)
    return False


def _split(body: bytes, records: int) -> Iterator[bytes]:
    at = 4 * records
    for length in struct.unpack_from(f"<{records}I", body):
        yield body[at : at + length]
        at += length


def _unreadable(path: Path, offset: int, why: str) -> UnreadableJournal:
    return UnreadableJournal(
        f"the journal cannot be read at byte {offset}: {why}",
        where=str(path),
        remedy="check the disk; restore the file from a copy, or start the job afresh in another "
        "directory",
    )
