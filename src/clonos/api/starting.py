"""The options of ``Job.start``."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict

from clonos.errors import WrongType

if TYPE_CHECKING:
    from clonos.cluster.listener import Listener


class StartOptions(TypedDict, total=False):
    """How a job runs this time; what it is, its definition says.

    :class:`~clonos.cluster.driver.RunningJob` says what each means, and the defaults. The last two
    are for ``execution="spark"``, and all that it takes.

    Examples
    --------
    >>> nightly: StartOptions = {"durability": "fsync", "ui_port": 0}
    >>> job.start(spark, **nightly)  # doctest: +SKIP
    """

    journal: str | Path | None
    standby: bool
    standby_slots: int | None
    durability: Literal["fsync", "process"]
    tls: bool | None
    batch_rows_max: int
    linger_ms: float
    silence_s: float
    answer_s: float
    listeners: Sequence[Listener]
    progress_s: float
    sole_driver: bool
    ui_port: int | None
    upgrade: bool
    drop_state: Collection[str]
    profile: Any

    processing_time: str | None
    available_now: bool


TRIGGERS: Final = ("processing_time", "available_now")
"""Of streaming queries."""


def for_tasks(options: StartOptions) -> dict[str, Any]:
    """Raise `WrongType` if there is one that only Spark's queries have."""
    return _require(
        options, [name for name in options if name in TRIGGERS], "tasks have no triggers"
    )


def for_queries(options: StartOptions) -> dict[str, Any]:
    """Raise `WrongType` if there is one that only tasks have."""
    others = [name for name in options if name not in TRIGGERS]
    return _require(options, others, 'leave it out: with execution="spark" Spark runs the job')


def require_no_options(options: StartOptions, timeout_s: float | None) -> None:
    """Raise `WrongType`, unless there are none: a batch plan takes none."""
    wrong = [*options, *(["timeout_s"] if timeout_s is not None else [])]
    _require(options, wrong, 'leave it out: with execution="spark" Spark runs the job')


def _require(options: StartOptions, wrong: list[str], remedy: str) -> dict[str, Any]:
    if wrong:
        raise WrongType(f"{', '.join(wrong)} does not apply", where="start", remedy=remedy)
    return {**options}
