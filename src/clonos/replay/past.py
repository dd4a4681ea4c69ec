"""Finds out what a restart of a stopped job would begin with, without restarting it.

The checkpoint is only read, with a copy of its journal, so that no lock is taken, and the job may
be started again at any time. As in a restart, the coordinator decides how much of each log is
valid; nothing else can.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

from clonos.cluster.directory import JobDirectory
from clonos.cluster.durable import house_keeper
from clonos.core import messages as msg
from clonos.core.coordinator import Coordinator
from clonos.core.decisions import Action, Command, Fail, SlotReady
from clonos.core.determinants import Order, decode_record
from clonos.core.history import Point
from clonos.core.housekeeper import HouseKeeper
from clonos.core.plan import HOUSE_KEEPER, Plan, TaskSpec
from clonos.core.sealed import Layer
from clonos.core.version import version_of
from clonos.errors import NothingToReplay
from clonos.graph.code import TaskCode
from clonos.graph.compile import CompiledJob
from clonos.replay.bundle import Bundle, find_bundle
from clonos.replay.kept import At, Pin, find, require_there, since
from clonos.sources.spool_reader import SpoolReader
from clonos.storage.files import Disk, folder_name
from clonos.storage.journal import Journal, JournalReader
from clonos.storage.layers import OPENED_BYTES, LayerStore, get_layers

COPIES_MAX: Final = 20


@dataclass(frozen=True)
class Past:
    """The past of a job.

    ``codes``: of its tasks, with sources that can be read here; ``failed``: by task, the step that
    ended the job; ``lost``: messages about such steps that cannot be repeated; ``hash_seed``: of
    Python in the slots; ``lineage``, ``run``: parts of the names of effects; ``held``: keeps files
    from being deleted (a pin in the folders of a job that may be running, or the temporary folder
    of a bundle).

    ``only``: the single task that is included, which was sent ``items``, by channel; ``without``:
    tasks that are not replayed, with all tasks downstream; ``is_exact``: delivered output is known
    and must be made again; ``kills``: a message about the failed step, if it kills the process that
    takes it; ``opened_bytes``: layers of this size stay in the store and are read in parts;
    ``end``: the point where it ends, if it does not end with the log.
    """

    compiled: CompiledJob
    codes: tuple[TaskCode, ...]
    keeper: HouseKeeper
    activations: dict[int, msg.Activate]
    failed: dict[int, int]
    lost: tuple[str, ...]
    hash_seed: str
    lineage: str
    run: str
    store: LayerStore
    held: Pin | Bundle | None = None
    only: int | None = None
    without: frozenset[int] = frozenset()
    items: Mapping[int, Sequence[msg.Item]] = field(default_factory=dict)
    is_exact: bool = True
    kills: str = ""
    opened_bytes: int = OPENED_BYTES
    end: Point | None = None

    @property
    def tasks(self) -> tuple[TaskSpec, ...]:
        """The tasks that can be replayed."""
        tasks = self.compiled.plan.tasks
        if self.only is not None:
            return (tasks[self.only],)
        return tuple(task for task in tasks if task.id not in self.without)

    def outputs(self, task: int) -> dict[str, int]:
        """The channels by which a task's output leaves this past, by name: the sink's name or, for
        a past of a single task, the receiver's."""
        plan = self.compiled.plan
        spec = plan.tasks[task]
        found = {spec.sink: spec.outputs[-1]} if spec.sink is not None else {}
        if self.only == task:
            sent = {plan.channels[c].receiver: c for c in spec.outputs}
            found |= {plan.tasks[r].name: c for r, c in sent.items() if r != HOUSE_KEEPER}
        return found

    @property
    def leaves(self) -> dict[int, str]:
        """All channels by which output leaves this past, with their names."""
        return {c: name for task in self.tasks for name, c in self.outputs(task.id).items()}

    def records(self, task: int) -> Iterator[tuple[int, bytes]]:
        """The log of a task from its floor on, by position."""
        for run in self.activations[task].log:
            yield from enumerate(run.records, run.start)

    def ends(
        self, until: Mapping[int, int] | None = None, task: int | None = None
    ) -> dict[int, int]:
        """The last step of each task, and the steps that tasks upstream must do for it.

        Parameters
        ----------
        until
            A step of each task; by default the ends of the logs.
        task
            The only task that is needed.
        """
        logs = {t.id: dict(self.records(t.id)) for t in self.compiled.plan.tasks}
        floors = {t: self._floor(t) for t in logs}
        last = {t: max(log, default=floors[t]) for t, log in logs.items()}
        wanted = last if until is None else {t: min(until.get(t, last[t]), last[t]) for t in last}
        # What an implied task has taken is unknown: it may be everything.
        found = wanted
        if task is not None and not self.compiled.plan.tasks[task].is_implied:
            found = {**floors, task: wanted[task]}
        for number in sorted(found, reverse=True):  # tasks are numbered from sources to sinks
            for position in range(floors[number] + 1, found[number] + 1):
                cause = decode_record(logs[number][position])[0]
                if isinstance(cause, Order):
                    maker = self.compiled.plan.makers[cause.channel]
                    found[maker] = max(found[maker], cause.position)
        return found

    def _floor(self, task: int) -> int:
        layers = self.activations[task].layers
        return layers[-1].position if layers else 0

    def close(self) -> None:
        """Release the pin or the temporary folder."""
        if self.held is not None:
            self.held.close()

    def layers(self, task: int) -> tuple[Layer, ...]:
        """The state of a task at its floor, oldest layer first."""
        return get_layers(self.store, self.activations[task].layers, self.opened_bytes)

    def delivered(self, channel: int) -> tuple[int, int]:
        """How many items a sink's task had delivered in the end, and their digest."""
        if self.end is None:
            known = self.keeper.inputs[channel]
            return known.consumed, known.consumed_chain
        newest = self.end.layers[self.compiled.plan.channels[channel].sender][-1:]
        layers = get_layers(self.store, newest, self.opened_bytes)
        return layers[0].outs[channel] if layers else (0, 0)


