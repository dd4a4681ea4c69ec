"""Errors between clonos and the Spark application that it runs in."""

from __future__ import annotations

from clonos.errors import ClonosError


class SlotFailed(ClonosError):
    """The Spark job of a slot has failed: its process or executor died, or its body raised."""
