"""``clonos replay``: the past of a job, step by step, in one process."""

from __future__ import annotations

import argparse
import pdb
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from clonos.blame import users_traceback
from clonos.errors import OperatorError
from clonos.replay import NothingToReplay, Replay

SUMMARY = "what a job has done since its last checkpoint, again, in one process"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What ``clonos replay`` understands."""
    parser.add_argument(
        "job", metavar="MODULE:JOB", help="a clonos.Job, or a function that returns one"
    )
    parser.add_argument("checkpoint", nargs="?", metavar="DIR", help="by default that of the job")
    parser.add_argument("--journal-dir", metavar="DIR", help="where the journal is, if not there")
    parser.add_argument("--task", metavar="NAME", help="show the steps of this task: score[0]")
    parser.add_argument("--to", type=int, metavar="N", help="with --task: until it has done step N")
    parser.add_argument("--rows", action="store_true", help="show the rows of each step, too")
    parser.add_argument(
        "--beyond",
        action="store_true",
        help="go on behind the log's end, until an error or the end",
    )
    parser.add_argument("--pdb", action="store_true", help="debug the function that raises")


def run(args: argparse.Namespace) -> int:
    """Returns 0 if no function has raised."""
    with Replay(_job(args.job), args.checkpoint, journal_dir=args.journal_dir) as replay:
        for task in replay:
            known = task.log_ends_at - task.restored_at
            print(f"{task.name}: restored at step {task.restored_at}, the log has {known} more")
        try:
            _run(replay, args)
        except OperatorError as error:
            cause = error.__cause__ or error
            print(users_traceback(cause) or error, file=sys.stderr)
            print(error, file=sys.stderr)
            if args.pdb:
                pdb.post_mortem(cause.__traceback__)
            return 1
        for name, outputs in replay.compared.items():
            print(f"{name}: all {outputs} outputs that were delivered are made again")
    return 0


def _run(replay: Replay, args: argparse.Namespace) -> None:
    """First all that the log knows; then, perhaps, on."""
    for beyond in (False, True) if args.beyond else (False,):
        while args.to is None or args.task is None or replay[args.task].position < args.to:
            step = replay.step(args.task, beyond=beyond)
            if step is None:
                break
            if args.task or beyond:
                print(step)
            if args.rows:
                for name, batch in [("took", b) for b in step.took] + [*step.made.items()]:
                    print(*(f"    {name}: {row}" for row in batch.to_pylist()), sep="\n")


def _job(name: str) -> Any:
    module, _, attribute = name.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(import_module(module), attribute or "job")
    except (ImportError, AttributeError) as error:
        raise NothingToReplay(
            f"there is no job {name!r}: {error}",
            remedy="give MODULE:JOB, as in my_package.fraud:job",
        ) from error
    return found() if callable(found) else found
