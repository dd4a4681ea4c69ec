"""What can go wrong when the past is looked at."""

from __future__ import annotations

from clonos.errors import ClonosError


class NothingToReplay(ClonosError):
    """There is no checkpoint, or nothing in this process can read what its tasks have read."""


class UnreadableBundle(ClonosError):
    """A bundle is damaged, or of a format that this clonos does not read."""


class NotInLog(BaseException):
    """A function asks the world after the end of the log, where a replay has no answer.

    No :class:`Exception`: a call that fails is an answer, and users' functions catch those.
    """
