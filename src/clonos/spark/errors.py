"""Errors between clonos and the Spark application that it runs in."""

from __future__ import annotations

from clonos.errors import ClonosError


class SparkSetup(ClonosError):
    """Slots cannot run with the configuration of this Spark session."""


class NotEnoughSlots(SparkSetup):
    """The application has fewer free cores than the job needs slots."""


class SlotFailed(ClonosError):
    """The Spark job of a slot has failed: its process or executor died, or its body raised."""


class SparkStopped(ClonosError):
    """The Spark application has ended while a job ran in it."""


class JobCancelled(ClonosError):
    """Somebody has cancelled Spark jobs of a clonos job: in Spark's UI, by group, tag or number,
    or all of them."""
