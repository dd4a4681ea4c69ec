"""Tells when each stage of a change of a running job begins, to whoever measures its pause."""

from __future__ import annotations

import logging
from typing import Final

LOGGER: Final = logging.getLogger("clonos.stages")
"""Its records are of level DEBUG; their arguments are the stage that begins, and the job."""


def begins(stage: str, job: str) -> None:
    """A stage begins, and the one before it is over.

    Examples
    --------
    >>> begins("settling", "totals")
    """
    LOGGER.debug("%s: %s", job, stage, extra={"stage": stage})