def read(
    compiled: CompiledJob,
    checkpoint_dir: str | None,
    journal: str | Path | None,
    at: At | None = None,
    show: Callable[[HouseKeeper, LayerStore], object] | None = None,
) -> Past:
    """Read the past from a job's checkpoint (by default the job's own), or from a bundle.

    It begins at the newest checkpoint, or at a point of the job's history.

    Parameters
    ----------
    show
        Called with the house-keeper, before it is decided how much of the logs is valid.

    Raises
    ------
    NothingToReplay
        There is no checkpoint, or its rows cannot be read again without Spark.
    OtherJob, UnreadableCheckpoint, UnreadableJournal
        It belongs to another job, or is damaged.
    """
    checkpoint_dir = checkpoint_dir or compiled.options.checkpoint_dir
    if checkpoint_dir is None:
        raise NothingToReplay(
            "the job has no checkpoint_dir, and none was given",
            where=compiled.name,
            remedy="name the folder where the job kept its checkpoint",
        )
    if not compiled.plan.causal_log:
        raise NothingToReplay(
            "a job without guarantee='exactly_once' has no log",
            where=compiled.name,
            remedy="only jobs that have logged what they did can be done again",
        )
    if (path := find_bundle(checkpoint_dir)) is not None:
        return _unbundled(compiled, Bundle(path), at)
    with closing(JobDirectory(checkpoint_dir, journal, on_one_machine=True)) as directory:
        return _read(compiled, directory, at, show)


