"""Values and rows by key as stored in layers: *runs*, sorted by the hash of the key, in blocks.

A block is the unit of reading, about 16 KB. Keys are found through the index: it has the first hash
of each block and a filter of all hashes. It also has a digest of each block, which is verified
whenever the block is read. So a run of any size can be used without reading all of it first.

A block, little-endian::

    rows, bytes of keys u32 | hashes u64[rows] | ends of keys, of values u32[rows + 1]
    | key groups i16[rows] | has a value u8[rows] | keys | values
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from xxhash import xxh3_64_intdigest

from clonos.core.content import Content, InMemory
from clonos.errors import UnreadableLayer

BLOCK_BYTES: Final = 16 * 1024
"""A larger value has a block of its own."""
MERGED_BYTES: Final = 32 * 1024 * 1024
"""Runs are merged in ranges of hashes of about this size."""
WRITTEN_ROWS: Final = 2048
"""How many values are put into blocks at once."""

_BITS: Final = 16
"""Of the filter, per key: of keys that are not there, 0.4 % seem to be. Each of these reads a block
in vain, in every run."""
_SPREAD: Final = np.uint64(0x9E3779B97F4A7C15)
_SHIFTS: Final = (0, 6, 12, 18)
"""Where in a hash it says which bits."""
_ALL: Final = (1 << 64) - 1
_HEAD: Final = struct.Struct("<II")
_ROW_BYTES: Final = 19

UInt64 = npt.NDArray[np.uint64]
Int64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class Rows(NamedTuple):
    """Rows of a run, by hash: key group, key and value (null: deleted)."""

    hashes: UInt64
    groups: Int64
    keys: pa.Array
    values: pa.Array

    def chosen(self, places: Int64 | Mask) -> Rows:
        """Some of them, in this order."""
        at = places.nonzero()[0] if places.dtype == np.bool_ else places
        arrow = pa.array(at)
        columns = self.keys.take(arrow), self.values.take(arrow)
        return Rows(self.hashes[at], self.groups[at], *columns)


class Index(NamedTuple):
    """The index of a run."""

    rows: int
    firsts: UInt64
    ends: UInt64
    digests: UInt64
    filter: UInt64

    def encode(self) -> bytes:
        """Encode for a delta."""
        sizes = struct.pack("<QQQ", self.rows, len(self.firsts), len(self.filter))
        return b"".join((sizes, *(column.tobytes() for column in self[1:])))

    @classmethod
    def decode(cls, content: bytes) -> Index:
        """The inverse of :meth:`encode`."""
        rows, blocks, words = struct.unpack_from("<QQQ", content)
        columns = np.frombuffer(content, "<u8", offset=24)
        if len(columns) != 3 * blocks + words:
            raise ValueError("the index of a run has another size than it says")
        cut = [blocks, 2 * blocks, 3 * blocks]
        return cls(rows, *np.split(columns, cut))

    @property
    def nbytes(self) -> int:
        """Of the blocks."""
        return int(self.ends[-1]) if len(self.ends) else 0


class Run:
    """Values by key, used in place.

    Parameters
    ----------
    blocks
        The blocks, which are read on demand.

    Attributes
    ----------
    is_in_layer
        Whether it is used where it lies in a layer.
    written
        At most how many of its bytes were in the memory of this process, and not in a layer,
        before they were written.
    """

    def __init__(self, index: Index, blocks: Content) -> None:
        self.index, self.blocks = index, blocks
        self.is_in_layer = False
        self.written = 0
        self._last: int | None = None

    def __len__(self) -> int:
        return self.index.rows

    @property
    def nbytes(self) -> int:
        """Of the blocks."""
        return self.index.nbytes

    @property
    def last_place(self) -> int:
        """The highest hash, or what stands for it."""
        if self._last is None:
            blocks = len(self.index.firsts)
            self._last = int(_rows_of(self._block(blocks - 1)).hashes[-1]) if blocks else -1
        return self._last

    def blocks_of(self, hashes: UInt64) -> Int64:
        """In which block each hash is, if it is in the run (below 0: in none)."""
        return np.searchsorted(self.index.firsts, hashes, "right").astype(np.int64) - 1

    def expect(self, blocks: Int64) -> None:
        """Say that these blocks will be read soon."""
        for number in np.unique(blocks).tolist():
            self.blocks.expect(*self._span(number))

    def rows_at(
        self, which: Int64, blocks: Int64, hashes: UInt64
    ) -> Iterator[tuple[int, bytes, bytes | None]]:
        """All rows with some of these sorted hashes: index of the hash, key, value.

        Parameters
        ----------
        which, blocks
            The indices of the hashes to look for, in order, and the block of each.
        hashes
            Those under which the keys were written.
        """
        last, block = -1, b""
        for i, number in zip(which.tolist(), blocks.tolist(), strict=True):
            if number != last:
                last, block = number, self._block(number)
            for key, value in _look_up(block, int(hashes[i])):
                yield i, key, value

    def find_one(self, place: int, key: bytes) -> tuple[bytes | None] | None:
        """The value of one key (None: gone); None if it does not know it. For one key, this is much
        faster than :class:`~clonos.state.sieves.Sieves`."""
        index = self.index
        spread = place * int(_SPREAD) & _ALL
        bits = 0
        for shift in _SHIFTS:
            bits |= 1 << (spread >> shift & 63)
        if bits & ~int(index.filter[(spread >> 32) * len(index.filter) >> 32]):
            return None
        number = int(np.searchsorted(index.firsts, np.uint64(place), "right")) - 1
        if number >= 0:
            for known, value in _look_up(self._block(number), place):
                if known == key:
                    return (value,)
        return None

    def items(self) -> Iterator[tuple[bytes, bytes | None]]:
        """All keys and values."""
        for rows in self.parts():
            yield from zip(rows.keys.to_pylist(), rows.values.to_pylist(), strict=True)

    def parts(self, low: int = 0, high: int = 1 << 64) -> Iterator[Rows]:
        """The rows with hashes from `low` up to, but not including, `high`, in order."""
        firsts = self.index.firsts
        start = max(int(np.searchsorted(firsts, np.uint64(low), "right")) - 1, 0)
        for number in range(start, len(firsts)):
            if int(firsts[number]) >= high:
                return
            rows = _rows_of(self._block(number))
            first, last = int(rows.hashes[0]), int(rows.hashes[-1])
            if first < low or last >= high:
                is_in = rows.hashes >= np.uint64(low)
                if high < 1 << 64:
                    is_in &= rows.hashes < np.uint64(high)
                rows = rows.chosen(is_in)
            if len(rows.hashes):
                yield rows

    def _span(self, number: int) -> tuple[int, int]:
        ends = self.index.ends
        return int(ends[number - 1]) if number else 0, int(ends[number])

    def _block(self, number: int) -> bytes:
        try:
            block = self.blocks.read(*self._span(number))
        except OSError as error:
            raise self._damaged(number, str(error)) from error
        if xxh3_64_intdigest(block) != int(self.index.digests[number]):
            raise self._damaged(number, "its checksum is wrong")
        return block

    def _damaged(self, block: int, why: str) -> UnreadableLayer:
        return UnreadableLayer(
            f"block {block} of a run of values cannot be read: {why}",
            where=str(self.blocks),
            remedy="recover from a copy of the checkpoint_dir; check the disk it lies on",
        )


class TakesRows(Protocol):
    """Takes rows in the order of hashes, each key once."""

    def add(self, rows: Rows) -> None: ...


class RunWriter:
    """Writes one run, block by block.

    Parameters
    ----------
    rows_max
        How many rows there are at most; with more, its filter would be less exact.
    write
        Takes the blocks.
    """

    def __init__(self, rows_max: int, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._filter = np.zeros(max(rows_max * _BITS // 64, 1), np.uint64)
        self._rows, self._end = 0, 0
        self._firsts: list[int] = []
        self._ends: list[int] = []
        self._digests: list[int] = []

    def add(self, rows: Rows) -> None:
        """Add rows; their hashes must be above all earlier ones, and keys must be unique."""
        if not len(rows.hashes):
            return
        places, bits = filter_bits(rows.hashes)
        words = places * np.uint64(len(self._filter)) >> np.uint64(32)
        np.bitwise_or.at(self._filter, words.astype(np.int64), bits)
        for first, block in _blocks(rows):
            self._write(block)
            self._end += len(block)
            self._firsts.append(first)
            self._ends.append(self._end)
            self._digests.append(xxh3_64_intdigest(block))
        self._rows += len(rows.hashes)

    def index(self) -> Index:
        """The index, after the last row was added."""
        firsts, ends, digests = (
            np.array(column, np.uint64) for column in (self._firsts, self._ends, self._digests)
        )
        return Index(self._rows, firsts, ends, digests, self._filter)


Placing = Callable[[bytes], int]
"""The hash of a key, or what stands for it."""
HASH: Final[Placing] = xxh3_64_intdigest


def hashes_of(keys: Sequence[bytes], placing: Placing = HASH) -> UInt64:
    """By which keys are sorted."""
    return np.fromiter(map(placing, keys), np.uint64, len(keys))


def write_values(
    values: Mapping[bytes, bytes | None],
    groups: Sequence[int],
    write: Callable[[bytes], object],
    placing: Placing = HASH,
) -> Index:
    """Write values by key as a run; `groups` has the key group of each, or is empty."""
    keys, contents = list(values), list(values.values())
    hashes = hashes_of(keys, placing)
    numbers = np.array(groups, np.int64) if len(groups) else np.zeros(len(keys), np.int64)
    writer = RunWriter(len(keys), write)
    order = np.argsort(hashes)
    for start, end in spans(hashes[order]):
        chosen = order[start:end]
        places = chosen.tolist()
        columns = (
            pa.array([some[i] for i in places], pa.large_binary()) for some in (keys, contents)
        )
        writer.add(Rows(hashes[chosen], numbers[chosen], *columns))
    return writer.index()


def spans(hashes: UInt64) -> Iterator[tuple[int, int]]:
    """Divide sorted hashes into ranges to be written one after the other; equal ones stay together.

    One large array would block other threads while it is built.
    """
    start = 0
    while start < len(hashes):
        end = min(start + WRITTEN_ROWS, len(hashes))
        end = int(np.searchsorted(hashes, hashes[end - 1], "right"))
        yield start, end
        start = end


def in_memory(rows_max: int, fill: Callable[[RunWriter], object]) -> Run:
    """A run whose blocks are in memory."""
    blocks: list[bytes] = []
    writer = RunWriter(rows_max, blocks.append)
    fill(writer)
    return Run(writer.index(), InMemory(b"".join(blocks)))


def in_order(parts: Sequence[Rows]) -> Rows:
    """Merge rows by hash; rows with equal hashes keep their order."""
    hashes, groups = (np.concatenate(some) for some in list(zip(*parts, strict=True))[:2])
    keys = pa.concat_arrays([rows.keys for rows in parts])
    values = pa.concat_arrays([rows.values for rows in parts])
    rows = Rows(hashes, groups, keys, values)
    if (hashes[:-1] <= hashes[1:]).all():
        return rows
    return rows.chosen(np.argsort(hashes, kind="stable"))


def merge_runs(runs: Sequence[Run], writer: TakesRows, *, is_base: bool) -> None:
    """Write a run with the same effect as all of these, given oldest first.

    ``is_base``: nothing lies below, so deletions need not be kept. Only one range of hashes is in
    memory at a time.
    """
    for low, high in ranges(runs):
        parts = [rows for run in runs for rows in run.parts(low, high)]
        if parts:
            writer.add(_newest(parts, is_base=is_base))


def ranges(runs: Sequence[Run], low: int = 0, high: int = 1 << 64) -> Iterator[tuple[int, int]]:
    """Divide the hashes from `low` up to, but not including, `high` into ranges of which the runs
    have about as much as is merged at once."""
    firsts, sizes = [np.empty(0, np.uint64)], [np.empty(0, np.uint64)]
    for run in runs:
        index = run.index
        start = int(np.searchsorted(index.firsts, np.uint64(low), "right"))
        end = len(index.firsts)
        if high < 1 << 64:
            end = int(np.searchsorted(index.firsts, np.uint64(high)))
        before = index.ends[start - 1] if start else np.uint64(0)
        firsts.append(index.firsts[start:end])
        sizes.append(np.diff(index.ends[start:end], prepend=before))
    places, nbytes = np.concatenate(firsts), np.concatenate(sizes)
    order = np.argsort(places)
    numbers = np.cumsum(nbytes[order]) // np.uint64(MERGED_BYTES)
    cuts = np.unique(places[order][np.flatnonzero(np.diff(numbers)) + 1])
    return pairwise([low, *cuts.tolist(), high])


def _newest(parts: Sequence[Rows], *, is_base: bool) -> Rows:
    """The last row of each key, by hash."""
    hashes, groups = (np.concatenate(some) for some in list(zip(*parts, strict=True))[:2])
    keys = pa.concat_arrays([rows.keys for rows in parts])
    values = pa.concat_arrays([rows.values for rows in parts])
    table = pa.table({"key": keys, "row": np.arange(len(keys))})
    last = table.group_by("key", use_threads=False).aggregate([("row", "max")])["row_max"]
    places: Int64 = last.to_numpy()
    if is_base:
        places = places[values.is_valid().to_numpy(zero_copy_only=False)[places]]
    places = places[np.argsort(hashes[places])]
    return Rows(hashes, groups, keys, values).chosen(places)


# --- blocks ---------------------------------------------------------------------------------------


def _blocks(rows: Rows) -> Iterator[tuple[int, bytes]]:
    """Each block and its first hash. Equal hashes are in one block."""
    hashes, count = rows.hashes, len(rows.hashes)
    key_ends, keys = _offsets(rows.keys)
    value_ends, values = _offsets(rows.values)
    groups = rows.groups.astype("<i2")
    is_there = rows.values.is_valid().to_numpy(zero_copy_only=False).astype(np.uint8)
    sizes = _ROW_BYTES * np.arange(count + 1) + key_ends - key_ends[0] + value_ends - value_ends[0]
    cuts = [0]
    for cut in (np.flatnonzero(np.diff(sizes[:-1] // BLOCK_BYTES)) + 1).tolist():
        while cut < count and hashes[cut] == hashes[cut - 1]:
            cut += 1  # noqa: PLW2901 - to where another hash begins
        if cuts[-1] < cut < count:
            cuts.append(cut)
    for a, b in zip(cuts, [*cuts[1:], count], strict=True):
        k, v = key_ends[a : b + 1], value_ends[a : b + 1]
        yield (
            int(hashes[a]),
            b"".join(
                (
                    _HEAD.pack(b - a, int(k[-1] - k[0])),
                    hashes[a:b].tobytes(),
                    (k - k[0]).astype("<u4").tobytes(),
                    (v - v[0]).astype("<u4").tobytes(),
                    groups[a:b].tobytes(),
                    is_there[a:b].tobytes(),
                    keys[k[0] : k[-1]],
                    values[v[0] : v[-1]],
                )
            ),
        )


def _offsets(column: pa.Array) -> tuple[Int64, memoryview]:
    """The offsets of values, and their data."""
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1]
    return ends, memoryview(data if data is not None else b"")


class _Places(NamedTuple):
    """The offsets of the columns in a block."""

    keys: int
    values: int
    groups: int
    is_there: int
    data: int
    end_of_keys: int


def _places(block: bytes) -> tuple[int, _Places]:
    rows, key_bytes = _HEAD.unpack_from(block)
    keys = _HEAD.size + 8 * rows
    values = keys + 4 * (rows + 1)
    groups = values + 4 * (rows + 1)
    is_there = groups + 2 * rows
    data = is_there + rows
    return rows, _Places(keys, values, groups, is_there, data, data + key_bytes)


def _look_up(block: bytes, wanted: int) -> Iterator[tuple[bytes, bytes | None]]:
    """Keys and values with a hash."""
    rows, at = _places(block)
    view = memoryview(block)
    hashes = view[_HEAD.size : at.keys].cast("Q")
    i = bisect_left(hashes, wanted)
    ends = view[at.keys : at.groups].cast("I")  # of keys, then of values
    while i < rows and hashes[i] == wanted:
        key, value = block[at.data + ends[i] : at.data + ends[i + 1]], None
        if block[at.is_there + i]:
            end = i + rows + 1
            value = block[at.end_of_keys + ends[end] : at.end_of_keys + ends[end + 1]]
        yield key, value
        i += 1


def _rows_of(block: bytes) -> Rows:
    rows, at = _places(block)
    buffer = np.frombuffer(block, np.uint8)
    hashes = np.frombuffer(block, "<u8", rows, _HEAD.size)
    groups = np.frombuffer(block, "<i2", rows, at.groups).astype(np.int64)
    is_there = buffer[at.is_there : at.data].astype(np.bool_)
    columns = []
    for ends_at, start, end in (
        (at.keys, at.data, at.end_of_keys),
        (at.values, at.end_of_keys, len(block)),
    ):
        ends = np.frombuffer(block, "<u4", rows + 1, ends_at).astype(np.int64)
        buffers = [None, pa.py_buffer(ends), pa.py_buffer(block).slice(start, end - start)]
        columns.append(pa.Array.from_buffers(pa.large_binary(), rows, buffers))
    keys, values = columns
    if not is_there.all():
        valid = pa.py_buffer(np.packbits(is_there, bitorder="little"))
        values = pa.Array.from_buffers(pa.large_binary(), rows, [valid, *values.buffers()[1:]])
    return Rows(hashes, groups, keys, values)


# --- the filter -----------------------------------------------------------------------------------


def filter_bits(hashes: UInt64) -> tuple[UInt64, UInt64]:
    """Where in a filter a hash has its four bits, as a fraction of 2**32, and these bits."""
    hashes = hashes * _SPREAD  # they may be times, which are close to each other
    one, low = np.uint64(1), np.uint64(63)
    bits = np.zeros(len(hashes), np.uint64)
    for shift in _SHIFTS:
        bits |= one << (hashes >> np.uint64(shift) & low)
    return hashes >> np.uint64(32), bits
