"""Calls, clock and random numbers for functions in Spark tasks."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from datetime import datetime
from hashlib import blake2b
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, overload

import numpy as np

from clonos.causal import process, values  # noqa: F401 - teaches the log NumPy's and pandas' values
from clonos.causal.entries import CALL, CLOCK, Entry, decode_error, digest_of, encode_error
from clonos.causal.shipped import Shipped
from clonos.causal.task import ANSWER_BYTES_MAX, OperatorLog, Task
from clonos.columns.instants import from_ms
from clonos.core import canonical
from clonos.errors import DefinitionError, UnencodableValue
from clonos.errors.causal import CausalError, NotIdempotent, OutsideTask, ServiceTooSlow
from clonos.extras import imported
from clonos.operators.calls.effects import Effect, EffectCall, effect, effect_key
from clonos.operators.calls.service import (
    Declared,
    Policy,
    PolicyOptions,
    ServiceOptions,
    policy_of,
    require_object,
)
from clonos.options import OF_OPERATORS, require_known

if TYPE_CHECKING:
    from typing_extensions import Unpack

F = TypeVar("F", bound=Callable[..., Any])

_asking: ContextVar[_Question | None] = ContextVar("clonos_question", default=None)


class _Question:
    """One call, and the log in which its answer is looked for."""

    __slots__ = ("digest", "key", "log", "occurrence", "service", "task")

    def __init__(self, task: Task, log: OperatorLog, digest: bytes, service: str, key: Any) -> None:
        self.task = task
        self.log = log
        self.digest = digest
        self.service = service
        self.key = key
        self.occurrence = log.count(digest) if key is None else 0

    @property
    def idempotency_key(self) -> str:
        where = self.log.key
        # The seed is new when a scope's answers were forgotten, so that a run with the same name as
        # yesterday's gets new keys, and not yesterday's receipts.
        run = f"{where.scope}.{self.log.seed.hex()}"
        parts = [run, str(where.batch), where.operator, self.digest.hex()]
        if self.key is None:
            parts.append(f"{where.partition}.{self.occurrence}")
        return "/".join(parts)

    def logged(self) -> Entry | None:
        return self.log.take(self.digest)

    def keep(self, *, ok: bool, value: Any) -> Entry:
        try:
            answer = canonical.encode(value) if ok else encode_error(value)
        except UnencodableValue as error:
            raise UnencodableValue(
                f"the answer of {self.service} cannot be kept: {error.what}",
                where=str(self.log.key),
                remedy=f"let {self.service} return what you use of it (response.json() rather than "
                "response): plain values, NumPy arrays, pandas objects, Arrow batches",
            ) from error
        if len(answer) > ANSWER_BYTES_MAX:
            raise UnencodableValue(
                f"the answer of {self.service} has {len(answer)} bytes; {ANSWER_BYTES_MAX} are "
                "the limit",
                where=str(self.log.key),
                remedy="keep it in a store of its own, and return its name",
            )
        entry = Entry(self.digest, CALL, ok, answer)
        self.task.keep(self.log, entry)
        return entry


def _question(
    service: str, operator: str, key: Any, args: Sequence[Any], kwargs: dict[str, Any]
) -> _Question:
    task = process.current()
    log = task.log(operator)
    try:
        named = [list(item) for item in sorted(kwargs.items())] if kwargs else []
        # Lists, not tuples: MessagePack has no tuples, and every call takes this path.
        digest = digest_of([service, key, list(args), named])
    except UnencodableValue as error:
        raise UnencodableValue(
            f"{service} was called with something that cannot be told apart: {error.what}",
            where=str(log.key),
            remedy="pass plain values (text, numbers, lists, ...) rather than objects",
        ) from error
    return _Question(task, log, digest, service, key)


def _value(entry: Entry, cause: BaseException | None = None) -> Any:
    if entry.ok:
        return canonical.decode(entry.answer)
    raise decode_error(entry.answer) from cause


def _is_no_answer(error: BaseException) -> bool:
    """Whether an error comes from the log or the task, not from the service."""
    return isinstance(error, CausalError) and not isinstance(error, ServiceTooSlow)


class _RealCall:
    """Wraps a real call: its outcome, even a failure, becomes the answer."""

    def __init__(self, question: _Question) -> None:
        self.value: Any = None
        self._question = question
        self._failure: Exception | None = None

    def __enter__(self) -> _RealCall:
        self._token = _asking.set(self._question)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        _asking.reset(self._token)
        if not isinstance(error, Exception) or _is_no_answer(error):
            return False
        self._failure = error
        return True

    def answer(self) -> Any:
        """Keep the answer, and return it as the log has it."""
        failure = self._failure
        value = self.value if failure is None else failure
        return _value(self._question.keep(ok=failure is None, value=value), failure)


def _ask(question: _Question, fn: Callable[[], Any]) -> Any:
    entry = question.logged()
    if entry is not None:
        return _value(entry)
    with _RealCall(question) as call:
        call.value = fn()
    return call.answer()


async def _ask_async(question: _Question, fn: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    entry = question.logged()
    if entry is not None:
        return _value(entry)
    with _RealCall(question) as call:
        call.value = await fn()
    return call.answer()


class Service(Shipped, Declared, Generic[F]):
    """A function whose answers are logged: made by :func:`service`.

    A job's ``map_async``, ``ctx.call`` and ``ctx.service`` accept it, too.
    """

    def __init__(self, fn: F | Effect, name: str, how: PolicyOptions) -> None:
        plain = fn.fn if isinstance(fn, Effect) else fn
        functools.update_wrapper(self, plain)
        self.__annotations__ = getattr(plain, "__annotations__", {})  # PySpark looks for type hints
        with contextlib.suppress(ValueError, TypeError):  # a function written in C may have none
            self.__signature__ = inspect.signature(plain)
        self.asked, self.how = fn, how
        self._fn = plain
        self._name = name
        self._policy = policy_of(fn, name, in_flight=1, **how)
        self._is_async = inspect.iscoroutinefunction(plain)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Make the call, or reuse its logged answer or exception."""
        return self._call(process.operator_name(self._name), None, args, kwargs)

    def at_once(self, *arguments: Any, **named: Any) -> Any:
        """See :class:`~clonos.operators.calls.service.Declared`."""
        try:
            if self._is_async:
                return _run(self._perform(arguments, named))
            return self._perform(arguments, named)
        except ServiceTooSlow as error:
            raise TimeoutError(error.what) from error

    def keyed(self, key: Any) -> Callable[..., Any]:
        """The service for one row: its `key` distinguishes this call from equal ones.

        With keys, answers stay with their rows however the rows are ordered and partitioned when
        they come again, and equal calls for two rows are two calls.
        """
        return lambda *args, **kwargs: self._call(
            process.operator_name(self._name), key, args, kwargs
        )

    def map(
        self,
        *arguments: Iterable[Any],
        concurrency: int = 8,
        keys: Iterable[Any] | None = None,
        return_exceptions: bool = False,
    ) -> list[Any]:
        """Make many calls at a time; the results are in the order of the arguments.

        Parameters
        ----------
        concurrency
            The number of concurrent calls, in threads or, if the function is async, in an event
            loop.
        keys
            One per call, as for :meth:`keyed`.
        return_exceptions
            Put exceptions among the results instead of raising the first one at the end.
        """
        rows = list(zip(*arguments, strict=True))
        each = list(keys) if keys is not None else [None] * len(rows)
        operator = process.operator_name(self._name)
        asked = [
            _question(self._name, operator, key, row, {})
            for key, row in zip(each, rows, strict=True)
        ]
        if self._is_async:
            results = _run(self._gather(asked, rows, concurrency))
        else:
            with ThreadPoolExecutor(concurrency, thread_name_prefix="clonos-call") as pool:
                jobs = [
                    pool.submit(_ask, question, functools.partial(self._perform, row, {}))
                    for question, row in zip(asked, rows, strict=True)
                ]
                results = [_outcome(job) for job in jobs]
        failed = [r for r in results if isinstance(r, _Failure)]
        for failure in failed:
            if _is_no_answer(failure.error):
                raise failure.error
        if failed and not return_exceptions:
            raise failed[0].error
        return [r.error if isinstance(r, _Failure) else r for r in results]

    async def _gather(
        self, asked: Sequence[_Question], rows: Sequence[Any], concurrency: int
    ) -> list[Any]:
        places = asyncio.Semaphore(concurrency)

        async def one(question: _Question, row: Any) -> Any:
            async with places:
                return await _ask_async(question, lambda: self._perform(row, {}))

        tasks = [one(question, row) for question, row in zip(asked, rows, strict=True)]
        results = await asyncio.gather(*tasks, return_exceptions=True)
        return [_Failure(r) if isinstance(r, BaseException) else r for r in results]

    def _call(self, operator: str, key: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        question = _question(self._name, operator, key, args, kwargs)
        ask = _ask_async if self._is_async else _ask
        return ask(question, lambda: self._perform(args, kwargs))

    def _perform(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Really make the call, with its timeout and attempts."""
        fn: Callable[..., Any] = self._fn
        if isinstance(self.asked, Effect):
            self._require_idempotent(self.asked)
            fn = functools.partial(_with_key, fn)
        if "timeout" in self.how:
            in_time = _in_time_async if self._is_async else _in_time
            fn = functools.partial(in_time, fn, self._name, self._policy.timeout_s)
        if self._policy.attempts == 1:
            return fn(*args, **kwargs)
        return _retrying(self._policy, is_async=self._is_async)(fn, *args, **kwargs)

    def _require_idempotent(self, effect: Effect) -> None:
        if not effect.idempotent:
            raise NotIdempotent(
                f"{self._name} is an effect, and a task that is retried would make it again",
                remedy="say idempotent=True if the service deduplicates by call.key, or use "
                "map_async or with_column_async, which ask its check",
            )


@dataclass(frozen=True)
class _Failure:
    error: BaseException


def _outcome(job: Future[Any]) -> Any:
    try:
        return job.result()
    except Exception as error:  # noqa: BLE001 - given to whoever asked for the results
        return _Failure(error)


def _run(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine to its end, even if an event loop is already running in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    context = copy_context()
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(context.run, asyncio.run, work).result()


def _too_slow(name: str, seconds: float) -> ServiceTooSlow:
    return ServiceTooSlow(
        f"{name} gave no answer within {seconds:g} s",
        remedy="give it more time (timeout=...), or catch this and go on without an answer",
    )


def _in_time(fn: Callable[..., Any], name: str, seconds: float, *args: Any, **kwargs: Any) -> Any:
    # In its own thread: there is no other way to leave a function that hangs. It is abandoned.
    future: Future[Any] = Future()
    context = copy_context()

    def run() -> None:
        try:
            future.set_result(context.run(fn, *args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - raised in the other thread
            future.set_exception(error)

    thread = threading.Thread(target=run, name=f"clonos-call-{name}", daemon=True)
    thread.start()
    thread.join(seconds)
    if not future.done():
        raise _too_slow(name, seconds)
    return future.result()


async def _in_time_async(
    fn: Callable[..., Any], name: str, seconds: float, *args: Any, **kwargs: Any
) -> Any:
    task = asyncio.ensure_future(fn(*args, **kwargs))
    done, _ = await asyncio.wait([task], timeout=seconds)
    if not done:
        task.cancel()
        raise _too_slow(name, seconds)
    return task.result()


def _with_key(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Make an idempotent effect, with a key that is the same in every attempt of its task."""
    key = effect_key(idempotency_key(), "causal", None, 0)
    return fn(*args, **kwargs, call=EffectCall(key, 1))


def _retrying(policy: Policy, *, is_async: bool) -> Any:
    tenacity = imported("tenacity", extra="causal", where="attempts=...")
    kind = tenacity.AsyncRetrying if is_async else tenacity.Retrying
    return kind(
        stop=tenacity.stop_after_attempt(policy.attempts),
        wait=lambda tried: policy.pause_s(tried.attempt_number),
        reraise=True,
    )


@overload
def service(fn: F, /, **how: Unpack[ServiceOptions]) -> Service[F]: ...
@overload
def service(**how: Unpack[ServiceOptions]) -> Callable[[F], Service[F]]: ...
def service(
    fn: F | Effect | None = None,
    /,
    *,
    name: str | None = None,
    idempotent: bool = False,
    check: Callable[..., Any] | None = None,
    **how: Unpack[PolicyOptions],
) -> Any:
    """Declare how a function is called, for tasks of Clonos and for Spark's own tasks.

    ``clonos.service`` and ``causal.service`` are the same. In a job of Clonos, pass the result to
    ``map_async``, ``with_column_async``, ``ctx.service`` or ``ctx.call``. In plain PySpark, after
    ``causal.start``, call it in a function that runs in tasks: the call is made once, and every
    retry of the task gets the same answer.

    Parameters
    ----------
    fn
        Any function that uses the outside world: HTTP, a database, a model, the file system.
        Arguments and answers are plain values; in plain PySpark also NumPy arrays, pandas objects
        and Arrow batches. It may be async, or an :func:`clonos.effect`.
    name
        Distinguishes its calls from those of other services in plain PySpark; by default the
        function's name.
    idempotent, check
        Short for ``clonos.effect(idempotent=..., check=...)``. Tasks of plain PySpark make only
        idempotent effects, with the key of :func:`idempotency_key`.
    how
        See :func:`clonos.operators.calls.service.policy_of`. Options of ``map_async`` override
        them. Blocking calls, in plain PySpark or with ``ctx.call``, use only ``timeout``,
        ``attempts`` and ``backoff``, and have no time limit without ``timeout``. A longer attempt
        ends with :class:`~clonos.errors.causal.ServiceTooSlow`, or `TimeoutError` in ``ctx.call``;
        if the function is not async, it goes on in an abandoned thread.

    Returns
    -------
    Service
        Called like `fn`; also has ``.keyed(key)`` and ``.map(...)``.

    Raises
    ------
    DefinitionError
        An option is invalid.

    Examples
    --------
    >>> import clonos
    >>> @clonos.service(timeout="5 seconds", attempts=3, per_second=50)
    ... def judge(text):
    ...     return {"ok": "bad" not in text}
    >>> judge("outside of Spark nothing can be kept")
    Traceback (most recent call last):
        ...
    clonos.errors.causal.OutsideTask: ...
    >>> lines = clonos.Job().source(clonos.sources.from_batches([], "text string"))
    >>> lines.with_column_async("verdict string", judge, "text", attempts=5).schema.names
    ['text', 'verdict']
    """
    require_known(how, ServiceOptions.__annotations__, "clonos.service", besides=OF_OPERATORS)
    if fn is None:
        return functools.partial(service, name=name, idempotent=idempotent, check=check, **how)
    if isinstance(fn, Service):
        _require_bare(fn, name, idempotent, check, how)
        return fn
    require_object(fn, "clonos.service")
    if not callable(fn):
        raise DefinitionError(
            f"{fn!r} is not a function",
            remedy="decorate a function; give the options of a clonos.Service where it is used",
        )
    named = name or _name_of(fn.fn if isinstance(fn, Effect) else fn)
    if idempotent or check is not None:
        fn = effect(fn, idempotent=idempotent, check=check)
    return Service(fn, named, how)


def _require_bare(known: Service[Any], *said: object) -> None:
    if any(said):
        what = f"{_name_of(known)} is a service already"
        raise DefinitionError(what, remedy="say everything in one decorator")


def _name_of(fn: Callable[..., Any]) -> str:
    owner = getattr(fn, "__self__", None)
    if isinstance(owner, Service):  # from ``ctx.call``
        return owner._name  # noqa: SLF001 - of this module
    return getattr(fn, "__qualname__", None) or type(fn).__qualname__


class _Call(Shipped):
    """:data:`call`, as something that can be pickled with the way to its log."""

    def __call__(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call `fn` once: every retry gets its logged answer or exception."""
        if isinstance(fn, Service):
            return fn(*args, **kwargs)
        name = _name_of(fn)
        operator = process.operator_name(name)
        question = _question(name, operator, None, args, kwargs)
        ask = _ask_async if inspect.iscoroutinefunction(fn) else _ask
        return ask(question, lambda: fn(*args, **kwargs))


class Clock(Shipped):
    """Processing time: every reading is logged, and readings never go back."""

    def now_ms(self, key: Any = None) -> int:
        """Milliseconds since the epoch; `key` ties the reading to a row."""
        task = process.current()
        log = task.log(process.operator_name("clock"))
        digest = digest_of(("clock", key))
        entry = log.take(digest, anywhere=key is not None)
        if entry is None:
            now_ms = max(time.time_ns() // 1_000_000, task.last_clock_ms)
            entry = Entry(digest, CLOCK, True, canonical.encode(now_ms))
            task.keep(log, entry)
        read: int = canonical.decode(entry.answer)
        task.last_clock_ms = max(read, task.last_clock_ms)
        return read

    def now(self, key: Any = None) -> datetime:
        """The same as a datetime in UTC."""
        return from_ms(self.now_ms(key))


class _Random(Shipped):
    """:data:`random`, as something that can be pickled with the way to its log."""

    def __call__(self, *key: Any) -> np.random.Generator:
        """Random numbers that depend only on (run, batch, operator, key), so nothing is logged.

        Without a key they depend on the partition and the number of calls so far, and thus on the
        order of rows; with the row's key they do not.
        """
        task = process.current()
        operator = process.operator_name("random")
        log = task.log(operator)
        if not key:
            key = (task.partition, log.count(b"random"))
        material = canonical.encode([log.seed, task.batch, operator, list(key)])
        digest = blake2b(material, digest_size=16).digest()
        return np.random.Generator(np.random.Philox(key=np.frombuffer(digest, np.uint64)))


class Operator(Shipped):
    """A function for Spark, with a name and the job's log; see :func:`operator`."""

    def __init__(self, fn: Callable[..., Any], name: str) -> None:
        functools.update_wrapper(self, fn)
        self.__annotations__ = getattr(fn, "__annotations__", {})  # PySpark looks for type hints
        self._fn = fn
        self._name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with process.named(self._name):
            result = self._fn(*args, **kwargs)
        return self._each(result) if inspect.isgenerator(result) else result

    def _each(self, results: Any) -> Any:
        # A generator runs when its next value is requested, not when it is created.
        try:
            while True:
                with process.named(self._name):
                    try:
                        value = next(results)
                    except StopIteration:
                        return
                yield value
        finally:
            results.close()


def operator(fn: Callable[..., Any], name: str | None = None) -> Any:
    """Wrap a function for Spark, where that is necessary.

    The wrapper carries access to the job's log to the executors. Functions of a script or notebook
    do so by themselves when they mention ``causal`` or a service. Functions of an installed module
    need the wrapper, because they are shipped by name only. Answers are kept under the operator's
    name. Give one if two operators of a stage would have the same, or before renaming the function.

    Examples
    --------
    >>> import inspect
    >>> def enrich(text, language):
    ...     return text
    >>> str(inspect.signature(operator(enrich)))
    '(text, language)'
    """
    return Operator(fn, name or _name_of(fn))


call: Final = _Call()
"""``call(fn, *args)``: call a function once; see :func:`service` for the options."""

clock: Final = Clock()
random: Final = _Random()


def idempotency_key() -> str:
    """Inside a called function: a key for this call, the same whenever the call is repeated.

    Services with side effects deduplicate by it, because a task that dies within a call makes the
    call again. Without ``keyed(...)`` the key depends on the partition and the order of equal calls
    in it.

    Raises
    ------
    OutsideTask
        No causal call is being made.
    """
    question = _asking.get()
    if question is None:
        raise OutsideTask(
            "no causal call is being made here",
            remedy="ask for the key inside the function that is called",
        )
    return question.idempotency_key
