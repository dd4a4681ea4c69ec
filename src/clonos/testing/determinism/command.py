"""``clonos check MODULE:JOB``: checks that a job's functions are deterministic."""

from __future__ import annotations

import argparse
from typing import Final

from clonos.errors import NotDeterministic
from clonos.named import named_job, whole
from clonos.simulator.command import add_inputs
from clonos.simulator.user_job.command import rows_given, services_given
from clonos.testing.determinism.check import RESTORES, TIMEOUT, Finding, check_deterministic

SUMMARY: Final = "check that each function of a job, given the same input, does the same"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``clonos check``."""
    parser.add_argument(
        "job", metavar="MODULE:JOB", help="a clonos.Job, or a function that returns one"
    )
    add_inputs(parser)
    parser.add_argument(
        "--same-cuts", action="store_true", help="do not cut the rows into other batches"
    )
    parser.add_argument(
        "--restores",
        type=whole(0),
        default=RESTORES,
        metavar="N",
        help=f"at how many places each task is restored; by default {RESTORES}",
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="a function that asks for the time, random numbers or the environment outside of ctx "
        "fails, even if nothing differs",
    )
    parser.add_argument(
        "--duration",
        default="1 second",
        help="about how long the job runs, in virtual time: longer than its timers",
    )
    parser.add_argument(
        "--timeout",
        default=TIMEOUT,
        help=f"how long a function may take for a batch of rows; by default {TIMEOUT}",
    )
    parser.add_argument("--seed", type=whole(0), default=0, metavar="S", help="of the first run")


def run(args: argparse.Namespace) -> int:
    """Returns 0 if everything is the same each time, 1 if not."""
    job = named_job(args.job)
    try:
        checked = check_deterministic(
            job,
            rows_given(args.rows),
            services=services_given(args.service),
            answers=args.answers,
            cuts=not args.same_cuts,
            restores=args.restores,
            strict=args.strict,
            duration=args.duration,
            seed=args.seed,
            timeout=args.timeout,
            watch=_tell,
        )
    except NotDeterministic as failed:
        several = "operator does" if len(failed.findings) == 1 else "operators do"
        print(f"{len(failed.findings)} {several} not do the same twice")
        return 1
    print(checked)
    return 0


def _tell(operator: str, finding: Finding | None) -> None:
    print(f"{'ok  ' if finding is None else 'FAIL'}  {operator}", flush=True)
    if finding is not None:
        print("".join(f"      {line}\n" for line in str(finding).splitlines()), flush=True)
