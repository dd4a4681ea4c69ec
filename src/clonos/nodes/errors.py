"""Errors that the driver raises about its slots."""

from __future__ import annotations

from clonos.errors import ClonosError


class SlotsLost(ClonosError):
    """A slot ended repeatedly before it registered."""


class OtherVersion(ClonosError):
    """An executor's versions differ from the driver's: a replay might not be bit-exact."""


class ExecutorLost(ClonosError):
    """The executor of a slot has ended, and the slot with it: no fault of its own."""
