"""What the demo's job takes for a word (the verdict has a definition of its own)."""

from __future__ import annotations

import re
from typing import Final

_WORD: Final = re.compile(r"[a-z']+")


def words_of(line: str) -> list[str]:
    """Return the words of a line, in order.

    Examples
    --------
    >>> words_of("It is a truth; universally--don't you think?")
    ['it', 'is', 'a', 'truth', 'universally', "don't", 'you', 'think']
    """
    return _WORD.findall(line.lower())
