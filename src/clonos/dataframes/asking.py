"""Calls, clock and random numbers in Spark's own tasks, answered by the causal log.

The operators are those of tasks. An Arrow batch takes the place of a task's step: it has one
reading of the clock, and its own random numbers. See :mod:`clonos.causal` for the guarantees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

import pyarrow as pa

from clonos import causal
from clonos.causal import process
from clonos.columns.batches import concat
from clonos.core.calls import CallId, Outcome, Request
from clonos.core.canonical import encode, encode_error
from clonos.core.program import Step
from clonos.errors import NotInSpark, OperatorError
from clonos.graph.logical import Vertex
from clonos.operators import operations as op
from clonos.operators.base import Operator, OperatorInfo, Services
from clonos.operators.calls.service import Policy, PolicyOptions
from clonos.operators.calls.service import Service as Connection
from clonos.operators.context import takes_context

_CALLS = (op.MapAsync, op.WithColumnAsync, op.ForEachAsync)
_FUNCTIONS = (op.Map, op.FlatMap, op.Filter, op.MapBatches, op.WithColumn)


def asks(operation: op.Operation, where: str) -> bool:
    """Whether an operation may ask for answers, the time or random numbers."""
    if isinstance(operation, _FUNCTIONS):
        values = operation.of if isinstance(operation, op.WithColumn) else ("row",)
        return takes_context(operation.fn, where, values)
    return isinstance(operation, _CALLS)


def require_asked_once(vertices: Iterable[Vertex]) -> bool:
    """Whether any of these vertices asks for logged answers.

    Raises
    ------
    NotInSpark
        Several plans would make the calls, or one plan several times: each reader of the vertex's
        output computes it again.
    """
    readers: dict[int, list[str]] = {}
    behind: dict[int, str] = {}
    for vertex in vertices:
        for edge in vertex.edges:
            readers.setdefault(edge.vertex.id, []).append(vertex.name)
            if edge.vertex.id in behind:
                behind[vertex.id] = behind[edge.vertex.id]
        if asks(vertex.operation, vertex.name):
            behind[vertex.id] = vertex.name
    for vertex_id, name in behind.items():
        several = readers.get(vertex_id, [])
        if len(several) > 1:
            raise NotInSpark(
                f"{' and '.join(sorted(several))} read what is behind it, and in Spark each would "
                "ask for itself, and could get other answers",
                where=name,
                remedy="write it to one clonos.sinks.table(path), and read that with other jobs, "
                'or run the job with execution="tasks"',
            )
    return bool(behind)


def why_not(operation: op.Operation) -> tuple[str, str] | None:
    """Why Spark's tasks cannot make the calls of an operation, and what to write instead."""
    if not isinstance(operation, _CALLS):
        return None
    policy = operation.policy
    if policy.effect is not None:
        return "it makes effects, and only tasks keep what is in doubt", ""
    if isinstance(policy.fn, Connection):
        return "only tasks open a clonos.Service, and close it", "give it a function"
    known = {
        "per_second=": policy.per_second,
        "hedge=": policy.hedge_s,
        "budget=": policy.budget,
        "cache_ttl=": policy.cache_ttl_s,
    }
    for name, given in known.items():
        if given is not None:
            return f"only tasks support {name}", f"leave out {name}"
    return None


@dataclass(frozen=True)
class Asker:
    """The operator that asks.

    Attributes
    ----------
    job, operator
        Their names. The operator's name is also that of its log.
    lineage
        The job's lineage, from which the keys of its calls are made; None: that of this run.
    """

    job: str
    operator: str
    lineage: str | None

    def info(self, number: int, partition: int) -> OperatorInfo:
        """The info of an operator in the Spark task that runs here."""
        with process.named(self.operator):
            task = process.current()
            seed = int(causal.random("ctx", partition).integers(2**62))
        run = f"{task.scope}.{task.log(self.operator).seed.hex()}"
        return OperatorInfo(
            job=self.job,
            task=partition,
            task_name=f"{self.operator}[{partition}]",
            operator=self.operator,
            number=number,
            index=partition,
            parallelism=1,
            seed=seed,
            lineage=self.lineage or run,
            run=run,
        )


