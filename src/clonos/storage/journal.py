"""The durable append file of the house-keeper.

Records are appended to a group in memory; :meth:`Journal.commit` writes the group as one *frame*
with one write and one ``fdatasync``. A crash can tear only the last frame, and a torn frame does
not count.

There is one segment file at a time, ``<number>.journal``. It begins with a preamble and a frame
with the *head*, the snapshot that replaces everything before it. :meth:`Journal.rotate` writes the
next segment under another name, makes it durable and only then gives it its name, so a preamble and
a head are never torn. Layout, little-endian::

    preamble: magic "CLONJRNL" | version u32 | salt u64 | seq u64 | xxh3_64 u64
    frame:    mark C1 "JRN" | records u32 | bytes u64 | seq u64 | xxh3_64 u64 | body
    body:     lengths of the records u32... | records...

``seq`` is the number of the frame's first record over the whole life of the journal. The salt is
drawn for each segment and seeds its checksums, so that a record which happens to contain a frame
(of this or another journal) is never taken for one.

After a crash the last frame may be torn: it was never committed and is cut. A bad frame *before* a
good one cannot come from a crash, because a frame is begun only when the one before is on the disk:
it is damage, and an error. Damage to the very last frame would look like a torn one, and
acknowledged records would be dropped silently. So no frame stays the last one for long: when
nothing has been committed for a moment, and at the end, an empty frame *vouches* for those before
it (:meth:`Journal.vouch`). It is in the same file, so no order between two files is needed, and it
costs a busy journal nothing.

After a failed write or sync, nothing may be appended to the file: the kernel may have dropped what
was to be written, and report success the next time. The journal is *broken* until
:meth:`Journal.rotate` has made a new segment durable. What was acknowledged is in the old one,
which counts until then, whatever happens.

Local filesystems only, or a database (:mod:`clonos.storage.postgres_disk`): network filesystems
keep neither the lock nor the order of writes.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa
from xxhash import xxh3_64_intdigest

from clonos.errors import (
    ClonosError,
    JournalBroken,
    JournalInUse,
    ProtocolError,
    UnreadableJournal,
)
from clonos.storage.files import Disk, Durability, LocalFiles, Lock, Locked, Tail
from clonos.storage.folder import Folder

RECORD_BYTES_MAX: Final = (1 << 32) - 1
"""A record's length is written in 32 bits."""

_MAGIC: Final = b"CLONJRNL"
_VERSION: Final = 2
_PREAMBLE: Final = struct.Struct("<8sIQQ")
_MARK: Final = b"\xc1JRN"
_MARKS: Final = re.compile(re.escape(_MARK))
_FRAME: Final = struct.Struct("<4sIQQ")
_CHECKSUM: Final = struct.Struct("<Q")
_SUFFIX: Final = ".journal"


class Frame(NamedTuple):
    """Where a frame's parts are in its file."""

    seq: int
    records: int
    body_at: int
    end: int


class CheckedSegment(NamedTuple):
    """A checked segment file: its salt, its frames, their end, the next number, and whether it was
    vouched for."""

    salt: int
    frames: tuple[Frame, ...]
    end: int
    next_seq: int
    is_vouched: bool


