"""``clonos sim``: run many seeds, or one that failed."""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Any

from clonos.errors import ClonosError
from clonos.named import positive, whole
from clonos.simulator.mistakes.detection import HEAD, detect_all, write_seeds
from clonos.simulator.mistakes.mutations import MUTATIONS
from clonos.simulator.runs.coverage import Coverage, table
from clonos.simulator.runs.kinds import AS_THE_SEED_SAYS, EVERY, Kind, in_turn
from clonos.simulator.runs.seeds import Result, simulate
from clonos.simulator.world.virtual import TraceDigest

SEEDS = 1000
OWN = (
    "rows",
    "service",
    "answers",
    "check",
    "same_rows",
    "every_step",
    "faults",
    "duration",
    "write_test",
)
"""Options that only a job of the user's has."""
RANDOM = (*Kind._fields, "every_kind", "jobs", "digest", "mutations", "mutation", "enough", "write")
"""Options that only random jobs have."""
CHUNK = 20
"""Seeds that a process runs per report."""


def parser() -> argparse.ArgumentParser:
    """The parser of ``clonos sim`` alone."""
    result = argparse.ArgumentParser("clonos sim")
    add_arguments(result)
    return result


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``clonos sim``."""
    parser.add_argument(
        "job",
        nargs="?",
        metavar="MODULE:JOB",
        help="a clonos.Job, or a function that returns one; by default, random jobs",
    )
    parser.add_argument(
        "--seeds",
        type=whole(1),
        metavar="N",
        help="how many to run; by default 1000, or 50 for a job of your own",
    )
    parser.add_argument(
        "--first-seed", type=whole(0), default=0, metavar="S", help="the first of them"
    )
    parser.add_argument(
        "--seconds", type=positive, metavar="T", help="stop after this long, whatever --seeds"
    )
    parser.add_argument("--seed", type=whole(0), metavar="S", help="run only this one")
    parser.add_argument("--trace", action="store_true", help="with --seed: print all that happens")
    _add_arguments_of_a_job(parser)
    _add_arguments_of_random_jobs(parser.add_argument_group("random jobs, to test the engine"))


def _add_arguments_of_random_jobs(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--jobs", type=whole(1), default=1, metavar="N", help="processes")
    parser.add_argument(
        "--digest", action="store_true", help="print only one digest of all that happened"
    )
    parser.add_argument(
        "--every-kind", action="store_true", help="all kinds in turn, instead of one of these:"
    )
    parser.add_argument("--rivals", action="store_true", help="slow tasks are overtaken")
    parser.add_argument("--harsh", action="store_true", help="whole neighbourhoods die at once")
    parser.add_argument("--edge", action="store_true", help="links to the house-keeper break")
    parser.add_argument("--overlap", action="store_true", help="tasks fail while others recover")
    parser.add_argument(
        "--disk", action="store_true", default=None, help="disks fail, and lose what is not synced"
    )
    parser.add_argument(
        "--history", action="store_true", help="jobs keep their past, and somebody reads it"
    )
    parser.add_argument(
        "--spill", action="store_true", help="retained output goes to local disks, which fail"
    )
    parser.add_argument("--loops", action="store_true", help="rows go round in loops")
    parser.add_argument(
        "--upgrade", action="store_true", help="jobs settle, and go on with another plan"
    )
    parser.add_argument("--live", action="store_true", help="the same, and slots wait for the plan")
    parser.add_argument(
        "--logs", action="store_true", help="logs are longer than they may be, checkpoints rare"
    )
    parser.add_argument("--moves", action="store_true", help="cells move, executors leave")
    parser.add_argument(
        "--rewind", action="store_true", help="jobs go back to points of their past"
    )
    parser.add_argument("--canary", action="store_true", help="changed code follows jobs")
    parser.add_argument("--gaps", action="store_true", help="jobs promise at most once")
    parser.add_argument("--implied", action="store_true", help="tasks that ask nothing log nothing")
    parser.add_argument("--levels", action="store_true", help="slots keep layers themselves")
    parser.add_argument("--calls", action="store_true", help="small jobs, all with calls")
    parser.add_argument(
        "--wire", action="store_true", help="channels are bytes on simulated sockets"
    )
    parser.add_argument(
        "--arrow", action="store_true", default=None, help="real jobs of Arrow operators only"
    )
    parser.add_argument("--large", action="store_true", help="no job is small; else most are")
    parser.add_argument(
        "--availability", action="store_true", default=None, help="orphans are always forgiven"
    )
    parser.add_argument(
        "--mutations", action="store_true", help="how often is each deliberate mistake found?"
    )
    parser.add_argument(
        "--enough", type=whole(1), default=10, metavar="N", help="with --mutations: found so often"
    )
    parser.add_argument(
        "--write",
        type=Path,
        metavar="FILE",
        help="with --mutations: a seed for each, for the tests",
    )
    parser.add_argument(
        "--mutation",
        type=_mutation,
        metavar="NAME",
        help="with this mistake built in; --mutations lists them",
    )


def add_inputs(parser: argparse._ActionsContainer) -> None:
    """Stand-ins for a job's sources and services, for all commands that run a job without them."""
    parser.add_argument(
        "--rows", action="append", default=[], metavar="[SOURCE=]FILE",
        help="rows for a source that needs Spark or a network: .jsonl, .csv or .parquet",
    )  # fmt: skip
    parser.add_argument(
        "--service", action="append", default=[], metavar="NAME=MODULE:FUNCTION",
        help="what stands in for a function; NAME=record: call it for real, once per question",
    )  # fmt: skip
    parser.add_argument("--answers", metavar="FILE", help="where recorded answers are kept")


