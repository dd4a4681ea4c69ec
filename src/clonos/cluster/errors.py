"""Errors in the driver of a job."""

from __future__ import annotations

from clonos.errors import ClonosError, DefinitionError


class BadDirectory(DefinitionError):
    """A job's folders are missing, not local, or cannot be written."""


class UnreadableCheckpoint(ClonosError):
    """A checkpoint's description of its job cannot be read."""


class NothingKept(ClonosError):
    """A job keeps nothing of its past that another process could read."""
