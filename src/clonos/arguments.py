"""Arguments of a wrong type are refused where a source or sink is defined, by their names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from clonos.columns.rows import short
from clonos.errors import WrongType

NEARLY_URI: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+:/(?!/)")
"""What is left of a URI in a path: ``Path("s3://bucket")`` loses a slash."""
AS_TEXT: Final = 'give a URI as a text: "s3://bucket/folder"'
_SECRET: Final = {"dsn", "headers", "options", "password", "secret", "token", "url"}
"""Their values are not shown."""
_NAMES: Final[Mapping[Any, str]] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    datetime: "a datetime",
    Path: "a path",
    NoneType: "None",
}


def require_types(fn: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Refuse arguments that are not of the types with which a function is annotated.

    Durations, and types that are not plain, are left to the function.

    Parameters
    ----------
    fn
        The function.
    given
        Its arguments by name: its ``locals()``, at its beginning.

    Raises
    ------
    WrongType
        One is of another type.

    Examples
    --------
    >>> def read(topics: str | Sequence[str], rows: int = 1) -> None:
    ...     require_types(read, locals())
    >>> read(5)
    Traceback (most recent call last):
        ...
    clonos.errors.WrongType: read: topics=5. To do: give a text or a list of texts
    """
    hints = get_type_hints(fn)
    for name, value in given.items():
        if isinstance(value, Path) and NEARLY_URI.match(str(value)):
            raise WrongType(f"{name}={value!r}", where=fn.__name__, remedy=AS_TEXT)
        if not _fits(value, hints[name]):
            said = short(value) if value is None or name not in _SECRET else "..."
            remedy = f"give {' or '.join(_named(hints[name]))}"
            raise WrongType(f"{name}={said}", where=fn.__name__, remedy=remedy)


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value has a type, as far as that is plain."""
    if hint is Any:
        return True
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return timedelta in args or any(_fits(value, one) for one in args)
    if origin is Literal:
        return isinstance(value, type(args[0]))  # which words there are, the function says
    if origin is Sequence or origin in (list, tuple):
        is_list = isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping))
        return is_list and (
            not isinstance(value, Sequence) or all(_fits(one, args[0]) for one in value)
        )
    if origin in (Iterable, Mapping):
        return isinstance(value, origin)
    if hint is int:
        return isinstance(value, Integral) and not isinstance(value, bool)
    if hint is float:
        return isinstance(value, Real) and not isinstance(value, bool)
    return origin is not None or not isinstance(hint, type) or isinstance(value, hint)


def _named(hint: Any) -> list[str]:
    """What to give, in words."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return list(dict.fromkeys(word for one in args for word in _named(one)))
    if origin is Literal:
        return [repr(one) for one in args]
    if origin is Sequence or origin in (list, tuple):
        return ["a list" if args[0] is not str else "a list of texts"]
    if origin in (Iterable, Mapping):
        return ["a dict" if origin is Mapping else "a list"]
    return [_NAMES.get(hint, getattr(hint, "__name__", str(hint)))]
