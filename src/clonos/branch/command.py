"""``clonos branch``: changed code on the past of a job."""

from __future__ import annotations

import argparse
from typing import Any

from clonos.branch import Branch, Budget
from clonos.errors import CannotReplace, WrongType
from clonos.named import named, named_job, whole
from clonos.replay.command import add_past, begin_again_with_the_seed_of
from clonos.replay.past import read

SUMMARY = "run changed code on the past of a job: what would have happened?"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``clonos branch``."""
    add_past(parser)
    parser.add_argument(
        "--at",
        metavar="WHEN",
        default="oldest",
        help='begin at this point: "14:03", a number, or "oldest" (the default)',
    )
    parser.add_argument(
        "--until", metavar="WHEN", help="end at this point; by default with the log"
    )
    parser.add_argument(
        "--replace",
        action="append",
        default=[],
        metavar="OPERATOR=MODULE:FUNCTION",
        help="the function (or Process) that an operator has in the branch; may be repeated",
    )
    parser.add_argument(
        "--ask",
        action="append",
        default=[],
        metavar="FUNCTION",
        help="call this function where the log has no answer; may be repeated",
    )
    parser.add_argument(
        "--calls", type=whole(0), metavar="N", help="with --ask: make at most N calls"
    )
    parser.add_argument(
        "--reuse",
        action="append",
        default=[],
        metavar="FUNCTION",
        help="this function gives the same answer to the same question; may be repeated",
    )
    parser.add_argument(
        "--compare", metavar="SINK", help="show the differences of this sink, row by row"
    )
    parser.add_argument(
        "--keys",
        type=lambda text: text.split(","),
        metavar="A,B",
        help="with --compare: its key columns",
    )


def run(args: argparse.Namespace) -> int:
    """Returns 0 if the branch delivers the same as the job, otherwise 1, like ``diff``."""
    for option, given, other in (("calls", args.calls, "ask"), ("keys", args.keys, "compare")):
        if given is not None and not getattr(args, other):
            raise WrongType(f"--{option} without --{other}", remedy=f"give --{other}, too")
    past = read(named_job(args.job).compile(), args.checkpoint, args.journal, args.at)
    begin_again_with_the_seed_of(past)
    calls = Budget(calls=args.calls) if args.ask else "stub"
    replaced = dict(map(_replacement, args.replace))
    how: dict[str, Any] = {"ask": args.ask, "reuse": args.reuse, "calls": calls}
    branch = Branch(past, replaced, until=args.until, **how)
    if args.compare:
        print(branch.compare(args.compare, args.keys))
    print(branch)
    return int(any(branch.compare(sink).changes for sink in branch.sinks))


def _replacement(text: str) -> tuple[str, Any]:
    operator, _, name = text.partition("=")
    if not (operator and ":" in name):
        raise CannotReplace(
            f"{text!r} does not name an operator and a function",
            remedy="write it like --replace score=my_package.fraud:careful",
        )
    found = named(name)
    return operator, found() if isinstance(found, type) and hasattr(found, "on_row") else found
