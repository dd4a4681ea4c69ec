"""The options of ``Job.start``."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict

from clonos.api.settings import flag_of, folder_of, number_of, one_of
from clonos.errors import WrongType
from clonos.operators.calls.budget import is_number
from clonos.options import drops_of, renames_of, require_known

if TYPE_CHECKING:
    from clonos.cluster.listener import Listener


class StartOptions(TypedDict, total=False):
    """How a job runs this time. Its definition says what the job is.

    :class:`~clonos.cluster.driver.RunningJob` describes each option and its default. The last two
    apply to ``execution="spark"``, which takes no others.

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
    drop_state: Collection[Any]
    renamed: Mapping[Any, str] | None
    profile: Any

    processing_time: str | None
    available_now: bool


TRIGGERS: Final = ("processing_time", "available_now")
"""Options of streaming queries."""
FLAGS: Final = ("standby", "sole_driver", "upgrade")
DURABILITIES: Final = ("fsync", "process")
PORT_MAX: Final = 65_535


def for_tasks(options: StartOptions, timeout_s: float | None = None) -> dict[str, Any]:
    """Check the options for tasks, and return them.

    Raises
    ------
    WrongType
        There is no such option, it is only for Spark's queries, it has a wrong value, or it needs
        another one.
    """
    require_known(options, StartOptions.__annotations__, "start")
    given = _require(
        options, [name for name in options if name in TRIGGERS], "tasks have no triggers"
    )
    for name, value in given.items():
        _require_value(name, value)
    if timeout_s is not None:
        _require_seconds("timeout_s", timeout_s, above=False)
    for name in ("drop_state", "renamed"):
        if (value := given.get(name)) and not given.get("upgrade"):
            remedy = "state is dropped, or goes elsewhere, in upgrades: add upgrade=True"
            raise WrongType(f"{name}={value!r}", where="start", remedy=remedy)
    return given


def for_queries(options: StartOptions) -> dict[str, Any]:
    """Raise `WrongType` if an option is unknown, or only for tasks."""
    require_known(options, StartOptions.__annotations__, "start")
    others = [name for name in options if name not in TRIGGERS]
    return _require(options, others, 'leave it out: with execution="spark" Spark runs the job')


def require_no_options(options: StartOptions, timeout_s: float | None) -> None:
    """Raise `WrongType` if there is any: a batch plan takes none."""
    require_known(options, StartOptions.__annotations__, "start")
    wrong = [*options, *(["timeout_s"] if timeout_s is not None else [])]
    _require(options, wrong, 'leave it out: with execution="spark" Spark runs the job')


def _require_seconds(name: str, value: Any, *, above: bool = True) -> None:
    """Raise `WrongType` unless it is a finite number above 0, or at least 0."""
    if not is_number(value) or not (value > 0 if above else value >= 0):
        limit = "above 0" if above else "that is not negative"
        raise WrongType(f"{name}={value!r}", where="start", remedy=f"give a number {limit}")


def _require_value(name: str, value: Any) -> None:
    """Raise `WrongType` unless an option of tasks may have this value."""
    if name == "batch_rows_max":
        number_of(name, value, 1)
    elif name == "standby_slots" and value is not None:
        number_of(name, value, 0)
    elif name == "ui_port" and value is not None:
        number_of(name, value, 0, PORT_MAX)
    elif name == "linger_ms":
        _require_seconds(name, value, above=False)
    elif name in {"silence_s", "answer_s", "progress_s"}:
        _require_seconds(name, value)
    elif name == "durability":
        one_of(name, value, *DURABILITIES)
    elif name in FLAGS or (name == "tls" and value is not None):
        flag_of(name, value)
    elif name == "journal":
        folder_of(name, value)
    elif name == "drop_state":
        drops_of(value, "start")
    elif name == "renamed":
        renames_of(value, "start")
    elif name == "listeners":
        is_list = isinstance(value, Sequence) and all(hasattr(v, "on_progress") for v in value)
        _require_that(is_list, name, value, "give a list of clonos.Listener objects")


def _require_that(is_right: bool, name: str, value: Any, remedy: str) -> None:
    if not is_right:
        raise WrongType(f"{name}={value!r}", where="start", remedy=remedy)


def _require(options: StartOptions, wrong: list[str], remedy: str) -> dict[str, Any]:
    if wrong:
        raise WrongType(f"{', '.join(wrong)} does not apply", where="start", remedy=remedy)
    return {**options}