def _unbundled(compiled: CompiledJob, bundle: Bundle, at: At | None) -> Past:
    try:
        if at not in {None, "oldest"}:
            raise NothingToReplay(
                "a bundle begins where it was made to begin",
                where=bundle.path,
                remedy="leave out at=",
            )
        bundle.require(compiled)
        keeper = house_keeper(compiled.plan)
        bundle.recover(keeper)
        lives, failed, lost = activations(compiled, keeper)
        codes = tuple(bundle.readable(code, lives[code.task.id]) for code in compiled.codes)
        only = bundle.only(compiled)
        items = {} if only is None else bundle.items(compiled.plan.tasks[only])
    except BaseException:
        bundle.close()
        raise
    return Past(
        compiled,
        codes,
        keeper,
        lives,
        failed,
        lost,
        bundle.hash_seed,
        bundle.lineage,
        bundle.run,
        bundle.store,
        bundle,
        only=only,
        items=items,
        is_exact=bundle.is_exact,
        kills=bundle.kills,
    )


def _read(
    compiled: CompiledJob,
    directory: JobDirectory,
    at: At | None,
    show: Callable[[HouseKeeper, LayerStore], object] | None,
) -> Past:
    directory.check(compiled)
    keeper, _ = _keeper(compiled, directory)
    store = LayerStore(directory.layers_uri)  # whose name is that of a checkpoint that is there
    pin = None
    if at is not None:
        point = find(keeper.history, at)
        pin = Pin(store, point.number)
        try:
            keeper, _ = _keeper(compiled, directory)  # read after the pin was written
            require_there(keeper.history, point)
            keeper.rewind(point, since(keeper, point, store))
        except BaseException:
            pin.close()
            raise
    codes = tuple(readable(code, directory.spool_uri) for code in compiled.codes)
    if show is not None:
        show(keeper, store)
    lives, failed, lost = activations(compiled, keeper)
    return Past(
        compiled,
        codes,
        keeper,
        lives,
        failed,
        lost,
        directory.hash_seed,
        compiled.options.lineage or directory.checkpoint_id,
        directory.checkpoint_id,
        store,
        pin,
    )


class LiveKeeper:
    """A copy of the house-keeper of a job that may be running, updated again and again.

    Each time, the journal is read on from the last position, unless the job has begun another
    segment.
    """

    def __init__(
        self, compiled: CompiledJob, checkpoint_dir: str, journal: str | Path | None
    ) -> None:
        self._compiled, self._where = compiled, (checkpoint_dir, journal)
        self.reader = JournalReader()
        self._keeper, self._version = house_keeper(compiled.plan), 0

    def now(self) -> tuple[HouseKeeper, LayerStore, int]:
        """The house-keeper as it is now, the layer store, and the version of the plan.

        Raises
        ------
        NothingToReplay
            There is no journal, or it changes faster than it can be read.
        OtherJob
            The job has another plan now.
        """
        with closing(JobDirectory(*self._where, on_one_machine=True)) as directory:
            directory.check(self._compiled)
            begins, records = self._more(directory)
            if begins:
                self._keeper, self._version = house_keeper(self._compiled.plan), version_of(records)
            directory.require(self._compiled, self._version)
            self._keeper.recover(records)
            self._keeper.take_records()  # discarded
            return self._keeper, LayerStore(directory.layers_uri), self._version

    def _more(self, directory: JobDirectory) -> tuple[bool, list[bytes]]:
        for _ in range(COPIES_MAX):
            with suppress(FileNotFoundError):
                return self.reader.more(directory.disk, directory.journal_root)
        raise NothingToReplay(
            "there is no journal, or it changes faster than it can be read",
            where=directory.journal_root,
            remedy="give the checkpoint_dir of a job that has been started, and its journal",
        )


def _keeper(compiled: CompiledJob, directory: JobDirectory) -> tuple[HouseKeeper, int]:
    keeper = house_keeper(compiled.plan)
    with copied_journal(directory) as journal:
        version = version_of(journal.replay())
        directory.require(compiled, version)
        keeper.recover(journal.replay())
    return keeper, version


@contextmanager
def copied_journal(directory: JobDirectory) -> Iterator[Journal]:
    """A copy of a job's journal as it is now; neither the lock nor a file of the job is touched.

    Raises
    ------
    NothingToReplay
        There is no journal.
    """
    if directory.is_new:
        raise NothingToReplay(
            "there is no journal",
            where=directory.root,
            remedy="give the checkpoint_dir of a job that has been started, and its journal",
        )
    with tempfile.TemporaryDirectory(prefix="clonos-replay-") as folder:
        _copy(directory.disk, directory.journal_root, Path(folder))
        with Journal(folder, "process") as journal:
            yield journal


