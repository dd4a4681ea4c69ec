"""A driver is killed: how long until a standby driver, or the same command again, goes on."""

from __future__ import annotations

import argparse
import contextlib
import logging
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

import clonos
from clonos.errors import ClonosError
from clonos.storage.files import Disk, LocalFiles
from clonos.storage.journal import Journal
from clonos.storage.postgres_disk import PostgresDisk
from clonos_bench import run
from clonos_bench.postgres import server
from clonos_bench.report import PERCENTILES, Aim, Report
from clonos_bench.statistics import summarize

RATE: Final = 500.0
QUIET_S: Final = 3.0
"""How long a standby driver has waited before it is needed."""
WAIT_S: Final = 180.0
GROUPS: Final = 500
TAKEOVER: Final = Aim(2.0)
TAKEOVER_OBJECTS: Final = Aim(20.0)
"""A store of objects knows nothing of connections: only the lease says that a driver is gone."""
DISK, POSTGRES, OBJECTS = STORES = ("disk", "PostgreSQL", "objects")
_STANDBY, _AGAIN = "a standby driver", "the same command again"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``clonos-bench takeover``."""
    run.report_arguments(parser)
    add = parser.add_argument
    add("--dsn", default="", help="a server; without it one is started in a folder of its own")
    add("--rounds", type=int, default=5, help="kills of each kind")
    add("--stores", nargs="+", choices=STORES, default=list(STORES), help="where the journal is")


def measure(arguments: argparse.Namespace) -> Report:
    """Kill drivers in turn, with the journal in each of its stores; then time commits."""
    columns = ["seconds from the kill to ...", "kills", "min", "median", "max", "target"]
    report = Report("takeover", "A driver is killed", columns)
    with contextlib.ExitStack() as stack:
        dsn = arguments.dsn or stack.enter_context(server())
        taken: dict[tuple[str, str], list[tuple[float, float]]] = {}
        journals = {DISK: "", POSTGRES: dsn, OBJECTS: OBJECTS}
        for _ in range(arguments.rounds):
            for where in arguments.stores:
                for who in (_STANDBY, _AGAIN):
                    times = kill_driver(journals[where], is_standby=who == _STANDBY)
                    taken.setdefault((who, where), []).append(times)
        for (who, where), all_times in taken.items():
            lives, rows = zip(*all_times, strict=True)
            for what, values in (("all tasks live", lives), ("new output", rows)):
                three = min(values), summarize(values).p50, max(values)
                aim = TAKEOVER_OBJECTS if where == OBJECTS else TAKEOVER
                report.add(
                    f"{what}: {who}, journal on {where}",
                    str(len(values)),
                    *(f"{x:.2f}" for x in three),
                    f"{aim}: {aim.judge(three[1])}" if who == _STANDBY else "",
                )
        report.data = {f"{who}, {where}": times for (who, where), times in taken.items()}
        report.parts = [_commits(dsn)]
    return report


def _commits(dsn: str) -> Report:
    """What a group of the journal costs: the part of every output's latency that depends on it."""
    report = Report("commits", "A commit of 1 KB, in ms", ["journal", *PERCENTILES[1:]])
    with tempfile.TemporaryDirectory(prefix="clonos-bench-") as folder:
        disks: dict[str, Disk] = {"local disk": LocalFiles(), "PostgreSQL": PostgresDisk(dsn)}
        for where, disk in disks.items():
            times = []
            with Journal(folder if where == "local disk" else f"{folder}/other", disk=disk) as file:
                for _ in range(GROUPS):
                    since = time.perf_counter()
                    file.append([b"x" * 1024])
                    file.commit()
                    times.append((time.perf_counter() - since) * 1000)
            report.summary(where, summarize(times))
    return report


# --- drivers, each in a process of its own -------------------------------------------------------


def _job(folder: Path) -> clonos.Job:
    def show(batch: pa.RecordBatch) -> None:
        print("row", batch.column("value")[-1], flush=True)

    job = clonos.Job("takeover", parallelism=2, checkpoint_dir=str(folder / "checkpoint"))
    rows = job.source(clonos.sources.rate(RATE)).rebalance()
    rows.map(lambda row: row, schema=rows.schema).sink(clonos.sinks.callback(show), name="out")
    return job


def drive(folder: Path, journal: str, kind: str) -> None:
    """Run the job, and print what happens: the body of a driver's process."""
    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(message)s")
    with run.session("local[8]") as spark:
        options: dict[str, Any] = {"journal": journal} if journal else {}
        running = _job(folder).start(spark, standby=kind == "standby", **options)
        while not run.all_live(running):
            time.sleep(0.01)
        print("live", flush=True)
        running.wait()


@contextlib.contextmanager
def _driver(folder: Path, journal: str, kind: str) -> Iterator[_Said]:
    command = [sys.executable, "-m", "clonos_bench.takeover", str(folder), journal, kind]
    path = folder / f"{kind}.log"
    with path.open("a") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    said = _Said(process, path)
    try:
        yield said
    finally:
        said.kill()


class _Said:
    """What a driver prints, as it comes: the moment of each word, and the greatest row."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.row = -1
        self._process, self._log = process, log
        self._words: queue.SimpleQueue[tuple[str, int, float]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def kill(self) -> None:
        """Kill it, and hear what it has still said; once more does no harm."""
        self._process.kill()
        self._thread.join()
        self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                word, _, number = line.strip().partition(" ")
                if word == "row":
                    self.row = max(self.row, int(number))
                word = "waits" if "stands by" in line else word
                self._words.put((word, self.row, time.monotonic()))

    def moment(self, word: str, above: int = -1) -> float:
        """When it has said this, with a row above that."""
        while True:
            try:
                said, row, moment = self._words.get(timeout=WAIT_S)
            except queue.Empty:
                raise ClonosError(
                    f"a driver did not say {word!r}, and has come to row {self.row}: "
                    f"{self._log.read_text()[-2000:]}"
                ) from None
            if said == word and row >= above:
                return moment


def kill_driver(journal: str, *, is_standby: bool) -> tuple[float, float]:
    """Kill the driver; return seconds until all tasks live again, and until there is new output."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="clonos-bench-")))
        if journal == OBJECTS:
            journal = (folder / "journals").as_uri()
        first = stack.enter_context(_driver(folder, journal, "first"))
        first.moment("row", 0)
        if is_standby:
            second = stack.enter_context(_driver(folder, journal, "standby"))
            second.moment("waits")
        time.sleep(QUIET_S)
        killed_s = time.monotonic()
        first.kill()
        if not is_standby:
            second = stack.enter_context(_driver(folder, journal, "second"))
        live_s = second.moment("live")
        # What was delivered, and what the log knew of: there is no more than a second of that.
        new_s = second.moment("row", first.row + int(RATE))
        return live_s - killed_s, new_s - killed_s


if __name__ == "__main__":
    drive(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
