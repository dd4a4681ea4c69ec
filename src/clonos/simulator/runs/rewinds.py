"""A job that goes back to a point of its past, again and again, under faults.

The rewind is production's own, on disks that fail; its process dies at any disk operation. The job
was stopped, or its driver has died, at any moment. Its output up to the point, together with its
output from there on, must equal that of a run without rewinds. Sometimes only a section of the job
goes back.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, Final, NamedTuple

import pyarrow as pa

from clonos.cluster.durable import JournalFile
from clonos.columns.batches import concat
from clonos.core.determinants import Source, SourceCut, decode_record
from clonos.core.history import Keep, Point
from clonos.core.housekeeper import Deliver, HouseKeeper
from clonos.core.messages import Item, Kind
from clonos.core.plan import Plan
from clonos.core.sealed import Layer
from clonos.core.version import version_of
from clonos.errors import CannotRewind, JournalBroken, NothingToReplay, SourceError, StoreAway
from clonos.graph.code import TaskCode
from clonos.replay.handover import go_back, sent_since
from clonos.replay.kept import since
from clonos.replay.past import Past, activations
from clonos.replay.reread import reread
from clonos.simulator.checks.recorder import Recorder
from clonos.simulator.checks.upgrades import (
    each_row_once,
    goes_on_or_has_not_begun,
    names_are_new,
    rows_come_again,
    state_is_kept,
    takes_all_along,
    who_stays_stays,
)
from clonos.simulator.checks.violations import Violation, require
from clonos.simulator.jobs.arrow import ArrowJob
from clonos.simulator.jobs.rescaled import RescaledJob, Rows, expected, upgrade_job
from clonos.simulator.processes.cluster import Options, Outcome
from clonos.simulator.runs.upgrades import ATTEMPTS, CALLS, Upgrades, terms_of
from clonos.simulator.world.disk import Died
from clonos.simulator.world.disks import HOME, JOURNAL, LAYERS, Disks
from clonos.sources.readers import BatchesReader
from clonos.storage.checkpoint import Checkpoint
from clonos.storage.folder import Folder
from clonos.storage.layers import LayerStore
from clonos.upgrade.rewind import Rewind
from clonos.upgrade.section import borders, section_of
from clonos.upgrade.shape import Shape
from clonos.upgrade.switch import last_layers

TIMES: Final = 3
KEEP: Final = Keep(ms=1 << 40, every_ms=8)
EVERYTHING: Final = 1 << 60

Names = list[tuple[tuple[int, int, int], list[tuple[Any, ...]]]]
"""Outputs: (generation, task, number) and rows of each."""


class Life(NamedTuple):
    """The time between two rewinds, or between the start and the first rewind.

    ``first``: the number of its first point; ``before``: the rows that were valid when it began,
    by sink; ``outputs``: its own output, by sink.
    """

    first: int
    before: Mapping[str, Rows]
    outputs: Mapping[str, Names]

    def until(self, lanes: Mapping[tuple[str, int], int]) -> dict[str, Rows]:
        """The valid rows by sink if its outputs are valid only up to these numbers."""
        found = {sink: Counter(rows) for sink, rows in self.before.items()}
        for sink, outputs in self.outputs.items():
            for (_, task, seq), rows in outputs:
                if seq <= lanes[sink, task]:
                    found.setdefault(sink, Counter()).update(rows)
        return found


class Rewinds(Upgrades):
    """One simulation; the parameters are those of :class:`Upgrades`."""

    def _next_job(self) -> RescaledJob:
        has_markers = self._seed % 5 != 3  # without markers, few points have all rows
        how: dict[str, Any] = {"has_markers": has_markers, "extra": False}
        has_effects = Random(f"effects {self._seed}").random() < 0.5
        return upgrade_job(self._seed, self._seed % 3 + 1, has_effects=has_effects, **how)

    def _options(self, job: ArrowJob) -> Options:
        return replace(super()._options(job), keep=KEEP)

    def run(self) -> None:
        """Run until the job is done."""
        self._lives: list[Life] = []
        self._recorders: list[Recorder] = []
        self._first, self._before = 1, dict[str, Rows]()
        self._sections = Random(f"sections {self._seed}")  # the rest of a seed stays as it was
        for _ in range(TIMES):
            if self._break_off():
                self._go_back()
        while not self._is_complete():
            self._go_on()
        self.cluster.recorder.check_end(self.cluster.service)
        for recorder in self._recorders:
            recorder.output_is_kept(self._in_journal())
        now = Life(self._first, self._before, self._outputs())
        each_row_once(now.until(defaultdict(lambda: EVERYTHING)), expected(self.job))

    def _break_off(self) -> bool:
        """Let the job run for a while; False: it is complete."""
        if self.random.random() < 0.4:
            return self._settle()
        cluster, until = self.cluster, self.cluster.scheduler.now + 60.0 * self.random.random()
        while cluster.scheduler.now < until and cluster.outcome.state == "running":
            cluster.scheduler.run_next()
        if self._is_complete():
            return False
        cluster.kill_driver()
        return True

    def _go_back(self) -> None:
        """Rewind the job; the process that tries may die."""
        for _ in range(ATTEMPTS):
            maker = TimeMachine(self.job, self.cluster.disks, self.random, self._sections)
            first = maker.attempt(self.switches + 1)
            self.deaths += maker.has_died
            if maker.has_died and first is None and not self._break_off():
                return  # it was started again meanwhile
            if first is not None:
                self._gone_back(maker, first)
                return
            if maker.is_refused:
                if self.cluster.outcome.state == "done":  # a job that has settled is started again
                    self.cluster.outcome = Outcome()
                    self.cluster.kill_driver()
                return
        raise Violation("liveness", f"the job did not go back in {ATTEMPTS} attempts")

    def _gone_back(self, maker: TimeMachine, first: Mapping[int, Layer]) -> None:
        made = maker.made
        assert made is not None
        self.switches += 1
        state_is_kept(Shape.of(self.job.compiled), made.layers, self.job, first)
        if maker.section is not None:
            self.sections += 1
            who_stays_stays(self.job.plan, maker.section, maker.now, first)
        self._recorders.append(self.cluster.recorder)
        for recorder in self._recorders:
            recorder.output_is_kept(maker.in_journal)
        goes_on_behind(self.job.plan, maker.lengths, self.cluster.recorder, first)
        maker.past_is_there()
        self._lives.append(Life(self._first, self._before, self._outputs()))
        number = made.point.number
        life = [life for life in self._lives if life.first <= number][-1]
        self.forward += life is not self._lives[-1]
        self._before = life.until({(lane.sink, lane.task): lane.kept for lane in made.lanes})
        self._first = maker.newest + 1
        service = self.cluster.service
        self.cluster = self._begin(self.job, self.cluster, first)
        self.cluster.service.remember(service)

    def _in_journal(self) -> list[Deliver]:
        """Output that is not yet in files."""
        keeper = HouseKeeper(self.job.plan, self.job.encode, self.job.decode, KEEP)
        return keeper.recover(self.cluster.disks.journal())

    def _outputs(self) -> dict[str, Names]:
        """By sink, the output of this life of the job, with names."""
        found: dict[str, Names] = {}
        for task in self.job.plan.tasks:
            if task.sink is None:
                continue
            for (generation, _, seq), (kind, payload, _) in self.cluster.recorder.outputs(task.id):
                name = generation, task.index, seq
                names_are_new(self._names, (*name, task.sink))
                rows = payload.to_pylist() if kind == Kind.BATCH else []
                found.setdefault(task.sink, []).append(
                    (name, [tuple(row.values()) for row in rows])
                )
        return found


def goes_on_behind(
    plan: Plan, lengths: Mapping[int, int], before: Recorder, first: Mapping[int, Layer]
) -> None:
    """No log position and no output number is used twice: random numbers derive from positions,
    and sinks keep marks of output numbers."""
    for task in plan.tasks:
        layer, entries = first[task.id], lengths[task.id]
        said = f"{task.name} goes on at {layer.position}, its log had {entries} entries"
        require(layer.position >= entries, "rewind", said)
        if task.sink is not None:
            newest = max((name[2] for name, _ in before.outputs(task.id)), default=0)
            number = layer.outs[task.outputs[-1]][0]
            said = f"{task.name} goes on behind output {number}, and has delivered {newest}"
            require(number >= newest, "rewind", said)


def _is_one(sections: Random) -> bool:
    return sections.random() < 0.5


def _head(job: ArrowJob, sections: Random) -> str:
    """The operator with which a section begins; never the source."""
    codes = (code for code in job.compiled.codes if code.source is None)
    return sections.choice(sorted({code.operators[0][0] for code in codes}))


def with_reader(code: TaskCode, factory: Any) -> TaskCode:
    """The same task with another reader."""
    assert code.source is not None
    return replace(code, source=replace(code.source, factory=factory))


class ForgetfulReader(BatchesReader):
    """A reader that has forgotten its first rows."""

    def __init__(self, rows: pa.RecordBatch, first: int) -> None:
        super().__init__([rows], rows.schema)
        self._first = first

    def open(self, rows_consumed: int) -> None:
        """See :meth:`clonos.sources.readers.Reader.open`."""
        if rows_consumed < self._first:
            raise SourceError(f"the first row that is kept is {self._first}")
        super().open(rows_consumed)


def _reader(rows: pa.RecordBatch, first: int, index: int, parallelism: int) -> ForgetfulReader:
    """A reader that gives all rows to this task."""
    del index, parallelism
    return ForgetfulReader(rows, first)


class TimeMachine:
    """A process that rewinds a job; it may die at one of its disk operations.

    Attributes
    ----------
    made
        The rewind that it has made, or tried to make.
    newest
        The newest point.
    in_journal
        Output that is still in the journal.
    lengths
        The lengths of the logs before the rewind.
    now
        The positions of tasks, if only a section goes back.
    points
        The numbers of the points before the rewind, and now.
    section
        The tasks that go back; None: all.
    """

    def __init__(self, job: ArrowJob, disks: Disks, random: Random, sections: Random) -> None:
        self._sections = sections
        self.section = section_of(job.compiled, _head(job, sections)) if _is_one(sections) else None
        self._job, self._disks, self._random = job, disks, random
        dies_at = random.randrange(CALLS) if random.random() < 0.5 else None
        is_local = random.random() < 0.5
        self._local = disks.local.mount(dies_at if is_local else None)
        self._shared = disks.shared.mount(None if is_local else dies_at)
        self._loses_power = random.random() < 0.3
        self.has_died = self.is_refused = False
        self.made: Rewind | None = None
        self.newest = 0
        self.in_journal: list[Deliver] = []
        self.lengths: dict[int, int] = {}
        self.now: Mapping[int, Layer] = {}
        self.points: tuple[set[int], set[int]] = set(), set()

    def attempt(self, version: int) -> Mapping[int, Layer] | None:
        """Try to rewind; return the tasks' first layers if that has succeeded."""
        try:
            self._make()
        except CannotRewind:
            self.is_refused = True
        except (Died, OSError, StoreAway, JournalBroken):
            self.has_died = True
        for files in (self._local, self._shared):
            files.die()
        if self._loses_power:
            self._disks.local.lose_power()
        return None if self.is_refused else self._found(version)

    def _make(self) -> None:
        journal = JournalFile(JOURNAL, "fsync", lambda _: None, self._local)
        keeper = self._keeper()
        journal.recover(keeper)
        home = Folder(self._local, HOME, "fsync")
        checkpoint = Checkpoint(home, "time machine", lambda: terms_of(self._shared))
        store = LayerStore(f"{LAYERS}/{checkpoint.id}", files=self._shared)
        points = [p for p in keeper.history.points if p.number > keeper.history.going]
        if not points:
            raise CannotRewind("there is no point yet")
        self.newest = points[-1].number
        self.lengths = {task.id: keeper.length(task.id) for task in self._job.plan.tasks}
        self.points = {point.number for point in points}, set()
        point = self._random.choice(points)
        self.now = {} if self.section is None else last_layers(self._job.plan, keeper, store)
        self.made = Rewind(keeper, self._job.compiled, point, store, self.section)
        takes_all_along(self._job.plan, self.made.section)
        self._look_at_sources(keeper, point, store)
        sent = self._sent(journal, point, store)
        term = checkpoint.begin_term(position=journal.next_seq, before=keeper.term).number
        announce = partial(home.put, "next")
        how: Any = (journal, journal.records(), self._keeper(), (), {}, sent)
        self.made.make(term, lambda _: announce(b"graph"), *how)

    def _look_at_sources(self, keeper: HouseKeeper, point: Point, store: LayerStore) -> None:
        """Check the sources; some may have forgotten rows, or have changed ones."""
        assert self.made is not None
        try:
            runs = since(keeper, point, store)
        except NothingToReplay:
            return  # forward again: the rows that follow are unknown
        for code in self._job.compiled.codes:
            if code.source is None or code.task.id not in self.made.section:
                continue
            lacks, reader = self._faulty(code)
            floor = self.made.layers[code.task.id]
            mine = [r for run in runs if run.task == code.task.id for r in run.records]
            causes = (decode_record(record)[0] for record in mine)
            taken = sum(c.rows for c in causes if isinstance(c, Source | SourceCut))
            came = range(floor.source_rows, floor.source_rows + taken)
            try:
                reread([with_reader(code, reader)], self.made.layers, runs, "")
            except CannotRewind:
                rows_come_again(code.task.name, came, lacks, is_refused=True)
                raise
            rows_come_again(code.task.name, came, lacks, is_refused=False)

    def _faulty(self, code: TaskCode) -> tuple[range, Any]:
        """The rows that a source lacks, and its reader."""
        rows = self._job.sources[code.task.id].read(0, EVERYTHING).payload
        kind, at = self._sections.random(), self._sections.randrange(rows.num_rows)
        if kind < 0.6:
            return range(0), partial(_reader, rows, 0)
        if kind < 0.8:
            return range(at), partial(_reader, rows, at)
        first, rest = rows.slice(0, at), rows.slice(at)
        ids = rest.schema.get_field_index("id")
        others = pa.array([0, *rest.column(ids).to_pylist()[1:]], pa.int64())
        changed = rest.set_column(ids, rest.schema.field(ids), others)
        return range(at, at + 1), partial(_reader, concat([first, changed]), 0)

    def _sent(
        self, journal: JournalFile, point: Point, store: LayerStore
    ) -> dict[int, list[Item]] | None:
        if self.section is None:
            return None
        assert self.made is not None
        keeper, compiled = self._keeper(), self._job.compiled
        keeper.recover(journal.records())
        go_back(keeper, point, store)
        codes = tuple(map(self._readable, compiled.codes))
        past = Past(compiled, codes, keeper, *activations(compiled, keeper), "", "", "", store)
        into = borders(compiled.plan, self.section)
        return sent_since(past, self.section, {c: self.made.sent_by_then(c) for c in into})

    def _readable(self, code: TaskCode) -> TaskCode:
        """The task with the rows that the simulation gives its source."""
        if code.source is None:
            return code
        rows = self._job.sources[code.task.id].read(0, EVERYTHING).payload
        return with_reader(code, partial(_reader, rows, 0))

    def past_is_there(self) -> None:
        """After a rewind, the job can go back further, and forward again."""
        gone = self.points[0] - self.points[1]
        require(not gone, "kept past", f"points {sorted(gone)} are gone after going back")

    def _keeper(self) -> HouseKeeper:
        return HouseKeeper(self._job.plan, self._job.encode, self._job.decode, KEEP)

    def _found(self, version: int) -> Mapping[int, Layer] | None:
        """The first layers, if this version of the plan is in force."""
        records = self._disks.journal()
        if version_of(records) != version:
            return None
        keeper = self._keeper()
        self.in_journal = keeper.recover(records)
        self.points = self.points[0], {point.number for point in keeper.history.points}
        home = Folder(self._disks.local.observe(), HOME, "fsync")
        checkpoint = Checkpoint(home, "observer", lambda: terms_of(self._disks.shared.observe()))
        store = LayerStore(f"{LAYERS}/{checkpoint.id}", files=self._disks.shared.observe())
        layers = goes_on_or_has_not_begun(keeper, store)
        return {task: chain[0] for task, chain in layers.items()}