def _copy(disk: Disk, journal: str, to: Path) -> None:
    """Copy all segments: one, or two at the moment when a running job begins another."""
    for _ in range(COPIES_MAX):
        try:
            for info in disk.entries(journal):
                if info.name.endswith(".journal"):
                    (to / info.name).write_bytes(disk.read(info.path))
        except FileNotFoundError:  # the older one was deleted meanwhile
            continue
        return
    raise NothingToReplay(
        "the journal changes faster than it can be copied",
        where=journal,
        remedy="stop the job, or try again",
    )


def activations(
    compiled: CompiledJob, keeper: HouseKeeper
) -> tuple[dict[int, msg.Activate], dict[int, int], tuple[str, ...]]:
    """The activation of each task if all were restarted; the failed steps, by task; and messages
    about those that cannot be repeated.

    The house-keeper must have read its journal, and cannot be used for anything else afterwards.
    """
    keeper.complete = False  # a complete job can be replayed, too
    failed = dict(keeper.failed)
    coordinator = Coordinator(compiled.plan, keeper, address="", standbys=0)
    actions = coordinator.start()
    for slot in range(len(compiled.plan.cells)):
        actions += coordinator.handle(SlotReady(slot, ""), now_ms=0)
    found = _gathered(compiled.name, actions)
    done_again: dict[int, int] = {}
    lost = []
    for task, (position, record) in failed.items():
        why = _missing(compiled.plan, keeper, task, position, record)
        if why:
            lost.append(f"step {position} of {compiled.plan.tasks[task].name}, which failed: {why}")
            continue
        run = msg.Run(task, found[task].incarnation, position, (record,))
        found[task] = replace(found[task], log=(*found[task].log, run))
        done_again[task] = position
    return found, done_again, tuple(lost)


def _missing(plan: Plan, keeper: HouseKeeper, task: int, position: int, record: bytes) -> str:
    """What is missing for a failed step; empty if it can be repeated."""
    if keeper.length(task) != position - 1:
        return f"the log of the task ends at step {keeper.length(task)}"
    cause = decode_record(record)[0]
    if isinstance(cause, Order):
        sender = plan.makers[cause.channel]
        if cause.position > keeper.length(sender):
            name, end = plan.tasks[sender].name, keeper.length(sender)
            return f"it took what {name} made in step {cause.position}, whose log ends at {end}"
    return ""


def _gathered(job: str, actions: list[Action]) -> dict[int, msg.Activate]:
    pieces: dict[int, list[msg.Run]] = {}
    found: dict[int, msg.Activate] = {}
    for action in actions:
        if isinstance(action, Fail):
            raise NothingToReplay(f"{action.error}: {action.message}", where=job)
        command = action.command if isinstance(action, Command) else None
        if isinstance(command, msg.LogPiece):
            pieces.setdefault(command.task, []).extend(command.runs)
        elif isinstance(command, msg.Activate):
            log = (*pieces.get(command.task, ()), *command.log)
            found[command.task] = replace(command, log=log, watched_steps=0, suspects=())
    return found


def readable(code: TaskCode, spool_uri: str) -> TaskCode:
    """A task whose source, if it has one, can be read in this process."""
    source = code.source
    if source is None or source.factory is not None:
        return code
    if source.is_fed:
        uri = f"{spool_uri}/{folder_name(code.source_name)}/batches"
        factory = partial(SpoolReader, uri, source.schema)
        return replace(code, source=replace(source, dataframe=None, factory=factory))
    raise NothingToReplay(
        f"the rows of a {source.kind} source come from Spark, and a replay has none",
        where=code.source_name,
        remedy="read files with clonos.sources.files, or give Spark's rows to the job as a stream",
    )
