"""A listener that writes what a job says of itself as lines of JSON, and a job to try it on.

    python json_lines.py [FILE]

When there are checkpoints, one process of the job is killed; the line about its recovery says how
long each stage took. A little later the job is stopped.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import clonos
from clonos.spark.session import get_or_create


class JsonLines(clonos.Listener):
    """Writes a line per event: ``{"event": "progress", "told": {...}}``."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def _write(self, event: str, told: Any) -> None:
        self._out.write(f'{{"event": "{event}", "told": {told.json}}}\n')
        self._out.flush()

    def on_started(self, started: Any) -> None:
        self._write("started", started)

    def on_progress(self, progress: Any) -> None:
        self._write("progress", progress)

    def on_recovery(self, recovery: Any) -> None:
        self._write("recovery", recovery)

    def on_terminated(self, terminated: Any) -> None:
        self._write("terminated", terminated)


def main(out: TextIO) -> None:
    """Run the job."""
    spark = get_or_create("local[8]")
    job = clonos.Job("watched", checkpoint_interval="300 ms")
    numbers = job.source(clonos.sources.rate(1_000), name="numbers")
    numbers.selectExpr("value * 2 as n", name="twice", parallelism=2).sink(
        clonos.sinks.collect(), name="out"
    )
    running = job.start(spark, listeners=[JsonLines(out)])
    wait_for(running, lambda progress: progress.checkpoint.id >= 3)
    (pid,) = [slot.pid for slot in running.slots() if "twice[1]" in slot.runs]
    os.kill(pid, signal.SIGKILL)
    wait_for(running, lambda progress: progress.recoveries)
    running.stop()
    print(running.wait(), file=sys.stderr)


def wait_for(running: Any, condition: Callable[[Any], Any]) -> None:
    """Wait for a progress of which this is true."""
    while running.last_progress is None or not condition(running.last_progress):
        time.sleep(0.1)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        with Path(sys.argv[1]).open("w") as file:
            main(file)
    else:
        main(sys.stdout)
