"""How long a service asks to wait: ``Retry-After``, as in HTTP."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from datetime import timedelta, timezone
from email.utils import parsedate_to_datetime
from typing import Any, Final

from clonos.errors.base import GROUP

RETRY_AFTER_MAX_S: Final = 300.0
"""A longer wait than this is cut short."""
_INVOLVED_MAX: Final = 16
"""Exceptions that are looked at."""
_NUMBER: Final = re.compile(r"\d+(\.\d*)?", re.ASCII)
"""HTTP has whole seconds only; some services are more exact."""


def retry_after_s(said: str | None) -> float:
    """How long a ``Retry-After`` asks to wait: seconds, or until a date.

    Examples
    --------
    >>> retry_after_s("3"), retry_after_s(None), retry_after_s("soon"), retry_after_s("1" * 20)
    (3.0, 0.0, 0.0, 300.0)
    >>> retry_after_s("1.5"), retry_after_s("Fri, 31 Dec 1999 23:59:59 GMT")
    (1.5, 0.0)
    """
    said = (said or "").strip()
    if _NUMBER.fullmatch(said):
        return min(float(said), RETRY_AFTER_MAX_S)
    try:
        at = parsedate_to_datetime(said)
    except (ValueError, TypeError, OverflowError):
        return 0.0
    at = at if at.tzinfo is not None else at.replace(tzinfo=timezone.utc)  # the form of asctime
    return min(max(at.timestamp() - time.time(), 0.0), RETRY_AFTER_MAX_S)


def asked_to_wait_s(error: BaseException) -> float:
    """How long an exception of an HTTP client asks to wait, in seconds; 0: it does not.

    The clients agree on little: urllib's and aiohttp's have ``headers``, those of requests and
    httpx have a ``response`` with headers, and packages for one service have a ``retry_after``.

    Examples
    --------
    >>> class TooManyRequests(Exception):
    ...     headers = {"Retry-After": "3"}
    >>> asked_to_wait_s(TooManyRequests()), asked_to_wait_s(ValueError())
    (3.0, 0.0)
    >>> TooManyRequests.headers = {"retry-after": " 4 "}
    >>> asked_to_wait_s(TooManyRequests())
    4.0
    >>> TooManyRequests.retry_after = timedelta(seconds=5)
    >>> asked_to_wait_s(TooManyRequests())
    5.0
    """
    return max(map(_wait_s, _involved(error)))


def _involved(error: BaseException) -> Sequence[BaseException]:
    """An exception, what has led to it, and what is in it if it is a group: users often raise one
    of their own instead of the client's."""
    found = [error]
    for each in found:  # which grows
        before = each.__cause__ or (None if each.__suppress_context__ else each.__context__)
        inside = each.exceptions if isinstance(each, GROUP) else ()
        others = [other for other in (before, *inside) if other is not None]
        found += others[: _INVOLVED_MAX - len(found)]
    return found


def _wait_s(error: BaseException) -> float:
    try:
        said = getattr(error, "retry_after", None)
        for holder in (error, getattr(error, "response", None)):
            headers = getattr(holder, "headers", None)
            if said is None and headers is not None:
                said = _header(headers)
        return _seconds(said)
    except Exception:  # noqa: BLE001 - attributes of a foreign exception may do anything
        return 0.0


def _header(headers: Any) -> Any:
    """The value of ``Retry-After``, however it is spelt: in a dict the case of names matters."""
    said = headers.get("Retry-After")
    named = (
        headers[name] for name in headers if isinstance(name, str) and name.lower() == "retry-after"
    )
    return next(named, None) if said is None else said


def _seconds(said: Any) -> float:
    if isinstance(said, timedelta):
        said = said.total_seconds()
    if isinstance(said, (int, float)) and not isinstance(said, bool):
        return min(max(float(said), 0.0), RETRY_AFTER_MAX_S)
    return retry_after_s(said) if isinstance(said, str) else 0.0
