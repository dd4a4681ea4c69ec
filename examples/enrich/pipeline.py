"""Redis -> a paid service -> PostgreSQL: this is all that one writes.

``__main__.py`` starts this file, kills what it is made of, starts it again, and judges the result.
The folder that it is given has the job's checkpoints; an empty file ``closed`` in it says that no
more orders come.
"""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any, Final

import clonos
from clonos.spark.session import get_or_create

STREAM: Final = "orders"
TABLE: Final = "enriched"
ROWS: Final = "id long, text string"
ENRICHED: Final = "id long, text string, receipt string, cents double"
TASKS: Final = 2
IN_FLIGHT: Final = 10
"""Calls that a task has open at most."""


class Client:
    """Of the service, which charges for every answer, and never answers twice the same."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __call__(self, row: Any) -> tuple[int, str, str, float]:
        headers = {"Asker": str(os.getpid())}  # for the verdict, not for the service
        body = json.dumps({"id": row.id, "text": row.text}).encode()
        request = urllib.request.Request(self.url, body, headers)  # noqa: S310 - ours
        with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310 - ours
            answer = json.load(response)
        return row.id, row.text, answer["receipt"], answer["cents"]


def cost(enriched: tuple[int, str, str, float]) -> float:
    """What an answer has cost."""
    return enriched[3]


def build(folder: Path, redis_url: str, url: str, dsn: str) -> clonos.Job:
    """Orders, with a receipt each."""
    job = clonos.Job(
        "enrich", parallelism=TASKS, checkpoint_interval="500 ms", checkpoint_dir=f"{folder}/job"
    )
    orders = job.source(clonos.sources.redis(redis_url, STREAM, schema=ROWS), name="orders")
    enriched = orders.key_by("id").map_async(
        Client(url), ENRICHED, name="ask", cost=cost, in_flight=IN_FLIGHT, attempts=8
    )
    enriched.sink(clonos.sinks.postgres(dsn, TABLE), name="enriched")
    return job


def main(folder: Path, redis_url: str, url: str, dsn: str, master: str) -> None:
    """Start or go on, until no more orders come and all of them are in the table."""
    spark = get_or_create(master, "enrich", config={"spark.ui.enabled": "false"})
    running = build(folder, redis_url, url, dsn).start(spark)
    while running.is_running and not (folder / "closed").exists():
        slots = [[name, s.pid, s.executor_pid] for s in running.slots() for name in s.runs]
        kept = {name for slot in running.slots() for name in slot.keeps}
        is_quiet = all(task.phase == "live" and task.name in kept for task in running.tasks())
        print(json.dumps({"slots": slots, "quiet": is_quiet}), flush=True)
        time.sleep(0.1)
    if running.is_running:
        running.stop(settle="60 seconds")
    spent = running.wait().bill["ask"]  # raises what has ended the job
    print(json.dumps({"calls": spent.calls, "cents": spent.cost}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
