"""Canaries follow a running job, step by step along its log, while processes die.

Everything is simulated except a canary's own process: it reads the journal, and the log in it,
while the driver writes. One canary runs the job's own code, the other changed code. In the end the
first must have reported nothing, the second what a branch on the whole past reports.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Final

from clonos import sinks, sources
from clonos.api.job import Job
from clonos.branch import Branch
from clonos.branch.answers import Answers
from clonos.branch.follow import ANEW_AFTER, Follower, Report
from clonos.branch.live_log import entries_behind, newest, without_log
from clonos.core.history import Keep, Point
from clonos.core.housekeeper import HouseKeeper
from clonos.core.messages import Run
from clonos.errors import ClonosError, NothingToReplay
from clonos.graph.changed import changed
from clonos.graph.code import TaskCode
from clonos.graph.compile import CompiledJob
from clonos.operators.process.process import ProcessContext
from clonos.replay.kept import since
from clonos.replay.past import Past, activations
from clonos.simulator.checks.violations import Violation, require
from clonos.simulator.jobs.arrow import SCHEMA, ArrowJob, Running, enrich
from clonos.simulator.runs.rewinds import ForgetfulReader, with_reader
from clonos.simulator.world.disks import JOURNAL
from clonos.storage.journal import JournalReader
from clonos.storage.layers import LayerStore

if TYPE_CHECKING:
    from clonos.simulator.processes.cluster import Cluster

KEEP: Final = Keep(ms=1 << 40, every_ms=20)
LOOK_MS: Final = 40.0
EVERYTHING: Final = 1 << 60


def canary_job(random: Random) -> ArrowJob:
    """A job with clock readings, random numbers, calls, timers and state."""
    job = Job(
        "followed",
        parallelism=random.choice((1, 2)),
        sharing_depth=random.choice((0, 1, "full")),
        checkpoints=random.choice(("marked", "uncoordinated")),
        seed=7,
    )
    rows = job.source(sources.from_batches([], schema=SCHEMA), name="rows")
    keyed = rows.map(enrich, SCHEMA, name="enrich").key_by("key")
    keyed.process(Running(), SCHEMA, name="running").sink(sinks.collect(), name="out")
    return ArrowJob(job.compile(), rows=random.randint(20, 80))


class Other(Running):
    """Changed code: some rows are changed, some missing, some new."""

    def on_row(self, row: Any, ctx: ProcessContext) -> Iterable[Any]:
        for made in super().on_row(row, ctx):
            if row.id % 5:
                yield (*made[:3], made[3] + row.id % 2)
            if row.id % 7 == 0:
                yield made


class LogOfJob:
    """The log of a simulated job, as its journal has it at the moment.

    Attributes
    ----------
    began_at
        The number of the first point.
    """

    def __init__(self, cluster: Cluster, job: ArrowJob) -> None:
        self._cluster, self._job, self.began_at = cluster, job, 0
        self._files = cluster.disks.local.observe()
        self._reader, self._keeper = JournalReader(), self._new()

    def begin(self, heard: Mapping[int, int] | None) -> Past:
        """See :class:`~clonos.branch.follow.Log`."""
        point = newest(self._now().history, heard, self._job.compiled.name)
        self.began_at = self.began_at or point.number
        return without_log(self.past(point.number))

    def more(self, heard: Mapping[int, int]) -> list[Run]:
        """See :class:`~clonos.branch.follow.Log`."""
        return entries_behind(self._now(), self._store, heard, self._job.compiled.name)

    @property
    def _store(self) -> LayerStore:
        return LayerStore(self._cluster.driver.layers, files=self._cluster.disks.shared.observe())

    def _new(self) -> HouseKeeper:
        return HouseKeeper(self._job.plan, self._job.encode, self._job.decode)

    def _now(self) -> HouseKeeper:
        try:
            begins, records = self._reader.more(self._files, JOURNAL)
        except FileNotFoundError as error:
            raise NothingToReplay("there is no journal yet") from error
        self._keeper = self._new() if begins else self._keeper
        self._keeper.recover(records)
        self._keeper.take_records()
        return self._keeper

    def past(self, number: int) -> Past:
        """The whole past from a point on."""
        keeper, store = self._new(), self._store
        keeper.recover(JournalReader().more(self._files, JOURNAL)[1])
        point = _point(keeper, number)
        keeper.rewind(point, since(keeper, point, store))
        compiled = self._job.compiled
        codes = tuple(map(self._readable, compiled.codes))
        return Past(compiled, codes, keeper, *activations(compiled, keeper), "", "", "", store)

    def _readable(self, code: TaskCode) -> TaskCode:
        if code.source is None:
            return code
        rows = self._job.sources[code.task.id].read(0, EVERYTHING).payload
        return with_reader(code, partial(_reader, rows))


def _reader(rows: Any, index: int, parallelism: int) -> ForgetfulReader:
    """A reader that gives all rows to this task."""
    del index, parallelism
    return ForgetfulReader(rows, 0)


def _point(keeper: HouseKeeper, number: int) -> Point:
    (found,) = (point for point in keeper.history.points if point.number == number)
    return found


class Canary:
    """One canary.

    Parameters
    ----------
    code
        The job with its code.
    keys
        By sink, columns by which rows are matched.
    """

    def __init__(
        self,
        cluster: Cluster,
        job: ArrowJob,
        random: Random,
        code: CompiledJob,
        keys: Mapping[str, list[str]],
    ) -> None:
        self._cluster, self._random = cluster, random
        self._code, self._keys = code, keys
        self.log = LogOfJob(cluster, job)
        self._follower: Follower | None = None
        self.looks = 0
        cluster.scheduler.after(self._pause(), self._look)

    def _pause(self) -> float:
        return self._random.choice((0.1, 1.0, 3.0)) * LOOK_MS * self._random.random()

    def _look(self) -> None:
        if self._cluster.outcome.state == "running":
            with suppress(NothingToReplay):  # no point yet, or it is already gone: try again later
                self._go_on()
            self._cluster.scheduler.after(self._pause(), self._look)

    def _go_on(self, *, to_the_end: bool = False) -> Report:
        """Let the canary look once, and check that it leaves no trace."""
        disks = self._cluster.disks
        before = disks.local.content(), disks.shared.content()
        try:
            if self._follower is None:
                answers = Answers((), "stub", None, (), (), None)
                self._follower = Follower(self.log, self._code, answers, self._keys)
                self._follower.anew_after = self._random.choice((5, 40, ANEW_AFTER))
            report = self._follower.go_on(to_the_end=to_the_end)
        except NothingToReplay:
            raise
        except (ClonosError, AssertionError, LookupError, TypeError, ValueError) as error:
            raise Violation("canary", f"it has failed: {type(error).__name__}: {error}") from error
        finally:
            is_as_before = (disks.local.content(), disks.shared.content()) == before
            require(is_as_before, "canary", "it has added or deleted a file")
        self.looks += 1
        return report

    def close(self) -> None:
        """Close its files, however the job has ended."""
        if self._follower is not None:
            self._follower.close()

    def end(self, replace: Mapping[str, Any]) -> None:
        """The job is done: check that the canary has reported all differences, and no others."""
        if self._follower is None:
            return
        self._go_on()
        said = self._go_on(to_the_end=True)
        branch = Branch(self.log.past(self.log.began_at), replace)
        require(said.behind == 0, "canary", f"{said.behind} steps are left")
        require(said.calls == 0, "canary", f"{said.calls} calls were made")
        for sink in branch.sinks:
            due, found = branch.compare(sink, self._keys.get(sink)), said.differences[sink]
            one, other = ((c.rows_a, c.rows_b, c.changes) for c in (due, found))
            require(one == other, "canary", f"{sink}: rows and changes are {one}, it says {other}")
            due_rows, rows = (sorted(map(repr, c.table.to_pylist())) for c in (due, found))
            require(due_rows == rows, "canary", f"{sink}: the canary shows other differences")


class Canaries:
    """Two canaries: one with the job's own code, one with changed code."""

    def __init__(self, cluster: Cluster, job: ArrowJob, random: Random) -> None:
        self._replaces: list[Mapping[str, Any]] = [{}, {"running": Other()}]
        self.canaries = [
            Canary(cluster, job, random, changed(job.compiled, replace), {"out": ["id", "key"]})
            for replace in self._replaces
        ]

    @property
    def looks(self) -> int:
        """How often they have read the log."""
        return sum(canary.looks for canary in self.canaries)

    def close(self) -> None:
        """See :meth:`Canary.close`."""
        for canary in self.canaries:
            canary.close()

    def end(self) -> None:
        """See :meth:`Canary.end`."""
        for canary, replace in zip(self.canaries, self._replaces, strict=True):
            canary.end(replace)
