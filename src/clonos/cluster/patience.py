"""A driver that takes over waits for stores that are away, because nobody else runs the job."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from clonos.errors import ClonosError, StoreAway
from clonos.storage.retry import Retry, may_pass

_T = TypeVar("_T")


class Patience:
    """Does again what a store refuses, until it does not.

    Parameters
    ----------
    is_needed
        Whether the job was running until now, so that its stores were there. If it begins, a store
        that is not there is a mistake, and an error.
    name, wait, warn
        See :class:`~clonos.storage.retry.Retry`.

    Examples
    --------
    >>> answers = [OSError("timed out"), "there"]
    >>> def ask():
    ...     answer = answers.pop(0)
    ...     if isinstance(answer, OSError):
    ...         raise answer
    ...     return answer
    >>> Patience("etl", lambda seconds: None, print, is_needed=True)(ask)
    etl: timed out. It is tried again until it works.
    etl: it works again
    'there'
    """

    def __init__(
        self,
        name: str,
        wait: Callable[[float], object],
        warn: Callable[[str], object],
        *,
        is_needed: bool,
    ) -> None:
        self._retry = Retry(name, wait, warn) if is_needed else None

    def __call__(self, attempt: Callable[[], _T]) -> _T:
        """What `attempt` returns in the end."""
        return attempt() if self._retry is None else self._retry(lambda: _told_apart(attempt))


def _told_apart(attempt: Callable[[], _T]) -> _T:
    """Raise `StoreAway` for errors that may pass."""
    try:
        return attempt()
    except (ClonosError, OSError) as error:
        cause = error if isinstance(error, OSError) else error.__cause__
        if not isinstance(cause, OSError) or not may_pass(cause):
            raise
        what, where = str(error), ""
        if isinstance(error, ClonosError):
            what, where = error.what, error.where
        raise StoreAway(what, where=where) from error
