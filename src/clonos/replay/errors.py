"""Errors of replays."""

from __future__ import annotations


class NotInLog(BaseException):
    """A function asks the world after the end of the log, where a replay has no answer.

    Not an :class:`Exception`: a failed call is an answer, and user functions catch those.
    """
