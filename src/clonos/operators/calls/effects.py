"""Effects: calls that must not be made twice, or that a service must recognise when repeated.

An effect is made only when the log that leads to it cannot be lost (:mod:`clonos.core.calls`), so
every recovery reaches it again under the same name. *Doubt* remains: an effect was begun, and its
outcome is not known. A service that deduplicates is then asked again under the same name; another
one is asked whether the effect was made.
"""

from __future__ import annotations

import inspect
from base64 import b32encode
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict, overload

from clonos.columns.durations import parse_duration
from clonos.core.canonical import encode
from clonos.core.program import Step
from clonos.errors import WrongType
from clonos.options import require_known

if TYPE_CHECKING:
    from typing_extensions import Unpack

OnUnknown = Literal["fail", "on_error", "retry"]
_POLICIES: Final = ("fail", "on_error", "retry")


@dataclass(frozen=True)
class EffectCall:
    """The ``call`` argument of an effect's function.

    Attributes
    ----------
    key
        The name of this effect, 24 lower-case letters and digits. It is the same in all attempts
        and after all failures, and no other effect has it.
    attempt
        1 for the first attempt of this life of the task.
    """

    key: str
    attempt: int


@dataclass(frozen=True)
class Made:
    """Returned by a check: the effect was made, with this answer."""

    answer: Any = None


class NotMade(Exception):
    """Certainly not made: raised by an effect's function, or raised or returned by its check."""


class Effect:
    """A function that changes something outside, as returned by :func:`effect`.

    Attributes
    ----------
    fn, check
        As given; ``check`` is None if the service deduplicates, or cannot be asked.
    idempotent
        Whether the service recognises a second attempt by its key.
    keys_kept_ms
        ... for so long; None: for ever.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        idempotent: bool,
        check: Callable[..., Any] | None,
        check_for: str | timedelta,
        on_unknown: OnUnknown,
        refused: type[Exception] | tuple[type[Exception], ...],
        keys_kept: str | timedelta | None,
    ) -> None:
        self.fn, self.idempotent, self.check = fn, idempotent, check
        self.keys_kept_ms = None if keys_kept is None else parse_duration(keys_kept)
        self.check_for_s = parse_duration(check_for) / 1000
        self.on_unknown = on_unknown
        given = refused if isinstance(refused, tuple) else (refused,)
        self.refused: tuple[type[Exception], ...] = (NotMade, *given)
        self.__name__ = getattr(fn, "__name__", type(fn).__name__)
        self.__doc__ = fn.__doc__
        self.wants_call = _wants_call(getattr(fn, "call", fn))
        self.check_wants_call = check is not None and _wants_call(check)
        self._require_sense()

    def _require_sense(self) -> None:
        where = self.__name__
        for fn in (getattr(self.fn, "call", self.fn), self.check or self.fn):
            if isinstance(fn, Effect) or not callable(getattr(fn, "call", fn)):
                raise WrongType(f"{fn!r} is not a plain function", where=where)
        kinds: tuple[Any, ...] = self.refused
        for kind in kinds:
            if not (isinstance(kind, type) and issubclass(kind, Exception)):
                raise WrongType(
                    f"refused= has {kind!r}, which is not a kind of Exception", where=where
                )
        if self.on_unknown not in _POLICIES:
            raise WrongType(
                f"on_unknown={self.on_unknown!r}",
                where=where,
                remedy=f"give one of {', '.join(map(repr, _POLICIES))}",
            )
        if self.idempotent and not self.wants_call:
            raise WrongType(
                "an idempotent effect does not take its key",
                where=where,
                remedy="write it as fn(..., *, call), and send call.key to the service",
            )
        if self.idempotent and self.check is not None:
            raise WrongType(
                "an idempotent effect has a check",
                where=where,
                remedy="it is made again with the same key instead; leave check= out",
            )
        if self.keys_kept_ms is not None and not self.idempotent:
            raise WrongType(
                "keys_kept= says how long a service recognises keys, and this one does not",
                where=where,
                remedy="say idempotent=True if it does, or leave keys_kept= out",
            )

    def asked_ms(self, step: Step) -> int:
        """When this step asks for it, if its key may be forgotten; else 0. The step of an earlier
        start may have read the clock for that, or not."""
        if not self.idempotent:
            return 0
        now_ms = step.clock_ms_if(reads=self.keys_kept_ms is not None)
        return 0 if now_ms is None or self.keys_kept_ms is None else now_ms

    @property
    def remedy(self) -> str:
        """What to do if nobody knows whether it was made; "": what is usual."""
        if self.keys_kept_ms is not None:
            return (
                "find out by its key or its arguments whether it was made. If it was not, or if "
                "the service knows its key after all, give a longer keys_kept= and start again: "
                "it is asked again, with the same key"
            )
        if self.idempotent:
            return "start again when the service can answer: it is asked again, with the same key"
        if self.check is not None:
            return (
                "find out by its key or its arguments whether it was made; let the function that "
                "is check= return clonos.Made(answer) or clonos.NotMade for it, and start again: "
                "it is called again, for as long as check_for= says"
            )
        return ""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the function directly, for tests."""
        return self.fn(*arguments, **named)


