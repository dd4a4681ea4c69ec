"""``clonos replay``: the past of a job, step by step, in one process."""

from __future__ import annotations

import argparse
import faulthandler
import os
import pdb
import sys
from contextlib import closing

from clonos.blame import users_traceback
from clonos.errors import OperatorError
from clonos.named import named_job, whole
from clonos.nodes.versions import HASH_SEED
from clonos.replay import NothingToReplay, Replay, Step
from clonos.replay.past import Past, read

SUMMARY = "do again what a job has done since a checkpoint, in one process"


def add_past(parser: argparse.ArgumentParser) -> None:
    """Arguments that select the past of a job."""
    parser.add_argument(
        "job", metavar="MODULE:JOB", help="a clonos.Job, or a function that returns one"
    )
    parser.add_argument(
        "checkpoint",
        nargs="?",
        metavar="DIR",
        help="its checkpoint, or a copy; by default the job's",
    )
    parser.add_argument("--journal", metavar="WHERE", help="where its journal is, if not in DIR")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``clonos replay``."""
    add_past(parser)
    parser.add_argument(
        "--at",
        metavar="WHEN",
        help='begin at this point: "14:03", "2030-05-04 14:03", a number, or "oldest"',
    )
    parser.add_argument("--task", metavar="NAME", help="show the steps of this task: score[0]")
    parser.add_argument("--to", type=whole(1), metavar="N", help="with --task: end with its step N")
    parser.add_argument("--rows", action="store_true", help="show every step with its rows")
    parser.add_argument(
        "--beyond", action="store_true", help="go on after the end of the log, with new input"
    )
    parser.add_argument("--pdb", action="store_true", help="debug the function that raises")


def run(args: argparse.Namespace) -> int:
    """Returns 0 if no function raised, and the whole log was replayed."""
    if args.to is not None and args.task is None:
        raise NothingToReplay("--to needs a task", remedy="name it with --task")
    past = read(named_job(args.job).compile(), args.checkpoint, args.journal, args.at)
    begin_again_with_the_seed_of(past)
    with closing(past), Replay(past) as replay:
        for task in replay:
            known = task.log_ends_at - task.restored_at
            print(f"{task.name}: restored at step {task.restored_at}, the log has {known} more")
        if past.kills:
            _look_out(past, with_debugger=args.pdb)
        try:
            _run(replay, args)
        except OperatorError as error:
            cause = error.__cause__ or error
            print(users_traceback(cause) or error, file=sys.stderr)
            print(error, file=sys.stderr)
            if args.pdb:
                pdb.post_mortem(cause.__traceback__)
            return 1
        for name, (same, delivered) in replay.compared.items():
            if delivered:
                print(f"{name}: {same} of {delivered} delivered outputs were made again")
        for what in replay.lost:
            print(f"clonos: cannot be done again: {what}", file=sys.stderr)
        return 1 if replay.lost else 0


def _look_out(past: Past, *, with_debugger: bool) -> None:
    """Prepare for a last step that will kill this process, so that its place can be seen."""
    faulthandler.enable()  # shows the stack if native code crashes
    steps = ", ".join(
        f"step {step} of {past.compiled.plan.tasks[task].name}"
        for task, step in past.failed.items()
    )
    print(f"clonos: {steps} will end this process: {past.kills}", flush=True)
    if with_debugger:
        print("clonos: set a breakpoint in your function (b FILE:LINE), then c", flush=True)
        pdb.Pdb(nosigint=True).set_trace()


def begin_again_with_the_seed_of(past: Past) -> None:
    """Restart Python with the hash seed of the job's slots, on which the order of sets depends."""
    seed = past.hash_seed
    if seed and os.environ.get(HASH_SEED) != seed:
        sys.stdout.flush()
        past.close()
        words = [sys.executable, "-m", "clonos.cli", *sys.argv[1:]]
        os.execve(sys.executable, words, {**os.environ, HASH_SEED: seed})  # noqa: S606 - ourselves


def _run(replay: Replay, args: argparse.Namespace) -> None:
    """Replay the log; then, if wanted, go on."""
    for beyond in (False, True) if args.beyond else (False,):
        while replay.is_before(args.task, args.to):
            step = replay.step(args.task, beyond=beyond)
            if step is None:
                break
            if args.task or args.rows or beyond:
                _show(step, with_rows=args.rows)


def _show(step: Step, *, with_rows: bool) -> None:
    print(step)
    named = [("took", batch) for batch in step.took] + list(step.made.items())
    for name, batch in named if with_rows else ():
        for row in batch.to_pylist():
            print(f"    {name}: {row}")
