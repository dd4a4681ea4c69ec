"""``clonos-bench``: all measurements, or one by its name."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from types import ModuleType

from rich.console import Console

from clonos.errors import ClonosError
from clonos_bench import (
    calls,
    causal,
    columns,
    deterministic,
    edges,
    executions,
    failures,
    handover,
    history,
    kafka,
    latency,
    layers,
    levels,
    loops,
    overhead,
    postgres,
    rescale,
    run,
    seals,
    shuffle,
    sinks,
    slow,
    spark,
    start,
    state,
    steps,
    streams,
    takeover,
)
from clonos_bench.nexmark import measurement as nexmark
from clonos_bench.soak import run as soak

_ALL: dict[str, tuple[ModuleType, str]] = {
    "failures": (failures, "what failures do to the output: gaps, and when all is normal again"),
    "handover": (handover, "what planned moves do to the output"),
    "soak": (soak, "kills, freezes and a fickle service for as long as you like, and a verdict"),
    "latency": (latency, "how late rows are when nothing fails"),
    "overhead": (overhead, "what protection costs"),
    "seals": (seals, "what layers cost that hold a few changes of much state"),
    "slow": (slow, "a task that falls behind its peers: with speculation and without"),
    "state": (state, "what a kill costs, by the size of a state that has no room in memory"),
    "steps": (steps, "what a step and a hop cost: CPU of one thread, Python calls"),
    "shuffle": (shuffle, "rows per second through two shuffles"),
    "start": (start, "from `python hello.py` to its result, and until a job of 12 tasks lives"),
    "takeover": (takeover, "a driver is killed, and another one goes on"),
    "rescale": (rescale, "a running job gets more tasks, fewer, other code: how long rows wait"),
    "history": (history, "what keeping a history costs, and how fast branches and bundles are"),
    "calls": (calls, "what calls that take a while cost, and what a kill repeats"),
    "deterministic": (deterministic, "what it saves, and costs, to log only what is needed"),
    "layers": (layers, "checkpoints with markers and without: stalls and cost"),
    "levels": (levels, "recovery from a standby's memory and from the checkpoint store"),
    "loops": (loops, "rows that go round: what that costs, and what a kill in the loop does"),
    "postgres": (postgres, "rows into PostgreSQL: how soon they are seen"),
    "kafka": (kafka, "messages of Kafka: how many a second, and how soon they are there"),
    "sinks": (sinks, "rows into PostgreSQL and Kafka, with exactly-once and without"),
    "columns": (columns, "column expressions beside functions, per batch, and to compile"),
    "causal": (causal, "what causal services cost in plain PySpark jobs"),
    "edges": (edges, "Spark -> clonos -> Spark beside Spark without clonos"),
    "executions": (executions, "Nexmark in tasks and as Spark's plans, beside SQL by hand"),
    "streams": (streams, "how late the rows of a stream are, in tasks and as a plan"),
    "nexmark": (nexmark, "events per second of Nexmark's queries"),
    "spark": (spark, "the same kills in Structured Streaming with micro-batches"),
}


def main(given: Sequence[str] | None = None) -> int:
    """Measure; 0 if all output was right (whether or not the targets are met)."""
    parser = argparse.ArgumentParser(prog="clonos-bench", description=__doc__)
    commands = parser.add_subparsers(dest="measurement", metavar="MEASUREMENT")
    for name, (module, summary) in _ALL.items():
        command = commands.add_parser(name, help=summary, description=summary)
        module.add_arguments(command)
    arguments = parser.parse_args(given)
    try:
        return _run(arguments)
    except ClonosError as error:
        sys.stderr.write(f"clonos-bench: {type(error).__name__}: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130


def _run(arguments: argparse.Namespace) -> int:
    console = Console(width=None if sys.stdout.isatty() else 120)
    if arguments.measurement is not None:
        return _measure(arguments.measurement, arguments, console)
    codes = []
    for name, (module, _) in _ALL.items():
        parser = argparse.ArgumentParser()
        module.add_arguments(parser)
        codes.append(_measure(name, parser.parse_args([]), console))
    return max(codes)


def _measure(name: str, arguments: argparse.Namespace, console: Console) -> int:
    report = _ALL[name][0].measure(arguments)
    settings = vars(arguments)
    folder = run.folder(arguments, name)
    for part in [report, *report.parts] if report.lines else report.parts:
        if arguments.markdown:
            print(part.markdown(), end="\n\n")
        else:
            part.show(console)
        of_part = folder if part is report else run.folder(arguments, f"{name}/{part.name}")
        part.save(of_part, settings)
    console.print(f"details and pictures: {folder}", highlight=False)
    return 0 if report.ok and all(part.ok for part in report.parts) else 1
