"""Tells when each stage of a change of a running job begins, to whoever measures its pause."""

from __future__ import annotations

import logging
from typing import Final

LOGGER: Final = logging.getLogger("clonos.stages")
"""Its records are of level DEBUG, and have the stage that begins as an attribute."""


def begins(stage: str, job: str, about: str = "") -> None:
    """A stage begins, and the one before it is over.

    Examples
    --------
    >>> begins("settling", "totals")
    """
    LOGGER.debug("%s: %s%s", job, stage, about, extra={"stage": stage})
