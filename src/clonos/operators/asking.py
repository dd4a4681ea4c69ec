"""Calls of a :class:`~clonos.operators.process.Process`: asked for one key, answered later."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from struct import Struct
from typing import Any, Final

from clonos.core.calls import Outcome, Request
from clonos.core.canonical import decode, decode_error, encode
from clonos.core.step import arguments_digest
from clonos.errors import EffectUnknown, StateMismatch, WrongType
from clonos.operators.base import OperatorInfo
from clonos.operators.budget import Usage
from clonos.operators.purse import Purse
from clonos.operators.service import Policy
from clonos.operators.shares import REWOUND
from clonos.state.stores import Facts, KeyedStore

_ADDRESS: Final = Struct(">cq")
_OPEN: Final = b"c"
_WAITS: Final = b"w"


class Reply:
    """What has come of a call.

    Attributes
    ----------
    service
        The name of the service.
    arguments
        What it was asked.
    """

    def __init__(self, service: str, arguments: tuple[Any, ...], outcome: Outcome) -> None:
        self.service = service
        self.arguments = arguments
        self._outcome = outcome

    def get(self) -> Any:
        """The answer; raises what the service has raised, after all attempts."""
        if self._outcome.ok:
            return decode(self._outcome.answer)
        raise decode_error(self._outcome.answer)


class Asked:
    """A service that a process may ask: what ``ctx.service`` returns."""

    def __init__(self, policy: Policy, ask: Callable[[Policy, Sequence[Any], str], None]) -> None:
        self._policy, self._ask = policy, ask

    def ask(self, *arguments: Any, then: str) -> None:
        """Ask on behalf of the current key.

        Parameters
        ----------
        arguments
            Plain values: they are kept until the answer is there.
        then
            Name of the method ``(reply, ctx)`` of the process that hears the answer, a
            :class:`Reply`. It may return rows, as ``on_row`` does, and ask again.
        """
        self._ask(self._policy, arguments, then)


class Call:
    """A call of a process that is open, or waits to be asked.

    ``origin``: the number of the call that its conversation began with; 0: it begins with this one.
    ``kind``: the fingerprint of its :class:`~clonos.operators.service.Policy`.
    """

    __slots__ = ("arguments", "encoded_key", "group", "kind", "nbytes", "origin", "service", "then")

    def __init__(
        self,
        service: str,
        then: str,
        arguments: Sequence[Any],
        encoded_key: bytes,
        group: int,
        origin: int,
        kind: str,
    ) -> None:
        self.service, self.then, self.arguments = service, then, tuple(arguments)
        self.encoded_key, self.group, self.origin = encoded_key, group, origin
        self.kind = kind
        self.nbytes = 0  # as state keeps it

    @classmethod
    def of(cls, kept: bytes) -> Call:
        """The inverse of :meth:`kept`."""
        call = cls(*decode(kept))
        call.nbytes = len(kept)
        return call

    def kept(self) -> bytes:
        """As state keeps it; raises `UnencodableValue`."""
        arguments = list(self.arguments)
        return encode(
            [
                self.service,
                self.then,
                arguments,
                self.encoded_key,
                self.group,
                self.origin,
                self.kind,
            ]
        )


class CallTable:
    """The calls of a process, by number: those that are open, and those that wait to be asked.

    At most `in_flight` are open, whoever asks. When one is over, the next is of the conversation
    that began first: conversations end, and watermarks go on.

    Parameters
    ----------
    store
        Where they are kept, beside values and timers.
    in_flight
        So many may be open.
    """

    def __init__(self, store: KeyedStore, in_flight: int) -> None:
        self.policies: dict[str, Policy] = {}
        self._purses: dict[str, Purse] = {}
        self._under_way: Counter[str] = Counter()  # open calls, by service
        self._info: OperatorInfo
        self._facts: Facts
        self._store, self._in_flight = store, in_flight
        self._open: dict[int, Call] = {}
        self._waiting: dict[int, Call] = {}
        self._queue: list[tuple[int, int]] = []  # a heap of those: origin and number
        self.nbytes = 0  # of what all of them are asked

    def __len__(self) -> int:
        return len(self._open) + len(self._waiting)

    def declare(self, name: str, policy: Policy, info: OperatorInfo, facts: Facts) -> None:
        """A service that may be asked, by this operator."""
        self.policies[name], self._info, self._facts = policy, info, facts
        self._purses[name] = Purse(policy, facts, f"{info.where}: {name}", f"{name} ")

    @property
    def spent(self) -> Usage:
        """See :attr:`clonos.operators.base.Operator.spent`."""
        each = [purse.usage for purse in self._purses.values()]
        return Usage(*map(sum, zip(Usage(), *each, strict=True)))

    def require_known(self, outcome: Outcome) -> None:
        """Raise `EffectUnknown` if an outcome is that nobody knows, and its policy forbids that."""
        if not outcome.ok:
            error = decode_error(outcome.answer)
            service = self._open[outcome.number].service
            if isinstance(error, EffectUnknown) and self.policies[service].is_fatal(error):
                raise EffectUnknown(error.what, where=f"{self._info.where}: {service}")

    @property
    def first(self) -> int | None:
        """With which call the oldest conversation began that is not over."""
        oldest = self._queue[:1]
        return min([*_origins(self._open), *(origin for origin, _ in oldest)], default=None)

    @property
    def newest(self) -> int | None:
        """... the newest one."""
        return max([*_origins(self._open), *_origins(self._waiting)], default=None)

    def add(self, number: int, kept: bytes) -> Request | None:
        """One more call, as :meth:`Call.kept` has it: what user code does with its arguments now is
        nothing to the call. Returns what to ask; None: it waits."""
        call = Call.of(kept)
        self.nbytes += call.nbytes
        if not self._queue and len(self._open) < self._in_flight:
            return self._ask(number, call, kept)
        self._waiting[number] = call
        heappush(self._queue, (call.origin or number, number))
        self._store.put_kept(_ADDRESS.pack(_WAITS, number), call.group, kept)
        return None

    def due(self) -> Iterator[tuple[int, Request]]:
        """Those that have waited, and may be asked now."""
        while self._queue and len(self._open) < self._in_flight:
            _, number = heappop(self._queue)
            call = self._waiting.pop(number)
            self._store.put_kept(_ADDRESS.pack(_WAITS, number), call.group, None)
            yield number, self._ask(number, call, call.kept())

    def _ask(self, number: int, call: Call, kept: bytes) -> Request:
        self._open[number] = call
        self._store.put_kept(_ADDRESS.pack(_OPEN, number), call.group, kept)
        request = self._request(number, call, self._under_way[call.service])
        self._under_way[call.service] += 1
        return request

    def take(self, outcome: Outcome) -> Call:
        """It is over."""
        call = self._open.pop(outcome.number)
        self.nbytes -= call.nbytes
        self._under_way[call.service] -= 1
        self._purses[call.service].pay((outcome,))
        self._store.put_kept(_ADDRESS.pack(_OPEN, outcome.number), call.group, None)
        return call

    def keys_of(self, outcomes: Sequence[Outcome]) -> list[bytes]:
        """To which keys these calls belong."""
        known = (self._open.get(outcome.number) for outcome in outcomes)
        return list(dict.fromkeys(call.encoded_key for call in known if call is not None))

    def requests(self) -> dict[int, Request]:
        """Of those that are open, in their order."""
        found: dict[int, Request] = {}
        before: Counter[str] = Counter()
        for number, call in sorted(self._open.items()):
            request = self._request(number, call, before[call.service])
            policy = self.policies[call.service]
            # An effect may have been made: it is for the service to say.
            found[number] = request._replace(service=policy) if policy.effect else request
            before[call.service] += 1
        return found

    def restore(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """The store took a delta: note the calls in it."""
        kinds = {_OPEN: self._open, _WAITS: self._waiting}
        for address, value in zip(keys, values, strict=True):
            if (calls := kinds.get(address[:1])) is not None:
                _, number = _ADDRESS.unpack(address)
                if value is None:
                    calls.pop(number, None)
                else:
                    calls[number] = Call.of(value)
        self._queue = [(call.origin or n, n) for n, call in self._waiting.items()]
        heapify(self._queue)
        self._under_way = Counter(call.service for call in self._open.values())
        self.nbytes = sum(call.nbytes for calls in kinds.values() for call in calls.values())

    def _request(self, number: int, call: Call, under_way: int) -> Request:
        digest = arguments_digest([call.service, *call.arguments], {})
        policy = self.policies[call.service]
        if policy.fingerprint != call.kind:
            raise StateMismatch(
                f"the call {number} of {call.service} is open, as {call.kind}; now it would be "
                f"{policy.fingerprint}",
                where=self._info.where,
                remedy="let the job finish its open calls as they were declared, or start it "
                "afresh with another checkpoint_dir",
            )
        key = ""
        if policy.effect:
            key = self._info.numbered_effect_key(number, self._facts.get(REWOUND, ()))
        payer = self._purses[call.service].policy(under_way)
        return Request(payer, call.arguments, digest, key)


def _origins(calls: dict[int, Call]) -> Iterator[int]:
    return (call.origin or number for number, call in calls.items())


def method_of(process: object, name: str, where: str) -> Callable[..., Any]:
    """The method of a process that hears a reply.

    Raises
    ------
    WrongType
        There is none of this name.
    """
    method: Callable[..., Any] | None = getattr(process, name, None)
    if not callable(method):
        raise WrongType(
            f"{type(process).__name__} has no method {name!r}",
            where=where,
            remedy=f"write def {name}(self, reply, ctx), or name another one with then=",
        )
    return method
