"""Errors of sinks whose tasks write files themselves."""

from __future__ import annotations

from clonos.errors import ClonosError


class OutputExists(ClonosError):
    """A new job would write into a folder that has another job's output."""


class SinkFailed(ClonosError):
    """A sink could not write its rows."""
