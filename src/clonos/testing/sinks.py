"""Tests a transactional sink: processes are killed and frozen at every line, every call fails."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
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
from clonos.testing.interrupted import AWAY, FENCED, Child, Points

SCHEMA: Final = pa.schema([("id", pa.int64()), ("word", pa.string())])
"""The schema of the test rows."""
POINTS_MAX: Final = 1000
HUGE_ROWS: Final = 100_000
TEXTS: Final = (
    "",
    None,
    "null",
    "it's",
    'say "so"',
    "a,b;c\td",
    "a\\",
    "%s {0} $1 ?",
    "a\r\nb",
    " a ",
    "ü😀",
)
"""Texts that are lost where they are written into other texts, such as statements or lines."""
_RUN: Final = "check_sink"
_NAME: Final = "checked"
_HANGS_S: Final = 60.0
"""A write that is tried again for so long hangs."""
_GONE: Final = "check_sink: the connection is gone"
_NEVER_CAME: Final = 6
"""An exit code of a child."""

Rows = Sequence[tuple[int, str | None]]


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
    keyed: bool = False,
) -> SinkReport:
    """Test a sink of :func:`clonos.sinks.transactional`, or one that is built on it.

    Processes are forked, and killed or stopped before each line of yours that the sink's functions
    reach, and when `write` has returned. Each call that your lines make fails once, with the first
    exception of ``retry_on``: before it has done anything, and after it has done its work, as when
    the answer to a commit is lost. After each, the place must have exactly the rows that were
    written. Where a process was killed, it must have all rows of the group, or none.

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
        Test only every n-th line and call, which is quicker. With more than 1,000 of them a test
        fails, and asks for it.
    keyed
        Whether a row replaces one that has the same id. Otherwise rows that are equal are written,
        too, and all of them must be there.

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
        check.run("texts of all kinds", check.texts),
        check.run("an older life writes", check.older_life),
        check.run("two copies of a life write", check.two_copies),
        check.run("killed at every line", check.killed),
        check.run("frozen at every line, and woken after its successor", check.frozen),
        check.run("an older life writes at every line", check.late),
        check.run("another lane writes at every line", check.beside),
        check.run("every call fails, before and after it has worked", check.failing),
    ]
    if not keyed:
        findings.append(check.run("rows that are equal", check.equal))
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
            if place.is_users:
                place.write(place.life(2, run="another job"), _outputs(1, first_id=200))
                place.write(place.life(3, operator="another sink"), _outputs(1, first_id=300))
                place.write(first, _outputs(4))
                place.expect(1, 2, 3, 4, 101, 102, 103, 201, 301)

    def huge(self) -> None:
        rows = [(i, f"word {i}") for i in range(HUGE_ROWS)]
        with self._place() as place:
            place.write(place.life(1), [Output(OutputKey(0, 1), _batch(rows))])
            place.expect_rows(rows)

    def texts(self) -> None:
        rows = list(enumerate(TEXTS))
        with self._place() as place:
            place.write(place.life(1), [Output(OutputKey(0, 1), _batch(rows))])
            place.expect_rows(rows)

    def equal(self) -> None:
        """Who leaves out a row that is there already has lost one."""
        rows = [(1, "word 1")]
        with self._place(lanes=2) as place:
            for number in (0, 1):
                one, other = (Output(OutputKey(0, n), _batch(rows * n)) for n in (1, 2))
                place.write(place.life(1, number), [one], [one, other])
            place.expect_rows(rows * 6)

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
        return self._at_every_point(self._kill_at)

    def _kill_at(self, point: int) -> bool:
        with self._place() as place, place.signalled(place.life(1), point, signal.SIGKILL) as child:
            has_come = child.wait() == -signal.SIGKILL
            if not has_come:  # `write` has returned: the group is not offered again
                place.expect(1, 2, 3)
            life = place.life(3)
            place.expect_whole(lambda: place.write(life, _outputs(1)))  # opens, and writes nothing
            place.write(life, _outputs(2, 3), _outputs(4))
            place.expect(1, 2, 3, 4)
            return has_come

    def frozen(self) -> int:
        return self._at_every_point(self._freeze_at)

    def _freeze_at(self, point: int) -> bool:
        with self._place() as place, place.signalled(place.life(1), point, signal.SIGSTOP) as child:
            has_come, life = child.has_stopped(), place.life(3)
            with child.waking(self._patience_s):
                place.write(life, _outputs(2, 3))
            child.wake()
            if child.wait() not in (0, FENCED, AWAY):
                raise _Wrong(f"a life that woke up was not fenced: {child.told()}")
            place.write(life, _outputs(4))
            place.expect(1, 2, 3, 4)
            return has_come

    def late(self) -> int:
        return self._at_every_point(self._late_at)

    def _late_at(self, point: int) -> bool:
        with self._place() as place:
            old = place.life(1)
            with place.signalled(old, point, signal.SIGSTOP) as child:
                has_come = child.has_stopped()
                with child.waking(self._patience_s), contextlib.suppress(Fenced, StoreAway):
                    place.write(old, _outputs(2, 3))
                child.wake()
                if child.wait() not in (0, AWAY):
                    raise _Wrong(f"the newest life could not write: {child.told()}")
                place.write(place.life(3), _outputs(2, 3), _outputs(4))
                place.expect(1, 2, 3, 4)
                return has_come

    def beside(self) -> int:
        return self._at_every_point(self._beside_at)

    def _beside_at(self, point: int) -> bool:
        with self._place(lanes=2) as place:
            with place.signalled(place.life(1), point, signal.SIGSTOP) as child:
                has_come, other = child.has_stopped(), place.life(1, number=1)
                with child.waking(self._patience_s):
                    place.write(other, _outputs(1, 2, first_id=100))
                child.wake()
                if child.wait() not in (0, AWAY):
                    raise _Wrong(f"a lane could not write beside another: {child.told()}")
            place.write(place.life(3), _outputs(2, 3), _outputs(4))
            place.write(other, _outputs(3, first_id=100))
            place.expect(1, 2, 3, 4, 101, 102, 103)
            return has_come

    def failing(self) -> int:
        return self._at_every_point(self._fail_at)

    def _fail_at(self, point: int) -> bool:
        with self._place() as place, place.failing(place.life(1), point) as child:
            ended = child.wait()
            if ended not in (0, _NEVER_CAME):
                raise _Wrong(f"after an error the newest life could not write: {child.told()}")
            place.expect(1, 2, 3)
            place.write(place.life(3), _outputs(2, 3), _outputs(4))
            place.expect(1, 2, 3, 4)
            return ended == 0

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

    def _at_every_point(self, interrupt: Callable[[int], bool]) -> int:
        for tried in range(POINTS_MAX):
            point = tried * self._every
            try:
                if interrupt(point):
                    continue
            except Exception as error:
                raise _Wrong(f"at point {point}: {in_short(error)}") from error
            if point == 1:  # `write` has an end, whatever it consists of
                raise _Wrong("nothing of the sink's functions was seen")
            return tried
        raise _Wrong(f"there are more than {POINTS_MAX} points: say every={2 * self._every}")

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
        claims = Claims({_NAME: sink}, "process", _RUN, {_NAME: lanes})
        claims.begin({_NAME: SCHEMA}, is_new=True)

    @property
    def is_users(self) -> bool:
        """Whether lanes of any job and sink may write there without a claim."""
        return isinstance(self._store, UserStore)

    def life(
        self, incarnation: int, number: int = 0, *, run: str = _RUN, operator: str = _NAME
    ) -> Any:
        writer: Any = self._store.writer(Lane(run, operator, number, incarnation))
        self._lives.append(writer)
        return writer

    def write(self, life: Any, *groups: list[Output]) -> None:
        """Write as the engine does: temporary failures are retried."""
        until = time.monotonic() + _HANGS_S + self._patience_s

        def wait(pause_s: float) -> bool:
            time.sleep(min(pause_s, 0.02))
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

    def expect_whole(self, go_on: Callable[[], None]) -> None:
        """Of the group of outputs 2 and 3 all rows can be seen, or none; and those that can be seen
        stay when another life goes on."""
        seen = [number for number, _ in self._found()]
        if sorted(seen) not in ([1], [1, 2, 3]):
            raise _Wrong(f"of a transaction that was not committed a part can be seen: {seen}")
        go_on()
        if missing := set(seen) - {number for number, _ in self._found()}:
            raise _Wrong(f"rows could be seen that were not committed: {sorted(missing)}")

    def _found(self) -> Rows:
        return [
            (int(row[0]), None if row[1] is None else str(row[1])) for row in self._read(self.sink)
        ]

    def expect_rows(self, rows: Rows) -> None:
        found = Counter(self._found())
        missing, extra = Counter(rows) - found, found - Counter(rows)
        if missing or extra:
            raise _Wrong(
                f"{sum(missing.values())} rows are missing, {sum(extra.values())} too many: "
                f"{sorted(missing | extra, key=str)[:3]}"
            )

    @contextlib.contextmanager
    def signalled(self, old: Any, point: int, sign: signal.Signals) -> Iterator[Child]:
        """After an old life has written output 1: a process whose life writes 2 and 3, once, and
        gets a signal at that point."""
        points = Points(self._store, point, lambda: os.kill(os.getpid(), sign))
        with self._forked(old, points, lambda life: life.write(_outputs(2, 3))) as child:
            yield child

    @contextlib.contextmanager
    def failing(self, old: Any, point: int) -> Iterator[Child]:
        """The same, but a call fails there, and the life goes on; or it says that it had none."""

        def fail() -> None:
            raise _error_of(self._store)  # a new one: its traceback is to go, as in a job

        def write(life: Any) -> None:
            self.write(life, _outputs(2, 3))
            if not points.has_come:
                os._exit(_NEVER_CAME)

        points = Points(self._store, point, fail, calls=True)
        with self._forked(old, points, write) as child:
            yield child

    @contextlib.contextmanager
    def _forked(self, old: Any, points: Points, write: Callable[[Any], None]) -> Iterator[Child]:
        def work() -> None:
            life = self.life(2)
            with points.counted(life):
                write(life)

        self.write(old, _outputs(1))
        # It may be stopped while another life tries for as long as that.
        child = Child(work, 2 * (_HANGS_S + self._patience_s))
        try:
            yield child
        finally:
            child.end()

    def close(self) -> None:
        for life in self._lives:
            life.close()


def _ignore(text: str) -> None:
    """Retries need no warning here."""


def _error_of(store: Any) -> Exception:
    """An error after which the engine tries again."""
    for kind in store.transactions.retry_on if isinstance(store, UserStore) else ():
        with contextlib.suppress(Exception):
            error: Exception = kind(_GONE)
            return error
    return StoreAway(_GONE)


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


__all__ = ["SCHEMA", "Finding", "SinkReport", "check_sink"]
