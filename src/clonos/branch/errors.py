"""What can go wrong in a branch."""

from __future__ import annotations

from clonos.errors import ClonosError


class Unanswered(ClonosError):
    """A function of a branch asks something that neither the log nor a stand-in answers."""
