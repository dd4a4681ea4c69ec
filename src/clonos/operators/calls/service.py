"""Services: functions outside the job, and how they are called."""

from __future__ import annotations

import asyncio
import copy
import inspect
import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, TypedDict

from clonos.columns.durations import parse_duration
from clonos.columns.rows import short
from clonos.core.pauses import doubled
from clonos.errors import ClonosError, EffectUnknown, WrongLength, WrongType
from clonos.operators.calls.budget import Budget, Cost, is_number, require_budget
from clonos.operators.calls.cache import Cache, require_cache
from clonos.operators.calls.effects import Effect

Duration = str | timedelta

_SHOWN: Final = 3
"""Rows of a batch that an error message shows."""


class Service:
    """Base class for services that hold a connection: derive from it and override :meth:`call`.

    The object is copied for each life of a task, and runs in an event loop outside of steps.

    Examples
    --------
    >>> class Judge(Service):
    ...     async def open(self):
    ...         self.session = aiohttp.ClientSession()
    ...
    ...     async def call(self, text):
    ...         async with self.session.post(URL, json={"text": text}) as response:
    ...             return (await response.json())["verdict"]
    ...
    ...     async def close(self):
    ...         await self.session.close()
    """

    async def open(self) -> None:
        """Called once, before the first call."""

    async def call(self, *arguments: Any) -> Any:
        """Answer one question. The return value or exception is logged."""
        raise NotImplementedError

    async def close(self) -> None:
        """Called when the life of the task is over, unless its process dies."""


@dataclass(frozen=True, eq=False)
class Policy:
    """How calls of one operator are made. It is never logged.

    Attributes
    ----------
    fn
        A coroutine function, a plain function (called in a thread), or a :class:`Service`.
    timeout_s
        The timeout of one attempt.
    attempts
        The largest number of attempts, with exponential pauses and jitter within `backoff_s`.
    per_second
        The largest number of attempts per second; None: any number.
    hedge_s
        If an attempt takes longer, a second one begins, and the first answer counts; None: never.
    in_flight
        How many calls may be open.
    tells_trace
        An error may end the job, so it is reported with the trace of user code.
    tells_place
        Bad records are kept, so an error is logged with the line of user code that raised it.
    effect
        The effect that the call is, if it is one.
    shares
        Rows with one identity share an effect.
    budget, cost, tokens
        The budget, the cost of a call, and its number of tokens.
    batch, batch_within_ms
        The largest number of rows of a call, and how long the first row waits for others; None: a
        call has one row.
    cache_ttl_s, cache
        How long an answer is reused for the same question (None: never), and where it is kept
        besides the task's own memory.
    forgets
        Nobody reads the answers, so they need not be kept, unless a function of them says what a
        call costs.
    instead_of
        This policy only refuses calls of that one.
    when_quiet
        ... and not before the open calls of that one are over, because these are paid for.
    """

    fn: Callable[..., Any] | Service
    name: str
    timeout_s: float
    attempts: int
    backoff_s: tuple[float, float]
    per_second: float | None
    hedge_s: float | None
    in_flight: int
    tells_trace: bool = True
    tells_place: bool = False
    effect: Effect | None = None
    shares: bool = False
    budget: Budget | None = None
    cost: Cost | None = None
    tokens: Cost | None = None
    batch: int | None = None
    batch_within_ms: int = 0
    cache_ttl_s: float | None = None
    cache: Cache | None = None
    forgets: bool = False
    instead_of: Policy | None = None
    when_quiet: bool = False

    def of_task(
        self, index: int, parallelism: int, *, tells_trace: bool, tells_place: bool = False
    ) -> Policy:
        """The policy of one task, with its share of rate and budget."""
        per_second = self.per_second and self.per_second / parallelism
        budget = self.budget and self.budget.of_task(index, parallelism)
        return replace(
            self,
            per_second=per_second,
            budget=budget,
            tells_trace=tells_trace,
            tells_place=tells_place,
        )

    @property
    def fingerprint(self) -> str:
        """The kind of call; a checkpoint with open calls continues only with the same kind."""
        of_rows = "" if self.batch is None else " of several rows"
        if self.effect is None:
            return f"a plain call{of_rows}"
        return f"{'an idempotent effect' if self.effect.idempotent else 'an effect'}{of_rows}"

    def refusing(self, error: ClonosError, *, when_quiet: bool = False) -> Policy:
        """The policy for calls that are not made, and have this error instead."""
        return replace(
            self,
            fn=_Refusal(error),
            hedge_s=None,
            per_second=None,
            instead_of=self,
            when_quiet=when_quiet,
        )

    def is_fatal(self, error: Exception) -> bool:
        """Whether this error ends the job, however other errors are handled."""
        effect = self.effect
        return (
            isinstance(error, EffectUnknown)
            and effect is not None
            and (effect.on_unknown != "on_error")
        )

    def pause_s(self, attempts: int) -> float:
        """The pause after this many attempts."""
        first, most = self.backoff_s
        return doubled(first, attempts - 1, most) * random.uniform(0.5, 1.0)

    def given(self, arguments: Sequence[Any]) -> Sequence[Any]:
        """The arguments of an attempt: copies, because a function may empty a batch's lists."""
        return arguments if self.batch is None else [list(values) for values in arguments]

    def require_answers(self, arguments: Sequence[Any], answer: Any) -> Any:
        """Return the answer to be kept; for a batch, check that it has one answer for each row.

        Raises
        ------
        WrongLength
            It has more or fewer.
        """
        if self.forgets and not inspect.isawaitable(answer):
            return None if self.batch is None else [None] * len(arguments[0])
        if self.batch is None:
            return answer
        rows = list(zip(*arguments, strict=True))
        if isinstance(answer, (list, tuple)) and len(answer) == len(rows):
            return answer
        is_list = isinstance(answer, (list, tuple))
        said = f"{len(answer)} answers" if is_list else f"a {type(answer).__name__}"
        about = ", ".join(short(row[0] if len(row) == 1 else row) for row in rows[:_SHOWN])
        more = "" if len(rows) <= _SHOWN else f", and {len(rows) - _SHOWN} more"
        raise WrongLength(f"{said} to {len(rows)} rows: {about}{more}", where=self.name)

    @property
    def checking(self) -> Policy:
        """The policy for calls of an effect's check."""
        assert self.effect is not None
        assert self.effect.check is not None
        name = f"check of {self.name}"
        return replace(self, fn=self.effect.check, name=name, per_second=None, effect=None)

    @property
    def called(self) -> str:
        """The name of the function, as users know it."""
        if isinstance(self.fn, Service):
            return f"{type(self.fn).__name__}.call"
        return getattr(self.fn, "__name__", type(self.fn).__name__)

    @property
    def is_async(self) -> bool:
        """Whether the function runs in the event loop."""
        return isinstance(self.fn, Service) or is_async(self.fn)


