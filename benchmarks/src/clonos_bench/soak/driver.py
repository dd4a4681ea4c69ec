"""The driver's process of a soak: starts the job or goes on with it, with faults all the while."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import clonos
from clonos.cluster.driver import RunningJob
from clonos.errors import OtherJob
from clonos.spark.session import get_or_create
from clonos_bench.processes import resident_bytes
from clonos_bench.soak.faults import Faults
from clonos_bench.soak.job import build
from clonos_bench.soak.verdict import answered, judge

LOOK_S: Final = 0.05
MEMORY_S: Final = 1.0
"""How often it is looked what the processes keep in memory."""
QUIET_S: Final = 10.0
"""No fault so long before the last row is due: the end is to be measured, too."""
FIRST_S: Final = 60.0
"""Something has to be delivered so soon, or there is nothing to be seen."""
END_S: Final = 120.0
"""The job has to end so soon after the last row is due."""
CONFIG: Final = {
    "spark.ui.enabled": "false",
    "spark.deploy.maxExecutorRetries": "-1",
}
"""Else a master ends an application whose executors fail too often in a row."""


class Diary:
    """What happens, a line of JSON each; a later driver goes on with the same file."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)

    def write(self, what: str, **values: Any) -> None:
        self._file.write(json.dumps({"what": what, "at_s": time.time(), **values}) + "\n")


def soak(settings: dict[str, Any], folder: Path, url: str, diary: Diary) -> None:
    """Run the job to its end, and judge it."""
    rows = int(settings["rate"] * 60 * settings["minutes"])
    spark = get_or_create(settings["master"], "soak", config=CONFIG)
    diary.write("spark")
    job = _start(
        spark,
        lambda parallelism: build(
            folder,
            url,
            rate=settings["rate"],
            rows=rows,
            parallelism=parallelism,
            standbys=settings["standbys"],
            sources=settings["parallelism"],
        ),
        [*_parallelisms(folder), settings["parallelism"]],
    )
    _watch(job, settings, folder, diary)
    result = job.wait(END_S)
    verdict = judge(
        spark.read.format("clonos").load(str(folder / "answers")),
        spark.read.parquet(str(folder / "dear")),
        result.dataframe("bills"),
        answered(spark, folder / "service.jsonl"),
        rows,
    )
    diary.write("verdict", **asdict(verdict), rows=rows)


def _parallelisms(folder: Path) -> list[int]:
    """What the job that was here may have been rescaled to: while it is, there are two graphs."""
    try:
        about = json.loads((folder / "checkpoint" / "job.json").read_text())
    except FileNotFoundError:
        return []
    graphs = [about[which]["tasks"] for which in ("graph", "next") if which in about]
    return [sum(name.startswith("count[") for name in tasks) for tasks in graphs]


def _start(
    spark: Any, make: Callable[[int], clonos.Job], parallelisms: Sequence[int]
) -> RunningJob:
    """Start the job with the first parallelism that its checkpoint goes on with."""
    *first, last = parallelisms
    job: RunningJob
    for parallelism in first:
        with suppress(OtherJob):
            job = make(parallelism).start(spark)
            return job
    job = make(last).start(spark)
    return job


def _watch(job: RunningJob, settings: dict[str, Any], folder: Path, diary: Diary) -> None:
    begin, last_s = folder / "begin", 60 * settings["minutes"]
    has_begun, started_s, weighed_s = False, time.time(), 0.0
    faults = Faults(
        job,
        settings["seed"] + job.term,
        settings["mean_s"],
        settings["kinds"],
        lambda kind, target, pids: diary.write("fault", kind=kind, target=target, pids=pids),
    )
    try:
        while job.is_running:
            tasks = job.tasks()
            live = sum(task.phase in {"live", "finished"} for task in tasks)
            if live == len(tasks) and not begin.exists():
                begin.write_text(repr(time.time()))
                diary.write("begin")
            diary.write("sample", live=live, tasks=len(tasks), bills=job.delivered["bills"])
            if time.time() >= weighed_s + MEMORY_S:
                weighed_s = time.time()
                diary.write("memory", **memory(job))
            if begin.exists():
                ends_s = float(begin.read_text()) + last_s
                if time.time() < ends_s - QUIET_S:
                    faults.look(time.time())
                else:
                    faults.end()
                has_begun = has_begun or job.delivered["bills"] > 0
                if not has_begun and time.time() > max(ends_s - last_s, started_s) + FIRST_S:
                    raise TimeoutError(f"nothing was delivered in the first {FIRST_S:g} s")
                if time.time() > ends_s + END_S:
                    raise TimeoutError(f"{END_S:g} s after the last row the job has not ended")
            time.sleep(LOOK_S)
    finally:
        faults.end()


def memory(job: RunningJob) -> dict[str, int]:
    """What the driver keeps in memory, and the largest process of all that run or copy tasks."""
    slots = [resident_bytes(slot.pid) for slot in job.slots()]
    return {"driver": resident_bytes(os.getpid()), "slot": max(slots, default=0)}


def main(settings: str, folder: str, url: str) -> None:
    """See the module; raises unless the job has ended and was judged."""
    diary = Diary(Path(folder) / "diary.jsonl")
    try:
        soak(json.loads(settings), Path(folder), url, diary)
    except Exception as error:
        diary.write("failed", error=f"{type(error).__name__}: {error}")
        raise


if __name__ == "__main__":
    main(*sys.argv[1:])
