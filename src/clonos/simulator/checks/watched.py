"""Production's task automaton, checked at every step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from clonos.core import events as ev
from clonos.core import messages as msg
from clonos.core.calls import CallId
from clonos.core.determinants import Outcomes
from clonos.core.fences import Cut
from clonos.core.handover import AtRest
from clonos.core.layer import decode_layer
from clonos.core.life import Phase
from clonos.core.sealed import Layer
from clonos.core.step import Work
from clonos.core.task import TaskMachine
from clonos.core.watch import Calls
from clonos.simulator.checks import invariants
from clonos.simulator.checks.floors import SealedAt, restored_as_sealed, restored_as_told
from clonos.simulator.checks.invariants import (
    bounded_calls,
    bounded_loop,
    is_full,
    log_leaves,
    loop_is_full,
    nothing_lost_held,
    promise_kept,
)
from clonos.simulator.checks.key_order import calls_of_keys
from clonos.simulator.checks.lethal import only_lethal_calls_are_blamed
from clonos.simulator.checks.recorder import Recorder
from clonos.simulator.checks.violations import check_state

OFTEN = (ev.Received, ev.Answered, ev.SourceRows, ev.Tick, ev.Written, ev.CallsOver)
"""Frequent events, which rarely change a machine's state."""
CHECK_EVERY = 32
"""The whole state of a task is checked once in so many frequent events."""


class WatchedMachine(TaskMachine):
    """A task that the recorder watches."""

    def __init__(
        self,
        recorder: Recorder,
        plan: Any,
        command: msg.Activate,
        program: Any,
        layers: Iterable[Layer],
        *args: Any,
        **kwargs: Any,
    ) -> None:
        self._fetched, self._chain = tuple(layers), command.layers
        self._handed = command.handed
        super().__init__(plan, command, program, self._fetched, *args, **kwargs)
        self._recorder = recorder
        self._events = 0
        self._was_full = self._has_answers = self._loop_was_full = False
        self._cuts: dict[int, list[Cut]] = defaultdict(list)  # cuts that it has heard of
        # The step that asked for each effect; for effects found in a layer, its position.
        self._asked_at: defaultdict[CallId, int] = defaultdict(lambda at=self.position: at)  # type: ignore[misc]
        self._promised: dict[int, int] = {}  # lengths that it has reported to pending fences
        recorder.activated(self, command)
        for cut in command.fences:
            self._cuts[cut.task].append((cut.incarnation, cut.length))

    def start(self) -> list[ev.Action]:
        actions = super().start()
        restored_as_told(actions, self._chain, self._fetched)
        restored_as_sealed(self.program, self._begins_with(), self._recorder.sealed)
        return self._watch(actions)

    def _begins_with(self) -> SealedAt | None:
        """The newest layer in the state with which it begins."""
        if (handed := self._handed) is not None:
            layer = decode_layer(handed.layer)
            return layer.task, layer.incarnation, layer.epoch
        if not self._chain:
            return None
        newest = self._chain[-1]
        return newest.task, newest.incarnation, newest.epoch

    def rest(self) -> AtRest | None:
        at_rest = super().rest()
        self._watch([] if at_rest is None else [at_rest.layer])
        return at_rest

    def handle(self, event: ev.Event | msg.TaskCommand) -> list[ev.Action]:
        if isinstance(event, ev.Received):
            self._recorder.receives(self, event)
        actions = self._watch(super().handle(event))
        self._recorder.touched(self)
        if isinstance(event, ev.Received) and isinstance(event.data, msg.Data):
            self._check_logs({run.task for run in event.data.runs})
        elif isinstance(event, msg.Fence) and event.task != self.id:
            self._promised[event.task] = self.book.length(event.task)
        elif isinstance(event, (msg.Floor, msg.Resolve)):
            self._recorder.commanded(self, event)
            self._hear(event)
        elif isinstance(event, ev.Tick) and self.is_live:
            log_leaves(self)
        self._check_after(event)
        return actions

    def _hear(self, command: msg.Floor | msg.Resolve) -> None:
        if isinstance(command, msg.Resolve) and command.task != self.id:
            self._promised.pop(command.task, None)
            self._cuts[command.task].append((command.incarnation, command.length))
            self._check_logs(set(self._cuts))

    def _check_logs(self, tasks: Iterable[int]) -> None:
        if self.phase is not Phase.FENCED:
            promise_kept(self, self._promised)
            for task in tasks:
                nothing_lost_held(self.book, task, self._cuts.get(task, ()), self.spec.name)

    def _check_after(self, event: ev.Event | msg.TaskCommand) -> None:
        """Check the whole task after rare events and now and then; else only the part concerned."""
        self._events += 1
        if not isinstance(event, OFTEN) or self._events % CHECK_EVERY == 0:
            self._recorder.kept(self)
            if self._recorder.checks_state:
                check_state(self)
        elif isinstance(event, ev.Received) and self._recorder.checks_state:
            check_state(self.inputs[event.channel])

    def begin(self) -> Work | None:
        self._loop_was_full = loop_is_full(self)  # its input no longer circulates
        work = super().begin()
        if work is not None:  # often there is none, and backlogs change only when a step ends
            self._backlogs, self._was_full = invariants.backlogs(self), is_full(self)
        return work

    def flush(self) -> list[ev.Action]:
        actions = self._watch(super().flush())
        if self._has_answers:
            self._has_answers = False
            log_leaves(self)
        return actions

    def end(self, error: Exception | None = None) -> list[ev.Action]:
        before, step = self.position, self.under_way
        actions = super().end(error)
        if self.position > before:
            assert step is not None
            cause = step.record[0]
            self._asked_at.update((call, self.position) for call, _ in step.asked)
            self._has_answers |= isinstance(cause, Outcomes) and self.is_live
            bounded_calls(self, cause, was_full=self._was_full)
            calls_of_keys(self)
            bounded_loop(self, cause, was_full=self._loop_was_full)
            self._recorder.stepped(self, self._backlogs)
            self._recorder.touched(self)
            if self._recorder.checks_state:
                for end in self.inputs.values():
                    check_state(end)
        return self._watch(actions)

    def _make(self, due: Calls) -> None:
        before = set(self.calls.came)
        super()._make(due)
        blamed = self.calls.came.keys() - before
        requests = [request for call, request in due if call in blamed]
        only_lethal_calls_are_blamed(self._recorder.job, self.spec, requests)

    def _watch(self, actions: list[ev.Action]) -> list[ev.Action]:
        for action in actions:
            if isinstance(action, ev.StoreLayer):
                life = self.id, self.incarnation, action.layer.epoch
                self._recorder.sealed[life] = getattr(self.program, "count", None)
            if isinstance(action, ev.MakeCalls):
                effects = [call for call, request in action.calls if request.key]
                self._recorder.makes(self, max((self._asked_at[c] for c in effects), default=0))
        self._recorder.acts(self, actions)
        return actions
