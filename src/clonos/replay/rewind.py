"""``clonos rewind``: takes a stopped job back to a point of its history."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from clonos.cluster.directory import JobDirectory
from clonos.cluster.durable import JournalFile, house_keeper
from clonos.core.history import Point
from clonos.core.housekeeper import HouseKeeper
from clonos.core.messages import Item
from clonos.errors import CannotRewind, JournalBroken, JournalInUse, NothingToReplay, WrongType
from clonos.graph.code import TaskCode
from clonos.graph.compile import CompiledJob
from clonos.named import named_job
from clonos.options import keywords, require_known
from clonos.replay.command import add_past
from clonos.replay.handover import go_back, rows_of, sent_since
from clonos.replay.kept import At, find, shown, since
from clonos.replay.past import Past, activations, readable
from clonos.replay.reread import reread
from clonos.sinks.taken_back import CAN_TAKE_BACK, take_back
from clonos.storage.layers import LayerStore
from clonos.upgrade.rewind import Lane, Rewind
from clonos.upgrade.section import borders, section_of

SUMMARY = "take a stopped job back to a point of its history; its next start goes on from there"


Outputs = Literal["keep", "supersede"]


@dataclass(frozen=True)
class Rewound:
    """The outcome of a rewind, or what it would be (`is_done`).

    ``point``, ``time``: its number and time; ``generation``: of output from now on; ``lanes``: for
    each task of a sink, the numbers of its newest output at the point, and of all; ``supersedes``:
    whether output since the point is deleted; ``rows``: by source, the number of rows since the
    point that can be read again; ``unchecked``: by source, why this was not checked; ``section``:
    the operators that go back, if not all do; ``again``: by operator, the number of rows sent to it
    again by tasks that stay.
    """

    is_done: bool
    point: int
    time: str
    generation: int
    lanes: tuple[Lane, ...]
    supersedes: bool
    rows: Mapping[str, int]
    unchecked: Mapping[str, str]
    section: tuple[str, ...] = ()
    again: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        what = "is back" if self.is_done else "would go back"
        lines = [f"the job {what} at point {self.point} ({self.time})"]
        if self.section:
            names = ", ".join(self.section)
            lines = [
                f"a section of the job {what} at point {self.point} ({self.time}): {names}",
                "the rest stays where it is, reads nothing again, and asks nobody again",
            ]
        made = [lane for lane in self.lanes if lane.newest > lane.kept]
        lines += [
            f"{lane.sink}[{lane.task}] has delivered outputs {lane.kept + 1} to {lane.newest} since"
            for lane in made
        ]
        since = "nothing has been delivered since;"
        if made:
            since = "they are deleted, and" if self.supersedes else "they stay, and"
        lines.append(f"{since} what comes now is of generation {self.generation}")
        lines += [f"{rows} rows of {name} come again" for name, rows in self.rows.items() if rows]
        lines += [f"{rows} rows come to {name} once more" for name, rows in self.again.items()]
        lines += [
            f"whether rows of {name} can come again was not looked at: {why}"
            for name, why in self.unchecked.items()
        ]
        return "\n".join(lines)


def rewind_with(compiled: CompiledJob, at: At, how: Mapping[str, Any]) -> Rewound:
    """See :meth:`clonos.Job.rewind`; `how` are its options."""
    require_known(how, ("at", "checkpoint_dir", "journal", *keywords(rewind)), "job.rewind")
    return rewind(compiled, at, **how)


def rewind(
    compiled: CompiledJob,
    at: At,
    checkpoint_dir: str | None = None,
    journal: str | Path | None = None,
    *,
    outputs: Outputs = "keep",
    sole_driver: bool = False,
    dry_run: bool = False,
    check_sources: bool = True,
    section: str | None = None,
) -> Rewound:
    """See :meth:`clonos.Job.rewind`."""
    if outputs not in get_args(Outputs):
        raise WrongType(f"outputs={outputs!r}", remedy="say 'keep' or 'supersede'")
    checkpoint_dir = checkpoint_dir or compiled.options.checkpoint_dir
    if checkpoint_dir is None:
        raise NothingToReplay(
            "the job has no checkpoint_dir",
            where=compiled.name,
            remedy="give the checkpoint_dir that the job had",
        )
    tasks = None if section is None else section_of(compiled, section)
    superseded = _superseded(compiled, tasks) if outputs == "supersede" else ()
    with ExitStack() as undo:
        directory = undo.enter_context(
            closing(
                JobDirectory(checkpoint_dir, journal, on_one_machine=True, sole_driver=sole_driver)
            )
        )
        if directory.is_new:
            raise NothingToReplay(
                "no job has ever been started here",
                where=directory.root,
                remedy="give the checkpoint_dir of a job that has been started, and its journal",
            )
        directory.check(compiled)
        file = undo.enter_context(closing(_journal(directory)))
        directory.catch_up(file.version)
        directory.require(compiled, file.version)
        how = {"dry_run": dry_run, "check_sources": check_sources}
        return _rewind(compiled, directory, file, at, superseded, tasks, **how)


def _superseded(compiled: CompiledJob, section: Collection[int] | None) -> tuple[str, ...]:
    """The sinks of a section; raises `CannotRewind` if one cannot take its output back."""
    names = {t.sink for t in compiled.plan.tasks if section is None or t.id in section}
    found = {name: sink for name, (sink, _) in compiled.sinks.items() if name in names}
    for name, sink in found.items():
        if sink.kind not in CAN_TAKE_BACK or sink.query is not None:
            kind = "spark" if sink.query is not None else sink.kind
            raise CannotRewind(
                f"a sink of kind {kind} cannot take its output back",
                where=name,
                remedy="leave outputs= at 'keep', and deal yourself with later output",
            )
    return tuple(found)


def _journal(directory: JobDirectory) -> JournalFile:
    try:
        return JournalFile(directory.journal_root, "fsync", lambda _: None, directory.disk)
    except JournalInUse as error:
        raise CannotRewind(
            "the job is running",
            where=directory.root,
            remedy="stop it first: running.stop()",
        ) from error


def _rewind(
    compiled: CompiledJob,
    directory: JobDirectory,
    file: JournalFile,
    at: At,
    superseded: Collection[str],
    section: Collection[int] | None,
    *,
    dry_run: bool,
    check_sources: bool,
) -> Rewound:
    keeper, version = house_keeper(compiled.plan, compiled.options.keep), file.version
    file.recover(keeper)
    point = find(keeper.history, at)
    _require_output(directory.rewound(version), point)
    store = LayerStore(directory.layers_uri, "fsync")
    plan = Rewind(keeper, compiled, point, store, section)
    rows, unchecked = (
        _sources(compiled, directory, keeper, plan)
        if check_sources
        else ({}, dict.fromkeys(_source_names(compiled, plan), "nobody wanted it"))
    )
    sent, again = ({}, {}) if section is None else _handed_over(compiled, directory, file, plan)
    names = () if section is None else _operators(compiled, plan.section)
    if not dry_run:
        term = directory.begin_term(position=file.next_seq, before=keeper.term)
        kept = {
            sink: {str(lane.task): lane.kept for lane in plan.lanes if lane.sink == sink}
            for sink in superseded
        }
        about = {
            "point": point.number,
            "at_ms": point.at_ms,
            "generation": plan.generation,
            "newest": keeper.history.points[-1].number,
            "superseded": kept,
            "lanes": {
                sink: {str(lane.task): lane.newest for lane in plan.lanes if lane.sink == sink}
                for sink in compiled.sinks
            },
            "section": list(names),
        }
        announce = partial(directory.announce, compiled, version + 1, rewound=about)
        successor = house_keeper(compiled.plan, compiled.options.keep)
        how = (file.records(), successor, superseded, directory.numbers, sent)
        if not plan.make(term, announce, file, *how):
            raise JournalBroken(
                "the journal could not be begun anew, so perhaps nothing has changed",
                where=directory.journal_root,
                remedy="check the disk, look at clonos history, and rewind again",
            )
        directory.claim(compiled, version + 1)
        sinks = {name: sink for name, (sink, _) in compiled.sinks.items()}
        take_back(sinks, directory.delivered_uri, "fsync", plan.generation, kept)
    return Rewound(
        not dry_run,
        point.number,
        shown(point),
        plan.generation,
        tuple(plan.lanes),
        bool(superseded),
        rows,
        unchecked,
        names,
        again,
    )


def _handed_over(
    compiled: CompiledJob, directory: JobDirectory, file: JournalFile, plan: Rewind
) -> tuple[dict[int, list[Item]], dict[str, int]]:
    """The items that a section is sent again; see :mod:`clonos.replay.handover`."""
    keeper = house_keeper(compiled.plan, compiled.options.keep)
    file.recover(keeper)
    go_back(keeper, plan.point, plan.store)
    codes = [
        code if code.task.id in plan.section else readable(code, directory.spool_uri)
        for code in compiled.codes
    ]
    lives, failed, lost = activations(compiled, keeper)
    about = directory.hash_seed, compiled.options.lineage or directory.checkpoint_id
    past = Past(
        compiled,
        tuple(codes),
        keeper,
        lives,
        failed,
        lost,
        *about,
        directory.checkpoint_id,
        plan.store,
    )
    taken = {
        channel: plan.sent_by_then(channel) for channel in borders(compiled.plan, plan.section)
    }
    sent = sent_since(past, plan.section, taken)
    return sent, rows_of(past, sent)


def _operators(compiled: CompiledJob, section: Collection[int]) -> tuple[str, ...]:
    chains = [code.operators for code in compiled.codes if code.task.id in section]
    return tuple(dict.fromkeys(name for operators in chains for name, _ in operators))


def _sources(
    compiled: CompiledJob, directory: JobDirectory, keeper: HouseKeeper, plan: Rewind
) -> tuple[dict[str, int], dict[str, str]]:
    """See :func:`~clonos.replay.reread.reread`."""
    try:
        runs = since(keeper, plan.point, plan.store)
    except NothingToReplay as error:  # such as going forward again
        return {}, dict.fromkeys(_source_names(compiled, plan), error.what)
    return reread(_codes(compiled, plan), plan.layers, runs, directory.spool_uri)


def _codes(compiled: CompiledJob, plan: Rewind) -> list[TaskCode]:
    """The tasks that go back; the others read nothing again."""
    return [code for code in compiled.codes if code.task.id in plan.section]


def _source_names(compiled: CompiledJob, plan: Rewind) -> list[str]:
    return [code.source_name for code in _codes(compiled, plan) if code.source is not None]


def _require_output(rewound: Sequence[Mapping[str, Any]], point: Point) -> None:
    """Raise `CannotRewind` if output from before the point was taken back later."""
    for one in rewound:
        if one["superseded"] and one["point"] < point.number <= one["newest"]:
            raise CannotRewind(
                f"what had been delivered at point {point.number} was deleted when the job went "
                f"back to point {one['point']}",
                remedy="choose a point up to that one, or one that was made since",
            )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``clonos rewind``."""
    add_past(parser)
    parser.add_argument(
        "--at",
        metavar="WHEN",
        required=True,
        help='"14:03", "2030-05-04 14:03", the number of a point, or "oldest"',
    )
    parser.add_argument(
        "--section",
        metavar="OPERATOR",
        help="only this operator, and all that is downstream of it; the rest stays where it is",
    )
    parser.add_argument(
        "--outputs",
        choices=get_args(Outputs),
        default="keep",
        help="what happens to the output delivered since",
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would happen")
    parser.add_argument(
        "--unchecked",
        action="store_true",
        help="do not look whether the sources still have the rows that came since",
    )
    parser.add_argument(
        "--sole-driver",
        action="store_true",
        help="where the file system cannot tell: you make sure that no driver runs the job",
    )


def run(args: argparse.Namespace) -> int:
    """Rewind, and print what was delivered since the point."""
    job = named_job(args.job).compile()
    how = {
        "sole_driver": args.sole_driver,
        "dry_run": args.dry_run,
        "check_sources": not args.unchecked,
        "section": args.section,
    }
    print(rewind(job, args.at, args.checkpoint, args.journal, outputs=args.outputs, **how))
    return 0
