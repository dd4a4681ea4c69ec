"""Deliberate mistakes with implied tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from clonos.core import cuts as cuts_module
from clonos.core import recovery as recovery_module
from clonos.core import task as task_module
from clonos.core.determinants import Order, decode_record
from clonos.core.fences import Cut
from clonos.core.inbounds import Inbounds
from clonos.core.inflight import InFlightLog
from clonos.core.messages import Run
from clonos.core.plan import Plan
from clonos.core.step import RunningStep
from clonos.core.watch import Watch
from clonos.simulator.jobs import implied as implied_module
from clonos.simulator.mistakes.mutation import IMPLIED, Mutation, mutation
from clonos.simulator.mistakes.protocol import constant


def several_at_once(original: Any) -> Any:
    def begin(self: Inbounds, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **{**options, "is_implied": False})

    return begin


def of_the_sender(_: Any) -> Any:
    def valid_length(
        plan: Plan, runs: Iterable[Run], length: int, fences: Mapping[int, Iterable[Cut]]
    ) -> int:
        for run in runs:
            for position, record in enumerate(run.records, run.start):
                cause = decode_record(record)[0]
                if position > length or not isinstance(cause, Order):
                    continue
                for incarnation, end in fences.get(plan.channels[cause.channel].sender, ()):
                    if cause.incarnation < incarnation and cause.position > end:
                        return position - 1
        return length

    return valid_length


def from_the_first_step_on(original: Any) -> Any:
    def begin(self: Watch, *arguments: Any) -> None:
        original(self, *arguments)
        self._floors_left = 0

    return begin


WRONG_IMPLIED: Final[dict[str, Mutation]] = {
    "what asks the world counts as deterministic": mutation(
        "divergence", (implied_module, "asks_nothing", constant(True)), kind=IMPLIED
    ),
    "nobody notices that an implied task asks the world": mutation(
        "same again",
        (implied_module, "asks_nothing", constant(True)),
        (task_module, "kind_of_step", constant(RunningStep)),
        kind=IMPLIED,
    ),
    "an implied task cuts its input as it likes": mutation(
        "same again", (Inbounds, "__init__", several_at_once), kind=IMPLIED
    ),
    "behind an implied task nothing is void": mutation(
        "stable log",
        (cuts_module, "valid_length", of_the_sender),
        (recovery_module, "valid_length", of_the_sender),
        kind=IMPLIED,
    ),
    "an implied task has to make what came of a lost log": mutation(
        "divergence", (InFlightLog, "expect_nothing", constant(None)), kind=IMPLIED
    ),
    "steps that an earlier life survived are enough": mutation(
        "poison", (Watch, "__init__", from_the_first_step_on), kind=IMPLIED
    ),
}
