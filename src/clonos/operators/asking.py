"""Calls of a :class:`~clonos.operators.process.Process`: asked for one key, answered later."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any, Final

from clonos.core.calls import Outcome, Request
from clonos.core.canonical import decode, decode_error, encode
from clonos.core.step import arguments_digest
from clonos.errors import EffectUnknown, StateMismatch, WrongType
from clonos.operators.base import OperatorInfo
from clonos.operators.purse import Purse
from clonos.operators.service import Policy
from clonos.state.stores import Facts, KeyedStore

_ADDRESS: Final = Struct(">cq")
_KIND: Final = b"c"


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
    """A call of a process that is open, or about to be asked.

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
    """The open calls of a process, by number.

    Parameters
    ----------
    store
        Where they are kept, beside values and timers.
    """

    def __init__(self, store: KeyedStore) -> None:
        self.policies: dict[str, Policy] = {}
        self._purses: dict[str, Purse] = {}
        self._under_way: Counter[str] = Counter()  # open calls, by service
        self._info: OperatorInfo
        self._store = store
        self._open: dict[int, Call] = {}

    def __len__(self) -> int:
        return len(self._open)

    def declare(self, name: str, policy: Policy, info: OperatorInfo, facts: Facts) -> None:
        """A service that may be asked, by this operator."""
        self.policies[name], self._info = policy, info
        self._purses[name] = Purse(policy, facts, f"{info.where}: {name}", f"{name} ")

    @property
    def spent(self) -> tuple[int, int]:
        """Calls that were answered, and what they have cost, in millionths."""
        purses = self._purses.values()
        return sum(purse.calls for purse in purses), sum(purse.micros for purse in purses)

    def require_known(self, outcome: Outcome) -> None:
        """Raise `EffectUnknown` if an outcome is that nobody knows, and its policy forbids that."""
        if not outcome.ok:
            error = decode_error(outcome.answer)
            service = self._open[outcome.number].service
            if isinstance(error, EffectUnknown) and self.policies[service].is_fatal(error):
                raise EffectUnknown(error.what, where=f"{self._info.where}: {service}")

    @property
    def nbytes(self) -> int:
        """Of what they are asked."""
        return sum(call.nbytes for call in self._open.values())

    @property
    def first(self) -> int | None:
        """With which call the oldest conversation began that is not over."""
        return min(self._origins(), default=None)

    @property
    def newest(self) -> int | None:
        """... the newest one."""
        return max(self._origins(), default=None)

    def _origins(self) -> list[int]:
        return [call.origin or number for number, call in self._open.items()]

    def add(self, number: int, kept: bytes) -> Request:
        """A call is asked, as :meth:`Call.kept` has it: what user code does with its arguments
        now is nothing to the call."""
        call = self._open[number] = Call.of(kept)
        self._store.put_kept(_ADDRESS.pack(_KIND, number), call.group, kept)
        request = self._request(number, call, self._under_way[call.service])
        self._under_way[call.service] += 1
        return request

    def take(self, outcome: Outcome) -> Call:
        """It is over."""
        call = self._open.pop(outcome.number)
        self._under_way[call.service] -= 1
        self._purses[call.service].pay((outcome,))
        self._store.put(_ADDRESS.pack(_KIND, outcome.number), call.group, None)
        return call

    def requests(self) -> dict[int, Request]:
        """All of them, in their order."""
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
        for address, value in zip(keys, values, strict=True):
            if address[:1] == _KIND:
                _, number = _ADDRESS.unpack(address)
                if value is None:
                    self._open.pop(number, None)
                else:
                    self._open[number] = Call.of(value)
        self._under_way = Counter(call.service for call in self._open.values())

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
        key = self._info.numbered_effect_key(number) if policy.effect else ""
        payer = self._purses[call.service].policy(under_way)
        return Request(payer, call.arguments, digest, key)


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
