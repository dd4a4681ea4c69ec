"""The options of ``map_async`` and ``with_column_async``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from clonos.operators.service import (
    Policy,
    PolicyOptions,
    Service,
    policy_of,
    require_arguments,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack


class CallOptions(PolicyOptions, total=False):
    """What :func:`call_policy` understands."""

    in_flight: int
    ordered: bool
    on_error: Callable[..., Any] | None


def call_policy(
    fn: Callable[..., Any] | Service,
    where: str,
    values: Sequence[str],
    *,
    in_flight: int = 100,
    ordered: bool = True,
    on_error: Callable[..., Any] | None = None,
    **how: Unpack[PolicyOptions],
) -> tuple[Policy, dict[str, Any]]:
    """How calls are made, and what the operator does with their outcomes.

    Parameters
    ----------
    in_flight
        So many calls are open at most, in each task; then its input waits.
    ordered
        Rows go on in the order in which they came. Else each goes on as soon as it has its answer,
        but a watermark never overtakes a row.
    on_error
        ``on_error(row, error)`` (or ``on_error(value, ..., error)``) makes what the call should
        have answered. By default an error is that of a bad record: the job fails, or with
        ``on_bad_record="drop"`` the row is dropped and counted.
    how
        See :func:`clonos.operators.service.policy_of`.

    Raises
    ------
    WrongType
        Something cannot be meant so.
    """
    policy = policy_of(fn, where, in_flight=in_flight, **how)
    require_arguments(fn, where, values)
    if on_error is not None:
        require_arguments(on_error, f"{where}: on_error", (*values, "error"))
    return policy, {"ordered": bool(ordered), "on_error": on_error}
