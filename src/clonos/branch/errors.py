"""What can go wrong in a branch."""

from __future__ import annotations

from clonos.errors import ClonosError


class Unanswered(ClonosError):
    """A function of a branch asks what the log has no answer to, and nobody else may be asked."""


class CannotReplace(ClonosError):
    """What is to replace a part of a job does not fit in its place."""