class Journal:
    """Append, commit, replay; one writer at a time.

    Opening it takes the lock, checks the whole segment, and cuts a torn tail. Unless the last
    writer has vouched for its last frame, the rest is written anew into the next segment file; the
    frame that vouches is cut. Not for use by several threads, nor after a fork.

    Parameters
    ----------
    directory
        Made if it does not exist. Only the journal's files are in it.
    durability
        ``"fsync"``: a committed record survives a crash of the machine. ``"process"``: it survives
        only the death of the process (one write, no sync).
    disk
        This machine's disk, unless it is simulated.

    Attributes
    ----------
    next_seq
        Number of the next record, counted from 0 over the life of the journal, heads included.
    nbytes
        Size of the segment; the caller decides when to rotate.
    is_broken
        Whether only :meth:`rotate` is possible.

    Raises
    ------
    JournalInUse
        Another driver has it open.
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

    def __init__(
        self, directory: str | Path, durability: Durability = "fsync", disk: Disk | None = None
    ) -> None:
        self._disk: Disk = disk or LocalFiles()
        root = str(Path(directory).absolute())
        # Segments are synced with any setting: they replace what was durable, and are rare. They
        # have rows and answers, and only the user who owns the lock needs them.
        self._folder = Folder(self._disk, root, "fsync", 0o600)
        self._is_synced = durability == "fsync"
        self._buffered: list[bytes] = []
        self._tail: Tail | None = None
        self.is_broken = False
        self._disk.make_folder(root)
        self._lock: Lock | None = _lock(self._disk, root)
        try:
            self._folder.make_folder(root)  # durable; whoever is refused need not wait for that
            self._open()
        except BaseException:
            self._release()
            raise

    @property
    def where(self) -> str:
        """Its folder, and in which store."""
        return _where(self._disk, self._folder.root)

    def _open(self) -> None:
        self._folder.delete(info.path for info in self._folder.unfinished())
        numbers = self._numbers()
        if not numbers:
            self._number = 0
            self._start_segment(0, ())
            return
        self._number = numbers[-1]
        name = _name(self._number)
        segment = self._check(name)
        self._salt, self.nbytes, self.next_seq = segment.salt, segment.end, segment.next_seq
        self._is_vouched = segment.is_vouched
        path = self._folder.path(name)
        if not segment.is_vouched and self._is_synced:
            # All that is read counts from now on. Its writer may have died before a sync, or after
            # a failed one: then the kernel shows data that is on no disk, and no sync would help.
            content = _acknowledged(self._folder.read(name), segment)
            self._number += 1
            path = self._folder.path(_name(self._number))
            self._folder.put(_name(self._number), content)
        else:
            if self._is_synced and self._disk.is_local and len(segment.frames) > 1:
                # The sync of the frame that vouches may have failed; all before it are on the disk.
                self.nbytes, self._is_vouched = segment.frames[-2].end, False
            if (info := self._disk.info(path)) is not None and info.nbytes > self.nbytes:
                self._disk.truncate(path, self.nbytes)
                self._disk.sync(path)
        if self._is_synced:  # its name may be on no disk yet, and older segments go
            self._disk.sync_folder(self._folder.root)
        self._tail = self._disk.append(path)
        self._delete_older()

    def _numbers(self) -> list[int]:
        names = (info.name for info in self._folder.entries())
        return sorted(int(Path(name).stem) for name in names if name.endswith(_SUFFIX))

    def _check(self, name: str, size: int | None = None) -> CheckedSegment:
        path = self._folder.path(name)
        with memoryview(self._disk.read(path)) as view:
            return check(path, view[:size])

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
            The write has failed. Nobody knows whether the group is on the disk; see :meth:`rotate`.
        """
        self._usable()
        if self._buffered:
            self._write(self._buffered)
            self._is_vouched = False
            self._buffered.clear()

    def vouch(self) -> None:
        """Append an empty frame, so that damage to the last acknowledged frame can be told from a
        torn write. To be called when nothing has been committed for a moment.

        Raises
        ------
        JournalBroken
            See :meth:`commit`.
        """
        self._usable()
        if not self._is_vouched:
            self.prove()

    def prove(self) -> None:
        """Append an empty frame in any case, which a journal in a database does only for the holder
        of its lock.

        Raises
        ------
        JournalBroken
            See :meth:`commit`.
        """
        self._usable()
        self._write(())
        self._is_vouched = True

    def _write(self, records: Sequence[bytes]) -> None:
        assert self._tail is not None
        frame = _frame(self.next_seq, records, self._salt)
        try:
            self._tail.write(frame)
            if self._is_synced:
                self._tail.sync()
        except OSError as error:
            raise self._break(error) from error
        self.nbytes += len(frame)
        self.next_seq += len(records)

    def replay(self) -> Iterator[bytes]:
        """Every committed record in order: the head of the segment and what came after it."""
        self._usable()
        name = _name(self._number)
        segment = self._check(name, self.nbytes)
        with memoryview(self._folder.read(name)) as view:
            for frame in segment.frames:
                yield from _split(bytes(view[frame.body_at : frame.end]), frame.records)

    def rotate(self, head: Sequence[bytes]) -> None:
        """Start a new segment that begins with `head`, and forget the one before.

        `head` replaces everything appended until now, uncommitted records included. It is durable
        when this returns; until then a crash leaves the old segment. This mends a broken journal.

        Raises
        ------
        JournalBroken
            The write has failed. It can be tried again.
        """
        self._require_open()
        self._check_lengths(head)
        old = self._tail
        try:
            self._start_segment(self.next_seq, head)
        except OSError as error:
            # The new segment may have its name already, and so count.
            raise self._break(error) from error
        if old is not None:
            old.close()
        self.is_broken = False
        self._buffered.clear()
        self._delete_older()

    def _start_segment(self, seq: int, head: Sequence[bytes]) -> None:
        self._number += 1  # a number is never reused: a failed attempt may have it
        salt = secrets.randbits(64)
        preamble = _PREAMBLE.pack(_MAGIC, _VERSION, salt, seq)
        checksum = _CHECKSUM.pack(xxh3_64_intdigest(preamble))
        content = preamble + checksum + _frame(seq, head, salt)
        name = _name(self._number)
        self._folder.put(name, content)
        self._tail = self._disk.append(self._folder.path(name))
        self._salt, self._is_vouched = salt, True  # damage to a head never looks like a torn frame
        self.nbytes, self.next_seq = len(content), seq + len(head)

    def _delete_older(self) -> None:
        with contextlib.suppress(OSError):  # next time, then
            self._folder.delete(_name(n) for n in self._numbers() if n < self._number)

    def _check_lengths(self, records: Sequence[bytes]) -> None:
        for record in records:
            if len(record) > RECORD_BYTES_MAX:
                raise ProtocolError(
                    f"a record of {len(record)} bytes is longer than {RECORD_BYTES_MAX}",
                    where=self._folder.root,
                    remedy="use smaller batches",
                )

    def _require_open(self) -> None:
        if self._lock is None:
            raise ProtocolError("the journal is closed", where=self._folder.root)

    def _usable(self) -> None:
        self._require_open()
        if self.is_broken:
            raise self._broken

    def _break(self, cause: OSError) -> JournalBroken:
        self.is_broken = True
        self._broken = JournalBroken(
            f"the journal could not be written: {cause}",
            where=self.where,
            remedy=f"check {'the disk' if self._disk.is_local else 'the store'}; what was "
            "acknowledged is safe, and no more output is released",
        )
        return self._broken

    def close(self) -> None:
        """Give up the lock. Records not committed are gone."""
        if self._lock is not None and not self.is_broken:
            with contextlib.suppress(ClonosError):
                self.vouch()
        self._release()

    def _release(self) -> None:
        for held in (self._tail, self._lock):
            if held is not None:
                held.close()
        self._tail = self._lock = None

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class JournalReader:
    """Follows a journal that another process writes: each read returns what is new.

    It takes no lock and changes nothing. A segment is decoded once, and only its new end is decoded
    later; with a new segment the reader begins anew. On a local disk the segment is mapped, so the
    rest is not even read. A database or a store returns the whole segment each time.

    Attributes
    ----------
    read_bytes
        How many bytes of all segments were decoded until now.
    """

    def __init__(self) -> None:
        self._number = -1
        self._salt = self._at = self._seq = 0
        self.read_bytes = 0

    def more(self, disk: Disk, directory: str) -> tuple[bool, list[bytes]]:
        """Whether a new segment begins, whose head replaces everything before it; and the new
        records.

        Raises
        ------
        FileNotFoundError
            There is no journal, or another segment has just begun: look again.
        """
        names = (Path(info.name) for info in disk.entries(directory))
        number = max((int(n.stem) for n in names if n.suffix == _SUFFIX), default=None)
        if number is None:
            raise FileNotFoundError(directory)
        path = f"{directory}/{_name(number)}"
        with memoryview(disk.read(path)) as view:
            if number == self._number:
                return False, self._frames(view)
            segment = check(path, view)
            first = segment.frames[0]
            head = list(_split(bytes(view[first.body_at : first.end]), first.records))
            self._number, self._salt = number, segment.salt
            self._at, self._seq = first.end, first.seq + first.records
            self.read_bytes += first.end
            return True, head + self._frames(view)

    def _frames(self, view: memoryview) -> list[bytes]:
        """The records of all whole frames from the reader's position on."""
        found: list[bytes] = []
        while (frame := _frame_at(view, self._at, self._salt)) and frame.seq == self._seq:
            found += _split(bytes(view[frame.body_at : frame.end]), frame.records)
            self.read_bytes += frame.end - self._at
            self._at, self._seq = frame.end, frame.seq + frame.records
        return found


