"""Errors of branches."""

from __future__ import annotations

from clonos.errors import ClonosError


class Unanswered(ClonosError):
    """A function of a branch asks a question that neither the log nor a stand-in can answer."""
