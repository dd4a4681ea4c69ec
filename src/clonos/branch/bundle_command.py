"""``clonos bundle``: a past in one file."""

from __future__ import annotations

import argparse
from contextlib import closing
from typing import Any

from clonos.branch.bundling import bundle
from clonos.named import named, named_job
from clonos.replay.command import add_past, begin_again_with_the_seed_of
from clonos.replay.past import read

SUMMARY = "put a job's past into one file: to replay it elsewhere, or as a test"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``clonos bundle``."""
    add_past(parser)
    parser.add_argument(
        "--from",
        "--at",
        dest="at",
        metavar="WHEN",
        help='begin at this point: "14:03", "2030-05-04 14:03", a number, or "oldest"',
    )
    parser.add_argument(
        "--to",
        metavar="WHEN",
        help="end at this point; with --task also at this step; by default with the log",
    )
    parser.add_argument("--task", metavar="NAME", help="only this task: score[1]")
    parser.add_argument(
        "--redact",
        metavar="A,B",
        help="columns whose values are replaced, or MODULE:FUNCTION, which replaces them",
    )
    parser.add_argument("--out", metavar="FILE", required=True, help="the file to be made")


def run(args: argparse.Namespace) -> int:
    """Returns 0 if the file has everything that happened."""
    job = named_job(args.job)
    with closing(read(job.compile(), args.checkpoint, args.journal, args.at)) as past:
        begin_again_with_the_seed_of(past)
    made = bundle(
        job,
        args.out,
        args.checkpoint,
        journal=args.journal,
        at=args.at,
        until=args.to,
        task=args.task,
        redact=_redact(args.redact),
    )
    print(made)
    print(f"to do it again: clonos replay {args.job} {args.out} --pdb")
    for what in made.lost:
        print(f"clonos: not in it: {what}")
    return 1 if made.lost else 0


def _redact(text: str | None) -> Any:
    if text is None:
        return None
    return named(text) if ":" in text else text.split(",")
