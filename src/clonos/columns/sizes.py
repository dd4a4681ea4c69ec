"""Sizes as people write them, such as ``"50 GB"``."""

from __future__ import annotations

import re

from clonos.errors import BadSize

_UNITS = {
    unit: factor
    for power, letter in enumerate(("", "k", "m", "g", "t", "p"))
    for unit, factor in ((f"{letter}b", 1000**power), (f"{letter}ib", 1024**power))
}
_TEXT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", re.IGNORECASE)


def parse_size(size: str | int) -> int:
    """A size in bytes.

    Raises
    ------
    BadSize
        It cannot be understood, or is less than a byte.

    Examples
    --------
    >>> parse_size("1.5 GB"), parse_size("64 MiB"), parse_size(4096)
    (1500000000, 67108864, 4096)
    """
    nbytes: int | None = None
    if isinstance(size, int) and not isinstance(size, bool):
        nbytes = size
    elif match := _TEXT.fullmatch(str(size)):
        factor = _UNITS.get(match[2].lower())
        nbytes = None if factor is None else round(float(match[1]) * factor)
    if nbytes is None or nbytes < 1:
        raise BadSize(
            f"{size!r} is not a size of at least one byte",
            remedy='write it like "50 GB", "64 MiB", or as a number of bytes',
        )
    return nbytes
