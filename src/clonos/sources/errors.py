"""Errors of sources that Spark feeds."""

from __future__ import annotations

from clonos.errors import ClonosError


class FeedFailed(ClonosError):
    """The streaming query that feeds a source has failed."""


class TableFailed(ClonosError):
    """A ``look_up`` table is too large or cannot be read."""
