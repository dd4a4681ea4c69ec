"""``clonos bundle``: a past in one file, to be looked at anywhere, and to be a test for ever."""

from __future__ import annotations

import argparse
import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clonos.branch import kept
from clonos.branch.original import record
from clonos.core.housekeeper import HouseKeeper
from clonos.errors import ClonosError
from clonos.named import named_job
from clonos.replay.bundle import Bundle, pack, put_about, put_past
from clonos.replay.command import add_past, begin_again_with_the_seed_of
from clonos.replay.errors import NothingToReplay
from clonos.replay.kept import At
from clonos.replay.past import Past, read
from clonos.storage.layers import LayerStore

SUMMARY = "put a job's past into one file: to replay it elsewhere, or as a test"


@dataclass(frozen=True)
class Bundled:
    """A bundle that was made.

    Attributes
    ----------
    path, nbytes
        The file, and its size.
    steps
        How many steps it has of each task.
    error
        What it ends with, if a function has raised.
    lost
        What is to be said of steps that had failed, and cannot be done again.
    """

    path: Path
    nbytes: int
    steps: dict[str, int]
    error: ClonosError | None
    lost: tuple[str, ...]

    def __str__(self) -> str:
        """What is in it."""
        steps = ", ".join(f"{count} steps of {task}" for task, count in self.steps.items())
        end = "" if self.error is None else f"; it ends with {self.error.where}: {self.error.what}"
        return f"{self.path}: {self.nbytes:,} bytes, {steps}{end}"


def bundle(
    job: Any,
    out: str | Path,
    checkpoint_dir: str | None = None,
    *,
    journal: str | Path | None = None,
    at: At | None = None,
) -> Bundled:
    """Put a job's past into one file, which can be replayed without its checkpoint.

    The past is done again once, with the job's own code: the file also has the rows of sources and
    what was delivered. Nothing of the job is changed; it may be running, stopped or failed.

    Parameters
    ----------
    job
        A :class:`clonos.Job` with the graph and the functions that it had then.
    out
        The file; it must not exist. ``.clonos`` is a good ending.
    checkpoint_dir, journal
        Where the past is; by default where the job keeps it.
    at
        Where it begins, if the job keeps a history: see :class:`clonos.Replay`.

    Raises
    ------
    NothingToReplay
        There is no past, or its rows can only be read with Spark; or the file exists.
    Divergence
        The functions are not those that the job had.

    Examples
    --------
    >>> print(clonos.bundle(job, "limit.clonos", "/data/fraud"))  # doctest: +SKIP
    limit.clonos: 8,204 bytes, 19 steps of score[0], 24 steps of total[0]; it ends with ...
    """
    with tempfile.TemporaryDirectory(prefix="clonos-bundle-") as name:
        folder = Path(name)
        with closing(_read(job, folder, checkpoint_dir, journal, at)) as past:
            return _made(past, folder, Path(out))


def _read(
    job: Any, folder: Path, checkpoint_dir: str | None, journal: str | Path | None, at: At | None
) -> Past:
    def show(keeper: HouseKeeper, store: LayerStore) -> None:
        put_past(folder, keeper, store)

    past = read(job.compile(), checkpoint_dir, journal, at, show)
    if isinstance(past.held, Bundle):
        past.close()
        raise NothingToReplay(
            "this is a bundle already", where=past.held.path, remedy="copy the file"
        )
    return past


def _made(past: Past, folder: Path, out: Path) -> Bundled:
    with tempfile.TemporaryDirectory(prefix="clonos-bundle-") as rows:
        original = record(past, None, Path(rows))
        kept.put(original, folder)
    put_about(folder, past.compiled, past.hash_seed, past.lineage, past.run)
    try:
        nbytes = pack(folder, out)
    except OSError as error:
        raise NothingToReplay(
            f"the bundle cannot be written: {error}", where=str(out), remedy="name another file"
        ) from error
    names = {task.id: task.name for task in past.compiled.plan.tasks}
    steps = {names[task]: len(notes) for task, notes in original.notes.items()}
    return Bundled(out, nbytes, steps, original.error, past.lost)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What ``clonos bundle`` understands."""
    add_past(parser)
    parser.add_argument(
        "--at",
        metavar="WHEN",
        help='begin at this point: "14:03", "2030-05-04 14:03", a number, or "oldest"',
    )
    parser.add_argument("--out", metavar="FILE", required=True, help="the file to be made")


def run(args: argparse.Namespace) -> int:
    """Returns 0 if everything that happened is in the file."""
    job = named_job(args.job)
    with closing(read(job.compile(), args.checkpoint, args.journal, args.at)) as past:
        begin_again_with_the_seed_of(past)
    made = bundle(job, args.out, args.checkpoint, journal=args.journal, at=args.at)
    print(made)
    print(f"to do it again: clonos replay {args.job} {args.out} --pdb")
    for what in made.lost:
        print(f"clonos: not in it: {what}")
    return 1 if made.lost else 0