def _acknowledged(content: pa.Buffer, segment: CheckedSegment) -> bytes:
    """The part of a segment's file that counts: all but a torn tail."""
    found: bytes = content[: segment.end].to_pybytes()
    return found


def _name(number: int) -> str:
    return f"{number:012d}{_SUFFIX}"


def _lock(disk: Disk, root: str) -> Lock:
    """Take the lock. It ends with the process, however that ends."""
    me = f"{os.getpid()} on {socket.gethostname()}"
    try:
        return disk.lock(f"{root}/lock", me)
    except Locked as error:
        is_mine = str(error) == me
        who = "this process runs the job already" if is_mine else "another driver has it open"
        stop = "call stop() of the running job first" if is_mine else "stop the other driver"
        raise JournalInUse(
            f"{who} (process {error})",
            where=_where(disk, root),
            remedy=f"{stop}, or give this job a directory of its own",
        ) from error


def _where(disk: Disk, root: str) -> str:
    return f"{root} in {disk.place}" if disk.place else root


def _frame(seq: int, records: Sequence[bytes], salt: int) -> bytes:
    lengths = struct.pack(f"<{len(records)}I", *map(len, records))
    body = b"".join((lengths, *records))
    head = _FRAME.pack(_MARK, len(records), len(body), seq)
    return b"".join((head, _CHECKSUM.pack(_checksum(head, body, salt)), body))


