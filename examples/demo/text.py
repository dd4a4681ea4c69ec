"""The text of the demo: two novels, or any file."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Final

_SHIPPED: Final = Path(__file__).with_name("data") / "austen.txt.gz"


def load_text(path: str | Path | None = None) -> list[str]:
    """Return the lines of a text file, plain or ``.gz``; without a path, of the shipped text.

    Examples
    --------
    >>> lines = load_text()
    >>> len(lines), lines[0]
    (29267, 'PRIDE AND PREJUDICE')
    """
    if path is None:
        content = _SHIPPED.read_bytes()
        return _lines(gzip.decompress(content))
    content = Path(path).read_bytes()
    return _lines(gzip.decompress(content) if str(path).endswith(".gz") else content)


def _lines(content: bytes) -> list[str]:
    # Not splitlines(): a form feed or U+2028 inside a line is no line end to anybody else.
    lines = content.decode("utf-8", errors="replace").split("\n")
    if lines[-1] == "":
        lines.pop()
    return [line.removesuffix("\r") for line in lines]
