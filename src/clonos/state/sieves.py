"""Many runs, asked for some keys at once.

Each run has a filter, and nearly all filters say no. The filters of up to :data:`RUNS_MAX` runs are
asked together, because each call of numpy costs more than what it does for a few keys. There may be
hundreds of runs: gigabytes of state come in as many layers, and merging those takes a while.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final
from weakref import ref

import numpy as np

from clonos.state.runs import Int64, Mask, Run, UInt64, filter_bits

RUNS_MAX: Final = 32
"""How many runs are asked together, at most."""
WORDS_MAX: Final = 512 * 1024
"""Their filters have at most this many words (4 MB), unless it is only one: they are copied when
one of these runs is merged, or another one comes."""


class _Sieve:
    """The filters of some consecutive runs. It keeps none of the runs, which have files."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = [ref(run) for run in runs]
        filters = [run.index.filter for run in runs]
        self._filter = filters[0] if len(filters) == 1 else np.concatenate(filters)
        sizes = np.array([len(each) for each in filters], np.uint64)
        self._sizes = sizes[:, None]
        self._starts = (np.cumsum(sizes) - sizes)[:, None]

    def is_of(self, runs: Sequence[Run]) -> bool:
        """Whether it has the filters of these runs, and no others."""
        return [each() for each in self._runs] == runs

    def may_have(self, places: UInt64, bits: UInt64) -> Mask:
        """Whether each run (row) may have each hash (column)."""
        words = self._starts + (places * self._sizes >> np.uint64(32))
        result: Mask = (self._filter[words] & bits) == bits
        return result


class Sieves:
    """The filters of the runs of one store, which change now and then."""

    def __init__(self) -> None:
        self._all: dict[int, _Sieve] = {}  # by the id of their first run

    def newest(
        self, runs: Sequence[Run], hashes: UInt64, keys: Sequence[bytes]
    ) -> dict[int, bytes | None]:
        """The newest value (None: deleted) of the keys that runs have, by index of the key.

        Parameters
        ----------
        runs
            The oldest first.
        hashes
            Those of the keys, sorted.
        """
        found: dict[int, bytes | None] = {}
        left = np.arange(len(hashes))
        places, bits = filter_bits(hashes)
        for group, sieve in reversed(self._of(runs)):
            may_have = sieve.may_have(places[left], bits[left])
            while len(columns := may_have.any(axis=0).nonzero()[0]):
                newest = len(group) - 1 - may_have[::-1, columns].argmax(axis=0)
                chosen = np.zeros_like(may_have)
                chosen[newest, columns] = True
                rows = _rows(group, chosen, left, hashes)
                found.update((i, value) for i, key, value in rows if key == keys[i])
                may_have &= ~chosen  # then the next older one
                is_left = np.array([i not in found for i in left.tolist()])
                left, may_have = left[is_left], may_have[:, is_left]
            if not len(left):
                break
        return found

    def all(self, runs: Sequence[Run], hashes: UInt64) -> Iterator[tuple[int, bytes, bytes | None]]:
        """All rows with one of these sorted hashes, those of the oldest run first: index of the
        hash, key, value."""
        places, bits = filter_bits(hashes)
        every = np.arange(len(hashes))
        for group, sieve in self._of(runs):
            yield from _rows(group, sieve.may_have(places, bits), every, hashes)

    def _of(self, runs: Sequence[Run]) -> list[tuple[list[Run], _Sieve]]:
        """Groups of runs with their filters; what was put together before is used again."""
        groups: list[list[Run]] = []
        words = 0
        for run in runs:
            size = len(run.index.filter)
            if not groups or len(groups[-1]) == RUNS_MAX or words + size > WORDS_MAX:
                groups.append([])
                words = 0
            groups[-1].append(run)
            words += size
        known, self._all = self._all, {}
        for group in groups:
            sieve = known.get(id(group[0]))
            is_known = sieve is not None and sieve.is_of(group)
            self._all[id(group[0])] = sieve if sieve is not None and is_known else _Sieve(group)
        return list(zip(groups, self._all.values(), strict=True))


def _rows(
    runs: Sequence[Run], chosen: Mask, which: Int64, hashes: UInt64
) -> Iterator[tuple[int, bytes, bytes | None]]:
    """All rows of some runs with some hashes, those of the oldest run first: index of the hash,
    key, value.

    Parameters
    ----------
    chosen
        Whether to look into a run (row) for a hash (column).
    which
        The indices of these hashes in `hashes`, which are sorted.
    """
    found = []
    for number in chosen.any(axis=1).nonzero()[0].tolist():
        run, wanted = runs[number], which[chosen[number]]
        blocks = run.blocks_of(hashes[wanted])
        is_there = blocks >= 0
        found.append((run, wanted[is_there], blocks[is_there]))
    if sum(len(blocks) for _, _, blocks in found) > 1:  # the disk fetches them together
        for run, _, blocks in found:
            run.expect(blocks)
    for run, wanted, blocks in found:
        yield from run.rows_at(wanted, blocks, hashes)
