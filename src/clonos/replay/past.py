"""What a restart of a stopped job would begin with, without restarting it.

The checkpoint is only read: from a copy of its journal, so that no lock is taken, and the job may
be started again at any time. The coordinator that a restart has decides here, too, how much of
each log counts; nothing else knows.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from clonos.cluster.directory import JobDirectory
from clonos.cluster.durable import JournalFile, house_keeper
from clonos.core import messages as msg
from clonos.core.coordinator import Coordinator
from clonos.core.decisions import Action, Command, Fail, SlotReady
from clonos.core.housekeeper import HouseKeeper
from clonos.graph.compile import CompiledJob, TaskCode
from clonos.replay.errors import NothingToReplay
from clonos.sources.spool import SpoolReader
from clonos.storage.files import folder_name
from clonos.storage.layers import LayerStore, get_layers


@dataclass(frozen=True)
class Past:
    """What is known of a job's past.

    ``codes``: of its tasks, with sources that can be read again here; ``failed``: by task, the step
    that has ended the job; ``lineage``, ``run``: what its effects are named by.
    """

    compiled: CompiledJob
    codes: tuple[TaskCode, ...]
    keeper: HouseKeeper
    activations: dict[int, msg.Activate]
    failed: dict[int, int]
    lineage: str
    run: str
    store: LayerStore

    def layers(self, task: int) -> tuple[msg.Layer, ...]:
        """The state of a task at its floor, oldest layer first."""
        return get_layers(self.store, self.activations[task].layers)


def read(compiled: CompiledJob, checkpoint_dir: str | None, journal_dir: str | Path | None) -> Past:
    """Look at the checkpoint of a job, by default where the job itself keeps it.

    Raises
    ------
    NothingToReplay
        There is none, or rows that it has read cannot be read again without Spark.
    OtherJob, UnreadableCheckpoint, UnreadableJournal
        It is not this job's, or it is damaged.
    """
    checkpoint_dir = checkpoint_dir or compiled.options.checkpoint_dir
    if checkpoint_dir is None:
        raise NothingToReplay(
            "nobody says where the checkpoint is",
            where=compiled.name,
            remedy="give the checkpoint_dir that the job had",
        )
    directory = JobDirectory(checkpoint_dir, journal_dir, on_one_machine=True)
    journal = directory.journal / "journal"
    if not any(journal.glob("*.journal")):
        raise NothingToReplay(
            "there is no journal",
            where=str(journal),
            remedy="give the checkpoint_dir of a job that has been started, or its journal_dir",
        )
    directory.check(compiled)
    keeper = house_keeper(compiled.plan)
    _recover(keeper, journal)
    codes = tuple(_readable(code, directory.spool_uri) for code in compiled.codes)
    failed = {task: position for task, (position, _) in keeper.failed.items()}
    return Past(
        compiled,
        codes,
        keeper,
        activations(compiled, keeper),
        failed,
        compiled.options.lineage or directory.checkpoint_id,
        directory.checkpoint_id,
        LayerStore(directory.layers_uri),
    )


def _recover(keeper: HouseKeeper, journal: Path) -> None:
    with ExitStack() as undo:
        copied = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="clonos-replay-")))
        for segment in journal.glob("*.journal"):
            shutil.copy(segment, copied)
        ignore: Callable[[Any], None] = lambda _: None  # noqa: E731 - nothing is written
        opened = JournalFile(copied, "process", ignore)
        undo.callback(opened.close)
        opened.recover(keeper)


def activations(compiled: CompiledJob, keeper: HouseKeeper) -> dict[int, msg.Activate]:
    """What each task would be told if all of them were restarted.

    The house-keeper has read its journal, and is of no other use afterwards.
    """
    keeper.complete = False  # what is over can be looked at, too
    failed = dict(keeper.failed)
    coordinator = Coordinator(compiled.plan, keeper, address="", standbys=0)
    actions = coordinator.start()
    for slot in range(len(compiled.plan.cells)):
        actions += coordinator.handle(SlotReady(slot, ""), now_ms=0)
    found = _gathered(compiled.name, actions)
    for task, (position, record) in failed.items():
        found[task] = _with_failed(found[task], keeper, position, record)
    return found


def _with_failed(
    activate: msg.Activate, keeper: HouseKeeper, position: int, record: bytes
) -> msg.Activate:
    """With the step that has failed, if the log knows all before it: it is done again, too."""
    if keeper.length(activate.task) != position - 1:
        return activate
    run = msg.Run(activate.task, activate.incarnation, position, (record,))
    return replace(activate, log=(*activate.log, run))


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


def _readable(code: TaskCode, spool_uri: str) -> TaskCode:
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
