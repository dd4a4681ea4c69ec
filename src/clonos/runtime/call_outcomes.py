"""Outcomes of calls: the answer or the error, as it is logged."""

from __future__ import annotations

import inspect
from typing import Any, Final

from clonos.blame import in_short, users_traceback
from clonos.core.calls import CallId, Outcome, Request
from clonos.core.canonical import encode, encode_error
from clonos.errors import AnswerTooLarge, CallError, UnencodableValue
from clonos.operators.bad_records import with_place
from clonos.runtime.effects import by_engine, unknown

ANSWER_BYTES_MAX: Final = 256 << 10
"""Answers are kept in logs and memories until a floor passes them."""
ERROR_BYTES_MAX: Final = 16 << 10
"""Errors are kept there, too; of a longer one only the beginning of its message."""


def encoded(answer: Any) -> bytes:
    """An answer as it is logged.

    Raises
    ------
    AnswerTooLarge, UnencodableValue
        It cannot be logged.
    """
    try:
        encoded = encode(answer)
    except UnencodableValue:
        if not inspect.iscoroutine(answer):
            raise
        answer.close()  # else Python warns of it, somewhere else
        raise UnencodableValue(
            "the function has returned a coroutine that nobody awaits",
            remedy="write it as async def, and await the coroutine there",
        ) from None
    if len(encoded) > ANSWER_BYTES_MAX:
        raise AnswerTooLarge(
            f"an answer of {len(encoded)} bytes; at most {ANSWER_BYTES_MAX} are logged"
        )
    return encoded


def given_up(call: CallId, request: Request, why: str, trace: str) -> Outcome:
    """The outcome of a call that is given up, whatever it still does."""
    policy = request.service
    said = f"no answer within {policy.timeout_s:g} s: {why}"
    error: Exception = by_engine(TimeoutError(said))
    if request.key:
        error = unknown(request, policy, f"nobody knows whether it was made: {said}")
    outcome = failed(call, request, error, 1, round(1000 * policy.timeout_s))
    return outcome._replace(trace=trace if policy.tells_trace else "")


def failed(call: CallId, request: Request, error: BaseException, attempts: int, ms: int) -> Outcome:
    """The outcome of a call that has raised, however strange the error."""
    try:
        encoded = encode_error(error)
    except BaseException:  # noqa: BLE001 - its text is user code, too
        encoded = b""
    if not 0 < len(encoded) <= ERROR_BYTES_MAX:
        name = type(error).__name__
        encoded = encode_error(CallError(name, in_short(error).removeprefix(f"{name}: ")))
    encoded = with_place(encoded, error, request.service)
    trace = _trace_of(error) if request.service.tells_trace else ""
    return Outcome(*call, request.digest, False, encoded, attempts, ms, trace)


def _trace_of(error: BaseException) -> str:
    """The user's lines: those that an error went through, or where a thread was given up."""
    if lines := users_traceback(error):
        return lines
    # Of an effect that is unknown it is the cause that knows.
    ours = [each for each in (error, error.__cause__) if hasattr(each, "is_by_engine")]
    traces: list[str] = [getattr(each, "trace", "") for each in ours]
    return next(filter(None, traces), "")
