"""Access of user functions to the world: time, random numbers, calls.

Everything here returns the same values when a step is replayed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import numpy as np

from clonos.columns.instants import from_ms
from clonos.errors import WrongType
from clonos.operators.base import Operator
from clonos.operators.calls.effects import Effect
from clonos.operators.calls.service import Declared, Service


class Clock:
    """Processing time: one reading per step, logged, never going back."""

    def __init__(self, operator: Operator) -> None:
        self._services = operator.services

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        return self._services.step.clock_ms()

    def now(self) -> datetime:
        """The same as a datetime in UTC."""
        return from_ms(self.now_ms())


class Context:
    """Given to user functions that take a second argument."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self._services = operator.services
        self._random: np.random.Generator | None = None
        self._random_step = 0
        self.clock = Clock(operator)

    @property
    def random(self) -> np.random.Generator:
        """Random numbers that depend only on (job seed, task, operator, step).

        Each step has its own stream, so nothing needs to be logged.
        """
        position = self._services.step.position
        if self._random is None or self._random_step != position:
            info = self._operator.info
            key = [info.seed % 2**64, info.task * 2**32 + info.number]
            philox = np.random.Philox(key=np.array(key, np.uint64), counter=[0, 0, 0, position])
            self._random = np.random.Generator(philox)
            self._random_step = position
        return self._random

    def call(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call `fn` once and for all: on replay its logged answer or exception is used.

        For a function with ``@clonos.service``, its ``timeout``, ``attempts`` and ``backoff``
        apply, and all attempts are one call.
        """
        _require_plain(fn, self._operator.info.where)
        self._services.caller = self._operator
        if isinstance(fn, Declared):
            fn = fn.at_once
        return self._services.step.call(fn, args, kwargs)

    def idempotency_key(self, identity: Any, ordinal: int = 0) -> str:
        """An idempotency key for a :meth:`call` to a service that deduplicates.

        In this operator of this job, the same identity always has the same key, whatever fails and
        however the input is cut into batches, also after a restart from the checkpoint. A fresh run
        has other keys, unless ``Job(lineage=...)`` names the lineage that it continues.

        Parameters
        ----------
        identity
            Identifies what the call is about, such as an order number, and differs between the
            calls of this operator. Several values are given as a tuple; for a batch, those of all
            rows. Do not use the place in the input: a recovery may form other batches.
        ordinal
            Distinguishes several calls with the same identity.

        Returns
        -------
        str
            24 lower-case letters and digits.

        Raises
        ------
        UnencodableValue
            The identity is not a plain value.
        """
        return self._operator.info.effect_key(identity, ordinal)

    @property
    def watermark(self) -> datetime | None:
        """The current event time; None before the first watermark."""
        ms = self._services.watermark_ms(self._operator)
        return None if ms is None else from_ms(ms)


def _require_plain(fn: object, where: str) -> None:
    """Raise `WrongType` for an effect, which would be made like an ordinary call here, and for what
    has to be awaited."""
    asked = fn.asked if isinstance(fn, Declared) else fn
    if isinstance(asked, Effect):
        raise WrongType(
            f"{asked.__name__} is an effect, and here nothing would keep it from being made twice",
            where=where,
            remedy="use map_async or with_column_async, or ctx.service(...) in a Process",
        )
    if inspect.iscoroutinefunction(fn) or isinstance(fn, Service):
        kind = "clonos.Service" if isinstance(fn, Service) else "coroutine function"
        raise WrongType(
            f"a {kind} is given, but a step awaits nothing",
            where=where,
            remedy="use map_async or with_column_async, or write a plain function",
        )


def takes_context(fn: Callable[..., Any], where: str, values: Sequence[str] = ("row",)) -> bool:
    """Whether a user function wants ``(row, ctx)`` rather than ``(row)``; decided once.

    `values`: names of its arguments besides the context, if they are not a row.

    Raises
    ------
    WrongType
        It can be called in neither way.

    Examples
    --------
    >>> takes_context(lambda row: row, ""), takes_context(lambda row, ctx: row, "")
    (False, True)
    >>> takes_context(lambda price, rate, ctx: price, "", ["price", "rate"])
    True
    """
    if not callable(fn):
        raise WrongType(f"{fn!r} is not a function", where=where, remedy="pass a function")
    _require_plain(fn, where)
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except ValueError:
        return False  # builtins without a signature
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p for p in positional if p.default is p.empty]
    required += [p for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    any_number = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    count = len(values)
    if len(required) > count + 1 or not (len(positional) >= count or any_number):
        raise WrongType(
            f"the function takes {len(required)} arguments",
            where=where,
            remedy=f"write it as fn({', '.join(values)}) or fn({', '.join([*values, 'ctx'])})",
        )
    extra = positional[count] if len(positional) > count else None
    return extra is not None and (extra.default is extra.empty or extra.name == "ctx")


def require_takes(process: object, name: str, values: Sequence[str], where: str) -> None:
    """Raise `WrongType` unless a method of a user's object can be called with these arguments.

    What cannot be inspected passes.

    Examples
    --------
    >>> class Own:
    ...     def on_row(self, row): ...
    >>> require_takes(Own(), "on_row", ["row"], "own")
    >>> require_takes(Own(), "on_row", ["row", "ctx"], "own")
    Traceback (most recent call last):
    clonos.errors.WrongType: own: Own.on_row takes (row). To do: write it as on_row(self, row, ctx)
    """
    method = getattr(process, name)
    if inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method):
        raise WrongType(
            f"{type(process).__name__}.{name} is a coroutine function, but a step awaits nothing",
            where=where,
            remedy="write it with def, and let it ask a service that open has declared: "
            'self.model.ask(..., then="on_reply")',
        )
    try:
        # A decorator may give what it wraps other arguments than those with which it is called.
        signature = inspect.signature(method, follow_wrapped=False)
    except (ValueError, TypeError):
        return
    try:
        signature.bind(*values)
    except TypeError:
        bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
        taken = inspect.Signature(bare)
        raise WrongType(
            f"{type(process).__name__}.{name} takes {taken}",
            where=where,
            remedy=f"write it as {name}(self, {', '.join(values)})",
        ) from None
