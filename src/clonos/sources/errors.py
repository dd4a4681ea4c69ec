"""What can go wrong with a source that Spark feeds."""

from __future__ import annotations

from clonos.errors import ClonosError


class FeedFailed(ClonosError):
    """The streaming query that feeds a source has failed."""


class TableFailed(ClonosError):
    """A table that rows are looked up in cannot be read."""
