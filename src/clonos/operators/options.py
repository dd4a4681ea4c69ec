"""Options by name: those that nobody knows are refused."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches
from typing import Final

from clonos.errors import WrongType

OF_OPERATORS: Final = "; all others, such as in_flight and batch, are given where it is used"
"""What is said of options of a service."""


def require_known(
    given: Collection[str], known: Collection[str], where: str, *, besides: str = ""
) -> None:
    """Raise `WrongType` if one of the options that are given is not known.

    ``besides``: what else the reader may have meant.

    Examples
    --------
    >>> require_known(["timeut"], ["attempts", "timeout"], "map_async")
    Traceback (most recent call last):
        ...
    clonos.errors.WrongType: map_async: there is no option 'timeut'. To do: did you mean timeout?
    """
    for name in given:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}{besides}"
            raise WrongType(f"there is no option {name!r}", where=where, remedy=hint)
