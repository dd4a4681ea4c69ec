"""``clonos history``: lists the points of a job's history."""

from __future__ import annotations

import argparse
from contextlib import closing
from typing import Any

import msgpack

from clonos.cluster.directory import JobDirectory
from clonos.core.history import RECORDS, Chains, History
from clonos.core.levels import LayerRef
from clonos.core.version import version_of
from clonos.replay.kept import shown
from clonos.replay.past import copied_journal
from clonos.watch.words import size

SUMMARY = "the points of its past that a job keeps"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``clonos history``."""
    parser.add_argument("checkpoint", metavar="DIR", help="the checkpoint_dir of the job")
    parser.add_argument("--journal", metavar="WHERE", help="where its journal is, if not in DIR")


def run(args: argparse.Namespace) -> int:
    """Print a table, oldest first."""
    with closing(JobDirectory(args.checkpoint, args.journal, on_one_machine=True)) as directory:
        history, layers, version = read(directory)
        names = directory.task_names if history.points else []
        directory.read()
        rewound = directory.rewound(version)
    if not history.points:
        print("this job keeps no history; clonos.Job(history=...) makes it keep one")
        return 0
    sizes = history.sizes(layers)
    rows = [("point", "time", "takes", "steps that were done")]
    for point in history.points:
        steps = ", ".join(f"{names[task]} {done}" for task, done in sorted(point.positions.items()))
        mark = " (goes)" if point.number <= history.going else ""
        rows.append((str(point.number), shown(point), size(sizes[point.number]), steps + mark))
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    for number, time, takes, steps in rows:
        print(f"{number:>{widths[0]}}  {time:<{widths[1]}}  {takes:>{widths[2]}}  {steps}")
        for one in (one for one in rewound if str(one["newest"]) == number):
            back, generation = one["point"], one["generation"]
            who = ", ".join(one.get("section", ())) or "the job"
            print(f"{'':>{widths[0]}}  {who} went back to point {back}: generation {generation}")
    print(f"in all {size(sum(sizes.values()))} beyond the newest checkpoint")
    return 0


def read(directory: JobDirectory) -> tuple[History, Chains, int]:
    """The history in a journal, the layers of the newest checkpoint, and the plan's version.

    Raises
    ------
    NothingToReplay
        There is no journal.
    """
    history = History()
    layers: dict[int, tuple[LayerRef, ...]] = {}
    with copied_journal(directory) as journal:
        version = version_of(journal.replay())
        for record in journal.replay():
            kind, *values = msgpack.unpackb(record, strict_map_key=False)
            if kind in RECORDS:
                history.take(kind, *values)
            elif kind == "floor":
                chains: dict[int, Any] = values[3]
                layers |= {task: tuple(map(LayerRef.of, refs)) for task, refs in chains.items()}
    return history, layers, version
