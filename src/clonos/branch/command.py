"""``clonos branch``: changed code on the past of a job."""

from __future__ import annotations

import argparse
from typing import Any

from clonos.branch import Branch, Budget, CannotReplace
from clonos.named import named, named_job
from clonos.replay.command import begin_again_with_the_seed_of
from clonos.replay.kept import find
from clonos.replay.past import read

SUMMARY = "changed code on the past of a job: what would have come of it?"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What ``clonos branch`` understands."""
    parser.add_argument(
        "job", metavar="MODULE:JOB", help="a clonos.Job, or a function that returns one"
    )
    parser.add_argument("checkpoint", nargs="?", metavar="DIR", help="by default that of the job")
    parser.add_argument("--journal", metavar="WHERE", help="where the journal is, if not there")
    parser.add_argument(
        "--at",
        metavar="WHEN",
        default="oldest",
        help='begin there: "14:03", a number of clonos history, or "oldest", the default',
    )
    parser.add_argument("--until", metavar="WHEN", help="end there; by default with the log")
    parser.add_argument(
        "--replace",
        action="append",
        default=[],
        metavar="OPERATOR=MODULE:FUNCTION",
        help="the function (or the Process) that an operator has in the branch; again for others",
    )
    parser.add_argument(
        "--ask",
        action="append",
        default=[],
        metavar="FUNCTION",
        help="call it where the log has no answer; again for others",
    )
    parser.add_argument("--calls", type=int, metavar="N", help="with --ask: so many at most")
    parser.add_argument(
        "--reuse",
        action="append",
        default=[],
        metavar="FUNCTION",
        help="it gives the same answer to the same question",
    )
    parser.add_argument(
        "--compare", metavar="SINK", help="show the differences of this sink, row by row"
    )
    parser.add_argument(
        "--keys", type=lambda text: text.split(","), metavar="COLUMNS", help="of its rows"
    )


def run(args: argparse.Namespace) -> int:
    """Returns 0 if the branch delivers the same as the job has, else 1, as ``diff`` does."""
    past = read(named_job(args.job).compile(), args.checkpoint, args.journal, args.at)
    begin_again_with_the_seed_of(past)
    until = None if args.until is None else find(past.keeper.history, args.until)
    calls = Budget(calls=args.calls) if args.ask else "stub"
    replaced = dict(map(_replacement, args.replace))
    how: dict[str, Any] = {"ask": args.ask, "reuse": args.reuse, "calls": calls}
    with Branch(past, replaced, until=until, **how) as branch:
        if args.compare:
            print(branch.compare(args.compare, args.keys))
        print(branch)
        return int(any(branch.compare(sink).changes for sink in branch.sinks))


def _replacement(text: str) -> tuple[str, Any]:
    operator, _, name = text.partition("=")
    if not (operator and ":" in name):
        raise CannotReplace(
            f"{text!r} names no function",
            remedy="write it like --replace score=my_package.fraud:careful",
        )
    found = named(name)
    return operator, found() if isinstance(found, type) and hasattr(found, "on_row") else found
