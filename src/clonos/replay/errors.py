"""Errors of replays."""

from __future__ import annotations

from clonos.errors import ClonosError


class NothingToReplay(ClonosError):
    """There is no checkpoint, or this process cannot read the rows of its sources."""


class UnreadableBundle(ClonosError):
    """A bundle is damaged, or has a format that this clonos cannot read."""


class NotInLog(BaseException):
    """A function asks the world after the end of the log, where a replay has no answer.

    Not an :class:`Exception`: a failed call is an answer, and user functions catch those.
    """
