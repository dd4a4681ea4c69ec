"""Calls of a :class:`~clonos.operators.process.process.Process`, made for one key and answered
later."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from typing import Any, Final

from clonos.columns.rows import short
from clonos.core.calls import Outcome, Request
from clonos.core.canonical import decode, decode_error, encode
from clonos.core.program import Step
from clonos.core.step import arguments_digest
from clonos.errors import EffectUnknown, OperatorError, StateMismatch, WrongType
from clonos.operators.base import OperatorInfo
from clonos.operators.calls.budget import Usage
from clonos.operators.calls.purse import Purse
from clonos.operators.calls.service import Policy, columns_of
from clonos.operators.shares import REWOUND, may_be_made
from clonos.state.deltas import WHOLE_TASK
from clonos.state.stores import ADDRESS, Facts, KeyedStore

_OPEN: Final = b"c"
_WAITS: Final = b"w"
_TOGETHER: Final = b"b"
_SINCE: Final = "since"
_OVER: Final = "rows over"

Queue = list[tuple[int, int]]
"""A heap of questions: (number of the call that began the conversation, own number)."""


class Reply:
    """The outcome of a call.

    Attributes
    ----------
    service
        The name of the service.
    arguments
        The arguments of the call.
    """

    def __init__(self, service: str, arguments: tuple[Any, ...], outcome: Outcome) -> None:
        self.service = service
        self.arguments = arguments
        self._outcome = outcome

    def get(self) -> Any:
        """Return the answer, or raise the error of the last attempt."""
        if self._outcome.ok:
            return decode(self._outcome.answer)
        error, trace = decode_error(self._outcome.answer), self._outcome.trace
        raise error from (OperatorError("it was raised there", trace=trace) if trace else None)


class Asked:
    """A service that a process may ask: what ``ctx.service`` returns."""

    def __init__(self, policy: Policy, ask: Callable[[Policy, Sequence[Any], str], None]) -> None:
        self._policy, self._ask = policy, ask

    def ask(self, *arguments: Any, then: str) -> None:
        """Ask on behalf of the current key.

        Parameters
        ----------
        arguments
            Plain values; they are part of the state until the answer comes.
        then
            Name of the method ``(reply, ctx)`` of the process that receives the :class:`Reply`. It
            may return rows, as ``on_row`` does, and ask again.
        """
        self._ask(self._policy, arguments, then)


class Call:
    """A call of a process that is open or waiting.

    ``origin``: the number of the call that began its conversation; 0: this call begins one.
    ``kind``: the fingerprint of its :class:`~clonos.operators.calls.service.Policy`. ``asked_ms``:
    when it was asked, if somebody needs to know.
    """

    __slots__ = (
        "arguments",
        "asked_ms",
        "encoded_key",
        "group",
        "kind",
        "nbytes",
        "origin",
        "service",
        "then",
    )

    def __init__(
        self,
        service: str,
        then: str,
        arguments: Sequence[Any],
        encoded_key: bytes,
        group: int,
        origin: int,
        kind: str,
        asked_ms: int = 0,
    ) -> None:
        self.service, self.then, self.arguments = service, then, tuple(arguments)
        self.encoded_key, self.group, self.origin = encoded_key, group, origin
        self.kind, self.asked_ms = kind, asked_ms
        self.nbytes = 0  # of its encoded form

    @classmethod
    def of(cls, kept: bytes) -> Call:
        """The inverse of :meth:`kept`."""
        call = cls(*decode(kept))
        call.nbytes = len(kept)
        return call

    def kept(self) -> bytes:
        """The call as encoded for the state; raises `UnencodableValue`."""
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
                *([self.asked_ms] if self.asked_ms else []),
            ]
        )


class CallTable:
    """The calls of a process, by number: open calls, and questions that wait.

    At most `in_flight` calls are open, over all services. When one ends, the next question is taken
    from the oldest conversation, so that conversations end and watermarks advance.

    A service with `batch` gets several questions in one call, which has the number of the first.
    Which questions form a call is part of the state, because the log has one answer for all.

    Parameters
    ----------
    store
        Where calls are kept, beside values and timers.
    in_flight
        How many calls may be open.
    """

    def __init__(self, store: KeyedStore, in_flight: int) -> None:
        self.policies: dict[str, Policy] = {}
        self._purses: dict[str, Purse] = {}
        self._under_way: Counter[str] = Counter()  # open calls, by service
        self._info: OperatorInfo
        self._facts: Facts
        self._store, self._in_flight = store, in_flight
        self._open: dict[int, Call] = {}
        self._together: dict[int, list[int]] = {}  # calls with several questions: all, by the first
        self._waiting: dict[int, Call] = {}
        self._queues: defaultdict[str, Queue] = defaultdict(list)  # questions, by service
        self._answers: Counter[int] = Counter()  # of this life, by conversation; for display
        self.nbytes = 0  # of all calls' arguments

    def __len__(self) -> int:
        return len(self._open) + len(self._waiting)

    @property
    def _has_room(self) -> bool:
        return self._under_way.total() < self._in_flight

    @property
    def is_full(self) -> bool:
        """Whether the limit of calls is reached; questions that wait for a batch do not count."""
        due = (len(queue) // (self._batch(name) or 1) for name, queue in self._queues.items())
        return self._under_way.total() + sum(due) >= self._in_flight

    def _batch(self, service: str) -> int | None:
        return self.policies[service].batch

    def declare(self, name: str, policy: Policy, info: OperatorInfo, facts: Facts) -> None:
        """Declare a service that this operator may ask."""
        self.policies[name], self._info, self._facts = policy, info, facts
        self._purses[name] = Purse(policy, facts, f"{info.where}: {name}", f"{name} ")

    @property
    def spent(self) -> Usage:
        """See :attr:`clonos.operators.base.Operator.spent`."""
        each = [purse.usage for purse in self._purses.values()]
        return Usage(*map(sum, zip(Usage(), *each, strict=True)))

    @property
    def most_answers(self) -> int:
        """How many answers the conversation has had that has had most; of those that go on."""
        going_on = {*_origins(self._open), *_origins(self._waiting)}
        self._answers = Counter({o: n for o, n in self._answers.items() if o in going_on})
        return max(self._answers.values(), default=0)

    def require_known(self, outcome: Outcome) -> None:
        """Raise `EffectUnknown` if an effect's outcome is unknown and its policy says to fail."""
        if not outcome.ok:
            error, call = decode_error(outcome.answer), self._open[outcome.number]
            if isinstance(error, EffectUnknown) and self.policies[call.service].is_fatal(error):
                (key, *more), asked = decode(call.encoded_key), list(call.arguments)
                about = short((key, *more) if more else key)
                raise EffectUnknown(
                    f"{error.what} (for key {about}, asked with {short(asked)})",
                    where=f"{self._info.where}: {call.service}",
                    remedy=error.remedy,
                    trace=outcome.trace,
                )

    @property
    def first(self) -> int | None:
        """The number of the call that began the oldest unfinished conversation."""
        oldest = (queue[0][0] for queue in self._queues.values() if queue)
        return min([*_origins(self._open), *oldest], default=None)

    @property
    def newest(self) -> int | None:
        """... that began the newest one."""
        return max([*_origins(self._open), *_origins(self._waiting)], default=None)

    # --- asking ---------------------------------------------------------------------------------

    def add(self, number: int, kept: bytes, step: Step) -> Request | None:
        """Add a question, encoded by :meth:`Call.kept`, so that user code can no longer change its
        arguments. Returns the request to make; None: the question waits, perhaps for a batch."""
        call = Call.of(kept)
        self.nbytes += call.nbytes
        policy, queue = self.policies[call.service], self._queues[call.service]
        others = self._ready(step)
        if policy.batch is None and self._has_room and not others:
            return self._ask(call.service, [(number, call)], step)
        if policy.batch_within_ms and not queue:
            self._facts.set(f"{call.service} {_SINCE}", step.clock_ms())
        self._waiting[number] = call
        heappush(queue, (call.origin or number, number))
        self._store.put_kept(ADDRESS.pack(_WAITS, number), call.group, kept)
        return None

    def due(self, step: Step) -> Iterator[tuple[int, Request]]:
        """Waiting calls that may be made now."""
        while self._has_room and (ready := self._ready(step)):
            name = min(ready, key=lambda name: self._queues[name][0])
            questions = self._next(name)
            for number, call in questions:
                self._store.put_kept(ADDRESS.pack(_WAITS, number), call.group, None)
            yield questions[0][0], self._ask(name, questions, step)

    def _ready(self, step: Step) -> list[str]:
        """The services that may be asked now. All are checked, whatever their order: a check may
        read the clock, and a replay must read it in the same steps."""
        return [name for name in self._queues if self._is_due(name, step)]

    def _is_due(self, service: str, step: Step) -> bool:
        queue, policy = self._queues[service], self.policies[service]
        if not queue or not policy.batch_within_ms or self._facts.get(_OVER):
            return bool(queue)
        return len(queue) >= (policy.batch or 1) or step.clock_ms() >= self._since(service)

    def _since(self, service: str) -> int:
        """When an incomplete batch of the service's questions is asked."""
        since: int = self._facts.get(f"{service} {_SINCE}", 0)
        return since + self.policies[service].batch_within_ms

    def next_due_ms(self) -> int | None:
        """When :meth:`due` must be called again, if no event comes before."""
        if not self._has_room:
            return None
        waiting = (name for name, queue in self._queues.items() if queue)
        return min(map(self._since, waiting), default=None)

    def inputs_are_over(self) -> None:
        """Inputs have ended: from now on questions no longer wait for a full batch."""
        if any(policy.batch_within_ms for policy in self.policies.values()):
            self._facts.set(_OVER, value=True)

    def _next(self, service: str) -> list[tuple[int, Call]]:
        """The next questions that form a call: all with the same number of arguments."""
        queue, found = self._queues[service], list[tuple[int, Call]]()
        while queue and len(found) < (self._batch(service) or 1):
            number = queue[0][1]
            call = self._waiting[number]
            if found and len(call.arguments) != len(found[0][1].arguments):
                break
            heappop(queue)
            found.append((number, self._waiting.pop(number)))
        return found

    def _ask(self, service: str, questions: list[tuple[int, Call]], step: Step) -> Request:
        effect = self.policies[service].effect
        asked_ms = 0 if effect is None else effect.asked_ms(step)
        for number, call in questions:
            call.asked_ms = asked_ms
            self._open[number] = call
            self._store.put_kept(ADDRESS.pack(_OPEN, number), call.group, call.kept())
        first, *others = [number for number, _ in questions]
        if others:
            self._together[first] = [first, *others]
            self._store.put(ADDRESS.pack(_TOGETHER, first), WHOLE_TASK, [first, *others])
        request = self._request(service, first, self._under_way[service])
        self._under_way[service] += 1
        return request

    # --- answers --------------------------------------------------------------------------------

    def take(self, outcome: Outcome) -> list[tuple[Call, Outcome]]:
        """A call is over: return the outcome of each question."""
        first = outcome.number
        numbers = self._together.pop(first, [first])
        if len(numbers) > 1:
            self._store.put(ADDRESS.pack(_TOGETHER, first), WHOLE_TASK, None)
        calls = [self._open.pop(number) for number in numbers]
        for number, call in zip(numbers, calls, strict=True):
            self.nbytes -= call.nbytes
            self._answers[call.origin or number] += 1
            self._store.put_kept(ADDRESS.pack(_OPEN, number), call.group, None)
        service = calls[0].service
        self._under_way[service] -= 1
        self._purses[service].pay((outcome,))
        said = [outcome.answer] * len(numbers)
        if outcome.ok and self._batch(service) is not None:
            said = [encode(answer) for answer in decode(outcome.answer)]
        each = (outcome._replace(number=n, answer=a) for n, a in zip(numbers, said, strict=True))
        return list(zip(calls, each, strict=True))

    def keys_of(self, outcomes: Sequence[Outcome]) -> list[bytes]:
        """The keys to which these calls belong."""
        firsts = (outcome.number for outcome in outcomes)
        numbers = (number for first in firsts for number in self._together.get(first, [first]))
        known = (self._open.get(number) for number in numbers)
        return list(dict.fromkeys(call.encoded_key for call in known if call is not None))

    # --- all of them ----------------------------------------------------------------------------

    def _calls(self) -> Iterator[int]:
        """The numbers of open calls, in order."""
        besides = {number for numbers in self._together.values() for number in numbers[1:]}
        return (number for number in sorted(self._open) if number not in besides)

    def requests(self) -> dict[int, Request]:
        """The requests of open calls, in order."""
        for calls in (self._open, self._waiting):
            for number, call in calls.items():
                if call.service not in self.policies:
                    raise self._is_other(number, call.service, call.kind, "nobody knows it")
        found: dict[int, Request] = {}
        before: Counter[str] = Counter()
        for number in self._calls():
            service = self._open[number].service
            request = self._request(service, number, before[service])
            policy = self.policies[service]
            # An effect may have been made already: only the service can tell.
            found[number] = request._replace(service=policy) if policy.effect else request
            before[service] += 1
        return found

    def restore(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """The store took a delta: note the calls in it."""
        kinds = {_OPEN: self._open, _WAITS: self._waiting}
        for address, value in zip(keys, values, strict=True):
            kind = address[:1]
            if kind != _TOGETHER and kind not in kinds:
                continue
            _, number = ADDRESS.unpack(address)
            if kind == _TOGETHER:
                self._together.pop(number, None)
                self._together.update({} if value is None else {number: decode(value)})
            elif value is None:
                kinds[kind].pop(number, None)
            else:
                kinds[kind][number] = Call.of(value)
        self._queues.clear()
        for number, call in self._waiting.items():
            heappush(self._queues[call.service], (call.origin or number, number))
        self.nbytes = sum(call.nbytes for calls in kinds.values() for call in calls.values())
        self._under_way = Counter(self._open[number].service for number in self._calls())

    def _request(self, service: str, number: int, under_way: int) -> Request:
        policy = self.policies[service]
        calls = [self._open[n] for n in self._together.get(number, [number])]
        arguments: Sequence[Any] = calls[0].arguments
        if policy.batch is not None:
            arguments = columns_of([call.arguments for call in calls])
        for call in calls:
            if call.kind != policy.fingerprint:
                now = f"now it would be {policy.fingerprint}"
                raise self._is_other(number, service, call.kind, now)
        key, in_doubt = "", False
        if policy.effect:
            rewound = self._facts.get(REWOUND, ())
            key = self._info.numbered_effect_key(number, rewound)
            in_doubt = not policy.effect.idempotent and may_be_made(number, rewound)
        payer = self._purses[service].policy(under_way)
        digest = arguments_digest([service, *arguments], {})
        return Request(payer, arguments, digest, key, in_doubt, calls[0].asked_ms)

    def _is_other(self, number: int, service: str, kind: str, now: str) -> StateMismatch:
        return StateMismatch(
            f"the call {number} of {service} is open, as {kind}; {now}",
            where=self._info.where,
            remedy="let the job finish its open calls as they were declared, or start it "
            "afresh with another checkpoint_dir",
        )


def _origins(calls: dict[int, Call]) -> Iterator[int]:
    return (call.origin or number for number, call in calls.items())


def method_of(process: object, name: str, where: str) -> Callable[..., Any]:
    """The method of a process that receives a reply.

    Raises
    ------
    WrongType
        There is no method of this name.
    """
    if not isinstance(name, str):
        raise WrongType(
            f"then={short(name)}",
            where=where,
            remedy='give the name of a method, such as then="on_reply"',
        )
    method: Callable[..., Any] | None = getattr(process, name, None)
    if not callable(method):
        raise WrongType(
            f"{type(process).__name__} has no method {name!r}",
            where=where,
            remedy=f"write def {name}(self, reply, ctx), or name another one with then=",
        )
    return method
