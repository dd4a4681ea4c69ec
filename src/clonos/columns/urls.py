"""Addresses that users give."""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import urlsplit


def is_url(text: object, schemes: Collection[str]) -> bool:
    """Whether a text is a URL of one of these schemes, whose port, if it has one, is a port.

    Examples
    --------
    >>> is_url("redis://host:6379/0", {"redis"}), is_url("redis://host:port/0", {"redis"})
    (True, False)
    >>> is_url("http://[::1/", {"http"}), is_url(None, {"http"})
    (False, False)
    """
    if not isinstance(text, str):
        return False
    try:
        parts = urlsplit(text)
        return parts.scheme in schemes and parts.port != 0
    except ValueError:
        return False
