"""How users say in which way a service is asked."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypedDict

from clonos.columns.durations import parse_duration
from clonos.errors import WrongType
from clonos.operators.service import Policy, Service

Duration = str | timedelta


class CallOptions(TypedDict, total=False):
    """The options of calls; :func:`call_policy` says what they mean."""

    in_flight: int
    ordered: bool
    timeout: Duration
    attempts: int
    backoff: tuple[Duration, Duration]
    per_second: float | None
    hedge: Duration | None
    on_error: Callable[..., Any] | None


def call_policy(
    fn: Callable[..., Any] | Service,
    where: str,
    values: Sequence[str],
    *,
    in_flight: int = 100,
    ordered: bool = True,
    timeout: Duration = "60 seconds",
    attempts: int = 1,
    backoff: tuple[Duration, Duration] = ("100 ms", "10 seconds"),
    per_second: float | None = None,
    hedge: Duration | None = None,
    on_error: Callable[..., Any] | None = None,
) -> tuple[Policy, dict[str, Any]]:
    """How calls are made, and what the operator does with their outcomes.

    Parameters
    ----------
    in_flight
        So many calls are under way at most, in each task; then its input waits.
    ordered
        Rows go on in the order in which they came. Else each goes on as soon as it has its answer,
        but a watermark never overtakes a row.
    timeout
        Of one attempt. The time between a row and its outcome is not limited by it: attempts may
        wait for their turn.
    attempts
        So often is a call tried that raises; the last outcome counts.
    backoff
        Pause after the first attempt that fails, and the longest one; in between they double, with
        jitter.
    per_second
        So many attempts per second at most, by all tasks of the operator together.
    hedge
        After so long a second attempt begins beside the first one, and the first answer counts.
    on_error
        ``on_error(row, error)`` (or ``on_error(value, ..., error)``) makes what the call should
        have answered. By default an error is that of a bad record: the job fails, or with
        ``on_bad_record="drop"`` the row is dropped and counted.

    Raises
    ------
    WrongType
        Something cannot be meant so.
    """
    _require_function(fn, where, values)
    if on_error is not None:
        _require_function(on_error, f"{where}: on_error", (*values, "error"))
    for name, number in (("in_flight", in_flight), ("attempts", attempts)):
        if type(number) is not int or number < 1:
            raise WrongType(f"{name}={number!r}", where=where, remedy="give a number from 1 on")
    if per_second is not None and not per_second > 0:
        raise WrongType(
            f"per_second={per_second!r}", where=where, remedy="give a number above 0, or None"
        )
    first, most = backoff
    policy = Policy(
        fn=fn,
        name=where,
        timeout_s=parse_duration(timeout) / 1000,
        attempts=attempts,
        backoff_s=(parse_duration(first) / 1000, parse_duration(most) / 1000),
        per_second=per_second,
        hedge_s=None if hedge is None else parse_duration(hedge) / 1000,
        in_flight=in_flight,
    )
    return policy, {"ordered": bool(ordered), "on_error": on_error}


def _require_function(fn: Callable[..., Any] | Service, where: str, values: Sequence[str]) -> None:
    """It can be called with these arguments, and nothing else."""
    if isinstance(fn, Service):
        fn = fn.call
    if not callable(fn):
        raise WrongType(
            f"{fn!r} is not a function", where=where, remedy="pass a function or a clonos.Service"
        )
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):
        return  # builtins without a signature
    try:
        signature.bind(*values)
    except TypeError as error:
        raise WrongType(
            f"the function cannot be called with ({', '.join(values)}): {error}",
            where=where,
            remedy=f"write it as async def fn({', '.join(values)})",
        ) from error
