"""What the automaton needs of the code that it runs (the *program*), and what it offers (the
*step*).

A program is a chain of operators compiled for one task. The core never looks into payloads: a
batch is an opaque object with a row count, a size and a digest of its content.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, SupportsBytes

from clonos.core.calls import CallId, Outcome, Request


class Batch(NamedTuple):
    """An immutable batch of rows.

    ``payload`` is opaque to the core (an Arrow RecordBatch in production); ``nbytes`` is what it
    takes in memory, however few rows it has; ``digest`` is a 64-bit hash of its content, equal for
    equal content on every machine.
    """

    payload: Any
    rows: int
    nbytes: int
    digest: int


class Step(Protocol):
    """One atomic step as the program sees it. Everything nondeterministic is asked of it."""

    @property
    def position(self) -> int:
        """Number of this step: 1, 2, ... over the whole life of the task."""

    @property
    def is_live(self) -> bool:
        """Whether this step is taken for the first time, not replayed from the log."""

    @property
    def left_out(self) -> Sequence[Batch]:
        """Rows that came with this step and are not to be handled: they kill the process."""

    def clock_ms(self) -> int:
        """Processing time in ms since the epoch: one reading per step, logged, never going back."""

    def clock_ms_if(self, *, reads: bool) -> int | None:
        """The same if this step reads the clock: when live, if it says so; in a replay, if the log
        has a reading. So code that begins or ceases to read the clock can replay older steps."""

    def call(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Call `fn` once, ever: the answer or the exception is logged and comes back on replay."""

    def ask(self, call: CallId, request: Request) -> None:
        """Ask for a call that takes a while; :meth:`Program.on_outcomes` gets its outcome.

        Open calls belong to the program's state. No call is ever asked twice.
        """

    def wake_at(self, due_ms: int | None) -> None:
        """Ask for :meth:`Program.on_timer` at `due_ms` (processing time); None: not at all.

        There is one wake-up per task and it is part of its state; a later call replaces it.
        """

    def emit(self, channel: int, batch: Batch) -> None:
        """Put `batch` on an output channel (its id); at most once per channel and step."""

    def emit_watermark(self, channel: int, watermark_ms: int) -> None:
        """Put a watermark on an output channel, after this step's batch."""


class Program(Protocol):
    """A deterministic function of (state, event): the same events give the same bytes.

    ``makes_calls``: it may :meth:`Step.ask`; ``is_full``: so many calls are open that it wants no
    input before some are answered. Unless it makes calls, neither this nor :meth:`open_calls` is
    used.

    Every callback runs inside one step. The core itself sends markers, and END after :meth:`on_end`
    of the last input.
    """

    @property
    def makes_calls(self) -> bool: ...
    @property
    def is_full(self) -> bool: ...

    @property
    def has_left_memory(self) -> bool:
        """Whether some of its state is in files: those of layers, or its own."""

    def let_go(self) -> None:
        """It is needed no more: give these files up. Otherwise they are open, and take room, until
        the garbage collector finds the program."""

    def on_source(self, step: Step, batch: Batch) -> None:
        """Rows cut from this task's source (source tasks only)."""

    def on_batches(
        self, step: Step, channel: int, batches: Sequence[Batch], watermark_ms: int | None
    ) -> None:
        """One or more consecutive batches of one input channel, to be handled as one; then the
        watermark that follows the last of them, if any (see :meth:`on_watermark`)."""

    def on_watermark(self, step: Step, channel: int, watermark_ms: int) -> None:
        """No row with an event time at or before `watermark_ms` follows on this channel."""

    def on_timer(self, step: Step, now_ms: int) -> None:
        """The wake-up is due; ``step.clock_ms()`` returns `now_ms`."""

    def on_outcomes(self, step: Step, outcomes: Sequence[Outcome]) -> None:
        """Calls that earlier steps have asked are over, in this order."""

    def open_calls(self) -> Mapping[CallId, Request]:
        """Calls that were asked and not answered, in their order; used only after a restore."""

    def on_end(self, step: Step, channel: int | None) -> None:
        """An input channel has ended (None: the source has). The task has ended as soon as no call
        is open either."""

    def delta(self) -> bytes | SupportsBytes:
        """All state changed since the last call (or since restored), as absolute values.

        Called when a layer is sealed, within a step, so it must be quick: slow work should wait
        until ``bytes()`` of the result. That is called once, perhaps after later steps, in another
        thread, so the result must not change any more.
        """

    def apply(self, delta: Any) -> None:
        """Put a sealed :meth:`delta` on top of the state. Called in order, oldest first."""
