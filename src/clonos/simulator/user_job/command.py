"""``clonos sim MODULE:JOB``: a user's own job in the simulator."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from clonos.errors import CannotSimulate, SimulationFailed
from clonos.named import named, named_job
from clonos.simulator.user_job.answers import RECORD
from clonos.simulator.user_job.simulation import Simulation, simulate

SAY_EVERY_S: Final = 5.0
SEEDS: Final = 50
DURATION: Final = "200 ms"


def run(args: argparse.Namespace) -> int:
    """Returns 0 if no seed failed."""
    if args.write_test is not None and not args.write_test.absolute().parent.is_dir():
        raise CannotSimulate(
            f"--write-test {args.write_test}: there is no such folder", remedy="make it first"
        )
    settings = _settings(args)
    job = named_job(args.job)
    first, count = args.first_seed, args.seeds or SEEDS
    settings["seeds"] = range(first, first + count) if args.seed is None else [args.seed]
    try:
        done = simulate(job, **settings, trace=args.trace, watch=_Teller(args.seconds))
    except SimulationFailed as failed:
        failed.repeat_with(_again(args, failed.seed))
        print(failed)
        if args.write_test is not None:
            _write_test(args.write_test, args, failed)
            print(f"{args.write_test} has a test that runs this seed")
        return 1
    except _Enough as enough:
        done = enough.done
    print(done)
    return 0


class _Enough(BaseException):
    """The time is up."""

    def __init__(self, done: Simulation) -> None:
        self.done = done


class _Teller:
    """Prints progress now and then, and ends when the time is up."""

    def __init__(self, seconds: float | None) -> None:
        self._until = None if seconds is None else time.monotonic() + seconds
        self._said = time.monotonic()

    def __call__(self, done: Simulation) -> None:
        now = time.monotonic()
        if now - self._said > SAY_EVERY_S:
            self._said = now
            print(f"{done.runs} simulations, {done.deaths} tasks lost their process", flush=True)
        if self._until is not None and now > self._until:
            raise _Enough(done)


def _settings(args: argparse.Namespace) -> dict[str, Any]:
    """The arguments of :func:`simulate` besides job and seeds."""
    given: dict[str, Any] = {
        "rows": rows_given(args.rows),
        "services": services_given(args.service),
        "check": named(args.check, "check") if args.check else None,
        "faults": None if args.faults is None else args.faults.split(","),
    }
    options = {name: getattr(args, name) for name in ("same_rows", "every_step", "answers")}
    return {**given, **options, "duration": args.duration}


def services_given(services: Sequence[str]) -> dict[str, Any]:
    """The stand-ins given by ``--service``."""
    pairs = dict(_pair(service, "--service") for service in services)
    return {name: how if how == RECORD else named(how) for name, how in pairs.items()}


def rows_given(rows: Sequence[str]) -> Any:
    """Rows of sources, as given by ``--rows``: a file, or files by source name."""
    if len(rows) == 1 and "=" not in rows[0]:
        return rows[0]
    return dict(_pair(given, "--rows") for given in rows) or None


def _pair(text: str, option: str) -> tuple[str, str]:
    name, is_there, value = text.partition("=")
    if not is_there:
        what = "FILE" if option == "--rows" else "MODULE:FUNCTION"
        raise CannotSimulate(f"{option} {text}", remedy=f"say {option} NAME={what}")
    return name, value


def _again(args: argparse.Namespace, seed: int) -> str:
    """The command that runs this seed alone."""
    words = ["clonos", "sim", args.job]
    for option in ("rows", "service"):
        for given in getattr(args, option):
            words += [f"--{option}", given]
    for option in ("check", "faults", "answers"):
        if getattr(args, option):
            words += [f"--{option}", str(getattr(args, option))]
    words += [] if args.duration == DURATION else ["--duration", args.duration]
    words += [f"--{o.replace('_', '-')}" for o in ("same_rows", "every_step") if getattr(args, o)]
    return " ".join(f"'{word}'" if " " in word else word for word in [*words, "--seed", str(seed)])


# --- a test of the seed that failed ---------------------------------------------------------------


def _write_test(path: Path, args: argparse.Namespace, failed: SimulationFailed) -> None:
    """Write a test that runs only the seed that failed."""
    functions = [args.job, *([args.check] if args.check else [])]
    functions += [how for _, how in (_pair(s, "") for s in args.service) if how != RECORD]
    modules = sorted({name.partition(":")[0] for name in functions})
    job = _reference(args.job, "job")
    call = f"{job}()" if callable(named(args.job, "job")) else job
    words = [call, *_arguments(path, args), f"seeds=[{failed.seed}]"]
    has_files = any("HERE" in word for word in words)
    imports = ["from pathlib import Path", ""] if has_files else []
    imports += [f"import {module}" for module in modules]
    lines = [
        f'"""Written by `clonos sim`: {failed.verdict} in seed {failed.seed}."""',
        "",
        *imports,
        "from clonos.testing import simulate",
        *(["", "HERE = Path(__file__).parent"] if has_files else []),
        "",
        "",
        f"def test_seed_{failed.seed}():",
        "    simulate(",
        *(f"        {word}," for word in words),
        "    )",
    ]
    path.write_text("\n".join(lines) + "\n", "utf-8")


def _arguments(path: Path, args: argparse.Namespace) -> Iterable[str]:
    """The settings as Python source."""
    rows = rows_given(args.rows)
    if isinstance(rows, str):
        yield _file(rows, path)
    elif rows:
        yield "{" + ", ".join(f"{_text(n)}: {_file(f, path)}" for n, f in rows.items()) + "}"
    if args.service:
        pairs = (_pair(service, "--service") for service in args.service)
        said = (f"{_text(n)}: {_text(h) if h == RECORD else _reference(h)}" for n, h in pairs)
        yield "services={" + ", ".join(said) + "}"
    if args.answers:
        yield f"answers={_file(args.answers, path)}"
    if args.check:
        yield f"check={_reference(args.check, 'check')}"
    if args.faults:
        yield f"faults={json.dumps(args.faults.split(','))}"
    for option in ("same_rows", "every_step"):
        if getattr(args, option):
            yield f"{option}=True"
    if args.duration != DURATION:
        yield f"duration={_text(args.duration)}"


def _reference(name: str, default: str = "") -> str:
    module, _, attribute = name.partition(":")
    return f"{module}.{attribute or default}"


def _file(file: str, test: Path) -> str:
    """A file's path relative to the test."""
    return f"HERE / {_text(os.path.relpath(file, test.parent))}"


def _text(text: str) -> str:
    return json.dumps(text)
