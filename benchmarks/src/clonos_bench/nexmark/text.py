"""Text of the generator: pools of strings to choose from, and filler that costs next to nothing.

Filler (the ``extra`` column) is cut out of one long text: row k has the characters between two
offsets that are functions of k, so that a batch of consecutive rows is one copy of memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

UInt64 = npt.NDArray[np.uint64]
Int64 = npt.NDArray[np.int64]

POOL: Final = 1024
"""How many different strings of a kind there are."""

FIRST_NAMES: Final = (
    "Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter"
)  # fmt: skip
LAST_NAMES: Final = (
    "Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris"
)  # fmt: skip
STATES: Final = ("AZ", "CA", "ID", "OR", "WA", "WY")
CITIES: Final = (
    "Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond", "Seattle",
    "Kent", "Cheyenne",
)  # fmt: skip

_PERIOD: Final = 1 << 20
"""The filler repeats itself after so many characters."""

_LONGEST: Final = 1 << 22
"""What can be cut out of the filler in one piece."""

GOLDEN: Final = 0x9E3779B97F4A7C15
_LETTERS: Final = np.uint64(26)
_BLANK_EVERY: Final = np.uint64(13)
_SHORTEST: Final = 3


def mix(values: UInt64) -> UInt64:
    """64 random bits per number: splitmix64 at that place of its sequence."""
    return scramble(values * np.uint64(GOLDEN))


def scramble(z: UInt64) -> UInt64:
    """What splitmix64 does with its state; in place, as new memory costs more than the work."""
    shifted = np.empty_like(z)
    z ^= np.right_shift(z, np.uint64(30), out=shifted)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= np.right_shift(z, np.uint64(27), out=shifted)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= np.right_shift(z, np.uint64(31), out=shifted)
    return z


def split(numbers: Any, by: int) -> tuple[Any, Any]:
    """Quotient and rest of numbers that are not negative; NumPy's own takes four times as long."""
    quotient = numbers // numbers.dtype.type(by)
    return quotient, numbers - quotient * numbers.dtype.type(by)


@lru_cache(maxsize=16)
def strings(length_max: int, seed: int) -> pa.Array:
    """:data:`POOL` strings of 3 to `length_max` letters, one in 13 a blank, without outer ones."""
    made = []
    for i in range(POOL):
        draws = mix(np.arange(length_max + 1, dtype=np.uint64) + np.uint64((seed * POOL + i) << 8))
        length = _SHORTEST + int(draws[-1] % np.uint64(length_max - _SHORTEST))
        letters = (draws >> np.uint64(32)) % _LETTERS + np.uint64(ord("a"))
        codes = np.where(draws % _BLANK_EVERY == 0, ord(" "), letters)
        made.append(codes[:length].astype(np.uint8).tobytes().decode().strip())
    return pa.array(made, pa.string())


@lru_cache(maxsize=1)
def names() -> pa.Array:
    """First and last names, in all combinations."""
    return pa.array([f"{first} {last}" for first in FIRST_NAMES for last in LAST_NAMES])


@lru_cache(maxsize=1)
def four_digits() -> pa.Array:
    """Quarters of the numbers of credit cards."""
    return pa.array([f"{i:04d}" for i in range(10_000)])


@lru_cache(maxsize=1)
def _filler() -> npt.NDArray[np.uint8]:
    draws = mix(np.arange(_PERIOD, dtype=np.uint64) + np.uint64(1 << 40))
    letters = (draws % _LETTERS + np.uint64(ord("a"))).astype(np.uint8)
    return np.resize(letters, _PERIOD + _LONGEST)


def filler(ranges: Iterable[tuple[int, int]], mean: int, salt: int) -> pa.Array:
    """Strings of `mean` letters, give or take a fifth, one per row.

    ``ranges``: of row numbers, as a first one and how many.

    Examples
    --------
    >>> filler([(7, 3)], 10, 0).slice(1, 2) == filler([(8, 1), (9, 1)], 10, 0)
    True
    """
    offsets, parts, total = [np.zeros(1, np.int64)], [np.empty(0, np.uint8)], 0
    rows_max = _LONGEST // (2 * mean)
    for begin, count in ranges:
        for first in range(begin, begin + count, rows_max):
            rows = min(rows_max, begin + count - first)
            numbers = np.arange(first, first + rows + 1, dtype=np.int64)
            _, jitter = split(mix((numbers + (salt << 48)).view(np.uint64)), max(1, mean // 5))
            starts = np.multiply(numbers, mean, out=numbers)
            starts += jitter.view(np.int64)
            place, length = int(starts[0] % _PERIOD), int(starts[-1] - starts[0])
            parts.append(_filler()[place : place + length])
            starts -= starts[0] - total
            offsets.append(starts[1:])
            total += length
    return string_array(np.concatenate(offsets), np.concatenate(parts))


def string_array(offsets: Int64, data: npt.NDArray[Any]) -> pa.Array:
    """Strings that lie one behind the other in `data`."""
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
    return pa.StringArray.from_buffers(len(offsets) - 1, buffers[1], buffers[2])