class _Refusal:
    """Takes the place of a service."""

    def __init__(self, error: ClonosError) -> None:
        self._error = error

    async def __call__(self, *arguments: Any, **named: Any) -> Any:
        del arguments, named
        raise type(self._error)(self._error.what)


def ask_once(policy: Policy, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """Make one attempt, now, in this thread; for tests. Raises what the service raises."""
    return policy.require_answers(arguments, _asked_once(policy, policy.given(arguments), named))


def _asked_once(policy: Policy, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
    if not policy.is_async and not isinstance(policy.fn, Service):
        return policy.fn(*arguments, **named)
    asking = _ask(policy, arguments, named)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(asking)
    with ThreadPoolExecutor(1) as thread:  # a notebook's thread already runs a loop
        return thread.submit(asyncio.run, asking).result()


async def _ask(policy: Policy, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
    if isinstance(policy.fn, Service):
        service = copy.copy(policy.fn)
        await service.open()
        try:
            return await service.call(*arguments, **named)
        finally:
            await service.close()
    return await policy.fn(*arguments, **named)


def is_async(fn: Callable[..., Any]) -> bool:
    """Whether a function returns a coroutine, as far as can be told."""
    return any(map(inspect.iscoroutinefunction, _called(fn)))


def _is_generator(fn: Callable[..., Any] | Service) -> bool:
    called = _called(fn.call if isinstance(fn, Service) else fn)
    return any(inspect.isgeneratorfunction(f) or inspect.isasyncgenfunction(f) for f in called)


def _called(fn: Callable[..., Any]) -> tuple[Any, Any]:
    """A function; and what is called if it is an object with a method ``__call__``."""
    return fn, getattr(fn, "__call__", fn)  # noqa: B004


class Declared:
    """A function that brings its own options, as made by :func:`clonos.causal.service`.

    Attributes
    ----------
    asked
        The function.
    how
        Options; they can be overridden where the function is used.
    """

    asked: Callable[..., Any]
    how: PolicyOptions

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Used in plain PySpark; in a job, the job makes the call."""
        raise NotImplementedError

    def at_once(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function now, in this thread, with its timeout and attempts."""
        raise NotImplementedError


def undeclared(fn: Any, how: PolicyOptions) -> tuple[Any, PolicyOptions]:
    """The function, and its options: its own, overridden by those given here."""
    return (fn.asked, {**fn.how, **how}) if isinstance(fn, Declared) else (fn, how)


class PolicyOptions(TypedDict, total=False):
    """Options of a service; :func:`policy_of` explains them."""

    timeout: Duration
    attempts: int
    backoff: tuple[Duration, Duration]
    per_second: float | None
    hedge: Duration | None
    budget: Budget | None
    cost: Cost | None
    tokens: Cost | None
    cache_ttl: Duration | None
    cache: Cache | None


class ServiceOptions(PolicyOptions, total=False):
    """Options of ``clonos.service``."""

    name: str | None
    idempotent: bool
    check: Callable[..., Any] | None


def policy_of(
    fn: Callable[..., Any] | Service | Effect,
    where: str,
    /,
    *,
    in_flight: int,
    timeout: Duration = "60 seconds",
    attempts: int = 1,
    backoff: tuple[Duration, Duration] = ("100 ms", "10 seconds"),
    per_second: float | None = None,
    hedge: Duration | None = None,
    budget: Budget | None = None,
    cost: Cost | None = None,
    tokens: Cost | None = None,
    cache_ttl: Duration | None = None,
    cache: Cache | None = None,
) -> Policy:
    """Make a policy from users' options.

    Parameters
    ----------
    timeout
        The timeout of one attempt. It does not limit the time between a row and its outcome,
        because attempts may have to wait.
    attempts
        How often a call that raises is tried; the last outcome counts.
    backoff
        The pause after the first failed attempt, and the longest pause; pauses double, with jitter.
    per_second
        The largest number of attempts per second, over all tasks of the operator.
    hedge
        After this time a second attempt begins beside the first one; the first answer counts.
    budget
        The budget of all tasks together, in all runs with one checkpoint; each task has an equal
        share. A call beyond it is not made; its outcome is the error `BudgetSpent`.
    cost
        The cost of a call: a number, or a function of the answer. A failed call costs nothing.
    tokens
        The tokens of a call: a number, or a function of the answer.
    cache_ttl
        How long an answer is reused for other rows of the task with the same question. This counts
        as no call and costs nothing. The answer is logged like any other.
    cache
        A :class:`clonos.Cache`, to reuse answers in other tasks, other jobs and later runs, too.

    Raises
    ------
    WrongType
        An option is invalid.
    """
    _require_function(fn, where)
    for name, number in (("in_flight", in_flight), ("attempts", attempts)):
        if type(number) is not int or number < 1:
            raise WrongType(f"{name}={number!r}", where=where, remedy="give a number of 1 or more")
    if per_second is not None and not (is_number(per_second) and per_second > 0):
        raise WrongType(
            f"per_second={per_second!r}", where=where, remedy="give a number above 0, or None"
        )
    timeout_s = parse_duration(timeout) / 1000
    hedge_s = None if hedge is None else parse_duration(hedge) / 1000
    if hedge_s is not None and hedge_s >= timeout_s:
        raise WrongType(
            f"hedge={hedge!r}: by then the first attempt is over, because timeout={timeout!r}",
            where=where,
            remedy="give a shorter hedge=, or a longer timeout=",
        )
    require_budget(budget, cost, tokens, where)
    effect = fn if isinstance(fn, Effect) else None
    if effect is not None:
        _require_one_effect(effect, hedge, cache_ttl, where)
    require_cache(cache, cache_ttl, where)
    return Policy(
        fn=fn if effect is None else effect.fn,
        name=where,
        timeout_s=timeout_s,
        attempts=attempts,
        backoff_s=_pauses_s(backoff, where),
        per_second=per_second,
        hedge_s=hedge_s,
        in_flight=in_flight,
        effect=effect,
        budget=budget,
        cost=cost,
        tokens=tokens,
        cache_ttl_s=None if cache_ttl is None else parse_duration(cache_ttl) / 1000,
        cache=cache,
    )


def _pauses_s(backoff: Any, where: str) -> tuple[float, float]:
    """The first pause and the longest one, in seconds."""
    if isinstance(backoff, (tuple, list)) and len(backoff) == 2:
        first_s, most_s = (parse_duration(pause) / 1000 for pause in backoff)
        if first_s <= most_s:
            return first_s, most_s
    raise WrongType(
        f"backoff={backoff!r}",
        where=where,
        remedy='give the first pause and the longest one, such as ("100 ms", "10 seconds")',
    )


def _require_function(fn: Any, where: str) -> None:
    """Raise `WrongType` unless it may be called for one answer."""
    if isinstance(fn, Effect) and isinstance(fn.fn, Declared):
        raise WrongType(
            "a service has become an effect, and its options would be lost",
            where=where,
            remedy="declare both at once: @clonos.service(idempotent=True, ...) or check=, or "
            "write @clonos.service(...) above @clonos.effect(...)",
        )
    require_object(fn, where)
    if isinstance(fn, Service) and type(fn).call is Service.call:
        raise WrongType(
            f"{type(fn).__name__} has no call",
            where=where,
            remedy="write async def call(self, ...), which returns the answer",
        )
    if not callable(fn) and not isinstance(fn, Service):
        raise WrongType(
            f"{fn!r} is not a function", where=where, remedy="pass a function or a clonos.Service"
        )
    if _is_generator(fn.fn if isinstance(fn, Effect) else fn):
        raise WrongType(
            "the function has a yield, so it is a generator, and a call has one answer",
            where=where,
            remedy="return the answer; several values may be a list",
        )


def require_object(fn: Any, where: str) -> None:
    """Raise `WrongType` if it is the class of a service, which would be called for each row."""
    if isinstance(fn, type) and issubclass(fn, Service):
        raise WrongType(
            f"{fn.__name__} is a class",
            where=where,
            remedy=f"make an object of it, {fn.__name__}(), and give that and the options to "
            "map_async, with_column_async, for_each_async or ctx.service",
        )


def _require_one_effect(effect: Effect, hedge: Any, cache_ttl: Any, where: str) -> None:
    """Raise `WrongType` if an effect could be made twice, or left out."""
    if hedge is not None and not effect.idempotent:
        raise WrongType(
            "a second attempt beside the first would make the effect twice",
            where=where,
            remedy="leave hedge= out, or say idempotent=True if the service deduplicates by key",
        )
    if cache_ttl is not None:
        raise WrongType(
            "cache_ttl= would leave out effects that are like earlier ones",
            where=where,
            remedy="leave it out; identity= names what several rows do only once",
        )


def of_several(policy: Policy, batch: int | None, within: Duration | None, where: str) -> Policy:
    """The policy for calls with up to `batch` rows, or questions of a process.

    Raises
    ------
    WrongType
        The options contradict each other, or one is invalid.
    """
    if batch is None:
        if within is not None:
            raise WrongType(
                f"batch_within={within!r} is given, but without batch= each row has its own call",
                where=where,
                remedy="say with batch= how many rows a call is about, at most",
            )
        return policy
    if type(batch) is not int or batch < 1:
        raise WrongType(
            f"batch={batch!r}", where=where, remedy="give a number of 1 or more, or None"
        )
    if policy.cache_ttl_s is not None:
        raise WrongType(
            "cache_ttl= remembers what a row asks, but with batch= several ask together",
            where=where,
            remedy="leave one of the two out",
        )
    within_ms = 0 if within is None else parse_duration(within)
    return replace(policy, batch=batch, batch_within_ms=within_ms)


def columns_of(each: Sequence[Sequence[Any]]) -> tuple[list[Any], ...]:
    """The arguments of a call with several questions: a list for each argument.

    Examples
    --------
    >>> columns_of([("a", 1), ("b", 2)])
    (['a', 'b'], [1, 2])
    """
    return tuple(map(list, zip(*each, strict=True)))


def require_arguments(
    fn: Callable[..., Any] | Service | Effect, where: str, values: Sequence[str]
) -> None:
    """Check that a function can be called with exactly these arguments.

    Raises
    ------
    WrongType
        It cannot.
    """
    named: dict[str, Any] = {}
    if isinstance(fn, Effect):
        if fn.check is not None:
            named = {"call": None} if fn.check_wants_call else {}
            _require_arguments(fn.check, f"{where}: check", values, named)
        named = {"call": None} if fn.wants_call else {}
        fn = fn.fn
    _require_arguments(fn.call if isinstance(fn, Service) else fn, where, values, named)


def require_handler(on_error: Any, where: str, values: Sequence[str]) -> None:
    """Check that `on_error` is a function that can be called with these arguments and an error.

    Raises
    ------
    WrongType
        It is not.
    """
    if not callable(on_error):
        raise WrongType(
            f"on_error={on_error!r} is not a function",
            where=where,
            remedy="give a function that gives an answer for a row whose call has failed, or say "
            'Job(on_bad_record="drop") to skip such rows',
        )
    _require_arguments(on_error, f"{where}: on_error", (*values, "error"), {}, "def")
    if is_async(on_error):
        raise WrongType(
            "the function makes a coroutine, and what it returns takes the place of an answer",
            where=f"{where}: on_error",
            remedy="write it with def; to ask another service, do so in the function itself",
        )


def _require_arguments(
    fn: Callable[..., Any],
    where: str,
    values: Sequence[str],
    named: dict[str, Any],
    kind: str = "async def",
) -> None:
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):
        return  # builtins without a signature
    try:
        signature.bind(*values, **named)
    except TypeError as error:
        raise WrongType(
            f"the function cannot be called with ({', '.join(values)}): {error}",
            where=where,
            remedy=f"write it as {kind} fn({', '.join(values)})"
            if values
            else "name the columns whose values it gets",
        ) from error
