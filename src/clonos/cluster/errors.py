"""What can go wrong in the driver of a job."""

from __future__ import annotations

from clonos.errors import ClonosError, DefinitionError


class BadDirectory(DefinitionError):
    """The folders that are given for a job do not suffice for it."""


class OtherJob(ClonosError):
    """A checkpoint was written by a job with another graph."""


class UnreadableCheckpoint(ClonosError):
    """What a checkpoint says about its job cannot be read."""
