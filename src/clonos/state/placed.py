"""Columnar rows in *runs*: found by the hash of their key, and by times.

In a run (:mod:`clonos.state.runs`) a row has several *entries*. The first holds the row. Its place
is the hash of the row's key, so that all rows of a key are together; its own key is the row's
number, in 8 bytes. There is another entry for each column by which rows are read in order (when
they are dropped, how old they are). Its place is that time, which sorts before nearly all hashes,
and its key has one more byte, the number of the column. Its value is used to find the row and its
other entries::

    hash u64 | value of each of these columns i64

To delete a row, all its entries are written again, without values. Merges drop both in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from clonos.columns.batches import empty
from clonos.columns.keys import KEY_GROUPS, hash_columns, key_columns
from clonos.columns.row_codec import RowCodec
from clonos.state.pieces import ORDER, numbers
from clonos.state.runs import Int64, Mask, Rows, UInt64, spans

_LATEST: Final = 1 << 46
"""Times beyond this many ms (over 2000 years) before or after 1970 share one place."""
TIMES_END: Final = 2 * _LATEST + 1
"""The places of all times are below this."""
_KEY_BYTES: Final = 8


class Entries(NamedTuple):
    """The data of rows' entries: hash of the key, number, and times by column."""

    hashes: UInt64
    orders: Int64
    times: Int64  # two-dimensional

    def chosen(self, places: Int64 | Mask | slice) -> Entries:
        """Some of them."""
        return Entries(self.hashes[places], self.orders[places], self.times[places])

    def sorted(self) -> Entries:
        """Sorted by number."""
        return self.chosen(np.argsort(self.orders))


class Found(NamedTuple):
    """Entries found in a run: the numbers of their rows, and their columns (0: holds the row)."""

    rows: Rows
    orders: Int64
    columns: npt.NDArray[np.uint8]

    def chosen(self, places: Int64 | Mask) -> Found:
        """Some of them."""
        return Found(self.rows.chosen(places), self.orders[places], self.columns[places])

    def are_in(self, orders: range) -> Mask:
        """A mask of entries of rows with these numbers."""
        mask: Mask = (self.orders >= orders.start) & (self.orders <= orders.stop - 1)
        return mask

    @property
    def are_gone(self) -> Mask:
        """A mask of entries that mark deleted rows."""
        gone: Mask = self.rows.values.is_null().to_numpy(zero_copy_only=False)
        return gone


def place_of(time: int) -> int:
    """The place of a time's entry."""
    return min(max(time, -_LATEST), _LATEST) + _LATEST


def places_at(times: Int64) -> UInt64:
    """The places of the entries of times."""
    return (np.clip(times, -_LATEST, _LATEST) + _LATEST).astype(np.uint64)


def time_at(places: UInt64) -> Int64:
    """A time whose entry has this place."""
    times: Int64 = places.astype(np.int64) - _LATEST
    return times


def no_entries(columns: int) -> Entries:
    """Entries of no rows."""
    none = np.empty(0, np.int64)
    return Entries(none.astype(np.uint64), none, np.empty((0, columns), np.int64))


def joined(parts: Sequence[Entries], columns: int) -> Entries:
    """Concatenate entries."""
    hashes, orders, times = zip(no_entries(columns), *parts, strict=True)
    return Entries(np.concatenate(hashes), np.concatenate(orders), np.concatenate(times))


def entries_of(rows: pa.RecordBatch, keys: Sequence[str], columns: Sequence[str]) -> Entries:
    """The entries of columnar rows."""
    if not rows.num_rows:
        return no_entries(len(columns))
    times = [numbers(rows, name) for name in columns]
    stacked = np.stack(times, 1) if times else np.empty((rows.num_rows, 0), np.int64)
    return Entries(hash_columns(key_columns(rows, keys)), numbers(rows, ORDER), stacked)