def _add_arguments_of_a_job(parser: argparse.ArgumentParser) -> None:
    own = parser.add_argument_group("your own job")
    add_inputs(own)
    own.add_argument(
        "--check",
        metavar="MODULE:FUNCTION",
        help="a function that is given what the sinks delivered",
    )
    own.add_argument(
        "--same-rows",
        action="store_true",
        help="sinks must have the rows of a run without failures",
    )
    own.add_argument(
        "--every-step", action="store_true", help="one run for each step, killed after it"
    )
    own.add_argument("--faults", metavar="KIND,...", help="only these faults")
    own.add_argument("--duration", default="200 ms", help="how long sources read, in virtual time")
    own.add_argument(
        "--write-test", type=Path, metavar="FILE", help="write a test of the seed that fails"
    )


def _mutation(name: str) -> str:
    if name not in MUTATIONS:
        near = get_close_matches(name, MUTATIONS, n=3, cutoff=0.4)
        hint = " or ".join(map(repr, near)) or "--mutations, which lists them"
        raise argparse.ArgumentTypeError(f"there is no mistake {name!r}: try {hint}")
    return name


def run(args: argparse.Namespace) -> int:
    """Returns 0 if no invariant was violated."""
    if args.job is not None:
        from clonos.simulator.user_job import command as user_job  # needs PySpark

        if given := options_given(args, RANDOM):
            raise _refused(
                f"{', '.join(given)} is for random jobs only",
                "for a job of your own, --faults says what fails",
            )
        return user_job.run(args)
    _require_for_random_jobs(args)
    args.seeds = SEEDS if args.seeds is None else args.seeds
    if args.mutations:
        seeds = range(args.first_seed, args.first_seed + args.seeds)
        names = [args.mutation] if args.mutation else list(MUTATIONS)
        how = {
            "jobs": args.jobs,
            "enough": args.enough,
            "large": args.large or args.write is not None,  # as the tests run them
            "seconds": float("inf") if args.seconds is None else args.seconds,
        }
        return _print_detection(names, seeds, args.write, **how)
    with ExitStack() as stack:
        if args.mutation:
            stack.enter_context(MUTATIONS[args.mutation].active())
        kind = Kind(**{name: getattr(args, name) for name in Kind._fields})
        if args.seed is not None:
            return _run_one(args.seed, kind, trace=args.trace)
        which = None if args.every_kind else kind
        if args.digest:
            return _print_digest(
                _results(args.seeds, args.first_seed, args.seconds, args.jobs, which)
            )
        return main(args.seeds, args.first_seed, args.seconds, jobs=args.jobs, kind=which)


def _require_for_random_jobs(args: argparse.Namespace) -> None:
    """Raise `CannotSimulate` if an option would be ignored."""
    if given := options_given(args, OWN):
        raise _refused(f"{', '.join(given)} without a job", "name it: clonos sim MODULE:JOB")
    if args.every_kind and (given := options_given(args, (*Kind._fields, "seed", "mutations"))):
        raise _refused(f"--every-kind with {', '.join(given)}", "give one or the other")
    for option, needs in (("trace", "seed"), ("write", "mutations")):
        if getattr(args, option) and getattr(args, needs) in {None, False}:
            raise _refused(f"--{option} without --{needs}", "give both")