class AskingServices(Services):
    """The services of an operator whose calls the causal log answers."""

    def watermark_ms(self, operator: Operator) -> int | None:
        raise OperatorError(
            "Spark does not tell functions how far event time has come",
            where=operator.info.where,
            remedy="leave out ctx.watermark, or run the job with execution='tasks'",
        )


class CausalStep:
    """A step: one Arrow batch of an operator."""

    is_live = True

    def __init__(self) -> None:
        self.position = 0
        self._now_ms: int | None = None
        self._asked: list[tuple[CallId, Request]] = []

    def begin(self) -> Step:
        """Begin the step of the next batch."""
        self.position += 1
        self._now_ms = None
        return cast("Step", self)  # operators in front of plans emit nothing by themselves

    def clock_ms(self) -> int:
        """One reading per batch."""
        if self._now_ms is None:
            self._now_ms = causal.clock.now_ms()
        return self._now_ms

    def clock_ms_if(self, *, reads: bool) -> int | None:
        """See :class:`clonos.core.program.Step`."""
        return self.clock_ms() if reads else None

    def call(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Make the call, unless an earlier attempt has made it."""
        return causal.call(fn, *args, **kwargs)

    def ask(self, call: CallId, request: Request) -> None:
        """Collect a call, to be made together with others."""
        self._asked.append((call, request))

    def wake_at(self, due_ms: int | None) -> None:
        """Ignored: nothing waits from one batch to the next."""

    def outcomes(self) -> list[Outcome]:
        """Make the collected calls, and return their outcomes."""
        asked, self._asked = self._asked, []
        if not asked:
            return []
        (policy,) = {id(request.service): request.service for _, request in asked}.values()
        answers = _answers(policy, [request for _, request in asked])
        return [
            Outcome(*call, request.digest, not isinstance(answer, Exception), _encoded(answer))
            for (call, request), answer in zip(asked, answers, strict=True)
        ]


def _answers(policy: Policy, requests: Sequence[Request]) -> list[Any]:
    """Answers and exceptions, in the order of the requests."""
    first, most = (timedelta(seconds=seconds) for seconds in policy.backoff_s)
    how: PolicyOptions = {
        "timeout": timedelta(seconds=policy.timeout_s),
        "attempts": policy.attempts,
        "backoff": (first, most),
    }
    service = causal.service(_asked(policy), name=policy.name, **how)
    # One argument per request, so that requests without arguments are counted, too.
    each = [list(request.arguments) for request in requests]
    found: list[Any] = service.map(each, concurrency=policy.in_flight, return_exceptions=True)
    return found


def _asked(policy: Policy) -> Callable[[Sequence[Any]], Any]:
    """A function of the list of its arguments."""

    def ask(arguments: Sequence[Any]) -> Any:
        answer = policy.fn(*policy.given(arguments))  # type: ignore[operator]  # no Connection
        return policy.require_answers(arguments, answer)

    async def ask_async(arguments: Sequence[Any]) -> Any:
        answer = await policy.fn(*policy.given(arguments))  # type: ignore[operator]  # as above
        return policy.require_answers(arguments, answer)

    return ask_async if policy.is_async else ask


def _encoded(answer: Any) -> bytes:
    if isinstance(answer, causal.ServiceTooSlow):
        return encode_error(TimeoutError(answer.what))  # as tasks say it
    return encode_error(answer) if isinstance(answer, Exception) else encode(answer)


class Asking:
    """An operator, and the step in which it asks."""

    def __init__(self, operator: Operator, asker: Asker, number: int, partition: int) -> None:
        self._operator, self._name = operator, asker.operator
        self._services, self._step = AskingServices(), CausalStep()
        operator.open(asker.info(number, partition), self._services)

    def on_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        """The rows that the operator makes of a batch, once all calls are answered."""
        with process.named(self._name):
            self._services.begin(self._step.begin())
            made = [rows for rows in self._made(batch) if rows is not None and rows.num_rows]
        return concat(made) if made else None

    def _made(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch | None]:
        yield self._operator.on_batch(batch)
        if self._operator.makes_calls:
            yield self._operator.on_end()  # no call waits for rows of the next batch
            while outcomes := self._step.outcomes():
                yield self._operator.on_outcomes(outcomes)
