"""Puts a past into one file, to inspect it anywhere, and to keep it as a test."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from clonos.branch import end_of, kept
from clonos.branch.draft import Draft
from clonos.branch.original import Original, record
from clonos.branch.redaction import Redact, Redaction, number_of_rows, require_redact
from clonos.core.housekeeper import HouseKeeper
from clonos.errors import (
    BundleTooLarge,
    CannotRedact,
    ClonosError,
    Divergence,
    NothingToReplay,
    OperatorError,
    UnknownTask,
)
from clonos.graph.compile import CompiledJob
from clonos.replay.bundle import Bundle
from clonos.replay.kept import At
from clonos.replay.past import Past, read

_HIDDEN: Final = "it kills the process; its content was left out"
_OTHER_VALUES: Final = "replace other columns, or give a function that returns suitable ones"


@dataclass(frozen=True)
class Bundled:
    """The bundle that was made.

    Attributes
    ----------
    path, nbytes
        The file, and its size.
    steps
        The number of steps of each task.
    error
        The error with which it ends, if a step failed.
    lost
        Messages about failed steps that cannot be repeated.
    unmet
        Names in `redact` that no value had.
    """

    path: Path
    nbytes: int
    steps: dict[str, int]
    error: ClonosError | None
    lost: tuple[str, ...]
    unmet: tuple[str, ...] = ()

    def __str__(self) -> str:
        """A summary of its content."""
        steps = [f"{count} steps of {task}" for task, count in self.steps.items()]
        end = "" if self.error is None else f"; it ends with {self.error.where}: {self.error.what}"
        end += f"; no value is called {', '.join(self.unmet)}" if self.unmet else ""
        return ", ".join([f"{self.path}: {self.nbytes:,} bytes", *steps]) + end


@dataclass(frozen=True)
class Wanted:
    """What to put into a bundle.

    Attributes
    ----------
    at, until
        Where it begins and ends; see :func:`bundle`.
    task
        The only task to include; None: all.
    redact
        See :func:`bundle`.
    kills
        A message about the failed step, if it kills the process that takes it.
    replaces
        Whether to replace an existing bundle.
    nbytes
        The largest size of its layers and its journal.
    tries
        Whether to make the bundle even if what happened does not happen again.
    """

    at: At | None = None
    until: At | None = None
    task: str | None = None
    redact: Redact | None = None
    kills: str = ""
    replaces: bool = False
    nbytes: int | None = None
    tries: bool = False

    def __post_init__(self) -> None:
        if self.redact is not None:
            require_redact("redact", self.redact)


def bundle(
    job: Any,
    out: str | Path,
    checkpoint_dir: str | None = None,
    *,
    journal: str | Path | None = None,
    at: At | None = None,
    until: At | None = None,
    task: str | None = None,
    redact: Redact | None = None,
) -> Bundled:
    """Put a job's past into one file, which can be replayed without its checkpoint.

    The job's own code is run on the past once, because the file also has the rows of sources and
    the delivered output. The job itself is not changed; it may be running, stopped or failed.

    Parameters
    ----------
    job
        A :class:`clonos.Job` with the graph and functions that the job had then.
    out
        The file, which must not exist. ``.clonos`` is a good suffix.
    checkpoint_dir, journal
        The location of the past; by default the job's own.
    at, until
        Where the bundle begins and ends, if the job keeps a history: see :class:`clonos.Replay`. By
        default it ends with the log. With `task`, a number as `until` is the last step.
    task
        Only this task, such as ``"score[1]"``, with everything that it was sent. This is the
        smallest bundle, without state and rows of other tasks.
    redact
        Names of columns, and of fields of dicts, whose values are replaced before they are written:
        in rows, in the state of a ``Process``, and in answers. Or a function, which is called with
        the name and value of each, and returns the value to write. The bundle is then run once with
        the new values; if the job takes another course with them, no bundle is made.

    Raises
    ------
    NothingToReplay
        There is no past, its rows can only be read with Spark, or the file exists.
    UnknownTask
        There is no such task.
    CannotRedact
        The redacted past would take another course, or there is state in which values have no
        names.
    WrongType
        `redact` is neither names nor a function.
    Divergence
        The functions are not the ones that the job had.

    Examples
    --------
    >>> print(clonos.bundle(job, "limit.clonos", "/data/fraud"))  # doctest: +SKIP
    limit.clonos: 8,204 bytes, 19 steps of score[0], 24 steps of total[0]; it ends with ...
    """
    wanted = Wanted(at, until, task, redact)
    return make(job.compile(), out, checkpoint_dir, journal, wanted)


def make(
    compiled: CompiledJob,
    out: str | Path,
    checkpoint_dir: str | None,
    journal: str | Path | None,
    wanted: Wanted,
) -> Bundled:
    """See :func:`bundle`."""
    known: list[bytes] = []
    show: Callable[[HouseKeeper, Any], object] = lambda keeper, _: known.extend(keeper.snapshot())  # noqa: E731
    with closing(read(compiled, checkpoint_dir, journal, wanted.at, show)) as past:
        if isinstance(past.held, Bundle):
            raise NothingToReplay(
                "this is a bundle already", where=past.held.path, remedy="copy the file"
            )
        return made_of(past, known, Path(out), wanted)


def made_of(past: Past, known: list[bytes], out: Path, wanted: Wanted) -> Bundled:
    """Make a bundle of a past; `known`: its journal."""
    only = None if wanted.task is None else _number(past.compiled, wanted.task)
    redaction = None if wanted.redact is None else Redaction(wanted.redact)
    until = _until(past, wanted.until, only)
    with tempfile.TemporaryDirectory(prefix="clonos-bundle-") as name:
        draft = Draft(
            Path(name),
            past,
            known,
            task=only,
            ends=past.ends(until, only),
            is_whole=until is None,
            redaction=redaction,
        )
        if wanted.nbytes is not None and draft.nbytes > wanted.nbytes:
            raise BundleTooLarge(
                f"state and log take {draft.nbytes:,} bytes, more than {wanted.nbytes:,}",
                where=wanted.task or past.compiled.name,
                remedy="bundle a single task, or raise bundle_bytes",
            )
        kills = wanted.kills and (_HIDDEN if redaction else wanted.kills)
        draft.write(kills)
        try:
            nbytes = draft.pack(out, replaces=wanted.replaces)
            try:
                original = _completed(
                    draft,
                    past,
                    out,
                    kills,
                    tries=wanted.tries,
                    is_redacted=redaction is not None,
                )
                if redaction is not None:
                    _require_same_way(past, until, only, original)
            except BaseException:
                out.unlink(missing_ok=True)
                raise
            if original is not None:
                nbytes = draft.pack(out, replaces=True)
        except OSError as error:
            raise NothingToReplay(
                f"the bundle cannot be written: {error}", where=str(out), remedy="name another file"
            ) from error
    names = {task.id: task.name for task in past.compiled.plan.tasks}
    unmet = () if redaction is None else redaction.unmet
    if original is None:
        return Bundled(out, nbytes, {}, None, past.lost, unmet)
    steps = {names[task]: len(notes) for task, notes in original.notes.items()}
    return Bundled(out, nbytes, steps, original.error, past.lost, unmet)


def _completed(
    draft: Draft, past: Past, out: Path, kills: str, *, tries: bool, is_redacted: bool
) -> Original | None:
    """Run the bundle, to record what happened. None: it does not happen again, or some tasks are
    implied, whose logs only a branch needs.
    """
    if any(task.is_implied for task in past.compiled.plan.tasks):
        return None
    with (
        closing(read(past.compiled, str(out), None)) as again,
        tempfile.TemporaryDirectory(prefix="clonos-bundle-") as rows,
    ):
        try:
            original = record(again, None, Path(rows))
        except Divergence as error:
            if is_redacted:
                raise CannotRedact(
                    f"with other values the job goes another way: {error.what}",
                    where=error.where,
                    remedy=_OTHER_VALUES,
                ) from error
            if not tries:
                raise
            return None
        kept.put(original, draft.folder)
    draft.put_about(kills)
    return original


def _require_same_way(
    past: Past, until: Mapping[int, int] | None, only: int | None, redacted: Original | None
) -> None:
    """Check that the job takes the same course with the new values.

    Raises
    ------
    CannotRedact
        It ends with another error, or delivers a different number of rows.
    """
    if redacted is None or only is not None:
        return  # for a single task, the log has checked each step
    with tempfile.TemporaryDirectory(prefix="clonos-bundle-") as rows:
        before = record(past, until, Path(rows))
    delivered, now = (number_of_rows(one.outputs) for one in (before, redacted))
    if _kind(before.error) != _kind(redacted.error) or delivered != now:
        raise CannotRedact(
            f"with other values the job goes another way: {delivered} rows are delivered, and "
            f"{_kind(before.error) or 'no error'} comes; now {now}, and "
            f"{_kind(redacted.error) or 'no error'}",
            where=past.compiled.name,
            remedy=_OTHER_VALUES,
        )


def _kind(error: OperatorError | None) -> str:
    return "" if error is None else f"{error.where}: {error.what.partition(':')[0]}"


def _number(compiled: CompiledJob, name: str) -> int:
    names = [task.name for task in compiled.plan.tasks]
    if name not in names:
        raise UnknownTask(
            f"there is no task {name!r}",
            where=compiled.name,
            remedy=f"name one of {', '.join(names)}",
        )
    return names.index(name)


def _until(past: Past, until: At | None, only: int | None) -> Mapping[int, int] | None:
    if until is None:
        return None
    with suppress(ValueError):
        if only is not None and isinstance(until, int | str):
            return {only: int(until)}
    return end_of(past, until).positions
