"""Options of several methods, and options that a method passes on by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from difflib import get_close_matches
from itertools import chain
from typing import Any, Final

from clonos.errors import WrongType

OF_OPERATORS: Final = "; all others, such as in_flight and batch, are given where it is used"
"""What is said of options of a service."""


def require_known(
    given: Iterable[str], known: Collection[str], where: str, *, besides: str = ""
) -> None:
    """Raise `WrongType` if there is no such option; it names the one that was probably meant.

    Parameters
    ----------
    where
        The method that the user has called.
    besides
        What else the user may have meant.

    Examples
    --------
    >>> require_known(["kyes"], ["at", "keys"], "running.canary")
    Traceback (most recent call last):
    ...
    clonos.errors.WrongType: running.canary: there is no option 'kyes'. To do: did you mean keys?
    """
    for name in given:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}{besides}"
            raise WrongType(f"there is no option {name!r}", where=where, remedy=hint)


def keywords(function: Callable[..., Any]) -> list[str]:
    """The options that a function takes by name.

    Examples
    --------
    >>> keywords(print)
    ['sep', 'end', 'file', 'flush']
    """
    found = inspect.signature(function).parameters.values()
    return [one.name for one in found if one.kind is one.KEYWORD_ONLY]


def renames_of(renamed: Any, where: str) -> Mapping[Any, str]:
    """What has another name now. Raise `WrongType` if `renamed` says something else.

    Examples
    --------
    >>> renames_of({("score", "total"): "sum"}, "start")
    {('score', 'total'): 'sum'}
    >>> renames_of(["score"], "start")
    Traceback (most recent call last):
    ...
    clonos.errors.WrongType: start: renamed=['score']. To do: give a dict from former names of \
operators to those that they have now; for a state, from (operator, former name)
    """
    found = {} if renamed is None else renamed
    if isinstance(found, Mapping):
        former = [n for one in found for n in (one if type(one) is tuple else (one,))]
        is_right = all(len(one) == 2 for one in found if type(one) is tuple)
        if is_right and all(isinstance(name, str) for name in [*former, *found.values()]):
            return found
    remedy = (
        "give a dict from former names of operators to those that they have now; for a state, from "
        "(operator, former name)"
    )
    raise WrongType(f"renamed={renamed!r}", where=where, remedy=remedy)


def drops_of(dropped: Any, where: str) -> Collection[Any]:
    """What goes without its state. Raise `WrongType` if `dropped` says something else.

    Examples
    --------
    >>> drops_of(["totals", ("clicks", "old_clicks")], "start")
    ['totals', ('clicks', 'old_clicks')]
    >>> drops_of("totals", "start")
    Traceback (most recent call last):
    ...
    clonos.errors.WrongType: start: drop_state='totals'. To do: give a list of operators' names; \
of what a source no longer reads, (source, its name)
    """
    if isinstance(dropped, Collection) and not isinstance(dropped, (str, bytes, Mapping)):
        pairs = [one for one in dropped if type(one) is tuple]
        names = [*(one for one in dropped if type(one) is not tuple), *chain(*pairs)]
        if all(len(pair) == 2 for pair in pairs) and all(isinstance(name, str) for name in names):
            return dropped
    remedy = "give a list of operators' names; of what a source no longer reads, (source, its name)"
    raise WrongType(f"drop_state={dropped!r}", where=where, remedy=remedy)