class EffectOptions(TypedDict, total=False):
    """The keyword arguments of :func:`effect`."""

    idempotent: bool
    check: Callable[..., Any] | None
    check_for: str | timedelta
    on_unknown: OnUnknown
    refused: type[Exception] | tuple[type[Exception], ...]
    keys_kept: str | timedelta | None


@overload
def effect(fn: object, /, **how: Unpack[EffectOptions]) -> Effect: ...
@overload
def effect(**how: Unpack[EffectOptions]) -> Callable[[Callable[..., Any]], Effect]: ...
def effect(
    fn: Any = None,
    /,
    *,
    idempotent: bool = False,
    check: Callable[..., Any] | None = None,
    check_for: str | timedelta = "5 minutes",
    on_unknown: OnUnknown = "fail",
    refused: type[Exception] | tuple[type[Exception], ...] = (),
    keys_kept: str | timedelta | None = None,
    **unknown: Any,
) -> Any:
    """Declare that a function changes something: pays, sends, books.

    ``map_async`` and ``with_column_async`` then make it once: only when the log that leads to it is
    safe, and never silently again. (This is output commit, together with what payment interfaces
    call an idempotency key.)

    Parameters
    ----------
    fn
        A function or coroutine function, or a :class:`clonos.Service`. If it has a keyword argument
        ``call``, it gets an :class:`EffectCall`. It raises :class:`NotMade` when certainly nothing
        was done; after any other exception, or a timeout, the effect is in doubt.
    idempotent
        The service deduplicates by ``call.key``, so an effect in doubt is simply asked for again.
    check
        ``check(...)``, called with the same arguments, finds out about an effect in doubt. It
        returns :class:`Made` with the answer, or :class:`NotMade`. If it returns anything else or
        raises, it does not know yet, and is called again after a pause.
    check_for
        How long a check that does not know is repeated.
    on_unknown
        What happens if the outcome stays unknown: ``"fail"`` ends the job with
        :class:`~clonos.errors.EffectUnknown`, and its next start checks again; ``"on_error"``
        treats it as an error of the row; ``"retry"`` makes the effect again, perhaps a second time.
    refused
        Exceptions that mean, like ``NotMade``, that nothing was done.
    keys_kept
        For how long an idempotent service recognises a key, such as ``"24 hours"``. What was asked
        for longer ago, and may have been made, is not asked for again: its outcome is unknown. By
        default it recognises keys for ever.

    Examples
    --------
    >>> @effect(idempotent=True)
    ... async def charge(order_id, cents, *, call):
    ...     return await bank.charge(order_id, cents, idempotency_key=call.key)
    >>> charge.__name__, charge.idempotent
    ('charge', True)
    """
    require_known(unknown, EffectOptions.__annotations__, "clonos.effect")

    def declare(fn: Callable[..., Any]) -> Effect:
        return Effect(
            fn,
            idempotent=idempotent,
            check=check,
            check_for=check_for,
            on_unknown=on_unknown,
            refused=refused,
            keys_kept=keys_kept,
        )

    return declare if fn is None else declare(fn)


def _wants_call(fn: Callable[..., Any]) -> bool:
    try:
        parameter = inspect.signature(fn).parameters.get("call")
    except (TypeError, ValueError):
        return False  # builtins without a signature
    return parameter is not None and parameter.kind is parameter.KEYWORD_ONLY


def effect_key(lineage: str, scope: str, identity: Any, ordinal: int) -> str:
    """The name of an effect: equal for equal arguments, on every machine.

    Examples
    --------
    >>> effect_key("invoices-2026", "charge", 17, 0)
    'v52g4ekdfyc7edpc636kgnlh'
    """
    named = encode([lineage, scope, identity, ordinal])
    return b32encode(blake2b(named, digest_size=15).digest()).decode().lower()
