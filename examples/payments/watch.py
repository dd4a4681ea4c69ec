"""Payments go from Spark through a service and back into Spark while its processes are killed.

    python -m examples.payments.watch

writes payments into a folder, runs ``pipeline.py`` over them, kills the worker that asks the
service, an executor, and the driver (which is started again), and then compares what Spark has
written with what Spark SQL computes from the same payments when nothing fails, and with the
service's own journal. With ``--execution spark`` the same job is a streaming query of Spark's.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from rich.console import Console

from clonos.spark.session import get_or_create
from examples.demo.process import ServerProcess, environment
from examples.demo.verdict import verdict
from examples.payments import pipeline

MERCHANTS = ["Anna", "BRUNO", " cleo", "Dora ", "emil", "Fritz", "gerda", "HUGO", "ida", "Jakob"]
FILE_ROWS = 250
STARTS_MAX = 4
START = datetime(2024, 1, 1, tzinfo=timezone.utc)


class Pipeline:
    """The driver's process, and what it says of its tasks."""

    def __init__(self, folder: Path, url: str, master: str, execution: str) -> None:
        self.command = [sys.executable, "-m", pipeline.__name__, str(folder), url, master]
        self.command.append(execution)
        self.is_spark = execution == "spark"
        self.log = folder / "log"  # Spark has much to say about processes that die
        self.starts_left = STARTS_MAX
        self.start()

    def start(self) -> None:
        self.said: dict[str, Any] = {"slots": [], "quiet": False, "rows": 0}
        self.rows = 0  # delivered at the last kill
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment()
            )
        threading.Thread(target=self._listen, args=(self.process,), daemon=True).start()

    def _listen(self, process: Any) -> None:
        for line in process.stdout:
            if line.startswith("{") and process is self.process:
                self.said = json.loads(line)

    def wait_for(self, condition: Callable[[dict[str, Any]], bool]) -> None:
        while not condition(self.said):
            self.look()
            time.sleep(0.1)

    def look(self) -> int | None:
        """The exit code, if it has ended; one that failed is started again, as supervisors do."""
        code = self.process.poll()
        if not code:
            return code
        self.starts_left -= 1
        if not self.starts_left:
            raise SystemExit(f"the pipeline has failed {STARTS_MAX} times: see {self.log}")
        print(f"the pipeline ended by itself ({self.log}); it is started again", flush=True)
        self.start()
        return None

    def kill(self, what: str) -> None:
        """``kill -9`` while rows are flowing; a dead driver is started again."""
        self.wait_for(lambda said: said["quiet"] and said["rows"] > self.rows)
        pid = self.process.pid
        while what != "driver" and not (pid := self.victim(what)):
            self.look()
            time.sleep(0.01)
        os.kill(pid, signal.SIGKILL)
        print(f"kill -9 {pid}: the {what}", flush=True)
        if what == "driver":
            self.process.wait()
            self.start()
        else:
            self.rows, self.said["quiet"] = self.said["rows"], False

    def victim(self, what: str) -> int:
        """The worker that asks, or its executor; 0 if none works at this moment."""
        if not self.is_spark:
            slots = {name: (pid, executor) for name, pid, executor in self.said["slots"]}
            pid: int = slots["ask[0]"][what == "executor"]
            return pid
        found = processes()
        for worker, (daemon, _) in found.items():
            executor, words = found.get(daemon, (0, ""))
            master, java = found.get(executor, (0, ""))
            if "pyspark" not in words or "CoarseGrainedExecutorBackend" not in java:
                continue
            while master and master != self.process.pid:
                master, _ = found.get(master, (0, ""))
            if master:  # the executor is ours
                return worker if what == "worker" else executor
        return 0


def processes() -> dict[int, tuple[int, str]]:
    """Of each process on this machine, its parent and its command line."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            found[int(folder.name)] = parent, (folder / "cmdline").read_text()
    return found


def payment(number: int, chosen: random.Random) -> dict[str, Any]:
    """One payment; one in twenty is of no use."""
    merchant = chosen.choice(MERCHANTS) if chosen.random() > 0.05 else "?!"
    at = START + timedelta(milliseconds=5 * number)
    cents = chosen.randrange(1, 10_000) if chosen.random() > 0.02 else -1
    return {"id": number, "merchant": merchant, "cents": cents, "time": at.isoformat()}


def write_file(folder: Path, number: int, chosen: random.Random) -> None:
    """A file appears whole."""
    rows = (payment(number * FILE_ROWS + i, chosen) for i in range(FILE_ROWS))
    hidden = folder / f".{number:05d}"
    hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
    hidden.rename(folder / f"{number:05d}.json")


def judge(folder: Path, journal: Path, console: Console) -> bool:
    """What was written, beside a computation in which nothing failed."""
    spark = get_or_create("local[2]", "verdict", config={"spark.ui.enabled": "false"})
    raw = spark.read.schema(pipeline.RAW).json(str(folder / "in"))
    clean = spark.sql(pipeline.CLEAN, payments=raw).cache()
    totals = spark.read.parquet(str(folder / "totals")).cache()
    lines = [row.merchant for row in clean.select("merchant").collect()]
    counted = totals.selectExpr(
        "merchant as word", "nonce", "window_start", "window_end",
        "if(suspended, 0, payments) as kept", "payments as seen",
    )  # fmt: skip
    judged = verdict(spark, counted, lines, 1, journal)
    console.print(judged.table())
    sums = """select window_start, merchant, sum(payments), sum(cents) from {totals}
              group by window_start, merchant"""
    free = """select window.start, merchant, count(*), sum(cents) from {clean}
              group by window(time, '10 seconds'), merchant"""
    written, expected = spark.sql(sums, totals=totals), spark.sql(free, clean=clean)
    differ = written.exceptAll(expected).count() + expected.exceptAll(written).count()
    console.print(f"{expected.count()} windows of merchants, {differ} differ in payments or cents")
    spark.stop()
    return judged.ok and not differ


def main() -> int:
    """0 if every payment was judged once, by an answer that the service gave."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--files", type=int, default=80, help=f"files of {FILE_ROWS} payments")
    add("--every", type=float, default=0.4, help="seconds between two files")
    add("--kill", nargs="*", default=["worker", "executor", "driver", "worker"])
    add("--master", default="local-cluster[2,7,1024]", help="of the pipeline")
    add("--execution", choices=("tasks", "spark"), default="tasks", help="of the stretch")
    options = parser.parse_args()
    console, chosen = Console(), random.Random(7)
    folder = Path(tempfile.mkdtemp(prefix="clonos-payments-"))
    (folder / "in").mkdir()
    journal = folder / "journal"
    turns = {options.files * (i + 1) // (len(options.kill) + 1): k
             for i, k in enumerate(options.kill)}  # fmt: skip
    with ServerProcess("examples.demo.service", ["--journal", str(journal)]) as service:
        running = Pipeline(folder, service.url, options.master, options.execution)
        try:
            running.wait_for(lambda said: said["quiet"])
            for number in range(options.files):
                write_file(folder / "in", number, chosen)
                if number in turns:
                    running.kill(turns[number])
                time.sleep(options.every)
            (folder / "closed").touch()
            while running.look() is None:
                time.sleep(0.1)
        finally:
            running.process.kill()
    ok = judge(folder, journal, console)
    console.print("nothing lost, nothing twice, nothing changed" if ok else f"FAULTS: see {folder}")
    if ok:
        shutil.rmtree(folder)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
