"""How the user wants a job to be run, whichever driver runs it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clonos.storage.files import Durability


@dataclass(frozen=True)
class RunOptions:
    """What holds for each driver that runs the job in this process: options of
    :class:`~clonos.cluster.driver.RunningJob`, which says what they mean.
    """

    journal: str | Path | None
    standby_slots: int | None
    durability: Durability
    tls: bool | None
    batch_rows_max: int
    linger_ms: float
    silence_s: float
    answer_s: float
    progress_s: float
    sole_driver: bool
    profile: Any
