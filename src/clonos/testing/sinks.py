"""Tests a transactional sink: processes are killed and frozen at every line, outputs repeated."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from types import CodeType, FrameType
from typing import Any, Final

import pyarrow as pa

from clonos.blame import in_short
from clonos.columns.durations import parse_duration
from clonos.errors import Fenced, StoreAway
from clonos.sinks.lanes import Lane, Output, OutputKey
from clonos.sinks.spec import SinkSpec
from clonos.sinks.transactions import TransactionalWriter, UserStore
from clonos.sinks.writers import Claims
from clonos.storage.retry import Retry

SCHEMA: Final = pa.schema([("id", pa.int64()), ("word", pa.string())])
"""The schema of the test rows."""
POINTS_MAX: Final = 200
HUGE_ROWS: Final = 100_000
_NAME: Final = "checked"

Rows = list[tuple[int, str]]


@dataclass(frozen=True)
class Finding:
    """The outcome of one scenario; ``wrong``: a description of the fault, or ""."""

    scenario: str
    wrong: str
    points: int = 1

    def __str__(self) -> str:
        times = f" ({self.points} points)" if self.points > 1 else ""
        return f"{'FAILED' if self.wrong else 'passed'}  {self.scenario}{times}" + (
            f": {self.wrong}" if self.wrong else ""
        )


@dataclass(frozen=True)
class SinkReport:
    """The findings of :func:`check_sink`."""

    findings: tuple[Finding, ...]

    @property
    def passed(self) -> bool:
        """Whether no scenario has failed."""
        return not self.failures

    @property
    def failures(self) -> tuple[str, ...]:
        """The failed scenarios."""
        return tuple(f.scenario for f in self.findings if f.wrong)

    def __str__(self) -> str:
        return "\n".join(map(str, self.findings))


class _Wrong(Exception):
    """Rows are missing or duplicated."""


def check_sink(
    make: Callable[[], SinkSpec],
    read: Callable[[SinkSpec], Iterable[Any]],
    *,
    away: Callable[[SinkSpec], AbstractContextManager[Any]] | None = None,
    patience: str = "2 seconds",
    every: int = 1,
) -> SinkReport:
    """Test a sink of :func:`clonos.sinks.transactional`, or one that is built on it.

    Processes are forked, and killed or stopped before each line of the files with the sink's
    functions, and when `write` has returned. After each, the place must have exactly the rows that
    were written.

    Parameters
    ----------
    make
        Makes a sink that writes to a new, empty place, for rows ``id long, word string``.
    read
        ``read(sink)`` returns all rows of its place, in any order, as ``(id, word)``.
    away
        ``with away(sink):`` makes the store unreachable meanwhile. Without it this is not tested.
    patience
        How long a life waits for the locks of a frozen one before that wakes up. A store whose
        locks cannot be broken passes, too; its sink then waits for frozen processes without limit.
    every
        Test only every n-th line, which is quicker.

    Returns
    -------
    SinkReport
        The report; print it, and assert ``report.passed``.
    """
    check = _Check(make, read, parse_duration(patience) / 1000, every)
    findings = [
        check.run("groups", check.groups),
        check.run("a group is offered twice", check.offered_twice),
        check.run("the generation goes up", check.generation_up),
        check.run("two lanes", check.two_lanes),
        check.run("a huge batch", check.huge),
        check.run("an older life writes", check.older_life),
        check.run("two copies of a life write", check.two_copies),
        check.run("killed at every line", check.killed),
        check.run("frozen at every line, and woken after its successor", check.frozen),
    ]
    if away is not None:
        findings.append(check.run("the store is away and back", lambda: check.away(away)))
    return SinkReport(tuple(findings))


class _Check:
    def __init__(
        self,
        make: Callable[[], SinkSpec],
        read: Callable[[SinkSpec], Iterable[Any]],
        patience_s: float,
        every: int = 1,
    ) -> None:
        self._make, self._read, self._patience_s = make, read, patience_s
        self._every = every

    def run(self, name: str, scenario: Callable[[], int | None]) -> Finding:
        """Run a scenario, which fails if it raises anything."""
        try:
            points = scenario()
        except Exception as error:  # noqa: BLE001 - it is what is looked for
            return Finding(name, str(error) if isinstance(error, _Wrong) else in_short(error))
        return Finding(name, "", points or 1)

    # --- scenarios -------------------------------------------------------------------------------

    def groups(self) -> None:
        with self._place() as place:
            place.write(place.life(1), _outputs(1, 2), _outputs(3), _outputs(4, 5, 6))
            place.expect(1, 2, 3, 4, 5, 6)

    def offered_twice(self) -> None:
        with self._place() as place:
            place.write(place.life(1), _outputs(1, 2), _outputs(1, 2), _outputs(2, 3))
            place.write(place.life(2), _outputs(1, 2, 3), _outputs(3, 4))
            place.expect(1, 2, 3, 4)

    def generation_up(self) -> None:
        with self._place() as place:
            place.write(place.life(1), _outputs(1, 2))
            later = _outputs(2, 3, 4, generation=1, first_id=10)
            place.write(place.life(2), later[:1], later[1:2])
            place.write(place.life(3), later)
            place.expect(1, 2, 12, 13, 14)

    def two_lanes(self) -> None:
        with self._place(lanes=2) as place:
            first, second = place.life(1), place.life(5, number=1)
            place.write(first, _outputs(1, 2))
            place.write(second, _outputs(1, first_id=100))
            place.write(first, _outputs(3))
            place.write(second, _outputs(2, 3, first_id=100))
            place.expect(1, 2, 3, 101, 102, 103)

    def huge(self) -> None:
        rows = [(i, f"word {i}") for i in range(HUGE_ROWS)]
        with self._place() as place:
            place.write(place.life(1), [Output(OutputKey(0, 1), _batch(rows))])
            place.expect_rows(rows)

    def older_life(self) -> None:
        with self._place() as place:
            old, new = place.life(1), place.life(2)
            place.write(old, _outputs(1))
            place.write(new, _outputs(2))
            for life in (old, place.life(1)):
                place.expect_fenced(life, _outputs(2, 3))
            place.write(new, _outputs(3))
            place.expect(1, 2, 3)

    def two_copies(self) -> None:
        """Two processes should never have the same incarnation; comparing marks detects it."""
        with self._place() as place:
            one, other = place.life(1), place.life(1)
            place.write(one, _outputs(1))
            place.write(other, _outputs(1, 2))
            with contextlib.suppress(Fenced, StoreAway):
                place.write(one, _outputs(2, 3))
            place.write(place.life(2), _outputs(2, 3))
            place.expect(1, 2, 3)

    def killed(self) -> int:
        return self._at_every_line(self._kill_at)

    def _kill_at(self, point: int) -> bool:
        with self._place() as place:
            place.write(place.life(1), _outputs(1))
            child = place.fork(2, point, signal.SIGKILL)
            came_so_far = child.wait() == -signal.SIGKILL
            child.end()
            place.write(place.life(3), _outputs(2, 3), _outputs(4))
            place.expect(1, 2, 3, 4)
            return came_so_far

    def frozen(self) -> int:
        return self._at_every_line(self._freeze_at)

    def _freeze_at(self, point: int) -> bool:
        with self._place() as place:
            place.write(place.life(1), _outputs(1))
            child = place.fork(2, point, signal.SIGSTOP)
            came_so_far = child.has_stopped()
            try:
                wake_at = time.monotonic() + self._patience_s
                life = place.life(3)
                place.write(life, _outputs(2, 3), give_up=lambda: _past(wake_at, child))
                child.wake()
                ended = child.wait()
                if ended not in (0, _FENCED, _AWAY):
                    raise _Wrong(f"a life that woke up was not fenced: {child.told()}")
                place.write(life, _outputs(4))
            finally:
                child.end()
            place.expect(1, 2, 3, 4)
            return came_so_far

    def away(self, away: Callable[[SinkSpec], AbstractContextManager[Any]]) -> None:
        with self._place() as place:
            life = place.life(1)
            place.write(life, _outputs(1))
            with away(place.sink):
                for _ in range(2):
                    with contextlib.suppress(StoreAway):
                        life.write(_outputs(2, 3))
                        raise _Wrong("writing to a store that is away raises nothing")
            place.write(life, _outputs(2, 3), _outputs(4))
            place.expect(1, 2, 3, 4)

    # --- parts -----------------------------------------------------------------------------------

    def _at_every_line(self, interrupt: Callable[[int], bool]) -> int:
        for tried in range(POINTS_MAX):
            point = tried * self._every
            try:
                if not interrupt(point):
                    return tried
            except Exception as error:
                raise _Wrong(f"at point {point}: {in_short(error)}") from error
        return POINTS_MAX

    @contextlib.contextmanager
    def _place(self, lanes: int = 1) -> Iterator[_Place]:
        place = _Place(self._make(), self._read, lanes, self._patience_s)
        try:
            yield place
        finally:
            place.close()


class _Place:
    """A new, empty place, and the lives that write to it."""

    def __init__(
        self,
        sink: SinkSpec,
        read: Callable[[SinkSpec], Iterable[Any]],
        lanes: int,
        patience_s: float,
    ) -> None:
        if sink.store is None:
            raise _Wrong(f"{sink.kind} is no sink with transactions")
        self.sink, self._store, self._read = sink, sink.store, read
        self._patience_s = patience_s
        self._lives: list[TransactionalWriter] = []
        claims = Claims({_NAME: sink}, "process", "check_sink", {_NAME: lanes})
        claims.begin({_NAME: SCHEMA}, is_new=True)

    def life(self, incarnation: int, number: int = 0) -> Any:
        writer: Any = self._store.writer(Lane("check_sink", _NAME, number, incarnation))
        self._lives.append(writer)
        return writer

    def write(self, life: Any, *groups: list[Output], give_up: Callable[[], object] = bool) -> None:
        """Write as the engine does: temporary failures are retried."""
        until = time.monotonic() + 60 + self._patience_s

        def wait(pause_s: float) -> bool:
            give_up()
            time.sleep(min(pause_s, 0.1))
            return time.monotonic() > until

        for group in groups:
            Retry("check_sink", wait, _ignore)(partial(life.write, group))

    def expect_fenced(self, life: Any, group: list[Output]) -> None:
        try:
            self.write(life, group)
        except Fenced:
            return
        raise _Wrong("an older life could write after a newer one, and was not fenced")

    def expect(self, *ids: int) -> None:
        self.expect_rows([(n, f"word {n}") for n in ids])

    def expect_rows(self, rows: Rows) -> None:
        found = Counter((int(row[0]), str(row[1])) for row in self._read(self.sink))
        missing, extra = Counter(rows) - found, found - Counter(rows)
        if missing or extra:
            raise _Wrong(
                f"{sum(missing.values())} rows are missing, {sum(extra.values())} too many: "
                f"{sorted(missing | extra)[:3]}"
            )

    def fork(self, incarnation: int, point: int, sign: signal.Signals) -> _Child:
        files = _files_of(self._store)
        return _Child(lambda: self.life(incarnation), point, sign, files)

    def close(self) -> None:
        for life in self._lives:
            life.close()


def _ignore(text: str) -> None:
    """Retries need no warning here."""


def _past(wake_at: float, child: _Child) -> None:
    if time.monotonic() > wake_at:
        child.wake()


def _files_of(store: Any) -> set[str]:
    """The files with the functions that talk to the store."""
    transactions = store.transactions
    if isinstance(store, UserStore):
        functions = (transactions.open_fn, transactions.last_key_fn, transactions.write_fn)
        codes = [getattr(fn, "__code__", None) for fn in functions]
    else:
        codes = [type(transactions).write.__code__]
    return {code.co_filename for code in codes if code is not None}


def _outputs(*seqs: int, generation: int = 0, first_id: int = 0) -> list[Output]:
    return [
        Output(OutputKey(generation, n), _batch([(first_id + n, f"word {first_id + n}")]))
        for n in seqs
    ]


def _batch(rows: Rows) -> pa.RecordBatch:
    ids, words = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(ids, pa.int64()), pa.array(words, pa.string())], schema=SCHEMA
    )


_FENCED, _AWAY, _FAILED = 3, 4, 5
"""Exit codes of a child."""


class _Child:
    """A process with its own life, which gets a signal before a line of the sink's functions.

    It writes outputs 2 and 3, as one group.
    """

    def __init__(
        self, life: Callable[[], Any], point: int, sign: signal.Signals, files: set[str]
    ) -> None:
        self._ended: int | None = None
        said, say = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            os.close(said)
            os._exit(_live(life, _Points(point, sign, files), say))
        os.close(say)
        self._said = said

    def has_stopped(self) -> bool:
        """Wait until it is stopped or has ended; returns whether it is stopped."""
        _, status = os.waitpid(self.pid, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            return True
        self._ended = os.waitstatus_to_exitcode(status)
        return False

    def wake(self) -> None:
        if self._ended is None:
            os.kill(self.pid, signal.SIGCONT)

    def wait(self) -> int:
        if self._ended is None:
            self._ended = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._ended

    def told(self) -> str:
        """The error that ended it."""
        return os.read(self._said, 10_000).decode(errors="replace") or f"ended with {self._ended}"

    def end(self) -> None:
        if self._ended is None:
            os.kill(self.pid, signal.SIGKILL)
            self.wait()
        os.close(self._said)


def _live(life: Callable[[], Any], points: _Points, say: int) -> int:
    try:
        sys.settrace(points.trace)
        life().write(_outputs(2, 3))
        sys.settrace(None)
        points.reach()  # written, but not yet reported
    except Fenced:
        return _FENCED
    except StoreAway:
        return _AWAY
    except BaseException as error:  # noqa: BLE001 - the process ends here, whatever it is
        with contextlib.suppress(OSError):
            os.write(say, in_short(error).encode())
        return _FAILED
    return 0


class _Points:
    """Counts lines before they run, and sends this process a signal before a chosen one."""

    def __init__(self, point: int, sign: signal.Signals, files: set[str]) -> None:
        self._countdown, self._sign, self._files = itertools.count(point, -1), sign, files
        self._known: dict[CodeType, bool] = {}

    def trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        code = frame.f_code
        if code not in self._known:
            self._known[code] = code.co_filename in self._files
        return self._line if self._known[code] else None

    def _line(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line":
            self.reach()
        return self._line

    def reach(self) -> None:
        if next(self._countdown) == 0:
            os.kill(os.getpid(), self._sign)


__all__ = ["SCHEMA", "Finding", "SinkReport", "check_sink"]