def found_in(rows: Rows) -> Found:
    """Decode the keys of entries."""
    count = len(rows.hashes)
    if not count:
        return Found(rows, np.empty(0, np.int64), np.empty(0, np.uint8))
    _, buffer, data = rows.keys.buffers()
    offset = rows.keys.offset
    ends = np.frombuffer(buffer, np.int64)[offset : offset + count + 1]
    raw = np.frombuffer(data, np.uint8)
    keys = raw[ends[:-1, None] + np.arange(_KEY_BYTES)]
    orders = keys.view(">u8")[:, 0].astype(np.int64)
    is_longer = np.diff(ends) > _KEY_BYTES
    columns = np.zeros(count, np.uint8)
    columns[is_longer] = raw[ends[:-1][is_longer] + _KEY_BYTES]
    return Found(rows, orders, columns)


def times_in(found: Found, columns: int) -> Entries:
    """Decode entries by time; none of them may mark a deletion."""
    width = 1 + columns
    _, offsets, data = found.rows.values.buffers()
    count, offset = len(found.orders), found.rows.values.offset
    if not count:
        return no_entries(columns)
    start = int(np.frombuffer(offsets, np.int64)[offset])
    raw = np.frombuffer(data, np.uint8)[start : start + 8 * width * count]
    fields = raw.view("<i8").reshape(count, width)
    return Entries(fields[:, 0].astype(np.uint64), found.orders, fields[:, 1:])


def have_rows(keys: pa.Array) -> pa.Array:
    """A mask of a layer's rows that hold a row of an operator (and not a time)."""
    return pc.equal(pc.binary_length(keys), _KEY_BYTES)


def write(
    rows: pa.RecordBatch,
    fresh: Entries,
    gone: Entries,
    codec: RowCodec,
    add: Callable[[Rows], object],
) -> None:
    """Write new and deleted rows by place; both are given in the order of their numbers.

    Only a few are encoded at a time.
    """
    both = joined([fresh, gone], fresh.times.shape[1])
    count = len(both.orders)
    if not count:
        return
    places = np.concatenate([both.hashes, places_at(both.times).T.reshape(-1)])
    order = np.argsort(places, kind="stable")
    for start, end in spans(places[order]):
        chosen = order[start:end]
        kinds, which = chosen // count, chosen % count
        keys = _keys(both.orders[which], kinds)
        values = _values(rows, both, len(fresh.orders), kinds, which, codec)
        groups = (both.hashes[which] % np.uint64(KEY_GROUPS)).astype(np.int64)
        add(Rows(places[chosen], groups, keys, values))


def _keys(orders: Int64, kinds: Int64) -> pa.Array:
    whole = np.empty((len(orders), _KEY_BYTES + 1), np.uint8)
    whole[:, :_KEY_BYTES] = orders.astype(">u8").view(np.uint8).reshape(-1, _KEY_BYTES)
    whole[:, _KEY_BYTES] = kinds
    is_there = np.ones(whole.shape, np.bool_)
    is_there[:, _KEY_BYTES] = kinds > 0
    return _binary(_KEY_BYTES + (kinds > 0), whole[is_there])


def _values(
    rows: pa.RecordBatch,
    both: Entries,
    fresh: int,
    kinds: Int64,
    which: Int64,
    codec: RowCodec,
) -> pa.Array:
    is_there = which < fresh
    with_row, with_time = (np.flatnonzero(is_there & is_of) for is_of in (kinds == 0, kinds > 0))
    gone = np.flatnonzero(~is_there)
    some = rows.take(pa.array(which[with_row])) if len(with_row) else empty(rows.schema)
    timed = which[with_time]
    fields = np.column_stack([both.hashes[timed].astype("<i8"), both.times[timed].astype("<i8")])
    parts = [
        codec.encode(some.columns),
        _binary(np.full(len(timed), 8 * fields.shape[1]), fields.reshape(-1).view(np.uint8)),
        pa.nulls(len(gone), pa.large_binary()),
    ]
    at = np.empty(len(which), np.int64)
    at[np.concatenate([with_row, with_time, gone])] = np.arange(len(which))
    if (np.diff(at) == 1).all():
        return pa.concat_arrays([part for part in parts if len(part)])
    return pa.concat_arrays(parts).take(pa.array(at))


def _binary(lengths: Int64, data: npt.NDArray[np.uint8]) -> pa.Array:
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.Array.from_buffers(pa.large_binary(), len(lengths), buffers)