def _checksum(head: bytes, body: bytes | memoryview, salt: int) -> int:
    # The head is the seed, so that the body, which may be large, is not copied.
    return xxh3_64_intdigest(body, seed=xxh3_64_intdigest(head, seed=salt))


def check(path: str, view: memoryview) -> CheckedSegment:
    """Check a segment; raises on damage, stops at a torn tail."""
    preamble_bytes = _PREAMBLE.size + _CHECKSUM.size
    if len(view) < preamble_bytes:
        raise _unreadable(path, 0, "its preamble is missing")
    preamble = bytes(view[: _PREAMBLE.size])
    magic, version, salt, seq = _PREAMBLE.unpack(preamble)
    (checksum,) = _CHECKSUM.unpack_from(view, _PREAMBLE.size)
    if magic != _MAGIC or checksum != xxh3_64_intdigest(preamble):
        raise _unreadable(path, 0, "its preamble is damaged")
    if version != _VERSION:
        raise _unreadable(path, 0, f"it has format version {version}, not {_VERSION}")
    frames: list[Frame] = []
    offset = preamble_bytes
    while (frame := _frame_at(view, offset, salt)) and frame.seq == seq:
        frames.append(frame)
        offset, seq = frame.end, seq + frame.records
    if not frames:
        raise _unreadable(path, offset, "its head is damaged")
    if _good_frame_after(view, offset, salt):
        raise _unreadable(path, offset, "it is damaged there, and good records follow")
    is_vouched = len(frames) == 1 or not frames[-1].records
    return CheckedSegment(salt, tuple(frames), offset, seq, is_vouched)


def _frame_at(view: memoryview, offset: int, salt: int) -> Frame | None:
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
    return Frame(seq, records, body_at, body_at + nbytes)


def _good_frame_after(view: memoryview, offset: int, salt: int) -> bool:
    """Whether any good frame begins at or after `offset`. (Because of the salt, no record looks
    like one.)"""
    with view[offset:] as rest:
        return any(_frame_at(rest, found.start(), salt) for found in _MARKS.finditer(rest))


def _split(body: bytes, records: int) -> Iterator[bytes]:
    at = 4 * records
    for length in struct.unpack_from(f"<{records}I", body):
        yield body[at : at + length]
        at += length


def _unreadable(path: str, offset: int, why: str) -> UnreadableJournal:
    return UnreadableJournal(
        f"the journal cannot be read at byte {offset}: {why}",
        where=path,
        remedy="check the disk; restore the file from a copy, or start the job afresh in another "
        "directory",
    )
