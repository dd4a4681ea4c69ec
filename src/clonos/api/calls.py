"""The options of ``map_async`` and ``with_column_async``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from clonos.columns.schema import require_columns
from clonos.errors import WrongType
from clonos.operators.calls.effects import Effect
from clonos.operators.calls.service import (
    Declared,
    Policy,
    PolicyOptions,
    Service,
    of_several,
    policy_of,
    require_arguments,
    require_handler,
    undeclared,
)
from clonos.options import require_known

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Unpack

    from clonos.operators.calls.service import Duration


class CallOptions(PolicyOptions, total=False):
    """What :func:`call_policy` understands."""

    in_flight: int
    ordered: bool | Literal["key"]
    per_key: int | None
    on_error: Callable[..., Any] | None
    identity: str | Sequence[str] | None
    batch: int | None
    batch_within: Duration | None


def call_policy(
    fn: Callable[..., Any] | Service | Effect | Declared,
    where: str,
    values: Sequence[str],
    columns: pa.Schema,
    keys: Sequence[str],
    /,
    *,
    in_flight: int = 100,
    ordered: bool | Literal["key"] = True,
    per_key: int | None = None,
    on_error: Callable[..., Any] | None = None,
    identity: str | Sequence[str] | None = None,
    batch: int | None = None,
    batch_within: Duration | None = None,
    **how: Unpack[PolicyOptions],
) -> tuple[Policy, dict[str, Any]]:
    """How calls are made, and what the operator does with their outcomes.

    Parameters
    ----------
    in_flight
        How many calls of a task may be open; at that number, its input waits.
    ordered
        With True, rows go on in the order in which they came. With False, each goes on as soon as
        it has its answer, but a watermark never overtakes a row. With ``"key"``, rows of one key of
        a keyed stream go on in their order, and wait for no others.
    per_key
        How many calls of one key may be open, in a keyed stream; with 1, a key's next call is made
        when the one before is over. Rows of other keys overtake those that are held back; if as
        many rows are held back as `in_flight` says, the input waits.
    on_error
        ``on_error(row, error)`` (or ``on_error(value, ..., error)``) returns a value that takes the
        place of the answer. By default the row is then a bad record: the job fails, or with
        ``on_bad_record="drop"`` the row is dropped and counted.
    identity
        For an idempotent effect: the columns that name what it is about, such as the number of an
        order. Rows with the same values ask for the *same* effect, even in another run of the same
        ``Job(lineage=...)``. A row with a NULL there is a bad record. A row with the values of one
        that waits for its answer, and with other arguments, has the error
        :class:`~clonos.errors.OtherArguments`. By default each row has an effect of its own, in
        each run.
    batch
        How many rows one call may be about: the function gets lists instead of values, and returns
        a list with one answer for each row. If it raises, each of them has that error. All other
        options, such as `in_flight`, `attempts` and `cost`, are about calls, not rows.
    batch_within
        How long rows wait for others, if there are fewer than `batch`. By default rows that wait
        at the same time go together.
    how
        See :func:`clonos.operators.calls.service.policy_of`.

    Raises
    ------
    WrongType
        The options contradict each other, or one has a value that it cannot have.
    """
    require_known(how, CallOptions.__annotations__, where)
    fn, how = undeclared(fn, how)
    policy = policy_of(fn, where, in_flight=in_flight, **how)
    require_arguments(fn, where, values)
    if on_error is not None:
        require_handler(on_error, where, values)
    given: Any = identity or ()
    is_one = isinstance(given, str) or not isinstance(given, Iterable)
    names = (given,) if is_one else tuple(given)
    if names and policy.effect is None:
        raise WrongType(
            "identity= names effects, and this function is not an effect",
            where=where,
            remedy="declare it with @clonos.effect",
        )
    if names and policy.effect is not None and not policy.effect.idempotent:
        raise WrongType(
            "identity= makes rows share an effect, and this one would be made for each of them",
            where=where,
            remedy="say idempotent=True if the service deduplicates by call.key; or pass what the "
            "row is about as an argument, so that the check can look for it",
        )
    require_columns(columns, names, where)
    policy = _batched(policy, values, names, batch, batch_within)
    _require_lanes(policy, keys, ordered, per_key)
    then = {"on_error": on_error, "identity": names, "per_key": per_key}
    return policy, {"ordered": ordered if ordered == "key" else bool(ordered), **then}


def _require_lanes(
    policy: Policy, keys: Sequence[str], ordered: bool | Literal["key"], per_key: int | None
) -> None:
    """Raise `WrongType` if the options for rows of one key do not fit the stream or each other."""
    where = policy.name
    if ordered not in (True, False, "key"):
        raise WrongType(f"ordered={ordered!r}", where=where, remedy='give True, False or "key"')
    if per_key is not None and (type(per_key) is not int or per_key < 1):
        raise WrongType(
            f"per_key={per_key!r}", where=where, remedy="give a number of 1 or more, or None"
        )
    if ordered != "key" and per_key is None:
        return
    said = 'ordered="key"' if per_key is None else f"per_key={per_key}"
    if not keys:
        raise WrongType(
            f"{said} is given, but rows of this stream have no key",
            where=where,
            remedy="write key_by(...) before it",
        )
    if policy.batch is not None:
        raise WrongType(
            f"{said} is given, but with batch= a call is about rows of several keys",
            where=where,
            remedy="leave one of the two out",
        )


def _batched(
    policy: Policy,
    values: Sequence[str],
    identity: Sequence[str],
    batch: int | None,
    within: Duration | None,
) -> Policy:
    """The same for calls that are about up to `batch` rows."""
    where = policy.name
    policy = of_several(policy, batch, within, where)
    if policy.batch is None:
        return policy
    if not values:
        raise WrongType(
            "batch= makes lists of the arguments, but there are no arguments",
            where=where,
            remedy="name the columns that the function gets, or leave batch= out",
        )
    if identity:
        raise WrongType(
            "identity= names what a row is about, but with batch= an effect is about several",
            where=where,
            remedy="leave one of the two out",
        )
    return policy