def _refused(what: str, remedy: str) -> ClonosError:
    from clonos.errors import CannotSimulate

    return CannotSimulate(what, remedy=remedy)


def options_given(args: argparse.Namespace, names: Iterable[str]) -> list[str]:
    """Those options that are not what they are by default."""
    default = parser().parse_args([])
    given = [name for name in names if getattr(args, name) != getattr(default, name)]
    return [f"--{name.replace('_', '-')}" for name in given]


def main(
    seeds: int,
    first_seed: int = 0,
    seconds: float | None = None,
    *,
    jobs: int = 1,
    kind: Kind | None = AS_THE_SEED_SAYS,
) -> int:
    """Run `seeds` simulations, and print how it went; 0 if no invariant was violated, 130 if it was
    interrupted. `kind`: None for all kinds in turn."""
    gc.freeze()  # objects that exist now will stay; collecting them took a tenth of the time
    gc.set_threshold(50_000)
    started = time.monotonic()
    coverage: Coverage = Counter()
    verdicts: Counter[str] = Counter()
    failures: list[Result] = []
    interrupted = False
    try:
        for drawn, result in _results(seeds, first_seed, seconds, jobs, kind):
            coverage.update(result.coverage)
            verdicts[result.verdict] += 1
            done = verdicts.total()
            if result.verdict == "violation":
                failures.append(result)
                _say(f"seed {result.seed}: {result.failure}")
                _say(f"  to see it again: clonos sim{drawn.flags()} --seed {result.seed} --trace")
            elif done % 500 == 0:
                _say(f"{done} seeds, {done / (time.monotonic() - started):.0f} seeds/s")
    except KeyboardInterrupt:  # results so far are printed, too
        interrupted = True
    elapsed = time.monotonic() - started
    _say(table(coverage))
    ends = ", ".join(f"{verdict}: {number}" for verdict, number in sorted(verdicts.items()))
    rate = verdicts.total() / elapsed
    _say(f"{verdicts.total()} seeds in {elapsed:.1f} s ({rate:.0f} seeds/s); {ends}")
    return 130 if interrupted else 1 if failures else 0


def _results(
    seeds: int, first: int, seconds: float | None, jobs: int, kind: Kind | None
) -> Iterator[tuple[Kind, Result]]:
    deadline = time.monotonic() + seconds if seconds is not None else float("inf")
    remaining = in_turn(EVERY if kind is None else ((kind, CHUNK),), first, seeds)
    if jobs <= 1:
        for drawn, chunk in remaining:
            for seed in chunk:
                if time.monotonic() > deadline:
                    return
                yield drawn, simulate(seed, drawn)
        return
    with ProcessPoolExecutor(jobs) as pool:
        running = deque(pool.submit(_chunk, *chunk) for chunk in islice(remaining, 2 * jobs))
        while running:
            yield from running.popleft().result()
            more = islice(remaining, 1 if time.monotonic() < deadline else 0)
            running.extend(pool.submit(_chunk, *chunk) for chunk in more)


def _chunk(kind: Kind, seeds: range) -> list[tuple[Kind, Result]]:
    return [(kind, simulate(seed, kind)) for seed in seeds]


def _print_digest(results: Iterable[tuple[Kind, Result]]) -> int:
    """If the digest is equal before and after a change, behaviour is the same, delays included."""
    digest, failures = TraceDigest(), 0
    for _, result in results:
        digest.add(result.seed, result.verdict, result.digest)
        failures += result.verdict == "violation"
    _say(f"digest {digest.value}, violations: {failures}")
    return 1 if failures else 0


def _print_detection(names: list[str], seeds: range, write: Path | None, **how: Any) -> int:
    """Which invariant finds which mistake, and how often; 0 if its own invariant found each."""
    found: dict[str, int | None] = {}
    _say(HEAD)
    for detection in detect_all(names, seeds, **how):
        found[detection.name] = detection.seed
        _say(detection.line())
    if write is not None:
        write_seeds(write, found)
    missing = [name for name, seed in found.items() if seed is None]
    _say(f"{len(found) - len(missing)} of {len(found)} mutations are caught by their invariant")
    return 1 if missing else 0


def _run_one(seed: int, kind: Kind, *, trace: bool) -> int:
    result = simulate(seed, kind, trace=trace)
    _say(
        f"seed {seed}: {result.verdict}, {result.steps} steps, {result.events} events, "
        f"digest {result.digest}"
    )
    if result.failure:
        _say(result.failure)
    return 1 if result.verdict == "violation" else 0


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
