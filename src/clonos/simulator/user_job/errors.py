"""Errors for a job that cannot be simulated, and for one whose simulation finds a fault."""

from __future__ import annotations


class Unanswered(BaseException):  # users' functions may well catch every Exception
    """A function was called that has no stand-in."""
